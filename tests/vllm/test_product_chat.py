"""`verbatim serve` over a real vLLM with SmolLM2 as a chat model, end to end; the judge hears every stream."""

import json
from typing import Any, Final

import pytest

from tests.e2e.client import Api, text_of
from tests.e2e.serving import eventually
from tests.vllm.cable import Cable
from tests.vllm.models.scenarios import WEATHER, WEATHER_TOOL
from tests.vllm.product import (
    assert_suffixes_are_the_same_live_and_later,
    cancelled_in_mid_turn,
    counted,
    ended_when_idle,
    left_in_mid_turn,
)
from tests.vllm.server import Vllm
from tests.vllm.wire import CHAT, post

STRICT_TOOL: Final = {**WEATHER_TOOL, "strict": True}
ALARM: Final = {
    "type": "function",
    "name": "set_alarm",
    "parameters": {
        "type": "object",
        "properties": {"hour": {"type": "integer", "enum": [7]}},
        "required": ["hour"],
        "additionalProperties": False,
    },
    "strict": True,
}
PERSON: Final = {
    "type": "object",
    "properties": {"name": {"type": "string", "enum": ["Ada"]}, "age": {"type": "integer", "enum": [7]}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
LIMIT: Final = 40
ROOM: Final = {"max_output_tokens": 200}  # for JSON with as much white space as the model likes
ENDLESS: Final[dict[str, Any]] = {
    "input": "Count from one to a thousand, in words.",
    "temperature": 0,
    "max_output_tokens": 3000,
    "logit_bias": {"0": -100, "2": -100},
}
"""No stop token comes before the limit, however late a test is."""


@pytest.fixture(scope="module")
def upstream(smollm2_server: Vllm) -> Vllm:
    """The vLLM behind the server."""
    return smollm2_server


async def said_without_us(vllm: Vllm, *messages: tuple[str, str]) -> tuple[str, int]:
    """vLLM's own greedy answer to a conversation, and how long it says that its prompt was."""
    conversation = [{"role": role, "content": text} for role, text in messages]
    answer = (await post(vllm, CHAT, {"messages": conversation, "temperature": 0, "max_tokens": LIMIT})).json()
    return answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens"]


def turn(api: Api, *, stream: bool, **body: Any) -> dict[str, Any]:
    """The final response of a greedy turn, either way."""
    body = {"temperature": 0, "max_output_tokens": LIMIT, **body}
    return dict(api.streamed(**body)[-1]["response"]) if stream else api.create(**body)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_is_what_vllm_says_without_us(api: Api, upstream: Vllm, stream: bool) -> None:
    text, length = await said_without_us(upstream, ("user", "Say hello."))

    answered = turn(api, stream=stream)

    assert (text_of(answered), answered["usage"]["input_tokens"]) == (text, length)
    assert api.retrieve(answered["id"]) == answered


def test_usage_is_what_vllm_has_counted(api: Api, upstream: Vllm) -> None:
    ended_when_idle(upstream)
    before = counted(upstream)

    usage = turn(api, stream=True)["usage"]

    asked, said = usage["input_tokens"], usage["output_tokens"]
    assert usage["total_tokens"] == asked + said
    eventually(lambda: counted(upstream) == (before[0] + asked, before[1] + said), what="the same count")


async def test_a_turn_sees_the_turn_before(api: Api, upstream: Vllm) -> None:
    told = turn(api, stream=False, input="My name is Ada.")

    recalled = turn(api, stream=True, input="What is my name?", previous_response_id=told["id"])

    turns = ("user", "My name is Ada."), ("assistant", text_of(told)), ("user", "What is my name?")
    expected = await said_without_us(upstream, *turns)
    assert (text_of(recalled), recalled["usage"]["input_tokens"]) == expected


def test_every_suffix_of_a_background_run_is_byte_for_byte_the_same_live_and_later(api: Api, cable: Cable) -> None:
    assert_suffixes_are_the_same_live_and_later(api, cable, ENDLESS | {"max_output_tokens": 200})


def test_cancelling_a_background_run_stops_vllm(api: Api, upstream: Vllm) -> None:
    assert text_of(cancelled_in_mid_turn(api, upstream, ENDLESS)) != ""


def test_a_client_that_goes_stops_vllm(api: Api, upstream: Vllm) -> None:
    assert text_of(left_in_mid_turn(api, upstream, ENDLESS)) != ""


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("limit", [1, 5])
def test_a_limit_cuts_the_answer(api: Api, limit: int, stream: bool) -> None:
    cut = turn(api, stream=stream, max_output_tokens=limit)

    assert (cut["status"], cut["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert cut["usage"]["output_tokens"] == limit


def test_an_input_that_does_not_fit_is_refused(api: Api) -> None:
    status, error = api.refused(input="hello " * 6000)

    assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", "input")
    assert "4096" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_keeps_to_its_schema(api: Api, stream: bool) -> None:
    form = {"type": "json_schema", "name": "person", "schema": PERSON, "strict": True}

    answered = turn(api, stream=stream, input="Describe Ada, a child.", text={"format": form}, **ROOM)

    assert (answered["status"], json.loads(text_of(answered))) == ("completed", {"name": "Ada", "age": 7})


CHOICES: Final = ["required", {"type": "function", "name": "get_weather"}]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", CHOICES, ids=["required", "named"])
def test_a_demanded_call_is_made(api: Api, choice: object, stream: bool) -> None:
    """vLLM's first delta has no arguments and null content, and a named choice ends with `stop`."""
    called = turn(api, stream=stream, input=WEATHER.user, tools=[STRICT_TOOL], tool_choice=choice, **ROOM)

    [call] = called["output"]
    assert (called["status"], call["type"], call["status"]) == ("completed", "function_call", "completed")
    assert (call["name"], json.loads(call["arguments"]).keys()) == ("get_weather", {"city"})


def test_a_call_is_answered_in_words(api: Api) -> None:
    called = turn(api, stream=False, input=WEATHER.user, tools=[STRICT_TOOL], tool_choice="required", **ROOM)
    [call] = called["output"]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": WEATHER.tool_outputs[0]}

    answered = turn(api, stream=True, input=[output], tools=[STRICT_TOOL], previous_response_id=called["id"])

    assert [item["type"] for item in answered["output"]] == ["message"]
    assert text_of(answered) != ""


def test_a_named_call_is_made_whatever_else_there_is(api: Api) -> None:
    choice = {"type": "function", "name": "set_alarm"}

    called = turn(api, stream=True, input=WEATHER.user, tools=[STRICT_TOOL, ALARM], tool_choice=choice, **ROOM)

    [call] = called["output"]
    assert (call["name"], json.loads(call["arguments"])) == ("set_alarm", {"hour": 7})


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_are_those_of_the_text(api: Api, stream: bool) -> None:
    answered = turn(api, stream=stream, include=["message.output_text.logprobs"], top_logprobs=2)

    [[part]] = [item["content"] for item in answered["output"]]
    assert b"".join(bytes(entry["bytes"]) for entry in part["logprobs"]).decode() == part["text"]
    assert all(entry["logprob"] <= 0 and len(entry["top_logprobs"]) == 2 for entry in part["logprobs"])
