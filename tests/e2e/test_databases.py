"""The whole life of responses on both databases, with text that no database column would take."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.client import Api, text_of
from tests.e2e.judge import Judge, frames
from tests.e2e.serving import Fleet
from tests.fakes.running import FakeVllm

HOSTILE = "nul \x00, quote ' \" \\, emoji 👩‍👩‍👧, bidi \u202e, \u2028 separators \x85, data: x\n\nevent: y\r\n"
PARTING = "<|channel|>final<|message|>" + HOSTILE + "<|return|>"


@pytest.fixture(scope="module", params=("sqlite", "postgres"))
def fleet(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, running_fake: FakeVllm
) -> Iterator[Fleet]:
    """Servers on each kind of database."""
    folder = tmp_path_factory.mktemp(request.param)
    urls = {
        "sqlite": lambda: f"sqlite:///{folder / 'log.db'}",
        "postgres": lambda: request.getfixturevalue("postgres_server"),
    }
    with Fleet(folder, urls[request.param](), engine="vllm", engine_url=running_fake.url) as fleet:
        yield fleet


def test_hostile_text_comes_back_as_it_was(api: Api, fake: FakeVllm) -> None:
    fake.script({"text": PARTING})
    with api.stream(input=HOSTILE, instructions=HOSTILE, metadata={"note": HOSTILE}, background=True) as stream:
        final = stream.read()[-1]["response"]

    assert text_of(final) == HOSTILE
    assert (final["instructions"], final["metadata"]) == (HOSTILE, {"note": HOSTILE})
    assert api.retrieve(final["id"]) == final
    assert api.replay(final["id"]) == stream.body
    [asked] = api.input_items(final["id"]).json()["data"]
    assert asked["content"][0]["text"] == HOSTILE
    assert api.create(input="And?", previous_response_id=final["id"])["status"] == "completed"


@pytest.mark.parametrize(
    "body", [{"user": "\x00"}, {"metadata": {"\x00": "\ud800"}}, {"input": "\ud83d"}, {"model": "\x00"}]
)
def test_no_text_is_an_internal_error(api: Api, body: dict[str, Any]) -> None:
    """Half a surrogate pair, as a client sends it that cuts text in the middle of a character."""
    for mode in ({}, {"background": True}, {"stream": True}):
        answer = api.post(**body, **mode)
        assert answer.status_code in (200, 400, 404), answer.text


@pytest.mark.parametrize(
    "response_id", ["resp_%00", "%F0%9F%98%80", "resp_" + "f" * 5000, "..%2F..", "%27%20OR%201=1--"]
)
def test_no_id_is_an_internal_error(api: Api, response_id: str) -> None:
    assert api.get(response_id).status_code == 404
    assert api.cancel(response_id).status_code == 404
    assert api.delete(response_id).status_code == 404


def test_a_long_response_is_stored_in_parts_and_replayed_from_every_border(api: Api, fake: FakeVllm) -> None:
    fake.script({"load": {"tokens": 3000}, "pace_ms": 0.4})
    with api.stream(background=True) as stream:
        events = stream.read()

    assert events[-1]["response"]["usage"]["output_tokens"] == 3000
    for after in (0, 1, len(events) // 2, len(events) - 2):
        assert frames(api.replay(stream.response_id, after)) == frames(stream.body)[after + 1 :]


def test_a_crowd_streams_at_once_and_every_stream_is_whole(api: Api, fake: FakeVllm, judge: Judge) -> None:
    fake.script({"load": {"tokens": 30}, "pace_ms": 10})
    born = [api.create(background=True, stream=False) for _ in range(60)]

    ended = [api.ended(response["id"]) for response in born]

    assert {(response["status"], text_of(response)) for response in ended} == {("completed", text_of(ended[0]))}


def test_what_is_deleted_is_gone(api: Api) -> None:
    with api.stream(background=True) as stream:
        stream.read()
    assert api.delete(stream.response_id).status_code == 200

    answers = [
        api.get(stream.response_id),
        api.get(stream.response_id, stream="true"),
        api.input_items(stream.response_id),
        api.cancel(stream.response_id),
        api.delete(stream.response_id),
    ]
    assert [answer.status_code for answer in answers] == [404] * 5
