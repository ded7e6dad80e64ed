"""Input items: every form that clients send becomes the one normal form; mistakes are named by their path."""

from typing import Any

import pytest

from app.api.items import ELSEWHERE, parse_input
from app.errors import InvalidRequest, UnsupportedValue

PNG = "data:image/png;base64,iVBORw0KGgo="


def item(value: dict[str, Any]) -> dict[str, Any]:
    [parsed] = parse_input([value])
    return parsed


def refused(value: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse_input([value])
    assert 0 < len(caught.value.message) < 500
    return caught.value


def test_a_string_is_one_user_message() -> None:
    assert parse_input("hi") == parse_input([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize("role", ["user", "system", "developer"])
def test_a_string_given_to_the_model_is_input_text(role: str) -> None:
    assert item({"role": role, "content": "hi"}) == {
        "type": "message", "status": "completed", "role": role, "content": [{"type": "input_text", "text": "hi"}],
    }  # fmt: skip


SPOKEN = {"type": "message", "status": "completed", "role": "assistant",
          "content": [{"type": "output_text", "text": "two", "annotations": []}]}  # fmt: skip


@pytest.mark.parametrize(
    "value",
    [
        {"role": "assistant", "content": "two"},
        {"type": None, "role": "assistant", "content": "two"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "two"}]},
        {"role": "assistant", "content": [{"type": "input_text", "text": "two"}]},
        {"type": "message", "id": None, "status": None, "role": "assistant",
         "content": [{"type": "output_text", "text": "two", "annotations": None, "logprobs": None}]},
    ],
)  # fmt: skip
def test_every_form_of_an_assistant_message_is_output_text(value: dict[str, Any]) -> None:
    assert item(value) == SPOKEN


def test_our_own_output_message_comes_back_unchanged() -> None:
    ours = {
        "type": "message", "id": "msg_1", "status": "incomplete", "role": "assistant",
        "content": [{"type": "output_text", "text": "x", "annotations": [{"type": "url_citation"}], "logprobs": []}],
        "phase": "final_answer",
    }  # fmt: skip
    assert item(ours) == ours


def test_a_refusal_may_be_replayed() -> None:
    value = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    assert item(value)["content"] == [{"type": "refusal", "refusal": "No."}]


def test_roles_may_stand_anywhere() -> None:
    roles = ["user", "developer", "assistant", "system", "assistant", "user"]
    assert [m["role"] for m in parse_input([{"role": role, "content": "x"} for role in roles])] == roles


def test_an_image_keeps_its_url_and_detail() -> None:
    for url in (PNG, "HTTPS://example.com/a.png", "data:Image/PNG;base64,AA=="):
        value = {"role": "user", "content": [{"type": "input_image", "image_url": url}]}
        assert item(value)["content"] == [{"type": "input_image", "image_url": url, "detail": "auto"}]


def test_a_file_keeps_its_content() -> None:
    part = {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AA=="}
    assert item({"role": "user", "content": [part]})["content"] == [part]


def test_a_call_and_its_output_keep_their_labels() -> None:
    call = {"type": "function_call", "id": "fc_of_another_server", "status": "completed", "call_id": "c1", "name": "f",
            "arguments": "{}"}  # fmt: skip
    output = {"type": "function_call_output", "id": "fco_x", "status": "completed", "call_id": "c1", "output": "7 C"}
    assert parse_input([call, output]) == [call, output]


def test_a_call_without_id_and_status_is_completed_and_stays_without_id() -> None:
    assert item({"type": "function_call", "call_id": "c1", "name": "f", "arguments": ""}) == {
        "type": "function_call", "status": "completed", "call_id": "c1", "name": "f", "arguments": "",
    }  # fmt: skip


@pytest.mark.parametrize("output", ["", [], "text"])
def test_a_tool_output_may_be_empty(output: Any) -> None:
    assert item({"type": "function_call_output", "call_id": "c1", "output": output})["output"] == output


def test_a_tool_output_may_be_parts() -> None:
    parts = [{"type": "input_text", "text": "7 C"}, {"type": "output_text", "text": " rain"},
             {"type": "input_image", "detail": "auto", "image_url": PNG}]  # fmt: skip
    assert item({"type": "function_call_output", "call_id": "c1", "output": parts})["output"] == [
        {"type": "input_text", "text": "7 C"},
        {"type": "input_text", "text": " rain"},
        {"type": "input_image", "image_url": PNG, "detail": "auto"},
    ]


@pytest.mark.parametrize(
    "fields",
    [{}, {"summary": None}, {"summary": []}, {"summary": [], "content": []},
     {"summary": [], "content": None, "encrypted_content": None, "status": None},
     {"encrypted_content": "bm90LW91cnM="}],
)  # fmt: skip
def test_an_empty_reasoning_item_is_accepted(fields: dict[str, Any]) -> None:
    assert item({"type": "reasoning", "id": "rs_x", **fields}) == {
        "type": "reasoning", "id": "rs_x", "status": "completed", "summary": [], "content": [],
    }  # fmt: skip


def test_reasoning_keeps_its_texts_and_needs_no_id() -> None:
    thought = {
        "type": "reasoning", "status": "completed", "summary": [{"type": "summary_text", "text": "s"}],
        "content": [{"type": "reasoning_text", "text": "t"}],
    }  # fmt: skip
    assert item(thought) == thought


@pytest.mark.parametrize("value", [{"id": "msg_1"}, {"type": "item_reference", "id": "msg_1"}])
def test_a_bare_id_is_an_item_reference(value: dict[str, Any]) -> None:
    assert item(value) == {"type": "item_reference", "id": "msg_1"}


AT = "input[0].content[0]"
MESSAGE = {"type": "message", "role": "user"}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": ""}


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ("hi", "input[0]"),
        (None, "input[0]"),
        ({}, "input[0].type"),
        ({"content": "x"}, "input[0].type"),
        ({"type": 5}, "input[0].type"),
        ({"type": "mesage", "role": "user", "content": "typo"}, "input[0].type"),
        ({"role": "robot", "content": "x"}, "input[0].role"),
        ({"type": "message", "content": "x"}, "input[0].role"),
        ({"role": "user"}, "input[0].content"),
        ({"role": "user", "content": 5}, "input[0].content"),
        ({"role": "user", "content": "x", "status": "done"}, "input[0].status"),
        ({"role": "assistant", "content": "x", "phase": "middle"}, "input[0].phase"),
        ({**MESSAGE, "content": ["x"]}, "input[0].content[0]"),
        ({**MESSAGE, "content": [{"text": "x"}]}, "input[0].content[0].type"),
        ({**MESSAGE, "content": [{"type": "text", "text": "x"}]}, "input[0].content[0].type"),
        ({**MESSAGE, "content": [{"type": ["input_text"]}]}, "input[0].content[0].type"),
        ({**MESSAGE, "content": [{"type": "refusal", "refusal": "x"}]}, "input[0].content[0].type"),
        ({**MESSAGE, "content": [{"type": "input_text"}]}, "input[0].content[0].text"),
        ({**MESSAGE, "content": [{"type": "input_text", "text": None}]}, "input[0].content[0].text"),
        ({**MESSAGE, "content": [{"type": "input_image"}]}, "input[0].content[0].image_url"),
        ({**MESSAGE, "content": [{"type": "input_image", "image_url": {"url": PNG}}]}, "input[0].content[0].image_url"),
        ({**MESSAGE, "content": [{"type": "input_image", "image_url": "file:///x"}]}, "input[0].content[0].image_url"),
        ({**MESSAGE, "content": [{"type": "input_image", "image_url": PNG, "detail": 5}]}, AT + ".detail"),
        ({**MESSAGE, "content": [{"type": "input_file"}]}, "input[0].content[0].file_data"),
        ({"role": "assistant", "content": [{"type": "input_image", "image_url": PNG}]}, "input[0].content[0].type"),
        ({**CALL, "call_id": None}, "input[0].call_id"),
        ({**CALL, "call_id": ""}, "input[0].call_id"),
        ({**CALL, "name": 5}, "input[0].name"),
        ({**CALL, "arguments": {}}, "input[0].arguments"),
        ({**OUTPUT, "call_id": None}, "input[0].call_id"),
        ({**OUTPUT, "output": None}, "input[0].output"),
        ({**OUTPUT, "output": {}}, "input[0].output"),
        ({**OUTPUT, "output": [{"type": "refusal"}]}, "input[0].output[0].type"),
        ({"type": "reasoning", "summary": "x"}, "input[0].summary"),
        ({"type": "reasoning", "content": [{"type": "text", "text": "x"}]}, "input[0].content[0].type"),
        ({"type": "item_reference"}, "input[0].id"),
        ({"id": 5}, "input[0].id"),
    ],
)
def test_a_mistake_is_named_by_its_path(value: Any, param: str) -> None:
    assert refused(value).param == param


def test_the_path_counts_items_and_parts() -> None:
    good = {"type": "input_text", "text": "x"}
    with pytest.raises(InvalidRequest) as caught:
        parse_input([{"role": "user", "content": "x"}, {"role": "user", "content": [good, good, {"type": "x"}]}])
    assert caught.value.param == "input[1].content[2].type"


@pytest.mark.parametrize("kind", sorted(ELSEWHERE))
def test_items_of_tools_that_are_not_served_are_refused_by_name(kind: str) -> None:
    error = refused({"type": kind, "id": "x"})
    assert isinstance(error, UnsupportedValue)
    assert error.param == "input[0].type"
    assert kind in error.message


@pytest.mark.parametrize("kind", ["input_image", "input_file"])
def test_stored_files_are_not_served(kind: str) -> None:
    error = refused({"role": "user", "content": [{"type": kind, "file_id": "file-1"}]})
    assert isinstance(error, UnsupportedValue)
    assert error.param == "input[0].content[0].file_id"
