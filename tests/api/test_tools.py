"""Tools, tool choices and text formats: their normal forms, and their mistakes by path."""

from typing import Any

import orjson
import pytest

from app.api.parsing import RequestParser
from app.errors import InvalidRequest, UnsupportedValue
from app.responses.request import Request

EMPTY = {"type": "object", "properties": {}}
ROLL = {"type": "function", "name": "roll", "description": "roll a die", "parameters": EMPTY, "strict": True}
PING = {"type": "function", "name": "ping"}


def parse(**fields: Any) -> Request:
    return RequestParser().parse(orjson.dumps({"model": "m", "input": "hi", **fields})).request


def refused(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    assert 0 < len(caught.value.message) < 500
    return caught.value


def test_a_complete_tool_is_kept_as_it_came() -> None:
    assert parse(tools=[ROLL]).tools == [ROLL]


def test_a_short_tool_gets_its_defaults() -> None:
    assert parse(tools=[PING]).tools == [{**PING, "description": None, "parameters": EMPTY, "strict": False}]


def test_keys_of_newer_clients_are_dropped() -> None:
    tool = {**ROLL, "allowed_callers": ["direct"], "output_schema": {}, "cache_control": {}, "async": False}
    assert parse(tools=[tool]).tools == [ROLL]


DRAFT_7 = "http://json-schema.org/draft-07/schema#"  # what agents-js adds


@pytest.mark.parametrize("parameters", [{}, {"type": ["object", "null"]}, {"$schema": DRAFT_7, **EMPTY}])
def test_parameters_may_be_any_schema_of_an_object(parameters: dict[str, Any]) -> None:
    assert parse(tools=[{**PING, "parameters": parameters}]).tools[0]["parameters"] == parameters


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ("roll", "tools[1]"),
        ({}, "tools[1].type"),
        ({"type": "function"}, "tools[1].name"),
        ({"type": "function", "function": {"name": "roll", "parameters": {}}}, "tools[1].name"),
        ({"type": "function", "name": ""}, "tools[1].name"),
        ({"type": "function", "name": "two words"}, "tools[1].name"),
        ({"type": "function", "name": "line\n"}, "tools[1].name"),
        ({"type": "function", "name": "n" * 65}, "tools[1].name"),
        ({"type": "function", "name": "ping"}, "tools[1].name"),
        ({**ROLL, "description": 5}, "tools[1].description"),
        ({**ROLL, "strict": "yes"}, "tools[1].strict"),
        ({**ROLL, "parameters": "object"}, "tools[1].parameters"),
        ({**ROLL, "parameters": {"type": "string"}}, "tools[1].parameters"),
        ({**ROLL, "parameters": {"type": "objekt"}}, "tools[1].parameters"),
        ({**ROLL, "parameters": {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}}, "tools[1].parameters"),
    ],
)
def test_a_mistake_in_a_tool_is_named_by_its_path(tool: Any, param: str) -> None:
    assert refused(tools=[PING, tool]).param == param


def test_the_nested_form_of_chat_completions_is_explained() -> None:
    assert "Chat Completions" in refused(tools=[{"type": "function", "function": {"name": "roll"}}]).message


@pytest.mark.parametrize("kind", ["web_search", "file_search", "mcp", "custom", "namespace", "shell"])
def test_tools_that_are_not_functions_are_refused_and_the_message_says_what_is_served(kind: str) -> None:
    error = refused(tools=[PING, {"type": kind, "name": "x"}])
    assert isinstance(error, UnsupportedValue)
    assert error.param == "tools[1].type"
    assert kind in error.message
    assert "'function'" in error.message


@pytest.mark.parametrize(
    ("name", "value"), [("async", True), ("defer_loading", True), ("allowed_callers", ["programmatic"])]
)
def test_what_a_function_may_not_ask_for_is_refused_by_name(name: str, value: Any) -> None:
    error = refused(tools=[{**PING, name: value}])
    assert isinstance(error, UnsupportedValue)
    assert error.param == f"tools[0].{name}"


ALLOWED = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "ping"}]}


@pytest.mark.parametrize("choice", ["none", "auto", "required", {"type": "function", "name": "ping"}, ALLOWED])
def test_a_tool_choice_is_kept(choice: Any) -> None:
    assert parse(tools=[PING, ROLL], tool_choice=choice).tool_choice == choice


@pytest.mark.parametrize("choice", ["none", "auto"])
def test_a_mode_that_needs_no_tool_needs_no_tools(choice: str) -> None:
    assert parse(tool_choice=choice).tool_choice == choice


@pytest.mark.parametrize(
    "choice",
    [
        "any",
        5,
        [],
        {"type": "function"},
        {"type": "function", "name": "nope"},
        {"type": "function", "name": 5},
        {"type": "function", "function": {"name": "ping"}},
        {"type": "allowed_tools", "mode": "auto"},
        {"type": "allowed_tools", "mode": "auto", "tools": []},
        {"type": "allowed_tools", "mode": "auto", "tools": ["ping"]},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "ping"}] * 1025},
        {"type": "allowed_tools", "mode": "sometimes", "tools": [{"type": "function", "name": "ping"}]},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "nope"}]},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp", "server_label": "x"}]},
    ],
)
def test_a_wrong_tool_choice_is_named(choice: Any) -> None:
    assert refused(tools=[PING], tool_choice=choice).param == "tool_choice"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "ping"}])
def test_a_choice_without_tools_is_refused(choice: Any) -> None:
    assert refused(tool_choice=choice).param == "tool_choice"


@pytest.mark.parametrize("kind", ["custom", "mcp", "file_search", "apply_patch", None])
def test_choices_of_tools_that_are_not_served_are_refused(kind: Any) -> None:
    error = refused(tools=[PING], tool_choice={"type": kind, "name": "x"})
    assert isinstance(error, UnsupportedValue)
    assert error.param == "tool_choice"


@pytest.mark.parametrize("form", [{"type": "text"}, {"type": "json_object"}])
def test_a_simple_text_format_is_kept(form: dict[str, Any]) -> None:
    assert parse(text={"format": form}).text_format == form


def test_a_json_schema_format_gets_its_defaults() -> None:
    form = {"type": "json_schema", "name": "r", "schema": EMPTY}
    assert parse(text={"format": form}).text_format == {**form, "description": None, "strict": False}


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"type": "json_schema", "schema": EMPTY}, "text.format.name"),
        ({"type": "json_schema", "name": "a b", "schema": EMPTY}, "text.format.name"),
        ({"type": "json_schema", "name": "r"}, "text.format.schema"),
        ({"type": "json_schema", "name": "r", "schema": "not an object"}, "text.format.schema"),
        ({"type": "json_schema", "name": "r", "schema": {"type": "not-a-type"}}, "text.format.schema"),
        ({"type": "json_schema", "name": "r", "schema": EMPTY, "strict": 1}, "text.format.strict"),
        ({"type": "json_schema", "json_schema": {"name": "r", "schema": EMPTY}}, "text.format.name"),
        ({"type": "grammar"}, "text.format.type"),
    ],
)
def test_a_mistake_in_a_text_format_is_named_by_its_path(form: dict[str, Any], param: str) -> None:
    assert refused(text={"format": form}).param == param
