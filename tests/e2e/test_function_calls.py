"""Function calls there and back: by chaining and by full history, streamed and not, one and several at a time."""

import json
from typing import Any

import pytest

from tests.e2e.client import CHAT, HARMONY, Api, text_of
from tests.e2e.judge import Judge
from tests.e2e.serving import Server
from tests.fakes.running import FakeVllm

WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
CALL = {
    "text": "<|channel|>analysis<|message|>I need the weather.<|end|>"
    "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json"
    '<|message|>{"city":"Paris"}<|call|>'
}
ANSWER = {"text": "<|channel|>final<|message|>It is sunny.<|return|>"}
QUESTION = {"role": "user", "content": "Weather in Paris?"}


@pytest.fixture(params=(HARMONY, CHAT))
def api(request: pytest.FixtureRequest, server: Server, judge: Judge, fake: FakeVllm) -> Api:
    """A user of each kind of model."""
    return Api(server.url, judge, model=request.param)


@pytest.fixture
def chat(server: Server, judge: Judge, fake: FakeVllm) -> Api:
    """A user of a model that may call several functions at once."""
    return Api(server.url, judge, model=CHAT)


def turn(api: Api, *, stream: bool, **body: Any) -> dict[str, Any]:
    """The final response of a turn with tools, either way."""
    body = {"tools": [WEATHER], **body}
    return api.streamed(**body)[-1]["response"] if stream else api.create(**body)


def calls_in(response: dict[str, Any]) -> list[dict[str, Any]]:
    return [item for item in response["output"] if item["type"] == "function_call"]


def output_for(call: dict[str, Any], output: str = "sunny, 21 °C") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call["call_id"], "output": output}


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_is_answered_by_chaining(api: Api, fake: FakeVllm, stream: bool) -> None:
    fake.script(CALL, ANSWER)
    asked = turn(api, stream=stream, input=[QUESTION])
    [call] = calls_in(asked)
    assert (call["name"], json.loads(call["arguments"]), call["status"]) == (
        "get_weather",
        {"city": "Paris"},
        "completed",
    )

    answered = turn(api, stream=stream, input=[output_for(call)], previous_response_id=asked["id"])

    assert text_of(answered) == "It is sunny."
    assert "sunny, 21 °C" in fake.last()["prompt_text"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_is_answered_by_sending_the_whole_history(api: Api, fake: FakeVllm, stream: bool) -> None:
    fake.script(CALL, ANSWER)
    asked = turn(api, stream=stream, input=[QUESTION], store=False)
    [call] = calls_in(asked)

    answered = turn(api, stream=stream, input=[QUESTION, *asked["output"], output_for(call)], store=False)

    assert text_of(answered) == "It is sunny."


def test_both_ways_show_the_model_the_same(api: Api, fake: FakeVllm) -> None:
    fake.script(CALL, ANSWER)
    asked = turn(api, stream=False, input=[QUESTION])
    [call] = calls_in(asked)

    turn(api, stream=False, input=[output_for(call)], previous_response_id=asked["id"])
    turn(api, stream=False, input=[QUESTION, *asked["output"], output_for(call)])

    chained, whole = (request["prompt_text"] for request in fake.log()[-2:])
    assert chained == whole


def test_history_that_is_sent_again_with_a_parent_counts_once(api: Api, fake: FakeVllm) -> None:
    fake.script(CALL, ANSWER)
    asked = turn(api, stream=False, input=[QUESTION])
    [call] = calls_in(asked)

    turn(api, stream=False, input=[call, output_for(call)], previous_response_id=asked["id"])

    assert fake.last()["prompt_text"].count("Paris?") == 1
    assert fake.last()["prompt_text"].count('"city":"Paris"') == 1


def test_parallel_calls_each_have_an_item_of_their_own(chat: Api, fake: FakeVllm) -> None:
    cities = ("Paris", "Rome", "Oslo")
    calling = [{"tool_call": {"name": "get_weather", "arguments": f'{{"city":"{city}"}}'}} for city in cities]
    fake.script({"chat": [{"reasoning": "Three cities."}, *calling]}, ANSWER)
    asked = turn(chat, stream=True, input="Weather in three cities?")

    calls = calls_in(asked)
    assert [json.loads(call["arguments"])["city"] for call in calls] == ["Paris", "Rome", "Oslo"]
    assert len({call["call_id"] for call in calls} | {call["id"] for call in calls}) == 6
    outputs = [output_for(call, f"weather {n}") for n, call in enumerate(calls)]
    answered = turn(chat, stream=True, input=outputs, previous_response_id=asked["id"])
    assert text_of(answered) == "It is sunny."
    assert all(f"weather {n}" in fake.last()["prompt_text"] for n in range(3))


def test_an_output_without_a_call_is_refused(api: Api, fake: FakeVllm) -> None:
    status, error = api.refused(input=[output_for({"call_id": "call_nobody"})], tools=[WEATHER])

    assert (status, error["param"]) == (400, "input")
    assert error["message"] == "No tool call found for function call output with call_id call_nobody."
    assert fake.log() == []


def test_a_call_without_an_output_is_refused(api: Api, fake: FakeVllm) -> None:
    fake.script(CALL)
    asked = turn(api, stream=False, input=[QUESTION])
    [call] = calls_in(asked)

    status, error = api.refused(input="Well?", previous_response_id=asked["id"])

    assert (status, error["param"]) == (400, "input")
    assert error["message"] == f"No tool output found for function call {call['call_id']}."
