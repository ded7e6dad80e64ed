"""Whatever a client sends: a request that can be stored and run, or a short InvalidRequest. Never a crash."""

from copy import deepcopy
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from app.api.parsing import RequestParser
from app.errors import InvalidRequest
from app.responses.request import dump_request, load_request

SCHEMA = {
    "type": "object", "required": ["a"], "additionalProperties": False,
    "patternProperties": {"^x": {"$ref": "#/$defs/n"}},
    "properties": {"a": {"anyOf": [{"type": "string", "pattern": "^a", "enum": ["a"]}, {"$ref": "#"}]}},
    "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}, "prefixItems": [{"not": {"const": 1}}]}},
}  # fmt: skip
FULL = {
    "model": "m", "instructions": "i", "previous_response_id": "resp_0", "store": True, "background": False,
    "stream": True, "stream_options": {"include_obfuscation": True}, "include": ["message.output_text.logprobs"],
    "tools": [{"type": "function", "name": "f", "description": "d", "parameters": SCHEMA, "strict": True,
               "allowed_callers": ["direct"]}],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
    "temperature": 1, "top_p": 1, "seed": 1, "stop": ["x"], "logit_bias": {"1": 1}, "max_output_tokens": 9,
    "top_logprobs": 2, "metadata": {"k": "v"}, "reasoning": {"effort": "low", "summary": "auto", "mode": "standard"},
    "text": {"format": {"type": "json_schema", "name": "r", "schema": SCHEMA}, "verbosity": "low"},
    "background_options": {"completion_window": "soonest"}, "context_management": [],
    "input": [
        {"role": "user", "content": "hi"},
        {"type": "message", "role": "assistant", "status": "completed", "phase": "commentary", "content": [
            {"type": "output_text", "text": "x", "annotations": [{"type": "file_path"}], "logprobs": []},
            {"type": "refusal", "refusal": "no"}]},
        {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AA=="},
                                     {"type": "input_file", "file_data": "AA==", "filename": "f"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}],
         "content": [{"type": "reasoning_text", "text": "t"}], "encrypted_content": None},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "o"}]},
        {"type": "item_reference", "id": "msg_1"},
    ],
}  # fmt: skip

words = st.sampled_from(
    ["type", "name", "function", "text", "$ref", "#", "#/", "enum", "pattern", "(", "items", "allOf", "$schema", "auto",
     "http://json-schema.org/draft-04/schema#", "", "role", "id", "user", "\x00", "é😀"]
)  # fmt: skip
numbers = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
json = st.recursive(
    st.none() | st.booleans() | numbers | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of everything inside a JSON value."""
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in ((*at, key), *places(value[key], (*at, key)))]


PLACES = places(FULL)
PARSER = RequestParser()


def replaced(changes: list[tuple[tuple[Any, ...], Any]]) -> Any:
    """The full request with some places replaced; a place that an earlier change removed stays away."""
    whole: Any = deepcopy(FULL)
    for place, new in changes:
        if place in places(whole):
            node = whole
            for key in place[:-1]:
                node = node[key]
            node[place[-1]] = new
    return whole


def test_the_full_request_is_fine() -> None:
    assert PARSER.parse(orjson.dumps(FULL)).ignored == []


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PLACES), json), min_size=1, max_size=3))
def test_a_spoiled_request_is_run_or_refused(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    data = orjson.dumps(replaced(changes))
    try:
        request = PARSER.parse(data).request
    except InvalidRequest as error:
        assert error.status == 400
        assert 0 < len(error.message) < 500
    else:
        assert load_request(dump_request(request)) == request


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40) | json.map(orjson.dumps))
def test_any_bytes_are_refused(data: bytes) -> None:
    try:
        PARSER.parse(data)
    except InvalidRequest as error:
        assert 0 < len(error.message) < 500
    else:
        raise AssertionError("neither a model nor an input was given")
