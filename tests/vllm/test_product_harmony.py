"""`verbatim serve` over a real vLLM with the tiny gpt_oss, end to end; the judge hears every stream."""

import json
import sqlite3
from contextlib import closing
from secrets import token_hex
from typing import Any, Final

import pytest

from tests.e2e.client import Api, text_of
from tests.e2e.serving import Fleet, eventually
from tests.vllm.cable import Cable
from tests.vllm.models.scenarios import HELLO, NAME, RECALL, STORY, WEATHER, WEATHER_TOOL, Call, Scenario
from tests.vllm.product import (
    assert_suffixes_are_the_same_live_and_later,
    cancelled_in_mid_turn,
    counted,
    ended_when_idle,
    left_in_mid_turn,
)
from tests.vllm.prompts import Prompts
from tests.vllm.server import Vllm

TOOL: Final = {**WEATHER_TOOL, "strict": False}
CITY: Final = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
ALARM: Final = {
    "type": "function",
    "name": "set_alarm",
    "parameters": {
        "type": "object",
        "properties": {"hour": {"type": "integer", "enum": [7]}},
        "required": ["hour"],
        "additionalProperties": False,
    },
}
ENDLESS: Final[dict[str, Any]] = {
    "input": STORY.user,
    "temperature": 0,
    "logit_bias": {"199999": -100, "200002": -100, "200012": -100},
    "tool_choice": "none",
}
"""The story, and then nonsense until a limit, which makes no calls: no stop token comes, however late a test is."""


@pytest.fixture(scope="module")
def upstream(gpt_oss_server: Vllm) -> Vllm:
    """The vLLM behind the server."""
    return gpt_oss_server


def turn(api: Api, *, stream: bool, **body: Any) -> dict[str, Any]:
    """The final response of a greedy turn, either way."""
    body = {"temperature": 0, **body}
    return dict(api.streamed(**body)[-1]["response"]) if stream else api.create(**body)


def reasoning_in(response: dict[str, Any]) -> str:
    thoughts = [item for item in response["output"] if item["type"] == "reasoning"]
    return "".join(part["text"] for item in thoughts for part in item["content"])


def call_in(response: dict[str, Any]) -> dict[str, Any]:
    [call] = [item for item in response["output"] if item["type"] == "function_call"]
    return dict(call)


def output_of(call: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call["call_id"], "output": WEATHER.tool_outputs[0]}


def assert_begins_the_story(response: dict[str, Any]) -> None:
    told = text_of(response)[: len(STORY.final)]
    assert told != ""
    assert STORY.final.startswith(told)


def stored(fleet: Fleet) -> int:
    """How many responses there are in the database."""
    with closing(sqlite3.connect(fleet.database_url.removeprefix("sqlite:///"))) as database:
        [[count]] = database.execute("SELECT count(*) FROM responses").fetchall()
    return int(count)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("scenario", [HELLO, NAME], ids=["hello", "name"])
def test_the_model_is_heard_word_for_word(api: Api, scenario: Scenario, stream: bool) -> None:
    answered = turn(api, stream=stream, input=scenario.user)

    assert [item["type"] for item in answered["output"]] == ["reasoning", "message"]
    assert (reasoning_in(answered), text_of(answered)) == (scenario.first.analysis, scenario.final)
    assert (answered["status"], answered["incomplete_details"]) == ("completed", None)
    assert api.retrieve(answered["id"]) == answered


def test_an_answer_without_a_limit_is_told_to_its_end(api: Api) -> None:
    assert text_of(turn(api, stream=True, input=STORY.user)) == STORY.final


def test_usage_is_what_vllm_has_counted(api: Api, upstream: Vllm, prompts: Prompts) -> None:
    ended_when_idle(upstream)
    before = counted(upstream)

    usage = turn(api, stream=False, input=HELLO.user)["usage"]

    asked, said = usage["input_tokens"], usage["output_tokens"]
    assert said == len(prompts.greeting)
    assert usage["total_tokens"] == asked + said
    thought = prompts.ids(f"<|channel|>analysis<|message|>{HELLO.first.analysis}<|end|>")
    assert usage["output_tokens_details"]["reasoning_tokens"] == len(thought)
    eventually(lambda: counted(upstream) == (before[0] + asked, before[1] + said), what="the same count")


def test_a_prompt_that_vllm_has_cached_is_told_as_cached(api: Api) -> None:
    padding = f"{token_hex(8)} " + "An instruction that means nothing. " * 60
    first, second = (turn(api, stream=False, instructions=padding)["usage"] for _ in range(2))

    assert first["input_tokens"] == second["input_tokens"] > 256
    assert first["input_tokens_details"]["cached_tokens"] == 0
    assert second["input_tokens_details"]["cached_tokens"] >= 128


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_is_answered_by_chaining(api: Api, stream: bool) -> None:
    asked = turn(api, stream=stream, input=WEATHER.user, tools=[TOOL])
    call = call_in(asked)
    assert Call(call["name"], call["arguments"]) == WEATHER.first.said
    assert (call["status"], reasoning_in(asked)) == ("completed", WEATHER.first.analysis)

    answered = turn(api, stream=stream, input=[output_of(call)], tools=[TOOL], previous_response_id=asked["id"])

    assert text_of(answered) == WEATHER.final


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_is_answered_by_sending_the_whole_history(api: Api, stream: bool) -> None:
    question = {"role": "user", "content": WEATHER.user}
    asked = turn(api, stream=stream, input=[question], tools=[TOOL], store=False)
    history = [question, *asked["output"], output_of(call_in(asked))]

    answered = turn(api, stream=stream, input=history, tools=[TOOL], store=False)

    assert text_of(answered) == WEATHER.final


def test_a_turn_remembers_the_turn_before(api: Api) -> None:
    told = turn(api, stream=False, input=NAME.user)

    recalled = turn(api, stream=True, input=RECALL.user, previous_response_id=told["id"])

    assert text_of(recalled) == RECALL.final


def test_every_suffix_of_a_background_run_is_byte_for_byte_the_same_live_and_later(api: Api, cable: Cable) -> None:
    assert_suffixes_are_the_same_live_and_later(api, cable, ENDLESS | {"max_output_tokens": 700})


def test_cancelling_a_background_run_stops_vllm(api: Api, upstream: Vllm) -> None:
    assert_begins_the_story(cancelled_in_mid_turn(api, upstream, ENDLESS))


def test_a_client_that_goes_stops_vllm(api: Api, upstream: Vllm) -> None:
    assert_begins_the_story(left_in_mid_turn(api, upstream, ENDLESS))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("limit", [1, 6, 13, 17])
def test_a_limit_cuts_wherever_it_falls(api: Api, limit: int, stream: bool) -> None:
    """In the first header, in the reasoning, in the header of the answer, in the answer."""
    cut = turn(api, stream=stream, max_output_tokens=limit)

    assert (cut["status"], cut["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert cut["usage"]["output_tokens"] == limit
    assert HELLO.first.analysis.startswith(reasoning_in(cut))
    assert HELLO.final.startswith(text_of(cut))
    assert "<|" not in json.dumps(cut["output"])


@pytest.mark.parametrize("mode", [{}, {"stream": True}, {"background": True}], ids=["plain", "stream", "background"])
def test_an_input_that_does_not_fit_is_refused_before_anything_is_stored(
    api: Api, fleet: Fleet, mode: dict[str, bool]
) -> None:
    before = stored(fleet)

    status, error = api.refused(input="hello " * 5000, **mode)

    assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", "input")
    assert "4096" in error["message"]
    assert stored(fleet) == before


def test_a_long_limit_is_cut_to_what_the_context_leaves(api: Api) -> None:
    assert text_of(turn(api, stream=False, max_output_tokens=100_000)) == HELLO.final


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("top", [0, 2])
def test_logprobs_are_those_of_the_visible_text(api: Api, top: int, stream: bool) -> None:
    include = ["message.output_text.logprobs"]
    answered = turn(api, stream=stream, include=include, top_logprobs=top)

    [message] = [item for item in answered["output"] if item["type"] == "message"]
    [part] = message["content"]
    assert part["text"] == HELLO.final
    assert "".join(entry["token"] for entry in part["logprobs"]) == HELLO.final
    for entry in part["logprobs"]:
        assert -0.5 < entry["logprob"] <= 0
        assert bytes(entry["bytes"]).decode() == entry["token"]
        assert len(entry["top_logprobs"]) <= top
        assert [other["token"] for other in entry["top_logprobs"]][:1] == [entry["token"]][:top]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("user", [HELLO.user, WEATHER.user])
def test_a_required_call_is_made(api: Api, user: str, stream: bool) -> None:
    called = turn(api, stream=stream, input=user, tools=[TOOL], tool_choice="required")

    call = call_in(called)
    assert (called["status"], call["status"], call["name"]) == ("completed", "completed", "get_weather")
    assert isinstance(json.loads(call["arguments"])["city"], str)
    assert reasoning_in(called) != ""


@pytest.mark.parametrize("stream", [False, True])
def test_a_named_call_is_made_though_the_model_prefers_another(api: Api, stream: bool) -> None:
    choice = {"type": "function", "name": "set_alarm"}
    called = turn(api, stream=stream, input=WEATHER.user, tools=[TOOL, ALARM], tool_choice=choice)

    call = call_in(called)
    assert (call["name"], json.loads(call["arguments"])) == ("set_alarm", {"hour": 7})
    assert reasoning_in(called) == WEATHER.first.analysis


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_keeps_to_its_schema(api: Api, stream: bool) -> None:
    form = {"type": "json_schema", "name": "place", "schema": CITY, "strict": True}

    answered = turn(api, stream=stream, input=NAME.user, text={"format": form})

    assert (answered["status"], json.loads(text_of(answered))) == ("completed", {"city": "Oslo"})


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_stays_free_before_an_answer_in_json(api: Api, stream: bool) -> None:
    answered = turn(api, stream=stream, text={"format": {"type": "json_object"}}, input="Say hello. JSON")

    assert isinstance(json.loads(text_of(answered)), dict)
    assert reasoning_in(answered) != ""


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_that_vllm_cannot_hold_is_refused(api: Api, stream: bool) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?<=a)b"}}}
    form = {"type": "json_schema", "name": "place", "schema": schema}

    status, error = api.refused(stream=stream, text={"format": form})

    assert (status, error["type"]) == (400, "invalid_request_error")
    assert "structural_tag" in error["message"]


def test_a_schema_leaves_the_way_to_a_call_open(api: Api) -> None:
    form = {"type": "json_schema", "name": "place", "schema": CITY, "strict": True}

    called = turn(api, stream=True, input=WEATHER.user, tools=[TOOL], text={"format": form})

    assert json.loads(call_in(called)["arguments"])["city"] == "Oslo"
