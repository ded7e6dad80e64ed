"""Workers that die again and again under load, at times that nobody chose."""

import asyncio
import json
import random
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.client import text_of
from tests.e2e.serving import Fleet, Server
from tests.faults.tier.readers import Reader, reading, start, told_more, until
from tests.oracle import assert_keeps_invariants

KILLS: Final = 20
STREAMS: Final = 20
WITHIN_SECONDS: Final = 400.0
SEED: Final = 20
WORDS: Final = 600
"""At 50 tokens a second a stream outlives some kills."""


def said(number: int) -> str:
    return f"Stream {number:02}: " + " ".join(f"word {number} {n}." for n in range(WORDS // 6))


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.json"
    outputs = [
        {"match": f"stream-{n:02}", "text": f"<|channel|>final<|message|>{said(n)}<|return|>", "pace_ms": 20}
        for n in range(STREAMS)
    ]
    path.write_text(json.dumps(outputs))
    return path


async def test_no_stream_is_lost_or_told_twice_when_workers_die_at_random(fleet: Fleet) -> None:
    chance = random.Random(SEED)
    settings = {"command": "worker", "max_concurrent_runs": STREAMS}
    front, *workers = await start(fleet, {"worker": False}, settings, settings, settings)
    coming, kills = iter(range(KILLS)), 0
    streams: list[tuple[int, Reader]] = []
    async with reading(within=WITHIN_SECONDS) as readers:

        async def listening(number: int) -> None:
            """One stream after the other, for as long as somebody is killed."""
            again = True
            while again:
                reader = readers.create(front.url, f"stream-{number:02}")
                streams.append((number, reader))
                await until(lambda: reader.ended or reader.cut, within=WITHIN_SECONDS, what="its end")  # noqa: B023
                again = kills < KILLS

        async def killing(worker: Server) -> None:
            nonlocal kills
            at: dict[Reader, int] = {}
            for _ in coming:
                # A stream outlives one kill by each without a new word, not five: it would be given up as poison.
                await until(lambda: all(reader.ended or reader.position > n for reader, n in at.items()))  # noqa: B023
                await asyncio.sleep(chance.uniform(0.2, 2.0))  # the random time is the test
                worker.kill()
                kills += 1
                (worker,) = await start(fleet, settings)
                at = {reader: reader.position for reader in readers.all if not reader.ended}

        listeners = [asyncio.ensure_future(listening(n)) for n in range(STREAMS)]
        await until(lambda: len(readers.all) == STREAMS)
        await told_more(readers.all)
        await asyncio.gather(*map(killing, workers), *listeners)

    for number, reader in streams:
        assert text_of(reader.response) == said(number)
        assert reader.response["status"] == "completed"
        assert_keeps_invariants(bytes(reader.body))
