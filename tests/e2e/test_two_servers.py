"""Two `verbatim serve` processes on one SQLite file: it does not matter which one a client talks to."""

from contextlib import suppress

import httpx
import pytest

from tests.e2e.client import ENDLESS, Api, text_of
from tests.e2e.judge import Judge, frames
from tests.e2e.serving import Fleet, Server, eventually
from tests.fakes.running import FakeVllm


@pytest.fixture(scope="module")
def servers(fleet: Fleet) -> tuple[Server, Server]:
    """Two servers, started at the same moment on a database that does not exist yet."""
    one, other = fleet.launch(), fleet.launch()
    return one.await_health(), other.await_health()


@pytest.fixture(params=(0, 1))
def pair(request: pytest.FixtureRequest, servers: tuple[Server, Server], judge: Judge, fake: FakeVllm) -> list[Api]:
    """A user of both, starting with either."""
    users = [Api(server.url, judge) for server in servers]
    return users[request.param :] + users[: request.param]


def test_a_stream_is_followed_on_the_other_server_from_anywhere(pair: list[Api], fake: FakeVllm) -> None:
    here, there = pair
    fake.script({"load": {"tokens": 80}, "pace_ms": 5})
    with here.stream(background=True) as stream:
        stream.until("response.output_text.delta", times=5)
        with there.follow(stream.response_id) as whole, there.follow(stream.response_id, 4) as part:
            stream.read()
            whole.read()
            part.read()

    assert whole.body == stream.body
    assert frames(part.body) == frames(stream.body)[5:]
    assert there.replay(stream.response_id) == stream.body


def test_a_queued_stream_is_followed_on_the_other_server(pair: list[Api], fake: FakeVllm) -> None:
    here, there = pair
    fake.script({"load": {"tokens": 30}, "pace_ms": 5, "first_token_delay_ms": 200})
    with here.stream(background=True) as stream:
        with there.follow(stream.response_id) as other:
            other.read()
        stream.read()

    assert other.body == stream.body


def test_a_response_is_retrieved_on_the_other_server_at_any_time(pair: list[Api], fake: FakeVllm) -> None:
    here, there = pair
    fake.script({"load": {"tokens": 80}, "fault": {"kind": "hold", "after": 40}})
    with here.stream() as stream:
        stream.until("response.output_text.delta")
        running = there.retrieve(stream.response_id)
        fake.release()
        final = stream.read()[-1]["response"]

    assert (running["status"], running["output"]) == ("in_progress", [])
    assert there.retrieve(final["id"]) == final == here.retrieve(final["id"])


def test_a_response_is_cancelled_from_the_other_server(pair: list[Api], fake: FakeVllm) -> None:
    here, there = pair
    fake.script(ENDLESS)
    with here.stream(background=True) as stream:
        stream.until("response.output_text.delta", times=3)
        cancelled = there.cancel(stream.response_id)
        eventually(lambda: fake.active() == 0, what="the end of the generation")
        events = stream.read()

    assert cancelled.status_code == 200
    assert cancelled.json() == events[-1]["response"] == here.retrieve(stream.response_id)
    assert cancelled.json()["status"] == "cancelled"


def test_a_response_is_deleted_from_the_other_server(pair: list[Api], fake: FakeVllm) -> None:
    here, there = pair
    fake.script(ENDLESS | {"repeat": 3})

    def is_seen() -> bool:
        """Its reader gets its end first; one who reads what the other server runs, and is held up, may be too late."""
        with here.stream(background=True) as stream, suppress(httpx.TransportError):
            stream.until("response.output_text.delta")
            assert there.delete(stream.response_id).status_code == 200
            assert here.get(stream.response_id).status_code == 404
            assert here.get(stream.response_id, stream="true").status_code == 404
            return bool(stream.read()[-1]["response"]["status"] == "cancelled")
        return False

    assert any(is_seen() for _ in range(3)), "readers elsewhere are given no time"


def test_a_chain_goes_back_and_forth(pair: list[Api], fake: FakeVllm) -> None:
    here, there = pair
    fake.script({"text": "<|channel|>final<|message|>Yes.<|return|>"})
    one = here.create(input="One.")
    two = there.create(input="Two.", previous_response_id=one["id"])

    three = here.create(input="Three.", previous_response_id=two["id"])

    assert all(text in fake.last()["prompt_text"] for text in ("One.", "Two.", "Three."))
    listed = there.input_items(three["id"], order="asc").json()["data"]
    assert [item["content"][0]["text"] for item in listed] == ["One.", "Yes.", "Two.", "Yes.", "Three."]


def test_what_is_queued_on_both_runs_once(pair: list[Api], fake: FakeVllm) -> None:
    fake.script({"load": {"tokens": 20}, "pace_ms": 2})
    born = [user.create(background=True, input=f"Number {n}.") for n in range(10) for user in pair]

    ended = [pair[n % 2].ended(response["id"]) for n, response in enumerate(born)]

    assert {response["status"] for response in ended} == {"completed"}
    assert len({text_of(response) for response in ended}) == 1
    assert len(fake.log()) == len(born)
