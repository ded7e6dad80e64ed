"""A response that ends every process which takes it up."""

import asyncio
import json
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.client import text_of
from tests.e2e.serving import Fleet, Server
from tests.faults.tier.readers import Reader, reading, start, until
from tests.faults.tier.turn import seen
from tests.oracle import assert_keeps_invariants

CRASHED: Final = 70
ATTEMPTS: Final = 5
GIVEN_UP: Final = f"This response was given up: {ATTEMPTS} processes died on it without getting any further."
THOUGHT: Final = "<|channel|>analysis<|message|>I think it over.<|end|>"
THOUGHT_TOKENS: Final = 9
NEVER: Final = "<|channel|>final<|message|>Never said.<|return|>"


def poison(match: str, text: str, after: int) -> dict[str, Any]:
    return {"match": match, "text": text, "pace_ms": 5, "fault": {"kind": "crash", "after": after}}


@pytest.fixture
def script(tmp_path: Path, gate: Path) -> Path:
    path = tmp_path / "script.json"
    slow = {"match": "innocent", "text": f"<|channel|>final<|message|>{'and on ' * 400}<|return|>", "pace_ms": 5}
    later = poison("later", f"{THOUGHT}<|start|>assistant{NEVER}", THOUGHT_TOKENS + 2)
    later["hold"] = {"until": str(gate), "after": THOUGHT_TOKENS + 1}
    path.write_text(json.dumps([poison("at once", NEVER, 0), later, slow]))
    return path


@pytest.mark.parametrize(("say", "items"), [("Die at once.", 0), ("Die later.", 1)])
async def test_poison_is_given_up_after_some_lives(fleet: Fleet, gate: Path, say: str, items: int) -> None:
    front, worker = await start(fleet, {"worker": False}, {"command": "worker"})
    async with reading() as readers:
        innocent = readers.create(front.url, "An innocent one.")
        poisonous = readers.create(front.url, say)
        await until(lambda: seen(poisonous.events)[2] == items, what="what the first life gets out of it")
        gate.touch()
        deaths = await restarted(fleet, worker, poisonous)

    failed = poisonous.response
    assert [event["type"] for event in poisonous.events[-2:]] == ["error", "response.failed"]
    assert (failed["status"], failed["error"]["message"]) == ("failed", GIVEN_UP)
    fenced = sum(server.stderr.count("fenced") for server in fleet._servers)  # a life of one that was held up
    lives = ATTEMPTS + items  # one that gets further is none of those that are counted
    assert lives - fenced <= len(deaths) <= lives
    assert set(deaths) == {CRASHED}
    assert_keeps_invariants(bytes(poisonous.body))
    assert text_of(innocent.response) == "and on " * 400


async def restarted(fleet: Fleet, worker: Server, until_ended: Reader) -> list[int]:
    """Start the worker again whenever it dies, as a supervisor does; gives how it ended each time."""
    deaths: list[int] = []
    while not until_ended.ended:
        await asyncio.sleep(0.02)
        if (code := worker.process.poll()) is not None:
            deaths.append(code)
            worker = fleet.launch(command="worker")
    await asyncio.to_thread(worker.await_health)
    return deaths
