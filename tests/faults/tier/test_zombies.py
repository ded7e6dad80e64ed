"""A process that stands still for longer than its lease, and then goes on as if nothing had happened."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any, Final

import pytest

from tests.contracts.logs import Backend
from tests.e2e.client import text_of
from tests.e2e.serving import Fleet
from tests.faults.tier.readers import Readers, reading, start, told_more, until, until_answered
from tests.oracle import assert_keeps_invariants

SAID: Final = "and on " * 900
STREAMS: Final = 8
LONG_LEASE_SECONDS: Final = 4
"""For a stream that can't go on elsewhere: its process must not be held dead before it stands still."""
DIED: Final = "The process that ran this response died before the response was complete."


@pytest.fixture
def script(tmp_path: Path, gate: Path) -> Path:
    path = tmp_path / "script.json"
    text = f"<|channel|>final<|message|>{SAID}<|return|>"
    hold = {"until": str(gate), "after": 100}
    slow = {"match": "slowly", "text": text, "pace_ms": 5, "repeat": 1000, "hold": hold}
    path.write_text(json.dumps([slow, {"text": "<|channel|>final<|message|>Here I am.<|return|>"}]))
    return path


async def test_what_a_worker_says_after_its_lease_is_seen_by_nobody(fleet: Fleet, gate: Path) -> None:
    front, other, zombie = await start(fleet, {"worker": False}, {"worker": False}, {"command": "worker"})
    async with reading() as readers:
        streams = [readers.create(front.url, "Speak slowly.") for _ in range(STREAMS)]
        await told_more(streams)
        elsewhere = [readers.follow(other.url, reader.response_id) for reader in streams]
        stopped = await owners(fleet)
        (heir,) = await start(fleet, {"command": "worker"})

        gate.touch()
        await told_more(streams)
        zombie.signal(signal.SIGSTOP)

        async def taken_over() -> bool:
            return not stopped & await owners(fleet)

        await until_answered(taken_over, what="taking over")
        at = [reader.told for reader in streams]
        await until(
            lambda: all(reader.ended or reader.told > n for reader, n in zip(streams, at, strict=True)),
            what="going on elsewhere",
        )
        zombie.signal(signal.SIGCONT)
        await until(lambda: "fenced" in zombie.stderr, what="hearing of the fence")

    for reader, again in zip(streams, elsewhere, strict=True):
        assert text_of(reader.response) == SAID
        assert again.frames == reader.frames
        assert_keeps_invariants(bytes(reader.body))

    heir.kill()
    async with reading() as readers:
        anew = readers.create(front.url, "Where are you?")
    assert text_of(anew.response) == "Here I am."


async def test_a_foreground_stream_of_a_stopped_process_fails_once_and_the_process_serves_again(
    fleet: Fleet, gate: Path
) -> None:
    zombie, heir = await start(fleet, *[{"lease_seconds": LONG_LEASE_SECONDS}] * 2)
    async with reading() as readers:
        stream = readers.create(zombie.url, "Speak slowly.", background=False)
        await told_more([stream])
        gate.touch()
        zombie.signal(signal.SIGSTOP)
        ended = await until_ended(readers, heir.url, stream.response_id)
        zombie.signal(signal.SIGCONT)

    assert (ended["status"], ended["error"]["message"]) == ("failed", DIED)
    assert stream.response == ended
    assert_keeps_invariants(bytes(stream.body))

    heir.kill()
    await asyncio.to_thread(zombie.await_health)  # it may still be registering anew
    async with reading() as readers:
        kinds = [readers.create(zombie.url, "Where are you?", background=kind) for kind in (True, False)]
    assert [text_of(reader.response) for reader in kinds] == ["Here I am."] * 2


async def until_ended(readers: Readers, url: str, response_id: str) -> dict[str, Any]:
    """The response at its end, as another process tells it."""

    async def look() -> dict[str, Any] | None:
        found = await readers.retrieve(url, response_id)
        return found if found["status"] not in ("queued", "in_progress") else None

    ended = await until_answered(look, what="its end")
    assert ended is not None
    return ended


async def owners(fleet: Fleet) -> set[int]:
    """The writers that own something open."""
    rows = await Backend(fleet.database_url).query("SELECT DISTINCT owner FROM responses WHERE ended_at IS NULL")
    return {row.owner for row in rows}
