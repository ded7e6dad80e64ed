"""What Verbatim relies on in vLLM's /v1/chat/completions, asserted against real servers of both models.

How many tokens a chunk carries is a matter of speed. Where that could matter, a test sees few and nearly all at once.
"""

import json
from typing import Any, Final

import pytest

from tests.vllm.models.scenarios import HELLO, WEATHER, WEATHER_TOOL, Call
from tests.vllm.server import Vllm
from tests.vllm.wire import CHAT, choices, error, open_stream, post, stream

TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "function": {key: WEATHER_TOOL[key] for key in ("name", "description", "parameters")},
}
STRICT_TOOL: Final[dict[str, Any]] = {"type": "function", "function": {**TOOL["function"], "strict": True}}
SEVEN: Final = {
    "type": "object",
    "properties": {"7": {"type": "integer", "enum": [7]}},
    "required": ["7"],
    "additionalProperties": False,
}
USAGE: Final = {"stream_options": {"include_usage": True}}
UNSEEN: Final = {"<|channel|>", "analysis", "final", "<|message|>", "<|end|>", "<|start|>", "assistant", "<|return|>"}

in_small_and_big_chunks = pytest.mark.parametrize("stream_interval", [1, 1000], ids=["small", "big"])


def saying(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 100, **more}


def deltas(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [choice["delta"] for choice in choices(chunks)]


@in_small_and_big_chunks
async def test_the_first_chunk_has_the_role_and_the_last_the_reason(gpt_oss_server: Vllm, stream_interval: int) -> None:
    chunks = await stream(gpt_oss_server, CHAT, saying(HELLO.user, stream_interval=stream_interval))
    assert {(chunk["object"], chunk["id"]) for chunk in chunks} == {("chat.completion.chunk", chunks[0]["id"])}
    assert chunks[0]["id"].startswith("chatcmpl-")
    assert deltas(chunks)[0] == {"role": "assistant", "content": ""}
    assert [choice["finish_reason"] for choice in choices(chunks)] == [None] * (len(chunks) - 1) + ["stop"]


@in_small_and_big_chunks
async def test_reasoning_comes_under_its_own_name_not_after_content(gpt_oss_server: Vllm, stream_interval: int) -> None:
    said = deltas(await stream(gpt_oss_server, CHAT, saying(HELLO.user, stream_interval=stream_interval)))[1:]
    assert all(delta.keys() <= {"reasoning", "content"} for delta in said)
    assert "".join(delta.get("reasoning", "") for delta in said) == HELLO.first.analysis
    assert "".join(delta.get("content", "") for delta in said) == HELLO.final
    last_thought = max(i for i, delta in enumerate(said) if "reasoning" in delta)
    assert last_thought <= min(i for i, delta in enumerate(said) if "content" in delta)


async def test_usage_counts_reasoning_tokens(gpt_oss_server: Vllm) -> None:
    *_, last = await stream(gpt_oss_server, CHAT, saying(HELLO.user, **USAGE))
    assert last["choices"] == []
    usage = last["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"].keys() == {"cached_tokens", "created_cache_tokens"}
    assert usage["completion_tokens_details"].keys() == {"reasoning_tokens"}
    assert 0 < usage["completion_tokens_details"]["reasoning_tokens"] < usage["completion_tokens"]


@in_small_and_big_chunks
async def test_a_call_begins_with_its_id_and_name_and_goes_on_with_argument_text(
    gpt_oss_server: Vllm, stream_interval: int
) -> None:
    body = saying(WEATHER.user, tools=[TOOL], stream_interval=stream_interval)
    chunks = await stream(gpt_oss_server, CHAT, body)
    calls = [call for delta in deltas(chunks) for call in delta.get("tool_calls", [])]
    assert all(call["index"] == 0 for call in calls)
    first, *rest = calls
    assert first["id"].startswith("chatcmpl-tool-")
    assert (first["type"], first["function"].keys()) == ("function", {"name", "arguments"})
    assert all(call.keys() == {"index", "function"} and call["function"].keys() == {"arguments"} for call in rest)
    arguments = "".join(call["function"]["arguments"] for call in calls)
    assert Call(first["function"]["name"], arguments) == WEATHER.first.said
    assert choices(chunks)[-1]["finish_reason"] == "tool_calls"


async def test_without_a_stream_the_arguments_are_written_anew(gpt_oss_server: Vllm) -> None:
    """A space after the colon that the model did not write."""
    answer = (await post(gpt_oss_server, CHAT, saying(WEATHER.user, tools=[TOOL]))).json()
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Oslo"}'}


async def test_a_message_without_calls_has_no_tool_calls_key(gpt_oss_server: Vllm) -> None:
    answer = (await post(gpt_oss_server, CHAT, saying(HELLO.user))).json()
    message = answer["choices"][0]["message"]
    assert "tool_calls" not in message
    assert (message["content"], message["reasoning"]) == (HELLO.final, HELLO.first.analysis)


async def test_a_tool_s_output_is_answered(gpt_oss_server: Vllm) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Oslo"}'}}
    body = saying(WEATHER.user, tools=[TOOL])
    body["messages"] += [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": WEATHER.tool_outputs[0]},
    ]
    answer = (await post(gpt_oss_server, CHAT, body)).json()
    assert answer["choices"][0]["message"]["content"] == WEATHER.final


@in_small_and_big_chunks
async def test_logprobs_cover_markers_too_of_which_deltas_say_nothing(
    gpt_oss_server: Vllm, stream_interval: int
) -> None:
    body = saying(HELLO.user, logprobs=True, top_logprobs=2, stream_interval=stream_interval)
    spoken = [
        (choice["delta"], choice["logprobs"]["content"])
        for choice in choices(await stream(gpt_oss_server, CHAT, body))
        if choice["logprobs"]
    ]
    entries = [entry for _, told in spoken for entry in told]
    assert [entry["token"] for entry in entries][:3] == ["<|channel|>", "analysis", "<|message|>"]
    assert [entry["token"] for entry in entries][-2:] == [".", "<|return|>"]
    for delta, told in spoken:
        assert (delta == {}) == all(entry["token"] in UNSEEN for entry in told)
    for entry in entries:
        assert entry.keys() == {"token", "logprob", "bytes", "top_logprobs"}
        assert bytes(entry["bytes"]).decode() == entry["token"]
        assert len(entry["top_logprobs"]) == 2


@in_small_and_big_chunks
async def test_a_limit_inside_a_header_leaks_markers_into_the_content(
    gpt_oss_server: Vllm, stream_interval: int
) -> None:
    """vLLM's own defect: a chat engine must not trust content that ends a generation of gpt-oss by length."""
    body = saying(HELLO.user, max_tokens=14, stream_interval=stream_interval)
    chunks = await stream(gpt_oss_server, CHAT, body)
    assert choices(chunks)[-1]["finish_reason"] == "length"
    assert choices(chunks)[-1]["delta"]["content"] == "<|start|>assistant<|channel|>final"


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_conversation_that_is_too_long_is_refused(
    gpt_oss_server: Vllm, smollm2_server: Vllm, streamed: bool
) -> None:
    """In two ways: vLLM renders gpt-oss's prompt by other code than a template's."""
    body = saying("hello " * 6000, stream=streamed)
    status, kind, param, message = error(await post(gpt_oss_server, CHAT, body))
    assert (status, kind, param) == (400, "BadRequestError", None)
    assert message.endswith("exceeds model's maximum context length (4096).")
    status, kind, param, message = error(await post(smollm2_server, CHAT, body))
    assert (status, kind, param) == (400, "BadRequestError", "input_tokens")
    assert message.startswith("This model's maximum context length is 4096 tokens.")


async def test_an_ordinary_model_streams_content(smollm2_server: Vllm) -> None:
    body = saying("Say hello.", max_tokens=20)
    whole = (await post(smollm2_server, CHAT, body)).json()["choices"][0]["message"]["content"]
    chunks = await stream(smollm2_server, CHAT, body | USAGE)
    said = deltas(chunks)
    assert said[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in said) == whole != ""
    assert 0 < chunks[-1]["usage"]["completion_tokens"] <= 20


FORCED: Final = [("required", "tool_calls"), ({"type": "function", "function": {"name": "get_weather"}}, "stop")]


@in_small_and_big_chunks
@pytest.mark.parametrize(("choice", "reason"), FORCED, ids=["required", "named"])
async def test_an_ordinary_model_is_made_to_call(
    smollm2_server: Vllm, choice: object, reason: str, stream_interval: int
) -> None:
    """The call begins without the key `arguments`, and content is null throughout; a named choice ends in "stop"."""
    asked = {"tool_choice": choice, "max_tokens": 200, "stream_interval": stream_interval}
    chunks = await stream(smollm2_server, CHAT, saying(WEATHER.user, tools=[STRICT_TOOL], **asked))
    said = [delta for delta in deltas(chunks) if "tool_calls" in delta]
    assert all(delta["content"] is None for delta in said)
    first, *rest = [call for delta in said for call in delta["tool_calls"]]
    assert first["id"].startswith("chatcmpl-tool-")
    assert first["function"] == {"name": "get_weather"}
    arguments = "".join(call["function"]["arguments"] for call in rest)
    assert json.loads(arguments).keys() == {"city"}
    assert choices(chunks)[-1]["finish_reason"] == reason


async def test_arguments_are_bound_to_their_schema_only_when_strict(smollm2_server: Vllm) -> None:
    (seven,) = (await post(smollm2_server, "/tokenize", {"prompt": "7"})).json()["tokens"]  # no other token holds a 7

    async def arguments(*, strict: bool, **more: Any) -> list[Any]:
        tool = {"type": "function", "function": {**TOOL["function"], "parameters": SEVEN, "strict": strict}}
        body = saying(WEATHER.user, tools=[tool], tool_choice="required", **more)
        message = (await post(smollm2_server, CHAT, body)).raise_for_status().json()["choices"][0]["message"]
        return [json.loads(call["function"]["arguments"]) for call in message.get("tool_calls", [])]

    assert await arguments(strict=True) == [{"7": 7}]
    assert await arguments(strict=False, logit_bias={str(seven): -100}) != [{"7": 7}]


async def test_an_ordinary_model_keeps_to_a_schema(smollm2_server: Vllm) -> None:
    schema = {
        "type": "object",
        "properties": {"age": {"type": "integer", "enum": [7]}},
        "required": ["age"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
    answer = (await post(smollm2_server, CHAT, saying("Describe a child.", response_format=wanted))).json()
    assert json.loads(answer["choices"][0]["message"]["content"]) == {"age": 7}


async def test_closing_a_chat_stream_aborts_the_generation(smollm2_server: Vllm) -> None:
    async def begin_and_leave() -> None:
        body = saying("Count to a thousand.", max_tokens=3000, ignore_eos=True)
        async with open_stream(smollm2_server, CHAT, body) as lines:
            await anext(lines)

    await smollm2_server.until_aborted(begin_and_leave)
