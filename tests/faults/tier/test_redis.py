"""Redis that dies, comes back empty, stands still or is trimmed: readers elsewhere get everything once, in order."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.client import text_of
from tests.e2e.serving import Fleet
from tests.faults.tier.conftest import PATIENT
from tests.faults.tier.readers import reading, start, told_more
from tests.faults.tier.turn import said_script
from tests.oracle import assert_keeps_invariants
from tests.servers import Valkey

STREAMS: Final = 10
SAID: Final = " ".join(f"word {n}," for n in range(200))
HELD: Final = 700
"""Tokens of 804: no stream ends before the fault is over."""
AWAY_SECONDS: Final = 1.0
TRIMS: Final = 50
TRIMMED: Final = (("MAXLEN", "0"), ("MINID", "1000000000"))
"""Two ways to forget all rows."""


@pytest.fixture
def script(tmp_path: Path, gate: Path) -> Path:
    return said_script(tmp_path / "script.json", SAID, pace_ms=8, gate=gate, after=HELD)


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    """A Redis of the test's own."""
    with Valkey() as server:
        yield server


@pytest.fixture
def settings(script: Path, valkey: Valkey) -> dict[str, Any]:
    said = {"engine": "scripted", "script": script, "model": "gpt-oss"}
    return said | {"lease_seconds": 10, "redis_url": valkey.url} | PATIENT


async def dies_for_good(valkey: Valkey) -> None:
    valkey.stop()


async def comes_back_empty(valkey: Valkey) -> None:
    valkey.stop()
    await asyncio.sleep(AWAY_SECONDS)
    await asyncio.to_thread(valkey.start)


async def stands_still(valkey: Valkey) -> None:
    valkey.signal(signal.SIGSTOP)
    await asyncio.sleep(AWAY_SECONDS)
    valkey.signal(signal.SIGCONT)


async def forgets(valkey: Valkey) -> None:
    for _ in range(20):
        valkey.command("FLUSHALL")
        await asyncio.sleep(AWAY_SECONDS / 20)


async def is_trimmed(valkey: Valkey) -> None:
    rows = 0
    for turn in range(TRIMS):
        for journal in valkey.command("KEYS", "verbatim:journal:*").decode().split("\r\n")[2::2]:
            rows += int(valkey.command("XTRIM", journal, *TRIMMED[turn % len(TRIMMED)])[1:])
        await asyncio.sleep(AWAY_SECONDS / TRIMS)
    assert rows > 0, "there was nothing to trim"


@pytest.mark.parametrize("fault", [dies_for_good, comes_back_empty, stands_still, forgets, is_trimmed])
async def test_readers_elsewhere_miss_nothing(
    fleet: Fleet, valkey: Valkey, gate: Path, fault: Callable[[Valkey], Any]
) -> None:
    front, other, _ = await start(fleet, {"worker": False}, {"worker": False}, {"command": "worker"})
    async with reading() as readers:
        here = [readers.create(front.url, "Go on.") for _ in range(STREAMS)]
        await told_more(here)
        there = [readers.follow(other.url, reader.response_id) for reader in here]
        await told_more(there)
        await fault(valkey)
        late = [readers.follow(other.url, reader.response_id, reader.position) for reader in here]
        begun = [reader.position for reader in here]
        gate.touch()

    for reader, again, rest, after in zip(here, there, late, begun, strict=True):
        assert text_of(reader.response) == SAID
        assert again.frames == reader.frames
        assert rest.frames == reader.frames[after + 1 :]
        assert_keeps_invariants(bytes(reader.body))
