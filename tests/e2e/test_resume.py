"""Reading after k is the suffix after k, for every k: live and after the end, byte for byte (laws L2 and L5)."""

from contextlib import ExitStack

import pytest

from tests.e2e.client import CHAT, ENDLESS, HARMONY, Api, Stream
from tests.e2e.judge import Judge, frames
from tests.e2e.serving import Server
from tests.fakes.running import FakeVllm

CALLS = (
    "<|channel|>analysis<|message|>Two places.<|end|>"
    "<|start|>assistant<|channel|>commentary<|message|>Let me see.<|end|>"
    '<|start|>assistant<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"at":"ünï\\u0000☃"}<|call|>'
)
HELD_WORDS = 27
LOOK = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}


@pytest.fixture(params=(HARMONY, CHAT))
def api(request: pytest.FixtureRequest, server: Server, judge: Judge, fake: FakeVllm) -> Api:
    """A user of each kind of model."""
    return Api(server.url, judge, model=request.param)


def words_in(stream: Stream) -> int:
    """How many words it has said so far."""
    return len("".join(event["delta"] for event in stream.events if event["type"].endswith("text.delta")).split())


def suffixes(body: bytes) -> list[list[bytes]]:
    """What a reader after k has to get, for k = 0, 1, 2 …"""
    whole = frames(body)
    return [whole[after + 1 :] for after in range(len(whole))]


def test_every_suffix_of_a_finished_stream_is_replayed_byte_for_byte(api: Api, fake: FakeVllm) -> None:
    fake.script({"text": CALLS})
    with api.stream(background=True, tools=[LOOK]) as stream:
        stream.read()

    replays = [frames(api.replay(stream.response_id, after)) for after in range(len(stream.events))]

    assert replays == suffixes(stream.body)


def test_every_suffix_of_a_running_stream_is_followed_byte_for_byte(api: Api, fake: FakeVllm) -> None:
    fake.script({"load": {"tokens": 60}, "pace_ms": 5, "fault": {"kind": "hold", "after": 30}})
    with ExitStack() as open_streams, api.stream(background=True) as stream:
        deltas = 0
        while words_in(stream) < HELD_WORDS:
            stream.until("response.output_text.delta", times=(deltas := deltas + 1))
        known = len(stream.events)
        readers = {n: open_streams.enter_context(api.follow(stream.response_id, n)) for n in range(known + 4)}
        assert api.retrieve(stream.response_id)["status"] == "in_progress"
        fake.release()
        stream.read()
        for reader in readers.values():
            reader.read()

    whole = frames(stream.body)
    assert len(whole) > known + 4, "one delta and four endings are still to come"
    assert {n: frames(reader.body) for n, reader in readers.items()} == {n: whole[n + 1 :] for n in readers}


def test_a_reader_that_comes_while_the_response_is_queued_gets_everything(api: Api, fake: FakeVllm) -> None:
    fake.script({"load": {"tokens": 20}, "first_token_delay_ms": 100})
    with api.stream(background=True) as stream:
        with api.follow(stream.response_id) as other:
            other.read()
        stream.read()

    assert other.body == stream.body


def test_at_and_behind_the_end_there_is_an_empty_stream_that_closes(api: Api) -> None:
    with api.stream(background=True) as stream:
        last = len(stream.read()) - 1

    assert api.replay(stream.response_id, last) == b"data: [DONE]\n\n"
    assert api.replay(stream.response_id, last + 1000) == b"data: [DONE]\n\n"


def test_a_failed_stream_is_replayed_like_any_other(api: Api, fake: FakeVllm) -> None:
    fake.script({"load": {"tokens": 60}, "pace_ms": 2, "fault": {"kind": "reset", "after": 40}})
    with api.stream(background=True) as stream:
        events = stream.read()

    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert [frames(api.replay(stream.response_id, n)) for n in range(len(events))] == suffixes(stream.body)


def test_a_cancelled_stream_is_replayed_like_any_other(api: Api, fake: FakeVllm) -> None:
    fake.script(ENDLESS)
    with api.stream(background=True) as stream:
        stream.until("response.output_text.delta", times=3)
        assert api.cancel(stream.response_id).status_code == 200
        events = stream.read()

    assert (events[-1]["type"], events[-1]["response"]["status"]) == ("response.incomplete", "cancelled")
    assert [frames(api.replay(stream.response_id, n)) for n in range(len(events))] == suffixes(stream.body)


@pytest.mark.parametrize("wrong", ["-1", "x", "1.5", "", "99999999999999999999"])
def test_a_wrong_position_is_refused(api: Api, wrong: str) -> None:
    born = api.create(background=True, stream=False)

    answer = api.get(born["id"], stream="true", starting_after=wrong)

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "starting_after"
    api.ended(born["id"])


def test_obfuscation_is_noise_on_the_wire_and_not_in_the_record(api: Api) -> None:
    with api.stream(background=True, stream_options={"include_obfuscation": True}) as stream:
        events = stream.read()

    noisy = {event["type"] for event in events if "obfuscation" in event}
    assert noisy == {event["type"] for event in events if event["type"].endswith(".delta")} != set()
    assert b"obfuscation" not in api.replay(stream.response_id)
