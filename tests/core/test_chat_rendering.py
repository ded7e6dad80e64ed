"""Items and options of a request as a chat-completions body."""

import json
from typing import Any

import pytest

from app.errors import InvalidRequest, UnsupportedValue
from app.models.chat_rendering import dump_body, render_body
from app.responses.request import Item, Request

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "d",
    "parameters": {"type": "object"},
    "strict": True,
}
CLOCK = {"type": "function", "name": "clock", "description": None, "parameters": {"type": "object"}, "strict": None}
PIXEL = "data:image/png;base64,iVBORw0KGgo="


def message(role: str, *texts: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "id": "msg_1", "role": role, "content": [{"type": kind, "text": text} for text in texts]}


def reasoning(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def call(call_id: str, arguments: str = '{"city":"Oslo"}') -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": f"fc_{call_id}",
        "call_id": call_id,
        "name": "get_weather",
        "arguments": arguments,
    }


def result(call_id: str, output: Any = "7 C") -> dict[str, Any]:
    return {"type": "function_call_output", "id": f"fco_{call_id}", "call_id": call_id, "output": output}


def body(*items: Item, history: tuple[Item, ...] = (), images: bool = True, **fields: Any) -> dict[str, Any]:
    request = Request(model="m", items=[dict(item) for item in items], **fields)
    return render_body(request, [*history, *items], model="upstream", images=images)


def messages(*items: Item, **fields: Any) -> list[dict[str, Any]]:
    rendered: list[dict[str, Any]] = body(*items, **fields)["messages"]
    return rendered


def tool_call(call_id: str, arguments: str = '{"city":"Oslo"}') -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "get_weather", "arguments": arguments}}


def test_a_plain_request_asks_for_a_stream_with_usage_and_nothing_else() -> None:
    assert body(message("user", "Hi")) == {
        "model": "upstream",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_instructions_developer_and_system_become_one_leading_system_message() -> None:
    assert messages(
        message("user", "Good evening"),
        message("developer", "One word."),
        message("system", "Use ", "English."),
        message("user", "Capital of Norway?"),
        instructions="Be brief.",
    ) == [
        {"role": "system", "content": "Be brief.\n\nOne word.\n\nUse English."},
        {"role": "user", "content": "Good evening"},
        {"role": "user", "content": "Capital of Norway?"},
    ]


def test_reasoning_text_and_calls_of_a_turn_are_one_message_followed_by_its_results() -> None:
    items = (
        message("user", "weather?"),
        reasoning("two cities"),
        message("assistant", "Checking."),
        call("c1"),
        call("c2", '{"city":"Lima"}'),
        result("c2", "rain"),
        result("c1", "snow"),
    )

    assert messages(*items) == [
        {"role": "user", "content": "weather?"},
        {
            "role": "assistant",
            "content": "Checking.",
            "reasoning": "two cities",
            "tool_calls": [tool_call("c1"), tool_call("c2", '{"city":"Lima"}')],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "snow"},
        {"role": "tool", "tool_call_id": "c2", "content": "rain"},
    ]


def test_what_follows_a_result_is_a_new_message() -> None:
    roles = [one["role"] for one in messages(message("user", "w?"), call("c1"), result("c1"), call("c2"), result("c2"))]

    assert roles == ["user", "assistant", "tool", "assistant", "tool"]


def test_results_of_one_turn_stand_behind_it_whatever_comes_between() -> None:
    rendered = messages(
        message("user", "w?"), call("c1"), call("c2"), result("c1"), message("assistant", "hm"), result("c2")
    )

    assert [one.get("tool_call_id", one["role"]) for one in rendered] == ["user", "assistant", "c1", "c2", "assistant"]


def test_reasoning_of_earlier_turns_is_dropped_and_that_of_the_running_one_kept() -> None:
    earlier = (message("user", "a"), reasoning("old"), message("assistant", "b"))
    running = (message("user", "c"), reasoning("new"), call("c1"), result("c1"))

    rendered = messages(*running, history=earlier)

    assert [one.get("reasoning") for one in rendered] == [None, None, None, "new", None]


def test_reasoning_without_anything_after_it_is_dropped() -> None:
    assert messages(message("user", "a"), reasoning("alone")) == [{"role": "user", "content": "a"}]


@pytest.mark.parametrize(
    "empty",
    [
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": []},
        message("assistant"),
        message("assistant", ""),
        message("developer", ""),
    ],
)
def test_an_empty_item_is_nothing(empty: dict[str, Any]) -> None:
    assert messages(empty, message("user", "a")) == [{"role": "user", "content": "a"}]


def test_a_summary_stands_for_reasoning_that_has_no_text() -> None:
    item = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "short"}]}

    assert messages(message("user", "a"), item, call("c1"), result("c1"))[1]["reasoning"] == "short"


def test_a_refusal_is_the_assistants_text() -> None:
    refused = {
        "type": "message",
        "id": "m",
        "role": "assistant",
        "content": [{"type": "refusal", "refusal": "I can't."}],
    }

    assert messages(message("user", "bad"), refused, message("user", "ok"))[1] == {
        "role": "assistant",
        "content": "I can't.",
    }


def test_a_call_or_result_that_is_sent_twice_is_one() -> None:
    rendered = messages(message("user", "x"), call("c1"), call("c1"), result("c1"), result("c1"))

    assert [one["role"] for one in rendered] == ["user", "assistant", "tool"]
    assert len(rendered[1]["tool_calls"]) == 1


def test_a_result_without_its_call_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="call_ghost") as refused:
        messages(message("user", "x"), result("call_ghost"))

    assert refused.value.param == "input"


@pytest.mark.parametrize(
    ("arguments", "rendered"),
    [
        ("", "{}"),
        ('{"a": 1}', '{"a": 1}'),
        ('{"city":"Os', '{"arguments":"{\\"city\\":\\"Os"}'),
        ("[1]", '{"arguments":"[1]"}'),
    ],
)
def test_arguments_are_always_an_object_because_templates_parse_them(arguments: str, rendered: str) -> None:
    sent = messages(message("user", "x"), call("c1", arguments), result("c1"))[1]["tool_calls"][0]["function"][
        "arguments"
    ]

    assert sent == rendered
    assert isinstance(json.loads(sent), dict)


@pytest.mark.parametrize(
    ("output", "content"),
    [
        ("7 C", "7 C"),
        ("", ""),
        ([], ""),
        ([{"type": "input_text", "text": "7 C"}, {"type": "output_text", "text": " rain"}], "7 C rain"),
    ],
)
def test_the_texts_of_a_result_are_joined(output: Any, content: str) -> None:
    assert messages(message("user", "w?"), call("c1"), result("c1", output))[-1]["content"] == content


def test_a_picture_is_passed_on_with_its_detail() -> None:
    parts = [{"type": "input_text", "text": "what?"}, {"type": "input_image", "image_url": PIXEL, "detail": "original"}]
    item = {"type": "message", "id": "m", "role": "user", "content": parts}

    assert messages(item)[0]["content"] == [
        {"type": "text", "text": "what?"},
        {"type": "image_url", "image_url": {"url": PIXEL, "detail": "high"}},
    ]


def test_a_picture_in_a_result_is_passed_on() -> None:
    output = [{"type": "input_text", "text": "shot"}, {"type": "input_image", "image_url": PIXEL, "detail": None}]

    assert messages(message("user", "look"), call("c1"), result("c1", output))[-1]["content"][1] == {
        "type": "image_url",
        "image_url": {"url": PIXEL, "detail": "auto"},
    }


@pytest.mark.parametrize(
    ("item", "images", "param"),
    [
        ({"role": "user", "content": [{"type": "input_image", "image_url": PIXEL}]}, False, "input[1].content[0]"),
        ({"role": "system", "content": [{"type": "input_image", "image_url": PIXEL}]}, True, "input[1].content[0]"),
        ({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}, True, "input[1].content[0]"),
        ({"role": "user", "content": [{"type": "input_file", "file_data": "x"}]}, True, "input[1].content[0]"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, True, "input[1].content[0]"),
    ],
)
def test_a_part_that_the_model_can_not_take_is_named(item: dict[str, Any], images: bool, param: str) -> None:
    earlier = (message("user", "a"), message("assistant", "b"))

    with pytest.raises(UnsupportedValue) as refused:
        messages(message("user", "x"), {"type": "message", "id": "m", **item}, history=earlier, images=images)

    assert refused.value.param == param


def test_a_picture_in_a_result_of_a_text_model_is_named() -> None:
    output = [{"type": "input_image", "image_url": PIXEL}]

    with pytest.raises(UnsupportedValue) as refused:
        messages(message("user", "look"), call("c1"), result("c1", output), images=False)

    assert refused.value.param == "input[2].output[0]"


def test_an_unknown_item_is_named() -> None:
    with pytest.raises(UnsupportedValue, match="web_search_call") as refused:
        messages({"type": "web_search_call", "id": "ws_1"})

    assert refused.value.param == "input[0]"


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="surrogate"):
        dump_body(body(message("user", "\ud800")))


def test_options_are_passed_under_their_names() -> None:
    asked = body(
        message("user", "x"),
        temperature=0.5,
        top_p=0.9,
        top_k=4,
        min_p=0.1,
        presence_penalty=0.1,
        frequency_penalty=0.2,
        repetition_penalty=1.1,
        seed=7,
        stop=["END"],
        logit_bias={"5": 1.0},
        max_output_tokens=9,
        verbosity="low",
        reasoning_effort="low",
        priority=2,
        include=["message.output_text.logprobs"],
        top_logprobs=3,
    )

    del asked["messages"], asked["model"], asked["stream"], asked["stream_options"]
    assert asked == {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 4,
        "min_p": 0.1,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "repetition_penalty": 1.1,
        "seed": 7,
        "stop": ["END"],
        "logit_bias": {"5": 1.0},
        "max_tokens": 9,
        "verbosity": "low",
        "reasoning_effort": "low",
        "priority": 2,
        "logprobs": True,
        "top_logprobs": 3,
    }


def test_top_logprobs_alone_asks_for_nothing() -> None:
    assert "logprobs" not in body(message("user", "x"), top_logprobs=3)


def test_tools_are_sent_as_functions() -> None:
    asked = body(message("user", "x"), tools=[WEATHER, CLOCK], parallel_tool_calls=False)

    assert asked["tools"] == [
        {
            "type": "function",
            "function": {"name": "get_weather", "description": "d", "parameters": {"type": "object"}, "strict": True},
        },
        {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}},
    ]
    assert (asked["tool_choice"], asked["parallel_tool_calls"]) == ("auto", False)


@pytest.mark.parametrize(
    ("choice", "sent", "names"),
    [
        ("none", "none", ["get_weather", "clock"]),
        ("auto", "auto", ["get_weather", "clock"]),
        ("required", "required", ["get_weather", "clock"]),
        (
            {"type": "function", "name": "clock"},
            {"type": "function", "function": {"name": "clock"}},
            ["get_weather", "clock"],
        ),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "clock"}]},
            "auto",
            ["clock"],
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "clock"}]},
            "required",
            ["clock"],
        ),
    ],
)
def test_a_tool_choice_is_translated_and_only_allowed_tools_are_sent(choice: Any, sent: Any, names: list[str]) -> None:
    asked = body(message("user", "x"), tools=[WEATHER, CLOCK], tool_choice=choice)

    assert asked["tool_choice"] == sent
    assert [tool["function"]["name"] for tool in asked["tools"]] == names


def test_without_tools_there_is_no_choice() -> None:
    assert "tool_choice" not in body(message("user", "x"), tool_choice="none", parallel_tool_calls=False)


def test_a_json_schema_is_translated() -> None:
    form = {"type": "json_schema", "name": "r", "description": None, "strict": True, "schema": {"type": "object"}}

    assert body(message("user", "x"), text_format=form)["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "r", "strict": True, "schema": {"type": "object"}},
    }


def test_json_object_is_translated_and_text_is_not() -> None:
    assert body(message("user", "x"), text_format={"type": "json_object"})["response_format"] == {"type": "json_object"}
    assert "response_format" not in body(message("user", "x"))
