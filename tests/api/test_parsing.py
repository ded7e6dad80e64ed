"""Create requests that are fine: what becomes of every field."""

from typing import Any

import orjson
import pytest

from app.api.parsing import Parsed, RequestParser
from app.responses.request import Request, dump_request, load_request

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def parse(**fields: Any) -> Parsed:
    return RequestParser().parse(orjson.dumps({"model": "m", "input": "hi", **fields}))


def request(**fields: Any) -> Request:
    return parse(**fields).request


def test_the_least_request_has_the_documented_defaults() -> None:
    assert request() == Request(
        model="m",
        items=[{"type": "message", "status": "completed", "role": "user",
                "content": [{"type": "input_text", "text": "hi"}]}],
        include=[], tools=[], stop=[], service_tier="default",
    )  # fmt: skip


def test_a_parsed_request_survives_its_stored_form() -> None:
    parsed = request(
        temperature=0, stop="x", metadata={"k": "v"}, tools=[{"type": "function", "name": "f", "parameters": SCHEMA}]
    )
    assert load_request(dump_request(parsed)) == parsed


NULLABLE = [
    "tools", "text", "tool_choice", "reasoning", "metadata", "instructions", "temperature", "top_p", "top_logprobs",
    "include", "stream", "stream_options", "store", "background", "max_output_tokens", "max_tool_calls",
    "parallel_tool_calls", "previous_response_id", "truncation", "service_tier", "user", "prompt", "conversation",
    "moderation", "image", "background_options", "context_management", "top_k", "min_p", "seed", "stop", "logit_bias",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "priority", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention", "something_unknown",
]  # fmt: skip


def test_null_equals_leaving_a_field_out() -> None:
    assert parse(**dict.fromkeys(NULLABLE)) == parse()


def test_null_inside_an_object_equals_leaving_it_out() -> None:
    nulls = request(
        text={"format": None, "verbosity": None},
        reasoning={"effort": None, "summary": None, "context": None},
        stream=True,
        stream_options={"include_obfuscation": None},
        tools=[{"type": "function", "name": "f", "description": None, "parameters": None, "strict": None}],
    )
    assert nulls == request(stream=True, tools=[{"type": "function", "name": "f"}])


COPIED = {
    "instructions": "Be brief.", "previous_response_id": "resp_0", "store": False, "parallel_tool_calls": False,
    "temperature": 0.5, "top_p": 1, "top_k": -1, "min_p": 0.1, "presence_penalty": -2, "frequency_penalty": 2.0,
    "repetition_penalty": 1.1, "seed": -5, "logit_bias": {"17": -100}, "max_output_tokens": 1, "max_tool_calls": 3,
    "top_logprobs": 20, "metadata": {"k" * 64: "é" * 512}, "safety_identifier": "s" * 128, "prompt_cache_key": "key",
    "prompt_cache_retention": "24h", "user": "u", "priority": -3, "truncation": "disabled",
}  # fmt: skip


@pytest.mark.parametrize("name", COPIED)
def test_a_field_is_kept_as_it_came(name: str) -> None:
    assert getattr(request(**{name: COPIED[name]}), name) == COPIED[name]


def test_background_and_stream_are_kept() -> None:
    parsed = request(background=True, stream=True, stream_options={"include_obfuscation": True})
    assert (parsed.background, parsed.stream, parsed.include_obfuscation) == (True, True, True)


def test_reasoning_and_text_are_unpacked() -> None:
    parsed = request(
        reasoning={"effort": "xhigh", "summary": "detailed", "context": "all_turns"},
        text={"verbosity": "low", "format": {"type": "json_object"}},
    )
    assert (parsed.reasoning_effort, parsed.reasoning_summary) == ("xhigh", "detailed")
    assert (parsed.verbosity, parsed.text_format) == ("low", {"type": "json_object"})


@pytest.mark.parametrize("effort", ["none", "minimal", "low", "medium", "high", "xhigh", "max"])
def test_every_documented_effort_reaches_the_model(effort: str) -> None:
    assert request(reasoning={"effort": effort}).reasoning_effort == effort


def test_the_deprecated_name_of_the_summary_still_works() -> None:
    assert request(reasoning={"generate_summary": "concise"}).reasoning_summary == "concise"


@pytest.mark.parametrize("stop", ["end", ["end"]])
def test_stop_is_a_string_or_a_list(stop: Any) -> None:
    assert request(stop=stop).stop == ["end"]


def test_include_is_kept_and_asks_for_logprobs() -> None:
    parsed = request(include=["reasoning.encrypted_content", "message.output_text.logprobs"])
    assert parsed.include == ["reasoning.encrypted_content", "message.output_text.logprobs"]
    assert parsed.wants_logprobs


@pytest.mark.parametrize("tier", ["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"])
def test_the_service_tier_is_the_one_there_is(tier: str) -> None:
    assert request(service_tier=tier).service_tier == "default"


@pytest.mark.parametrize("options", [{}, {"completion_window": "soonest"}])
def test_background_options_may_ask_for_the_default(options: dict[str, str]) -> None:
    assert request(background=True, background_options=options).background


def test_an_empty_context_management_asks_for_nothing() -> None:
    assert request(context_management=[]) == request()


def test_the_default_model_stands_in_for_a_missing_one() -> None:
    parser = RequestParser(default_model="tiny")
    assert parser.parse(b'{"input":"hi","model":null}').request.model == "tiny"
    assert parser.parse(b'{"input":"hi","model":"big"}').request.model == "big"


def test_an_empty_input_is_enough_after_a_previous_response() -> None:
    assert request(input=[], previous_response_id="resp_0").items == []


def test_a_context_of_all_turns_has_no_effect_and_is_named() -> None:
    assert parse(reasoning={"context": "all_turns"}).ignored == ["reasoning.context"]
    assert parse(reasoning={"context": "current_turn"}).ignored == []


def test_the_older_spelling_of_a_retention_becomes_the_one_that_is_read_back() -> None:
    assert request(prompt_cache_retention="in-memory").prompt_cache_retention == "in_memory"


def test_unknown_fields_have_no_effect_and_are_named() -> None:
    parsed = parse(client_metadata={"a": "b"}, max_token=5, prompt_cache_options={}, access_programs=[], user="u")
    assert parsed.ignored == ["client_metadata", "max_token", "prompt_cache_options", "access_programs"]
    assert parsed.request == request(user="u")


def test_what_codex_sends_is_accepted() -> None:
    parsed = request(
        stream=True, store=False, tool_choice="auto", parallel_tool_calls=True, reasoning={"summary": "auto"},
        include=["reasoning.encrypted_content"], prompt_cache_key="thread", client_metadata={"k": "v"},
        text={"verbosity": "medium"},
        tools=[{"type": "function", "name": "exec_command", "strict": False, "parameters": SCHEMA}],
    )  # fmt: skip
    assert parsed.tools[0]["name"] == "exec_command"
