"""SIGTERM: running responses may finish until the deadline, and then get their end; nothing new is taken."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.client import ENDLESS, Api, text_of
from tests.e2e.judge import Judge
from tests.e2e.serving import Fleet, eventually, get
from tests.fakes.running import FakeVllm


@pytest.fixture
def fleet(tmp_path: Path, sqlite_url: str, running_fake: FakeVllm) -> Iterator[Fleet]:
    """Servers of the test's own."""
    with Fleet(tmp_path / "fleet", sqlite_url, engine="vllm", engine_url=running_fake.url) as fleet:
        yield fleet


def is_draining(url: str) -> bool:
    """Whether the server still answers, and says that it wants no more."""
    return get(f"{url}/health").status_code == 503


def test_a_running_response_is_finished_and_nothing_new_is_taken(fleet: Fleet, judge: Judge, fake: FakeVllm) -> None:
    fake.script({"load": {"tokens": 200}, "fault": {"kind": "hold", "after": 100}})
    server = fleet.start(drain_seconds=30)
    api = Api(server.url, judge)
    with api.stream() as foreground, api.stream(background=True) as background:
        foreground.until("response.output_text.delta")
        background.until("response.output_text.delta")
        server.signal(signal.SIGTERM)
        eventually(lambda: is_draining(server.url), what="the drain")
        refused = [api.post(), api.post(stream=True), api.post(background=True)]
        assert api.retrieve(foreground.response_id)["status"] == "in_progress"
        fake.release()
        ends = [foreground.read()[-1], background.read()[-1]]

    assert [answer.status_code for answer in refused] == [503] * 3
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    assert [end["type"] for end in ends] == ["response.completed"] * 2
    assert server.wait() == 0


def test_at_the_deadline_foreground_fails_and_background_is_left_for_others(
    fleet: Fleet, judge: Judge, fake: FakeVllm
) -> None:
    short = {"load": {"tokens": 600}}
    held = short | {"pace_ms": 5, "repeat": 2, "fault": {"kind": "hold", "after": 300}}
    at_last = {"text": "<|channel|>final<|message|>At last.<|return|>", "match": "Wait."}
    fake.script(at_last, held, short)
    server = fleet.start(drain_seconds=0.2, max_concurrent_runs=2)
    api = Api(server.url, judge)
    with api.stream() as foreground, api.stream(background=True) as background:
        foreground.until("response.output_text.delta")
        background.until("response.output_text.delta")
        waiting = api.create(background=True, input="Wait.")
        server.signal(signal.SIGTERM)
        end = foreground.read()[-2:]
        shown = background.read_until_cut()

    assert server.wait() == 0
    assert [event["type"] for event in end] == ["error", "response.failed"]
    assert "shut down" in end[0]["error"]["message"]
    assert shown[-1]["type"] == "response.output_text.delta"
    assert eventually(lambda: fake.active() == 0)

    after = Api(fleet.start().url, judge)
    assert text_of(after.ended(waiting["id"])) == "At last."
    assert after.retrieve(foreground.response_id) == end[-1]["response"]
    continued = after.ended(background.response_id)
    assert continued["status"] == "completed"
    assert text_of(continued) == text_of(after.create())


def test_a_second_signal_is_the_deadline(fleet: Fleet, judge: Judge, fake: FakeVllm) -> None:
    fake.script(ENDLESS)
    server = fleet.start(drain_seconds=60)
    with Api(server.url, judge).stream() as stream:
        stream.until("response.output_text.delta")
        server.signal(signal.SIGINT)
        eventually(lambda: is_draining(server.url), what="the drain")
        assert '"another_signal": "ends the drain at once"' in server.stderr
        server.signal(signal.SIGINT)
        assert stream.read()[-1]["type"] == "response.failed"

    assert server.wait() == 0
    assert '"another_signal": "ends the process at once"' in server.stderr
    assert eventually(lambda: fake.active() == 0)


def test_a_reader_of_what_runs_elsewhere_is_cut_and_reads_on_elsewhere(
    fleet: Fleet, judge: Judge, fake: FakeVllm
) -> None:
    fake.script(ENDLESS)
    owner, other = fleet.launch(), fleet.launch(model="gpt-oss-elsewhere")
    here, there = Api(owner.await_health().url, judge), Api(other.await_health().url, judge)
    with here.stream(background=True) as stream, there.follow(stream.response_id) as reader:
        reader.until("response.output_text.delta", times=3)
        other.signal(signal.SIGTERM)
        events = reader.read_until_cut()
        assert other.wait() == 0
        assert "readers_cut" in other.stderr
        assert '"level": "error"' not in other.stderr
        with here.follow(stream.response_id, len(events) - 1) as rest:
            assert here.cancel(stream.response_id).status_code == 200
            assert rest.read()[-1]["response"]["status"] == "cancelled"
        stream.read()
