"""No space left under an SQLite log: nothing is shown that is not stored, nothing new is taken until there is room."""

import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.client import text_of
from tests.e2e.serving import Fleet, Server
from tests.faults.tier.laws import assert_laws
from tests.faults.tier.readers import Reader, reading, start, told_more, until
from tests.faults.tier.turn import said_script
from tests.oracle import assert_keeps_invariants

STREAMS: Final = 10
SAID: Final = "and on " * 500
WAIT_SECONDS: Final = 5.0
REFUSALS: Final = 3
"""So often in a row, a second apart, was a commit refused by a disk that is full for good."""
ROOM: Final = 16384
"""For what the server logs."""
SPACIOUS: Final = resource.RLIM_INFINITY


@pytest.fixture
def script(tmp_path: Path, gate: Path) -> Path:
    return said_script(tmp_path / "script.json", SAID, pace_ms=6, gate=gate)


@pytest.fixture
def fleet(sqlite_url: str, tmp_path: Path, settings: dict[str, Any]) -> Iterator[Fleet]:
    with Fleet(tmp_path / "fleet", sqlite_url, **settings) as fleet:
        yield fleet
        assert_laws(sqlite_url)


def limit(server: Server, size: int) -> None:
    """No file of this process may grow beyond that: what SQLite sees is a disk that is full."""
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size, SPACIOUS))


async def stalled(server: Server, streams: list[Reader]) -> None:
    """Wait until nothing comes any more: SQLite may find room for a while, in pages that it has."""
    heard, refused = list[int](), 0

    def look() -> bool:
        nonlocal heard, refused
        positions, refusals = [reader.position for reader in streams], server.stderr.count("sending it again")
        if positions != heard:
            heard, refused = positions, refusals
        return refusals >= refused + REFUSALS

    await until(look, what="standing still")


async def test_a_full_disk_is_waited_for(fleet: Fleet, gate: Path) -> None:
    (server,) = await start(fleet, {"database_wait_seconds": WAIT_SECONDS})
    async with reading() as readers:
        background = [readers.create(server.url, "Go on.") for _ in range(STREAMS)]
        foreground = [readers.create(server.url, "Go on.", background=False) for _ in range(STREAMS // 2)]
        streams = background + foreground
        await told_more(streams)

        limit(server, ROOM)
        gate.touch()
        await stalled(server, streams)
        at = [reader.position for reader in streams]
        asked = {"model": "gpt-oss", "input": "Go on."}
        for kind in (True, False):
            late = await readers.http.post(f"{server.url}/v1/responses", json=asked | {"background": kind})
            assert (late.status_code, late.headers["retry-after"]) == (503, "1")
        assert not any(reader.ended for reader in streams)
        assert at == [reader.position for reader in streams]
        assert (await readers.http.get(f"{server.url}/livez")).status_code == 200
        limit(server, SPACIOUS)

    for reader in streams:
        assert reader.response["status"] == "completed"
        assert text_of(reader.response) == SAID
        assert_keeps_invariants(bytes(reader.body))
