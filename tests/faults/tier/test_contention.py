"""Two who want the same thing at the same moment: one gets it."""

import asyncio
import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from tests.contracts.logs import Backend, Run
from tests.e2e.serving import Fleet
from tests.faults.tier.conftest import PATIENT
from tests.faults.tier.laws import assert_laws
from tests.faults.tier.readers import reading, start, until
from tests.oracle import assert_keeps_invariants

ROUNDS: Final = 200
ORPHANS: Final = 1000
ORPHANS_WITHIN: Final = 60.0
SEED: Final = 4
SOME: Final = 25
"""So many at a time."""
TERMINAL: Final = ("response.completed", "response.incomplete", "response.failed")
SAID: Final = "and on " * 30
SURE: Final = {0: "cancelled", 5: "completed"}
"""The outcome of two in ten is no race: one is held until it is cancelled, one has ended when it is."""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.json"
    free = {"text": f"<|channel|>final<|message|>{SAID}<|return|>", "pace_ms": 4}
    held = free | {"match": "be-held", "repeat": ROUNDS, "hold": {"until": str(tmp_path / "never"), "after": 20}}
    path.write_text(json.dumps([held, free]))
    return path


@pytest.fixture
def settings(script: Path) -> dict[str, Any]:
    """Nobody dies here: the lease is long."""
    return {"engine": "scripted", "script": script, "model": "gpt-oss", "lease_seconds": 10} | PATIENT


@pytest.fixture(params=("sqlite", "postgres"))
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_url"))


async def test_of_two_workers_one_gets_a_response(url: str) -> None:
    backend = Backend(url)
    front, one, other = [await backend.start(lease_seconds=30, wait_seconds=60) for _ in range(3)]
    winners = Counter[str]()
    for number in range(ROUNDS):
        run = await Run(front, f"resp_{number}").open(queued=True)
        first, second = (one, other) if number % 2 else (other, one)  # who asks first has better chances
        early, late = await asyncio.gather(first.claim(["model"], limit=1), second.claim(["model"], limit=1))
        assert [header.id for header in early + late] == [run.id]
        run.log = first if early else second
        winners["one" if run.log is one else "other"] += 1
        await run.append(status="in_progress")
        await run.end()
        assert list((await front.read(run.id, after=-1)).events) == run.events
    assert min(winners["one"], winners["other"]) > 0, "one of them never gets anything"
    await backend.stop()


async def test_a_thousand_orphans_are_claimed_soon(url: str) -> None:
    backend = Backend(url)
    dead, heir = [await backend.start(wait_seconds=60) for _ in range(2)]
    runs = [Run(dead, f"resp_{number:04}") for number in range(ORPHANS)]
    await asyncio.gather(*(run.open() for run in runs))
    for _ in range(3):
        await asyncio.gather(*(run.append(5, tokens=range(5)) for run in runs))
    began = time.monotonic()
    await until_buried(heir)
    claimed = await heir.claim(["model"], limit=ORPHANS)
    took = time.monotonic() - began
    assert {(one.id, one.version) for one in claimed} == {(run.id, 16) for run in runs}
    assert took < ORPHANS_WITHIN
    print(f"\n{ORPHANS} orphans taken over in {took:.2f} s, lease included")
    for run in runs:
        run.log = heir
    await asyncio.gather(*(run.end("failed") for run in runs))
    await backend.stop()


async def until_buried(log: Any) -> None:
    async with asyncio.timeout(ORPHANS_WITHIN):
        while not await log.bury():
            await asyncio.sleep(0.05)


async def test_a_cancel_that_races_with_the_end_has_one_outcome(fleet: Fleet, postgres_url: str) -> None:
    chance = random.Random(SEED)
    one, other = await start(fleet, {}, {})
    outcomes = Counter[str]()
    async with reading() as readers:

        async def race(number: int) -> None:
            here, there = (one.url, other.url) if number % 2 else (other.url, one.url)
            sure = SURE.get(number % 10)
            heard = {"cancelled": 1, "completed": len(SAID) + 1}.get(sure, chance.randrange(len(SAID) + 1))
            reader = readers.create(here, "Go on, to be-held." if sure == "cancelled" else "Go on.")
            await until(lambda: reader.ended or (reader.events and reader.told >= heard), what="its moment")
            answer = await readers.http.post(f"{there}/v1/responses/{reader.response_id}/cancel")
            assert answer.status_code == 200, answer.text
            await until(lambda: reader.ended, what="its end")
            assert [event["type"] in TERMINAL for event in reader.events] == [False] * (len(reader.events) - 1) + [True]
            told = await readers.retrieve(here, reader.response_id)
            assert answer.json() == reader.response == told
            assert told["status"] in ({sure} if sure else SURE.values())
            outcomes[told["status"]] += 1
            assert_keeps_invariants(bytes(reader.body))

        for first in range(0, ROUNDS, SOME):
            await asyncio.gather(*map(race, range(first, first + SOME)))

    assert outcomes.keys() == set(SURE.values())
    await asyncio.to_thread(assert_laws, postgres_url)
    print(f"\ncancelling: {dict(outcomes)}")
