"""Create requests that are refused: the param names the place, the message is short."""

from typing import Any

import orjson
import pytest

from app.api.parsing import RequestParser
from app.errors import InvalidRequest, PreviousResponseNotFound, UnsupportedValue


def refusal(body: Any) -> InvalidRequest:
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    with pytest.raises(InvalidRequest) as caught:
        RequestParser().parse(data)
    assert caught.value.status == 400
    assert 0 < len(caught.value.message) < 500
    return caught.value


def refused(**fields: Any) -> InvalidRequest:
    return refusal({"model": "m", "input": "hi", **fields})


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b'{"model":NaN}', "not valid JSON"),
        (b'{"model":"m","input":"\\ud800"}', "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b'"text"', "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b'{"input":' + b"[" * 101 + b"]" * 101 + b"}", "nested deeper than 100"),
        (b'{"input":' + b"[" * 5000 + b"]" * 5000 + b"}", "not valid JSON"),
    ],
)
def test_a_body_that_is_no_sane_json_object(body: bytes, words: str) -> None:
    error = refusal(body)
    assert words in error.message
    assert error.param is None


def test_many_brackets_side_by_side_are_not_deep() -> None:
    body = {"model": "m", "input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}] * 100}
    assert len(RequestParser().parse(orjson.dumps(body)).request.items) == 100


@pytest.mark.parametrize("name", ["model", "input"])
@pytest.mark.parametrize("value", [None, "absent"])
def test_model_and_input_are_needed(name: str, value: Any) -> None:
    body = {"model": "m", "input": "hi", name: None}
    if value == "absent":
        del body[name]
    error = refusal(body)
    assert error.param == name
    assert "Missing required parameter" in error.message


WRONG: list[tuple[str, Any]] = [
    ("model", ""), ("model", 5), ("input", 5), ("input", {}), ("input", []), ("instructions", 5), ("store", "true"),
    ("store", 1), ("background", "yes"), ("stream", 0), ("parallel_tool_calls", "no"), ("temperature", "1"),
    ("temperature", 2.1), ("temperature", -0.1), ("temperature", True), ("top_p", 1.01), ("top_p", -1), ("top_k", -2),
    ("top_k", 1.5), ("top_k", 2**31), ("min_p", 2), ("presence_penalty", 3), ("frequency_penalty", -3),
    ("repetition_penalty", 0), ("seed", 2**63), ("seed", "7"), ("stop", 5), ("logit_bias", []),
    ("max_output_tokens", 0), ("max_output_tokens", -1), ("max_output_tokens", "10"), ("max_tool_calls", 0),
    ("top_logprobs", 21), ("top_logprobs", -1), ("truncation", "middle"), ("service_tier", "gold"),
    ("safety_identifier", "s" * 129),
    ("prompt_cache_key", 5), ("prompt_cache_retention", "forever"), ("user", []), ("priority", "high"),
    ("include", "x"),
    ("metadata", []), ("metadata", {"k": 5}), ("metadata", {"k": None}), ("metadata", {"k" * 65: "v"}),
    ("metadata", {"k": "v" * 513}), ("metadata", {f"k{i}": "v" for i in range(17)}), ("tools", {}), ("tool_choice", 5),
    ("text", "json"), ("reasoning", "high"), ("stream_options", {"include_obfuscation": True}),
    ("previous_response_id", 5),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_known_field_with_a_wrong_value_is_named(name: str, value: Any) -> None:
    error = refused(**{name: value})
    assert error.param == name
    assert error.type == "invalid_request_error"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning": {"effort": "banana"}}, "reasoning.effort"),
        ({"reasoning": {"summary": "long"}}, "reasoning.summary"),
        ({"reasoning": {"context": "some"}}, "reasoning.context"),
        ({"text": {"verbosity": "loud"}}, "text.verbosity"),
        ({"text": {"format": "json"}}, "text.format"),
        ({"text": {"format": {}}}, "text.format.type"),
        ({"text": {"format": {"type": "jsonschema"}}}, "text.format.type"),
        ({"include": ["message.output_text.logprobs", "everything"]}, "include[1]"),
        ({"include": [["x"]]}, "include[0]"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": ["a", 5]}, "stop[1]"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"logit_bias": {"17": 101}}, "logit_bias.17"),
        ({"logit_bias": {str(token): "x" for token in range(2**18 + 1)}}, "logit_bias"),
        ({"stream": True, "stream_options": {"include_obfuscation": "yes"}}, "stream_options.include_obfuscation"),
        ({"background_options": {"completion_window": "3h"}}, "background_options.completion_window"),
        ({"context_management": {}}, "context_management"),
    ],
)
def test_a_wrong_value_inside_is_named_by_its_path(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields).param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"moderation": {"model": "x"}}, "moderation"),
        ({"image": {"context_compression": "auto"}}, "image"),
        ({"background_options": {"completion_window": "2h"}}, "background_options"),
        ({"context_management": [{"type": "compaction"}]}, "context_management"),
        ({"truncation": "auto"}, "truncation"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
    ],
)
def test_what_is_known_and_not_served_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    error = refused(**fields)
    assert isinstance(error, UnsupportedValue)
    assert (error.param, error.code) == (param, "unsupported_value")


def test_background_needs_storage() -> None:
    error = refused(background=True, store=False)
    assert error.param == "background"
    assert "store" in error.message


def test_an_id_that_cannot_be_one_is_a_previous_response_that_was_not_found() -> None:
    error = refused(previous_response_id="resp_\x00; drop table")
    assert isinstance(error, PreviousResponseNotFound)
    assert (error.param, error.code) == ("previous_response_id", "previous_response_not_found")


def test_a_long_value_is_not_repeated_in_the_message() -> None:
    error = refused(include=["x" * 100_000])
    assert len(error.message) <= 400


def test_a_long_key_does_not_make_a_long_param() -> None:
    error = refused(logit_bias={"9" * 100_000: 1000})
    assert error.param is not None
    assert len(error.param) <= 128
