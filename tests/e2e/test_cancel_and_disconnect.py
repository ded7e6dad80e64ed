"""Clients that cancel, and clients that go: the engine stops in mid-turn, and the stream still gets its end."""

import socket
import sqlite3
from contextlib import ExitStack, closing

import httpx
import orjson
import pytest

from tests.e2e.client import CHAT, ENDLESS, HARMONY, Api, text_of
from tests.e2e.judge import Judge
from tests.e2e.serving import Fleet, Server, eventually
from tests.fakes.running import FakeVllm

HELD = {"load": {"tokens": 20}, "fault": {"kind": "hold", "after": 10}}


@pytest.fixture(params=(HARMONY, CHAT))
def api(request: pytest.FixtureRequest, server: Server, judge: Judge, fake: FakeVllm) -> Api:
    """A user of each kind of model."""
    fake.script(ENDLESS)
    return Api(server.url, judge, model=request.param)


def assert_engine_stops(fake: FakeVllm) -> None:
    eventually(lambda: fake.active() == 0, what="the end of the generation")
    assert fake.last()["state"] == "aborted"


def newest_id(fleet: Fleet) -> str:
    """The response that was opened last."""
    with closing(sqlite3.connect(fleet.database_url.removeprefix("sqlite:///"))) as database:
        [[response_id]] = database.execute("SELECT id FROM responses ORDER BY rowid DESC LIMIT 1").fetchall()
    return str(response_id)


def assert_cancelled(response: dict[str, object]) -> None:
    assert (response["status"], response["error"], response["completed_at"]) == ("cancelled", None, None)


def test_a_foreground_stream_whose_client_goes_is_cancelled(api: Api, fake: FakeVllm) -> None:
    with api.stream() as stream:
        stream.until("response.output_text.delta", times=3)
        response_id = stream.response_id

    assert_engine_stops(fake)
    ended = api.ended(response_id)
    assert_cancelled(ended)
    seen = "".join(event["delta"] for event in stream.events if event["type"] == "response.output_text.delta")
    assert text_of(ended).startswith(seen)
    assert [item["status"] for item in ended["output"]] == ["incomplete"]


def test_a_foreground_response_whose_client_goes_is_cancelled(api: Api, fake: FakeVllm, fleet: Fleet) -> None:
    url = httpx.URL(api.url)
    body = orjson.dumps({"model": CHAT, "input": "Talk."})
    head = f"POST /v1/responses HTTP/1.1\r\nhost: {url.host}\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection((url.host, url.port)) as client:
        client.sendall(head.encode() + body)
        eventually(lambda: fake.active() == 1 and fake.last()["produced"] > 3, what="the generation")

    assert_engine_stops(fake)
    assert_cancelled(api.ended(newest_id(fleet)))


def test_an_unstored_stream_whose_client_goes_leaves_nothing(api: Api, fake: FakeVllm) -> None:
    with api.stream(store=False) as stream:
        stream.until("response.output_text.delta")
        response_id = stream.response_id

    assert_engine_stops(fake)
    assert api.get(response_id).status_code == 404


def test_a_crowd_that_goes_leaves_no_generation_behind(api: Api, fake: FakeVllm) -> None:
    fake.script(HELD)
    with ExitStack() as crowd:
        streams = [crowd.enter_context(api.stream()) for _ in range(20)]
        ids = [stream.response_id for stream in streams]
        eventually(lambda: fake.active() == 20, what="20 generations")

    assert_engine_stops(fake)
    for response_id in ids:
        assert_cancelled(api.ended(response_id))


def test_cancel_stops_the_engine_and_gives_what_was_said(api: Api, fake: FakeVllm) -> None:
    with api.stream(background=True) as stream:
        stream.until("response.output_text.delta", times=3)
        answer = api.cancel(stream.response_id)
        assert_engine_stops(fake)
        events = stream.read()

    assert answer.status_code == 200
    assert_cancelled(answer.json())
    assert answer.json() == events[-1]["response"]
    assert events[-1]["type"] == "response.incomplete"
    assert "error" not in {event["type"] for event in events}
    assert text_of(answer.json()) != ""


def test_cancelling_again_gives_the_same(api: Api) -> None:
    born = api.create(background=True)

    answers = [api.cancel(born["id"]) for _ in range(3)]

    assert [answer.status_code for answer in answers] == [200] * 3
    assert answers[0].json() == answers[1].json() == answers[2].json() == api.retrieve(born["id"])


def test_cancelling_a_completed_response_gives_it(api: Api, fake: FakeVllm) -> None:
    fake.script()
    done = api.ended(api.create(background=True)["id"])

    answer = api.cancel(done["id"])

    assert (answer.status_code, answer.json()) == (200, done)
    assert done["status"] == "completed"


def test_a_foreground_response_cannot_be_cancelled(api: Api, fake: FakeVllm) -> None:
    with api.stream() as stream:
        running = api.cancel(stream.response_id)
    fake.script()
    done = api.cancel(api.create()["id"])

    for answer in (running, done):
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == "Cannot cancel a synchronous response."


def test_an_unknown_response_cannot_be_cancelled(api: Api) -> None:
    assert api.cancel("resp_00000000000000000000000000000000").status_code == 404


def test_a_response_is_cancelled_while_the_engine_says_nothing(api: Api, fake: FakeVllm) -> None:
    fake.script({"load": {"tokens": 10}, "fault": {"kind": "hang", "after": 0}})
    born = api.create(background=True)
    eventually(lambda: fake.active() == 1, what="the generation")

    assert_cancelled(api.cancel(born["id"]).json())
    assert_engine_stops(fake)
