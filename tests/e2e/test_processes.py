"""API and workers as processes of their own, and several API processes on one socket."""

import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import psutil
import pytest

from tests.e2e.client import ENDLESS, Api, text_of
from tests.e2e.judge import Judge
from tests.e2e.serving import ONLY_WHEN_WOKEN, START_SECONDS, Fleet, Server, eventually, get
from tests.fakes.running import FakeVllm
from tests.telemetry.numbers import number

SLOW = {"load": {"tokens": 900}, "pace_ms": 5}
HELLO = "<|channel|>final<|message|>Hello.<|return|>"


@pytest.fixture
def fleet(postgres_url: str, tmp_path: Path, running_fake: FakeVllm) -> Iterator[Fleet]:
    """Processes of the test's own. Only who is to inherit has a short lease: who is slow must not be held dead."""
    settings = {"engine": "vllm", "engine_url": running_fake.url, "model": "gpt-oss", "lease_seconds": 60}
    with Fleet(tmp_path / "fleet", postgres_url, **settings) as fleet:
        yield fleet


def children(server: Server) -> list[psutil.Process]:
    return psutil.Process(server.process.pid).children()


def test_a_server_without_worker_leaves_background_responses_to_workers(
    fleet: Fleet, judge: Judge, fake: FakeVllm
) -> None:
    fake.script({"text": HELLO})
    api = Api(fleet.start(worker=False).url, judge)
    waiting = api.create(background=True)
    assert text_of(api.create()) == "Hello."
    assert api.retrieve(waiting["id"])["status"] == "queued"

    worker = fleet.start(command="worker")

    assert text_of(api.ended(waiting["id"])) == "Hello."
    assert get(f"{worker.url}/livez").status_code == 200
    assert "verbatim_runs" in get(f"{worker.url}/metrics").text
    assert get(f"{worker.url}/v1/models").status_code == 404


def test_what_only_needs_its_end_gets_it_without_a_worker(fleet: Fleet, judge: Judge, fake: FakeVllm) -> None:
    fake.script(ENDLESS)
    dying = fleet.start(worker=False)
    with Api(dying.url, judge).stream() as stream:
        stream.until("response.output_text.delta")
        dying.kill()
        stream.read_until_cut()
    api = Api(fleet.start(worker=False, lease_seconds=2).url, judge)
    cancelled, deleted, waiting = (api.create(background=True)["id"] for _ in range(3))

    assert api.cancel(cancelled).json()["status"] == "cancelled"
    assert api.delete(deleted).status_code == 200
    assert api.get(deleted).status_code == 404
    assert api.ended(stream.response_id)["status"] == "failed"
    assert api.retrieve(waiting)["status"] == "queued"


def test_a_run_goes_on_in_another_worker_and_is_cancelled_through_the_api(
    fleet: Fleet, judge: Judge, fake: FakeVllm
) -> None:
    fake.script(ENDLESS | {"match": "For ever."}, SLOW)
    api = Api(fleet.start(worker=False).url, judge)
    first = fleet.start(command="worker")
    with api.stream(background=True) as stream, api.stream(background=True, input="For ever.") as unwanted:
        stream.until("response.output_text.delta", times=3)
        unwanted.until("response.output_text.delta", times=3)
        second = fleet.launch(command="worker", lease_seconds=5)
        first.kill()
        second.await_health()
        assert stream.read()[-1]["type"] == "response.completed"
        assert api.cancel(unwanted.response_id).json()["status"] == "cancelled"
        unwanted.read()
    assert eventually(lambda: fake.active() == 0)


def test_several_processes_serve_one_port_and_one_that_dies_is_started_again(
    fleet: Fleet, judge: Judge, fake: FakeVllm
) -> None:
    fake.script({"text": HELLO})
    server = fleet.start(processes=2)
    api = Api(server.url, judge)
    created = [api.create(background=True) for _ in range(6)]
    assert {text_of(api.ended(one["id"])) for one in created} == {"Hello."}
    before = eventually(lambda: found if len(found := children(server)) == 2 else None, what="two processes")

    before[0].kill()

    eventually(lambda: len({one.pid for one in children(server)} - {before[0].pid}) == 2, what="a new process")
    assert text_of(api.create()) == "Hello."
    assert server.stop() == 0


def test_the_numbers_of_several_processes_are_told_as_one(fleet: Fleet, judge: Judge, fake: FakeVllm) -> None:
    fake.script(ENDLESS | {"match": "For ever."}, {"text": HELLO, "repeat": 20})
    server = fleet.start(processes=2)
    api = Api(server.url, judge)
    for _ in range(12):
        assert text_of(api.create()) == "Hello."

    def told(name: str, **labels: str) -> set[float]:
        """What the processes answer that happen to take some connections."""
        return {number(get(f"{server.url}/metrics").text, name, **labels) for _ in range(8)}

    def tells(value: float, *names: str) -> bool:
        try:
            return all(told(name) == {value} for name in names)
        except httpx.TransportError:
            return False  # of a process that has just been killed

    def served() -> bool:
        posts = told("verbatim_requests_total", method="POST", route="/v1/responses", status="200")
        return told("verbatim_runs_total", outcome="completed") == posts == {12}

    eventually(served, what="twelve runs and requests, whoever is asked")
    eventually(lambda: tells(0, "verbatim_running", "verbatim_readers", "verbatim_queued"), what="rest")

    before = eventually(lambda: found if len(found := children(server)) == 2 else None, what="two processes")
    with api.stream(input="For ever.") as stream:
        stream.until("response.output_text.delta")
        eventually(lambda: tells(1, "verbatim_running", "verbatim_readers"), what="one run and one reader")
        for child in before:
            child.kill()
        stream.read_until_cut()
    eventually(lambda: not {one.pid for one in children(server)} & {one.pid for one in before}, what="new processes")

    gone = partial(tells, 0, "verbatim_running", "verbatim_readers")
    eventually(gone, within=START_SECONDS, what="what the dead did being over")
    assert told("verbatim_runs_total", outcome="completed") == {12}
    assert server.stop() == 0


def test_processes_without_their_parent_end(fleet: Fleet, judge: Judge, fake: FakeVllm) -> None:
    server = fleet.start(processes=2)
    orphans = eventually(lambda: found if len(found := children(server)) == 2 else None, what="two processes")
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()
    _, alive = psutil.wait_procs(orphans, timeout=START_SECONDS)
    assert alive == []


def test_readers_elsewhere_see_the_end_of_a_response_that_is_deleted(
    fleet: Fleet, judge: Judge, fake: FakeVllm
) -> None:
    fake.script(ENDLESS | {"repeat": 9})
    reading = fleet.launch(max_concurrent_runs=1, program=(sys.executable, "-c", ONLY_WHEN_WOKEN))
    other = fleet.launch(max_concurrent_runs=1)  # it ends what it deletes: the reader hears of it from the database
    here, there = Api(reading.await_health().url, judge), Api(other.await_health().url, judge)
    seen = cut = 0
    with here.stream() as busy, there.stream() as also_busy:
        busy.until("response.output_text.delta")
        also_busy.until("response.output_text.delta")
        while seen < 3:
            with here.stream(background=True) as waiting:
                waiting.until("response.queued")
                assert there.delete(waiting.response_id).status_code == 200
                try:
                    assert waiting.read()[-1]["response"]["status"] == "cancelled"
                    seen += 1
                except httpx.TransportError:  # who is held up for a second finds nothing any more
                    cut += 1
            assert cut < 5, "readers elsewhere are given no time"
