"""What Verbatim relies on in vLLM's /v1/completions, asserted against a real vLLM with the tiny gpt_oss.

`FACTS.md` beside this lists where the fake vLLM of the other tests differs.
"""

import asyncio
import json
from secrets import token_hex
from typing import Any, Final

import pytest
from openai_harmony import HarmonyEncoding

from tests.vllm.models.conversations import Teacher, spoken
from tests.vllm.models.scenarios import HELLO
from tests.vllm.prompts import Prompts
from tests.vllm.server import Vllm, running_in
from tests.vllm.wire import COMPLETIONS, choices, error, get, open_stream, post, stream, tokens

RETURN: Final = 200002
CALL: Final = 200012
END: Final = 200007
CITY: Final = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}


def greedy(prompt: list[int], **more: Any) -> dict[str, Any]:
    return {"prompt": prompt, "temperature": 0, "max_tokens": 200, "return_token_ids": True, **more}


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_the_model_says_every_scenario_word_for_word(
    gpt_oss_server: Vllm, encoding: HarmonyEncoding, seed: int
) -> None:
    for lesson in Teacher(encoding, seed).every():
        body = greedy(lesson.prompt, max_tokens=1000, stop_token_ids=[CALL])
        answer = (await post(gpt_oss_server, COMPLETIONS, body)).json()
        assert answer["choices"][0]["token_ids"] == lesson.completion, lesson.name


async def test_the_models_endpoint_tells_the_context_length(gpt_oss_server: Vllm) -> None:
    (model,) = (await get(gpt_oss_server, "/v1/models"))["data"]
    assert (model["id"], model["object"], model["owned_by"]) == (gpt_oss_server.model, "model", "vllm")
    assert model["max_model_len"] == 4096


async def test_a_stream_carries_token_ids_and_the_prompt_s_in_its_first_chunk(
    gpt_oss_server: Vllm, prompts: Prompts
) -> None:
    chunks = await stream(gpt_oss_server, COMPLETIONS, greedy(prompts.hello))
    assert tokens(chunks) == prompts.greeting
    assert [choice["prompt_token_ids"] for choice in choices(chunks)] == [prompts.hello] + [None] * (len(chunks) - 1)
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[0]["id"].startswith("cmpl-")


async def test_a_stream_s_text_leaves_special_tokens_out(gpt_oss_server: Vllm, prompts: Prompts) -> None:
    chunks = await stream(gpt_oss_server, COMPLETIONS, greedy(prompts.hello))
    text = "".join(choice["text"] for choice in choices(chunks))
    assert text == f"analysis{HELLO.first.analysis}assistantfinal{HELLO.final}"


async def test_special_tokens_are_spelled_out_on_demand(gpt_oss_server: Vllm, prompts: Prompts) -> None:
    chunks = await stream(gpt_oss_server, COMPLETIONS, greedy(prompts.hello, skip_special_tokens=False))
    text = "".join(choice["text"] for choice in choices(chunks))
    assert text == spoken(HELLO.first).removesuffix("<|return|>")


async def test_the_stop_token_comes_last_and_with_the_reason(gpt_oss_server: Vllm, prompts: Prompts) -> None:
    *before, last = choices(await stream(gpt_oss_server, COMPLETIONS, greedy(prompts.hello)))
    assert all(choice["finish_reason"] is None for choice in before)
    assert last["token_ids"][-1] == RETURN
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", None)


async def test_usage_comes_last_in_a_chunk_without_choices(gpt_oss_server: Vllm, prompts: Prompts) -> None:
    chunks = await stream(gpt_oss_server, COMPLETIONS, greedy(prompts.hello, stream_options={"include_usage": True}))
    assert all("usage" not in chunk for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    usage = chunks[-1]["usage"]
    counts = usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]
    assert counts == (len(prompts.hello), len(prompts.greeting), len(prompts.hello) + len(prompts.greeting))
    assert usage["prompt_tokens_details"].keys() == {"cached_tokens"}


async def test_usage_can_come_with_every_chunk(gpt_oss_server: Vllm, prompts: Prompts) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = await stream(gpt_oss_server, COMPLETIONS, greedy(prompts.hello, stream_options=options))
    counted = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counted == sorted(counted)
    assert counted[-1] == len(prompts.greeting)


@pytest.mark.parametrize("asked", [[CALL], [RETURN, CALL], []])
async def test_a_call_stops_the_generation_with_its_id_as_the_reason(
    gpt_oss_server: Vllm, prompts: Prompts, asked: list[int]
) -> None:
    """Unasked too, because gpt-oss's generation_config.json names it; not every copy of the model has that file."""
    chunks = await stream(gpt_oss_server, COMPLETIONS, greedy(prompts.weather, stop_token_ids=asked))
    last = choices(chunks)[-1]
    assert tokens(chunks)[-1] == CALL
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", CALL)


async def test_any_token_can_be_asked_to_stop(gpt_oss_server: Vllm, prompts: Prompts) -> None:
    chunks = await stream(gpt_oss_server, COMPLETIONS, greedy(prompts.hello, stop_token_ids=[END]))
    last = choices(chunks)[-1]
    assert tokens(chunks) == prompts.ids(f"<|channel|>analysis<|message|>{HELLO.first.analysis}<|end|>")
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", END)


async def test_ignore_eos_ignores_all_stop_tokens_of_the_model(gpt_oss_server: Vllm, prompts: Prompts) -> None:
    length = len(prompts.greeting) + 5
    chunks = await stream(gpt_oss_server, COMPLETIONS, greedy(prompts.hello, ignore_eos=True, max_tokens=length))
    said = tokens(chunks)
    assert said[: len(prompts.greeting)] == prompts.greeting
    assert len(said) == length


async def test_a_stop_string_cuts_the_text_but_not_the_tokens(gpt_oss_server: Vllm, prompts: Prompts) -> None:
    """It also holds text back, so that text and token ids of a chunk no longer belong together."""
    chunks = await stream(gpt_oss_server, COMPLETIONS, greedy(prompts.hello, stop=["there"]))
    last = choices(chunks)[-1]
    assert "".join(choice["text"] for choice in choices(chunks)).endswith("Hello ")
    assert tokens(chunks) == prompts.greeting[: prompts.greeting.index(last["token_ids"][-1]) + 1]
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", "there")


async def test_max_tokens_ends_with_length(gpt_oss_server: Vllm, prompts: Prompts) -> None:
    chunks = await stream(gpt_oss_server, COMPLETIONS, greedy(prompts.hello, max_tokens=4))
    last = choices(chunks)[-1]
    assert tokens(chunks) == prompts.greeting[:4]
    assert (last["finish_reason"], last["stop_reason"]) == ("length", None)


@pytest.mark.parametrize("more", [{}, {"max_tokens": None}])
async def test_without_max_tokens_sixteen_are_made(
    gpt_oss_server: Vllm, prompts: Prompts, more: dict[str, Any]
) -> None:
    body = {"prompt": prompts.hello, "temperature": 0, **more}
    answer = (await post(gpt_oss_server, COMPLETIONS, body)).json()
    assert answer["usage"]["completion_tokens"] == 16


async def test_max_tokens_beyond_the_context_is_lowered_without_a_word(gpt_oss_server: Vllm, prompts: Prompts) -> None:
    body = greedy([1000] * 4090, max_tokens=4000, ignore_eos=True)
    answer = (await post(gpt_oss_server, COMPLETIONS, body)).json()
    assert answer["usage"]["completion_tokens"] == 6
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_logprobs_have_one_entry_for_each_token_special_ones_included(
    gpt_oss_server: Vllm, prompts: Prompts
) -> None:
    chunks = await stream(gpt_oss_server, COMPLETIONS, greedy(prompts.hello, logprobs=2))
    assert all(len(choice["logprobs"]["tokens"]) == len(choice["token_ids"]) for choice in choices(chunks))
    said = [token for choice in choices(chunks) for token in choice["logprobs"]["tokens"]]
    assert "".join(said) == spoken(HELLO.first)
    for choice in choices(chunks):
        assert choice["logprobs"].keys() == {"text_offset", "token_logprobs", "tokens", "top_logprobs"}
        for token, logprob, top in zip(
            *(choice["logprobs"][k] for k in ("tokens", "token_logprobs", "top_logprobs")), strict=True
        ):
            assert logprob <= 0
            assert len(top) == 2
            assert max(top, key=top.__getitem__) == token


async def test_logprobs_name_tokens_by_id_on_demand(gpt_oss_server: Vllm, prompts: Prompts) -> None:
    more = {"logprobs": 0, "return_tokens_as_token_ids": True}
    chunks = await stream(gpt_oss_server, COMPLETIONS, greedy(prompts.hello, **more))
    named = [token for choice in choices(chunks) for token in choice["logprobs"]["tokens"]]
    assert named == [f"token_id:{token}" for token in prompts.greeting]
    assert all(len(top) == 1 for choice in choices(chunks) for top in choice["logprobs"]["top_logprobs"])


async def test_a_generation_continues_from_its_own_tokens(gpt_oss_server: Vllm, prompts: Prompts) -> None:
    """What recovery after a crash builds on."""
    for cut in range(1, len(prompts.greeting)):
        body = greedy(prompts.hello + prompts.greeting[:cut])
        answer = (await post(gpt_oss_server, COMPLETIONS, body)).json()
        assert answer["choices"][0]["token_ids"] == prompts.greeting[cut:]


async def test_a_prompt_seen_before_is_cached_by_blocks(gpt_oss_server: Vllm, prompts: Prompts) -> None:
    body = greedy(prompts.hello + [1000] * 600, max_tokens=1)
    ours, theirs = token_hex(8), token_hex(8)
    cached = [
        (await post(gpt_oss_server, COMPLETIONS, {**body, "cache_salt": salt})).json()["usage"]["prompt_tokens_details"]
        for salt in (ours, ours, theirs)
    ]
    first, second, other_tenant = (details["cached_tokens"] for details in cached)
    assert (first, other_tenant) == (0, 0)
    assert 0 < second <= len(body["prompt"])


async def test_closing_a_stream_aborts_the_generation(gpt_oss_server: Vllm, prompts: Prompts) -> None:
    async def begin_and_leave() -> None:
        body = greedy(prompts.story, max_tokens=4000, ignore_eos=True)
        async with open_stream(gpt_oss_server, COMPLETIONS, body) as lines:
            await anext(lines)

    await gpt_oss_server.until_aborted(begin_and_leave)


async def test_dropping_a_plain_request_aborts_the_generation(gpt_oss_server: Vllm, prompts: Prompts) -> None:
    async def begin_and_leave() -> None:
        body = greedy(prompts.story, max_tokens=4000, ignore_eos=True)
        request = asyncio.ensure_future(post(gpt_oss_server, COMPLETIONS, body))
        while not request.done() and running_in(await gpt_oss_server.metrics()) != 1:
            await asyncio.sleep(0.05)
        request.cancel()
        await asyncio.wait({request})

    await gpt_oss_server.until_aborted(begin_and_leave)


@pytest.mark.parametrize("schema", [CITY, json.dumps(CITY)], ids=["object", "text"])
async def test_structured_outputs_hold_from_the_first_token(
    gpt_oss_server: Vllm, prompts: Prompts, schema: object
) -> None:
    """So the prompt must already be inside the final message; any of the model's stop tokens may end it."""
    prompt = prompts.hello + prompts.ids("<|channel|>final<|message|>")
    chunks = await stream(gpt_oss_server, COMPLETIONS, greedy(prompt, structured_outputs={"json": schema}))
    assert json.loads("".join(choice["text"] for choice in choices(chunks))) == {"city": "Oslo"}
    assert choices(chunks)[-1]["finish_reason"] == "stop"
    assert tokens(chunks)[-1] in {RETURN, CALL, 199999}


async def test_a_structural_tag_constrains_the_final_message_alone(gpt_oss_server: Vllm, prompts: Prompts) -> None:
    """In one request, reasoning left free before it."""
    begin = "<|channel|>final<|message|>"
    tag = {"begin": begin, "content": {"type": "json_schema", "json_schema": CITY}, "end": ""}
    form = {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": [begin], "tags": [tag]}}
    body = greedy(prompts.hello, structured_outputs={"structural_tag": json.dumps(form)})
    said = tokens(await stream(gpt_oss_server, COMPLETIONS, body))
    thought = f"<|channel|>analysis<|message|>{HELLO.first.analysis}<|end|><|start|>assistant"
    assert said[:-1] == prompts.ids(thought + begin + '{"city":"Oslo"}')
    assert said[-1] in {RETURN, CALL, 199999}


async def test_a_bad_schema_is_refused_but_in_a_stream_only_after_its_start(
    gpt_oss_server: Vllm, prompts: Prompts
) -> None:
    body = greedy(prompts.hello, structured_outputs={"json": {"type": "nonsense"}})
    refusal = await post(gpt_oss_server, COMPLETIONS, body)
    assert error(refusal)[:3] == (400, "BadRequestError", None)
    assert await stream(gpt_oss_server, COMPLETIONS, body) == [refusal.json()]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_prompt_that_is_too_long_is_refused_before_a_stream_starts(
    gpt_oss_server: Vllm, streamed: bool
) -> None:
    refusal = await post(gpt_oss_server, COMPLETIONS, greedy([1000] * 5000, stream=streamed))
    status, kind, param, message = error(refusal)
    assert (status, kind, param) == (400, "BadRequestError", "input_tokens")
    assert message.startswith("This model's maximum context length is 4096 tokens. However, your prompt contains 5000 ")


REFUSED: Final = [
    ({"prompt": [1000] * 4096}, "BadRequestError", "max_tokens", "max_tokens must be at least 1, got 0."),
    ({"max_tokens": 0}, "BadRequestError", "max_tokens", "max_tokens must be at least 1, got 0."),
    (
        {"max_tokens": 5000},
        "BadRequestError",
        "max_tokens",
        "max_tokens=5000 cannot be greater than max_model_len=4096.",
    ),
    ({"logprobs": 50}, "BadRequestError", "logprobs", "Requested sample logprobs of 50, which is greater than max"),
    ({"temperature": -1}, "BadRequestError", "temperature", "temperature must be non-negative, got -1.0."),
    ({"top_p": 2}, "BadRequestError", "top_p", "top_p must be in (0, 1], got 2.0."),
    ({"prompt": []}, "BadRequestError", None, "You must pass at least one prompt"),
    ({"prompt": [999999]}, "BadRequestError", None, "Token id 999999 is out of vocabulary"),
    ({"temperature": "x"}, "Bad Request", "body.temperature", "1 validation error:"),
]


@pytest.mark.parametrize(("more", "kind", "param", "message"), REFUSED)
async def test_a_wrong_value_is_refused_naming_it(
    gpt_oss_server: Vllm, prompts: Prompts, more: dict[str, Any], kind: str, param: str | None, message: str
) -> None:
    status, *refusal, text = error(await post(gpt_oss_server, COMPLETIONS, {**greedy(prompts.hello), **more}))
    assert (status, refusal) == (400, [kind, param])
    assert text.startswith(message)


async def test_an_unknown_model_is_not_found(gpt_oss_server: Vllm, prompts: Prompts) -> None:
    refusal = await post(gpt_oss_server, COMPLETIONS, greedy(prompts.hello, model="nope"))
    assert error(refusal)[:3] == (404, "NotFoundError", "model")
