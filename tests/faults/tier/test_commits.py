"""Connections that are cut exactly at a commit: it happened or it did not, and nobody was told which."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.client import text_of
from tests.e2e.serving import Fleet, Server
from tests.faults.commit_cutter import CommitCutter, Cut
from tests.faults.tier.conftest import PATIENT
from tests.faults.tier.laws import assert_laws
from tests.faults.tier.readers import Reader, Readers, reading, start, until
from tests.faults.tier.turn import said_script
from tests.oracle import assert_keeps_invariants

STREAMS: Final = 8
FOREGROUND: Final = 4
EVERY: Final = 5
"""One commit in so many is cut."""
CUTS: Final = 30
FIRST_WORDS: Final = 4
SAID: Final = " ".join(f"word {n}," for n in range(150))


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return said_script(tmp_path / "script.json", SAID, pace_ms=6)


@pytest.fixture
def settings(script: Path) -> dict[str, Any]:
    """Nobody dies here: the lease is long."""
    return {"engine": "scripted", "script": script, "model": "gpt-oss", "lease_seconds": 10} | PATIENT


@pytest.fixture
def cutter(postgres_url: str) -> Iterator[CommitCutter]:
    with CommitCutter(postgres_url) as cutter:
        yield cutter
        assert_laws(postgres_url)


@pytest.fixture
def fleet(cutter: CommitCutter, tmp_path: Path, settings: dict[str, Any]) -> Iterator[Fleet]:
    with Fleet(tmp_path / "fleet", cutter.url, **settings) as fleet:
        yield fleet
        assert_laws(cutter.url)


async def wave(readers: Readers, front: Server, other: Server) -> list[Reader]:
    """Streams that are read where they were asked for and elsewhere, to their end."""
    here = [readers.create(front.url, "Go on.") for _ in range(STREAMS)]
    alone = [readers.create(front.url, "Go on.", background=False) for _ in range(FOREGROUND)]
    await until(lambda: all(reader.events for reader in here), what="the first event of all")
    there = [readers.follow(other.url, reader.response_id) for reader in here]
    await until(lambda: all(reader.position > FIRST_WORDS for reader in there), what="the first words elsewhere")
    begun = [reader.position for reader in here]
    late = [readers.follow(other.url, reader.response_id, after) for reader, after in zip(here, begun, strict=True)]
    await until(
        lambda: all(reader.ended or reader.cut for reader in here + alone + there + late), what="the end of all"
    )
    for reader, again, rest, after in zip(here, there, late, begun, strict=True):
        assert again.frames == reader.frames
        assert rest.frames == reader.frames[after + 1 :]
    return here + alone


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_commit_whose_connection_is_cut_happens_once(fleet: Fleet, cutter: CommitCutter, when: Cut) -> None:
    worker = {"command": "worker", "max_concurrent_runs": STREAMS}
    front, other, *_ = await start(fleet, {"worker": False}, {"worker": False}, worker, worker)
    streams: list[Reader] = []
    async with reading() as readers:
        cutter.cut(when, every=EVERY)
        while cutter.cuts < CUTS:
            streams += await wave(readers, front, other)
        cutter.cut(None)

    for reader in streams:
        assert reader.response["status"] == "completed"
        assert text_of(reader.response) == SAID
        assert_keeps_invariants(bytes(reader.body))
    assert [server.stderr.count("fenced") for server in fleet._servers] == [0, 0, 0, 0]
