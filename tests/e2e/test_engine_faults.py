"""Engines that refuse, break off, talk nonsense or fall silent: an HTTP error before acceptance, else a failed end."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.e2e.client import CHAT, HARMONY, Api
from tests.e2e.judge import Judge
from tests.e2e.serving import Fleet, Server, eventually
from tests.fakes.running import FakeVllm

KEEP_ALIVE = b": keep-alive\n\n"
PATIENCE: dict[str, dict[str, float]] = {
    "patient": {},
    "impatient": {"stall_seconds": 0.5, "first_token_seconds": 2},
}
BROKEN = ("reset", "close", "cut", "error_chunk", "hang")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory, running_fake: FakeVllm) -> Iterator[dict[str, Server]]:
    """Servers on databases of their own.

    Only who shall see an engine hang has one that is not patient: a slow machine must not look like a fault.
    """
    with ExitStack() as fleets:
        launched: dict[str, Server] = {}
        for name, patience in PATIENCE.items():
            folder = tmp_path_factory.mktemp("fleet")
            settings = {"engine": "vllm", "engine_url": running_fake.url, "keep_alive_seconds": 0.1, **patience}
            launched[name] = fleets.enter_context(Fleet(folder, f"sqlite:///{folder / 'log.db'}", **settings)).launch()
        yield {name: server.await_health() for name, server in launched.items()}


class Users:
    """Users of one kind of model."""

    def __init__(self, servers: dict[str, Server], judge: Judge, model: str) -> None:
        self._servers, self._judge, self._model = servers, judge, model

    def facing(self, kind: str) -> Api:
        """The user of the server for this fault."""
        server = self._servers["impatient" if kind == "hang" else "patient"]
        return Api(server.url, self._judge, model=self._model)


@pytest.fixture(params=(HARMONY, CHAT))
def users(request: pytest.FixtureRequest, servers: dict[str, Server], judge: Judge, fake: FakeVllm) -> Users:
    """Users of each kind of model."""
    return Users(servers, judge, request.param)


@pytest.fixture
def api(users: Users) -> Api:
    """A user who meets no engine that hangs."""
    return users.facing("")


def breaking(kind: str, after: int = 30) -> dict[str, Any]:
    """What is said before the fault comes at once, so that no silence is seen but the fault's own."""
    return {"load": {"tokens": 100}, "fault": {"kind": kind, "after": after}}


def without_comments(body: bytes) -> bytes:
    """A stream's body, however long it was silent in between."""
    return body.replace(KEEP_ALIVE, b"")


@pytest.mark.parametrize(
    ("status", "kind"), [(400, "invalid_request_error"), (429, "rate_limit_error"), (503, "server_error")]
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_keeps_its_status_and_its_sentence(
    api: Api, fake: FakeVllm, status: int, kind: str, stream: bool
) -> None:
    fake.script(
        {
            "text": "",
            "fault": {"kind": "http", "status": status, "error": {"status": status, "message": "No, I won't."}},
        }
    )

    told, error = api.refused(stream=stream)

    assert (told, error["type"], error["message"]) == (status, kind, "No, I won't.")


def test_a_refused_background_response_fails_with_the_engines_sentence(api: Api, fake: FakeVllm) -> None:
    fake.script({"text": "", "fault": {"kind": "http", "error": {"status": 400, "message": "No, I won't."}}})

    with api.stream(background=True) as stream:
        events = stream.read()

    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert events[-1]["response"]["error"]["message"] == "No, I won't."
    assert api.retrieve(stream.response_id)["status"] == "failed"


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("background", [False, True])
def test_a_stream_that_breaks_ends_with_an_error_and_stays_readable(
    users: Users, fake: FakeVllm, kind: str, background: bool
) -> None:
    fake.script(breaking(kind))
    api = users.facing(kind)

    with api.stream(background=background) as stream:
        events = stream.read()

    failed = events[-1]["response"]
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert events[-2]["error"]["message"] == failed["error"]["message"] != ""
    assert failed["error"]["code"] == "server_error"
    assert failed["output"][-1]["status"] == "incomplete"
    assert api.retrieve(failed["id"]) == failed
    if background:
        assert without_comments(api.replay(failed["id"])) == without_comments(stream.body)
    assert eventually(lambda: fake.active() == 0)


def test_while_an_engine_is_silent_there_are_keep_alives_and_no_events(
    servers: dict[str, Server], judge: Judge, fake: FakeVllm
) -> None:
    api = Api(servers["patient"].url, judge)
    fake.script(breaking("hold"))

    with api.stream(background=True) as stream:
        stream.until("response.output_text.delta")
        while stream.body.count(KEEP_ALIVE) < 3:
            stream.body += next(stream._chunks)
        fake.release()
        events = stream.read()

    assert events[-1]["type"] == "response.completed"
    assert without_comments(api.replay(stream.response_id)) == without_comments(stream.body)


@pytest.mark.parametrize(("kind", "status"), [("reset", 502), ("close", 502), ("error_chunk", 502), ("hang", 504)])
def test_an_answer_that_breaks_is_an_http_error(users: Users, fake: FakeVllm, kind: str, status: int) -> None:
    fake.script(breaking(kind))

    told, error = users.facing(kind).refused()

    assert (told, error["type"]) == (status, "server_error")


@pytest.mark.parametrize("kind", ["reset", "close", "hang"])
def test_an_engine_that_breaks_before_its_first_token_fails_the_stream_too(
    users: Users, fake: FakeVllm, kind: str
) -> None:
    fake.script(breaking(kind, after=0))

    with users.facing(kind).stream(background=True) as stream:
        events = stream.read()

    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]


def test_after_a_fault_the_next_response_is_served(api: Api, fake: FakeVllm) -> None:
    fake.script(breaking("reset"), {"text": "<|channel|>final<|message|>Back again.<|return|>"})
    assert api.streamed()[-1]["type"] == "response.failed"

    assert api.create()["status"] == "completed"
