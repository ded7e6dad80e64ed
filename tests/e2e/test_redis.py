"""Processes of their own on PostgreSQL and Redis: they hear of each other at once, and Redis may die at any time."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.client import ENDLESS, Api, text_of
from tests.e2e.judge import Judge, frames
from tests.e2e.serving import ONLY_WHEN_WOKEN, Fleet, eventually
from tests.fakes.running import FakeVllm
from tests.servers import Valkey

HELLO = "<|channel|>final<|message|>Hello.<|return|>"
LONG = {"load": {"tokens": 5000}, "pace_ms": 10, "fault": {"kind": "hang", "after": 4990}}


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    """A Redis of the test's own."""
    with Valkey() as server:
        yield server


@pytest.fixture
def apis(
    postgres_url: str, tmp_path: Path, running_fake: FakeVllm, valkey: Valkey, judge: Judge
) -> Iterator[list[Api]]:
    """Users of two API processes that only read; all runs are a worker's."""
    settings = {"engine": "vllm", "engine_url": running_fake.url, "model": "gpt-oss", "redis_url": valkey.url}
    with Fleet(tmp_path / "fleet", postgres_url, **settings) as fleet:
        worker = fleet.launch(command="worker", program=(sys.executable, "-c", ONLY_WHEN_WOKEN))
        servers = [fleet.launch(worker=False), fleet.launch(worker=False), worker]
        yield [Api(server.await_health().url, judge) for server in servers][:2]


def test_streams_are_the_same_in_all_processes_while_redis_dies_and_comes_back(
    apis: list[Api], valkey: Valkey, fake: FakeVllm
) -> None:
    here, there = apis
    fake.script(LONG)
    with here.stream(background=True) as stream, there.follow(stream.response_id) as other:
        stream.until("response.output_text.delta", times=20)
        valkey.stop()
        stream.until("response.output_text.delta", times=len(stream.events) + 20)
        with there.follow(stream.response_id, 30) as part:
            valkey.start()
            other.until("response.output_text.delta", times=len(stream.events) + 20)
            assert here.cancel(stream.response_id).status_code == 200
            stream.read()
            other.read()
            part.read()

    assert stream.body == other.body == here.replay(stream.response_id)
    assert frames(part.body) == frames(stream.body)[31:]


def test_a_queued_response_is_claimed_and_a_running_one_cancelled_without_waiting(
    apis: list[Api], fake: FakeVllm
) -> None:
    here, there = apis
    fake.script(ENDLESS | {"match": "For ever."}, {"text": HELLO})
    queued: list[str] = []

    def is_run() -> bool:
        """As all that Redis is told, a wake-up may be lost; the next one is for all that waits."""
        queued.append(here.create(background=True)["id"])
        with suppress(AssertionError):
            return there.ended(queued[-1], within=10)["status"] == "completed"
        return False

    eventually(is_run, what="a run of what was queued")
    with here.stream(background=True, input="For ever.") as stream:
        eventually(is_run, what="a run of what was queued last")
        stream.until("response.output_text.delta", times=3)
        cancelled = there.cancel(stream.response_id)
        eventually(lambda: fake.active() == 0, what="the end of the generation")
        assert stream.read()[-1]["response"] == cancelled.json()

    assert cancelled.json()["status"] == "cancelled"
    assert {text_of(there.ended(one)) for one in queued} == {"Hello."}
