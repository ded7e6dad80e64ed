"""All eight combinations of store, background and stream, on both kinds of model."""

import sqlite3
from contextlib import closing

import pytest

from app.log.packing import Packing
from tests.e2e.client import CHAT, HARMONY, Api, text_of
from tests.e2e.judge import Judge
from tests.e2e.serving import Fleet, Server
from tests.fakes.running import FakeVllm

NOT_REPLAYABLE = "This response cannot be streamed because it was not created with background=true and stream=true."


@pytest.fixture(params=(HARMONY, CHAT))
def api(request: pytest.FixtureRequest, server: Server, judge: Judge, fake: FakeVllm) -> Api:
    """A user of each kind of model."""
    return Api(server.url, judge, model=request.param)


def assert_not_replayable(api: Api, response_id: str) -> None:
    answer = api.get(response_id, stream="true")
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["message"], error["param"]) == (NOT_REPLAYABLE, "stream")


def is_written(fleet: Fleet, response_id: str) -> bool:
    """Whether any table tells of the response."""
    with closing(sqlite3.connect(fleet.database_url.removeprefix("sqlite:///"))) as database:
        rows = database.execute("SELECT id FROM responses UNION SELECT response FROM segments").fetchall()
        batches = database.execute("SELECT batch FROM journal").fetchall()
    entries = [entry.response for (batch,) in batches for entry in Packing().entries(batch)]
    return response_id in {row[0] for row in rows} | set(entries)


def test_a_stored_response_is_answered_whole_and_can_be_retrieved(api: Api) -> None:
    answered = api.create()

    assert answered["status"] == "completed"
    assert text_of(answered) == "Hello there."
    assert api.retrieve(answered["id"]) == answered
    assert_not_replayable(api, answered["id"])


@pytest.mark.parametrize(("model", "effort"), [(HARMONY, "medium"), (CHAT, None)])
def test_the_effort_that_a_model_makes_by_itself_is_told(
    server: Server, judge: Judge, model: str, effort: str | None
) -> None:
    """gpt-oss is told `medium` in its prompt; what a chat upstream does unasked is not known."""
    assert Api(server.url, judge, model=model).create()["reasoning"] == {"effort": effort, "summary": None}


def test_a_stored_stream_can_be_retrieved_and_not_replayed(api: Api) -> None:
    events = api.streamed()

    final = events[-1]["response"]
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1]["type"] == "response.completed"
    assert text_of(final) == "Hello there."
    assert api.retrieve(final["id"]) == final
    assert_not_replayable(api, final["id"])


def test_a_background_response_is_answered_at_once_and_ends_by_itself(api: Api) -> None:
    born = api.create(background=True)

    assert (born["status"], born["output"], born["background"]) == ("queued", [], True)
    assert text_of(api.ended(born["id"])) == "Hello there."
    assert_not_replayable(api, born["id"])


def test_a_background_stream_can_be_replayed(api: Api) -> None:
    with api.stream(background=True) as stream:
        events = stream.read()

    told = [(event["type"], event["response"]["status"]) for event in events[:3]]
    assert told == [
        ("response.created", "queued"),
        ("response.queued", "queued"),
        ("response.in_progress", "in_progress"),
    ]
    final = events[-1]["response"]
    assert text_of(final) == "Hello there."
    assert api.retrieve(final["id"]) == final
    assert api.replay(final["id"]) == stream.body


def test_what_is_stored_is_in_the_database_before_it_is_shown(api: Api, fleet: Fleet, fake: FakeVllm) -> None:
    fake.script({"load": {"tokens": 2000}, "pace_ms": 5})

    with api.stream() as stream:
        assert is_written(fleet, stream.response_id)


@pytest.mark.parametrize("stream", [False, True])
def test_what_must_not_be_stored_is_written_nowhere(api: Api, fleet: Fleet, stream: bool) -> None:
    answered = api.streamed(store=False)[-1]["response"] if stream else api.create(store=False)

    assert text_of(answered) == "Hello there."
    assert api.get(answered["id"]).status_code == 404
    assert api.get(answered["id"], stream="true").status_code == 404
    assert not is_written(fleet, answered["id"])


@pytest.mark.parametrize("stream", [False, True])
def test_a_background_response_must_be_stored(api: Api, fake: FakeVllm, stream: bool) -> None:
    status, error = api.refused(store=False, background=True, stream=stream)

    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", "background")
    assert fake.log() == []


@pytest.mark.parametrize("stream", [False, True])
def test_the_same_is_said_streamed_or_not(api: Api, stream: bool) -> None:
    """Both paths of a foreground response give the same object but for what is unique to it."""
    one = api.create()
    other = api.streamed()[-1]["response"]

    unique = ("id", "created_at", "completed_at", "output")
    assert {k: v for k, v in one.items() if k not in unique} == {k: v for k, v in other.items() if k not in unique}
    assert [item["type"] for item in one["output"]] == [item["type"] for item in other["output"]]
