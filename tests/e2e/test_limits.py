"""How much runs and waits at a time, and what is told to those who come too late."""

import json
from typing import Any

import pytest

from tests.e2e.client import Api
from tests.e2e.judge import Judge
from tests.e2e.serving import Fleet, Server, eventually, get
from tests.telemetry.numbers import number

HELLO = "<|channel|>final<|message|>Hello.<|return|>"
SCRIPT: list[dict[str, Any]] = [
    {
        "match": "refuse me",
        "text": HELLO,
        "repeat": 1000,
        "fault": {"kind": "refuse", "status": 429, "message": "I am full.", "retry_after": 6.2},
    },
    {
        "match": "slowly",
        "text": "<|channel|>final<|message|>" + "and on " * 100,
        "repeat": 1000,
        "hold": {"after": 50, "until": "a file that nobody makes"},
    },
    {"text": HELLO},
]


@pytest.fixture(scope="module")
def server(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """A server that runs one response at a time and lets one wait."""
    script = tmp_path_factory.mktemp("script") / "script.json"
    script.write_text(json.dumps(SCRIPT))
    return fleet.start(engine="scripted", script=script, model="gpt-oss", max_concurrent_runs=1, max_queued_runs=1)


@pytest.fixture
def api(server: Server, judge: Judge) -> Api:
    """A user who finds the only place free."""
    await_place(server)
    return Api(server.url, judge)


def await_place(server: Server) -> None:
    """A run whose client has gone needs a moment to end."""
    eventually(lambda: number(get(f"{server.url}/metrics").text, "verbatim_running") == 0, what="a free place")


def assert_told_to_wait(api: Api, **body: Any) -> None:
    answer = api.post(**body)
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")


def test_when_all_runs_are_busy_a_foreground_response_is_refused(server: Server, api: Api) -> None:
    with api.stream(input="Speak slowly.") as stream:
        stream.until("response.output_text.delta")
        assert_told_to_wait(api)
        assert_told_to_wait(api, stream=True)

    assert api.ended(stream.response_id)["status"] == "cancelled"
    await_place(server)
    assert api.create()["status"] == "completed"


def test_when_the_queue_is_full_a_background_response_is_refused(api: Api) -> None:
    with api.stream(input="Speak slowly.") as stream:
        stream.until("response.output_text.delta")
        waiting = api.create(background=True)
        assert_told_to_wait(api, background=True)
        assert api.retrieve(waiting["id"])["status"] == "queued"

    assert api.ended(waiting["id"])["status"] == "completed"


def test_an_engines_retry_after_is_passed_on(api: Api) -> None:
    answer = api.post(input="Please refuse me.")

    assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
    assert answer.json()["error"]["message"] == "I am full."


def test_a_waiting_response_can_be_cancelled(api: Api) -> None:
    with api.stream(input="Speak slowly.") as stream:
        stream.until("response.output_text.delta")
        with api.stream(background=True) as waiting:
            waiting.until("response.queued")
            cancelled = api.cancel(waiting.response_id).json()
            assert waiting.read()[-1]["response"] == cancelled

    assert cancelled["status"] == "cancelled"
    assert cancelled["output"] == []


def test_a_waiting_response_can_be_deleted(api: Api) -> None:
    with api.stream(input="Speak slowly.") as stream:
        stream.until("response.output_text.delta")
        waiting = api.create(background=True)
        assert api.delete(waiting["id"]).status_code == 200

    assert api.get(waiting["id"]).status_code == 404
