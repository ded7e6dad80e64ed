"""The fake says what was seen at a real vLLM (`tests/vllm/FACTS.md`): else tests over it would prove nothing."""

import json
from collections.abc import Iterator
from typing import Any, Final

import httpx
import pytest

from tests.fakes.harmony_vocab import encode_harmony
from tests.fakes.running import FakeVllm, fake_vllm

COMPLETIONS: Final = "/completions"
CHAT: Final = "/chat/completions"
HARMONY: Final = "gpt-oss"
OTHER: Final = "qwen-parser"
RETURN: Final = 200002
CALL: Final = 200012
END_OF_TEXT: Final = 199999
LONG: Final = {"load": {"tokens": 100}}
CALLING: Final = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
TOOL: Final = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
TAG: Final = {"type": "tag", "begin": "a", "end": ""}
CLIENT: Final = httpx.Client(timeout=60, verify=False)  # certificates take long to read

Refused = tuple[str | None, str]


@pytest.fixture(scope="module")
def running() -> Iterator[FakeVllm]:
    """A fake with a short context."""
    with fake_vllm("--max-model-len", "4096") as server:
        yield server


@pytest.fixture
def fake(running: FakeVllm) -> FakeVllm:
    """The same, with nothing scripted."""
    running.script()
    return running


def post(fake: FakeVllm, path: str, **body: Any) -> httpx.Response:
    """A request; what it does not say is the least that is needed."""
    needed = {"prompt": [1, 2, 3]} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "Hi."}]}
    everything = {"model": HARMONY, "temperature": 0, **needed, **body}
    return CLIENT.post(f"{fake.url}{path}", json=everything)


def complete(fake: FakeVllm, **body: Any) -> dict[str, Any]:
    """The answer of a completion, ids included."""
    answer: dict[str, Any] = post(fake, COMPLETIONS, **{"max_tokens": 50, "return_token_ids": True, **body}).json()
    return answer


def streamed(fake: FakeVllm, path: str, **body: Any) -> list[dict[str, Any]]:
    """The chunks of a stream that came to its end."""
    lines = [line for line in post(fake, path, stream=True, **body).text.split("\n\n") if line]
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def refused(fake: FakeVllm, path: str, **body: Any) -> tuple[str, str | None, str]:
    """Type, param and message of a 400."""
    answer = post(fake, path, **body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, 400)
    return error["type"], error["param"], error["message"]


def called(fake: FakeVllm, **body: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The deltas of a chat stream whose tools are offered, and its last choice."""
    choices = [chunk["choices"][0] for chunk in streamed(fake, CHAT, tools=[TOOL], **body)]
    return [choice["delta"] for choice in choices], choices[-1]


@pytest.mark.parametrize(("path", "chunks"), [(COMPLETIONS, 7), (CHAT, 8)])
def test_what_is_held_says_so_much_and_goes_on_when_it_is_released(fake: FakeVllm, path: str, chunks: int) -> None:
    fake.script({"load": {"tokens": 20}, "fault": {"kind": "hold", "after": 7}})
    needed = {"prompt": [1]} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "Hi."}]}
    body = {"model": HARMONY, "max_tokens": 50, "stream": True, **needed}
    with CLIENT.stream("POST", f"{fake.url}{path}", json=body) as answer:
        lines = (line for line in answer.iter_lines() if line)
        said = [next(lines) for _ in range(chunks)]
        while (state := fake.last()["state"]) != "held":
            assert state == "active"
        fake.release()
        rest = list(lines)
    fake.script({"load": {"tokens": 20}})
    whole = post(fake, path, stream=True, **{key: body[key] for key in ("max_tokens", *needed)}).text.split("\n\n")[:-1]
    assert [_choices(line) for line in said + rest] == [_choices(line) for line in whole]


def _choices(line: str) -> object:
    data = line.removeprefix("data: ")
    return data if data == "[DONE]" else json.loads(data)["choices"]


@pytest.mark.parametrize(
    ("marker", "reason"), [("<|return|>", None), ("<|call|>", CALL), ("<|endoftext|>", END_OF_TEXT)]
)
@pytest.mark.parametrize("asked", [[], [RETURN, CALL, END_OF_TEXT]])
def test_the_models_own_stop_tokens_stop_unasked(
    fake: FakeVllm, marker: str, reason: int | None, asked: list[int]
) -> None:
    fake.script({"text": f"{CALLING}{{}}{marker} and more"})

    [choice] = complete(fake, stop_token_ids=asked)["choices"]

    assert choice["token_ids"] == encode_harmony(f"{CALLING}{{}}{marker}")
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", reason)


def test_a_model_folder_may_name_fewer_stop_tokens(fake: FakeVllm) -> None:
    text = f"{CALLING}{{}}<|call|> and more<|return|>"
    fake.script({"text": text}, eos=[RETURN])

    assert complete(fake)["choices"][0]["token_ids"] == encode_harmony(text)
    [stopped] = complete(fake, stop_token_ids=[CALL])["choices"]
    assert (stopped["token_ids"][-1], stopped["stop_reason"]) == (CALL, CALL)

    fake.script({"text": text})
    assert complete(fake)["choices"][0]["token_ids"][-1] == CALL


def test_ignored_stop_tokens_do_not_stop(fake: FakeVllm) -> None:
    text = f"{CALLING}{{}}<|call|> and more<|return|>"
    fake.script({"text": text})

    assert complete(fake, ignore_eos=True)["choices"][0]["token_ids"] == encode_harmony(text)


@pytest.mark.parametrize("more", [{}, {"max_tokens": None}])
def test_without_max_tokens_a_completion_has_sixteen(fake: FakeVllm, more: dict[str, None]) -> None:
    fake.script(LONG)

    answer = post(fake, COMPLETIONS, **more).json()

    assert answer["usage"]["completion_tokens"] == 16
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("more", [{}, {"max_tokens": None}])
def test_without_max_tokens_a_chat_has_all_that_fits(fake: FakeVllm, more: dict[str, None]) -> None:
    fake.script(LONG)

    assert post(fake, CHAT, **more).json()["choices"][0]["finish_reason"] == "stop"


def test_max_tokens_is_lowered_in_silence_to_what_fits(fake: FakeVllm) -> None:
    fake.script(LONG)

    answer = post(fake, COMPLETIONS, prompt=[1000] * 4090, max_tokens=4000).json()

    assert answer["usage"]["completion_tokens"] == 6


NO_ROOM: Final = "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)"
TOO_MANY: Final = (
    "max_tokens=5000 cannot be greater than max_model_len=4096. Please request fewer output tokens."
    " (parameter=max_tokens, value=5000)"
)
TWO_KINDS: Final = (
    "You can only use one kind of constraints for structured outputs ('json', 'regex' or 'choice')."
    " (parameter=structured_outputs)"
)
WRONG_ANYWHERE: Final[list[tuple[dict[str, Any], Refused]]] = [
    ({"max_tokens": 0}, ("max_tokens", NO_ROOM)),
    ({"max_tokens": -1}, ("max_tokens", "max_tokens must be at least 1, got -1. (parameter=max_tokens, value=-1)")),
    (
        {"max_tokens": 5000},
        (
            "max_tokens",
            TOO_MANY,
        ),
    ),
    (
        {"temperature": -1},
        ("temperature", "temperature must be non-negative, got -1.0. (parameter=temperature, value=-1.0)"),
    ),
    ({"top_p": 2}, ("top_p", "top_p must be in (0, 1], got 2.0. (parameter=top_p, value=2.0)")),
    (
        {"stream_options": {"include_usage": True}},
        (
            "stream_options",
            "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
        ),
    ),
]
WRONG_COMPLETIONS: Final[list[tuple[dict[str, Any], Refused]]] = [
    ({"prompt": [1000] * 4096, "max_tokens": 9}, ("max_tokens", NO_ROOM)),
    (
        {"logprobs": 50},
        (
            "logprobs",
            "Requested sample logprobs of 50, which is greater than max allowed: 20 (parameter=logprobs, value=50)",
        ),
    ),
    ({"stop": ""}, (None, "stop cannot contain an empty string.")),
    ({"stop": ["a", ""]}, (None, "stop cannot contain an empty string.")),
    ({"n": 2}, (None, "n must be 1 when using greedy sampling, got 2.")),
    ({"prompt": []}, (None, "You must pass at least one prompt")),
    (
        {"prompt": None},
        ("prompt", "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)"),
    ),
    ({"prompt": [999999]}, (None, "Token id 999999 is out of vocabulary")),
    (
        {"structured_outputs": {"json": {}, "regex": "a"}},
        (
            "structured_outputs",
            TWO_KINDS,
        ),
    ),
    ({"structured_outputs": {"json": "{no"}}, (None, "Invalid JSON grammar specification.")),
]
WRONG_CHATS: Final[list[tuple[dict[str, Any], Refused]]] = [
    ({"messages": []}, (None, "Cannot apply chat template to an empty conversation. Provide at least one message.")),
    (
        {"top_logprobs": 2},
        ("top_logprobs", "when using `top_logprobs`, `logprobs` must be set to true. (parameter=top_logprobs)"),
    ),
    (
        {"tool_choice": "required"},
        ("tool_choice", "When using `tool_choice`, `tools` must be set. (parameter=tool_choice)"),
    ),
    (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        (
            "tool_choice",
            "The tool specified in `tool_choice` does not match any of the specified `tools` (parameter=tool_choice)",
        ),
    ),
]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize(("wrong", "told"), WRONG_ANYWHERE)
def test_a_wrong_value_is_refused_naming_it(fake: FakeVllm, path: str, wrong: dict[str, Any], told: Refused) -> None:
    assert refused(fake, path, **wrong) == ("BadRequestError", *told)


@pytest.mark.parametrize(("wrong", "told"), WRONG_COMPLETIONS)
def test_a_wrong_completion_is_refused(fake: FakeVllm, wrong: dict[str, Any], told: Refused) -> None:
    assert refused(fake, COMPLETIONS, **wrong) == ("BadRequestError", *told)


@pytest.mark.parametrize(("wrong", "told"), WRONG_CHATS)
def test_a_wrong_chat_is_refused(fake: FakeVllm, wrong: dict[str, Any], told: Refused) -> None:
    assert refused(fake, CHAT, **wrong) == ("BadRequestError", *told)


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"temperature": "x"}, "body.temperature"),
        ({"max_tokens": "x"}, "body.max_tokens"),
        ({"prompt": [-1]}, "body.prompt.0"),
        ({"prompt": [1, "x"]}, "body.prompt.1"),
    ],
)
def test_a_value_of_a_wrong_type_is_refused_as_pydantic_does(fake: FakeVllm, wrong: dict[str, Any], param: str) -> None:
    kind, told, message = refused(fake, COMPLETIONS, **wrong)

    assert (kind, told) == ("Bad Request", param)
    assert message.startswith("1 validation error:\n  {'type': ")


def test_a_constraint_that_is_none_is_refused(fake: FakeVllm) -> None:
    kind, param, message = refused(fake, COMPLETIONS, structured_outputs={})

    assert (kind, param) == ("BadRequestError", None)
    assert message.startswith("You must use one kind of structured outputs constraint but none are specified: {")


def test_only_gpt_oss_knows_its_roles(fake: FakeVllm) -> None:
    stranger = [{"role": "nobody", "content": "Hi."}]

    assert refused(fake, CHAT, messages=stranger)[2].startswith("1 validation error for Author\nrole\n")
    assert post(fake, CHAT, messages=stranger, model=OTHER).status_code == 200


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        (COMPLETIONS, {"structured_outputs": {"json": {"type": "nonsense"}}}),
        (COMPLETIONS, {"structured_outputs": {"json": {"properties": {"a": {"items": {"type": "nonsense"}}}}}}),
        (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}}}),
    ],
)
def test_a_bad_schema_is_refused_but_in_a_stream_only_after_its_start(
    fake: FakeVllm, path: str, wrong: dict[str, Any]
) -> None:
    error = {"message": "Grammar error: Invalid type: nonsense", "type": "BadRequestError", "param": None, "code": 400}

    assert refused(fake, path, **wrong) == (error["type"], error["param"], error["message"])
    assert streamed(fake, path, **wrong) == [{"error": error}]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    "tag", ["{", '{"type":"other"}', json.dumps({"type": "structural_tag", "format": {**TAG, "content": {
        "type": "json_schema", "json_schema": {"type": "nonsense"}}}})]
)  # fmt: skip
def test_a_bad_structural_tag_is_refused_before_a_stream_starts(fake: FakeVllm, tag: str, streaming: bool) -> None:
    told = refused(fake, COMPLETIONS, structured_outputs={"structural_tag": tag}, stream=streaming)

    message = "Invalid structured_outputs structural_tag specification. (parameter=structured_outputs)"
    assert told == ("BadRequestError", "structured_outputs", message)


def test_a_good_structural_tag_is_taken(fake: FakeVllm) -> None:
    schema = {"type": "object", "properties": {"type": {"type": "string"}, "n": {"type": ["integer", "null"]}}}
    content = {"type": "json_schema", "json_schema": schema}
    tag = json.dumps({"type": "structural_tag", "format": {**TAG, "content": content}})

    assert post(fake, COMPLETIONS, structured_outputs={"structural_tag": tag}).status_code == 200


FORCED: Final = [("required", "tool_calls"), ({"type": "function", "function": {"name": "f"}}, "stop")]


@pytest.mark.parametrize(("choice", "reason"), FORCED, ids=["required", "named"])
def test_a_forced_call_of_an_ordinary_model_begins_without_arguments_and_with_null_content(
    fake: FakeVllm, choice: object, reason: str
) -> None:
    fake.script({"chat": [{"tool_call": {"name": "f", "arguments": '{"a":1}'}}]})

    deltas, last = called(fake, model=OTHER, tool_choice=choice)

    said = [delta for delta in deltas if "tool_calls" in delta]
    assert all(delta["content"] is None for delta in said)
    [[first], *rest] = [delta["tool_calls"] for delta in said]
    assert first["function"] == {"name": "f"}
    assert "".join(part["function"]["arguments"] for [part] in rest) == '{"a":1}'
    assert (last["finish_reason"], last["stop_reason"]) == (reason, None)


def test_a_call_of_gpt_oss_begins_with_empty_arguments_and_stops_at_its_token(fake: FakeVllm) -> None:
    fake.script({"text": f'{CALLING}{{"a":1}}<|call|>'})

    deltas, last = called(fake)

    [first, *_] = [delta for delta in deltas if "tool_calls" in delta]
    assert "content" not in first
    assert first["tool_calls"][0]["function"] == {"name": "f", "arguments": ""}
    assert (last["finish_reason"], last["stop_reason"]) == ("tool_calls", CALL)


def test_a_whole_answer_writes_arguments_anew_and_names_calls_only_if_there_are_some(fake: FakeVllm) -> None:
    fake.script({"chat": [{"tool_call": {"name": "f", "arguments": '{"a":1,"b":"ü"}'}}]})
    [calling] = post(fake, CHAT, tools=[TOOL]).json()["choices"]
    [forced] = post(fake, CHAT, tools=[TOOL], tool_choice="required", model=OTHER).json()["choices"]
    fake.script({"chat": [{"content": "Hi."}]})
    [plain] = post(fake, CHAT).json()["choices"]

    for choice, content in ((calling, None), (forced, "")):
        [call] = choice["message"]["tool_calls"]
        assert (call["function"]["arguments"], choice["message"]["content"]) == ('{"a": 1, "b": "ü"}', content)
    assert "tool_calls" not in plain["message"]


def test_a_chat_that_is_too_long_is_refused_in_two_ways(fake: FakeVllm) -> None:
    long = [{"role": "user", "content": "hello " * 6000}]

    _, param, message = refused(fake, CHAT, messages=long)
    assert (param, message.endswith("exceeds model's maximum context length (4096).")) == (None, True)
    _, param, message = refused(fake, CHAT, messages=long, model=OTHER)
    assert (param, message.startswith("This model's maximum context length is 4096 tokens.")) == ("input_tokens", True)


def test_a_request_may_name_its_id(fake: FakeVllm) -> None:
    named = CLIENT.post(f"{fake.url}{COMPLETIONS}", json={"prompt": [1]}, headers={"X-Request-Id": "mine"})

    assert complete(fake, request_id="ours")["id"] == "cmpl-ours"
    assert named.json()["id"] == "cmpl-mine"


def test_a_body_that_is_not_json_is_refused_where_it_breaks(fake: FakeVllm) -> None:
    answer = CLIENT.post(f"{fake.url}{COMPLETIONS}", content=b'{"model": nope')

    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "Bad Request", "body.10")
    assert "'ctx': {'error': 'Expecting value'}" in error["message"]


def test_a_wrong_method_is_not_allowed(fake: FakeVllm) -> None:
    answer = CLIENT.get(f"{fake.url}{COMPLETIONS}")

    assert (answer.status_code, answer.json()) == (405, {"detail": "Method Not Allowed"})
    assert CLIENT.get(f"{fake.url}/nowhere").status_code == 404


def test_a_server_that_is_unwell_refuses_each_prompt_so_many_times(fake: FakeVllm) -> None:
    fake.script(LONG, unwell={"status": 503, "message": "Not now.", "times": 2})
    answers = [post(fake, COMPLETIONS, prompt=[n]) for n in (1, 1, 2, 1, 2, 2)]
    assert [answer.status_code for answer in answers] == [503, 503, 503, 200, 503, 200]
    assert answers[0].json()["error"] == {
        "message": "Not now.", "type": "ServiceUnavailableError", "param": None, "code": 503,
    }  # fmt: skip
    fake.script(LONG)
    assert post(fake, COMPLETIONS, prompt=[3]).status_code == 200
