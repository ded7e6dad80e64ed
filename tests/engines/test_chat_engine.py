"""A chat-completions upstream over HTTP, against a fake that speaks vLLM's wire format."""

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

import pytest
import pytest_asyncio

from app.engines.chat import ChatCompletions
from app.engines.deadlines import Deadlines
from app.errors import ContextTooLong, EngineFailed, EngineRefused, EngineStalled
from app.ports import ModelCard
from tests.engines.raw_server import EVENTS, answering, refusal
from tests.fakes.running import FakeVllm

CHAT = [{"reasoning": "Greet"}, {"reasoning": " back."}, {"content": "Hello"}, {"content": " there."}]
BODY = {
    "model": "qwen-parser",
    "messages": [{"role": "user", "content": "Hi"}],
    "stream_options": {"include_usage": True},
}


@pytest_asyncio.fixture
async def engine(fake: FakeVllm) -> AsyncIterator[ChatCompletions]:
    upstream = ChatCompletions(fake.url, api_key="secret-key")
    yield upstream
    await upstream.close()


async def complete(engine: ChatCompletions, **fields: Any) -> list[Mapping[str, Any]]:
    return [chunk async for chunk in engine.complete({**BODY, **fields})]


async def told_by(answer: str | bytes) -> list[Mapping[str, Any]]:
    async with answering(answer) as url:
        engine = ChatCompletions(url)
        try:
            return await complete(engine)
        finally:
            await engine.close()


def said(chunks: list[Mapping[str, Any]], kind: str) -> str:
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk.get("choices")]
    return "".join(delta.get(kind) or "" for delta in deltas)


async def test_it_accepts_then_gives_all_chunks(engine: ChatCompletions, fake: FakeVllm) -> None:
    fake.script({"chat": CHAT, "cached_tokens": 1})

    chunks = await complete(engine)

    assert chunks[0] == {}
    assert all(chunks[1:])
    assert (said(chunks, "reasoning"), said(chunks, "content")) == ("Greet back.", "Hello there.")
    assert chunks[-1]["usage"]["completion_tokens"] == 4
    assert fake.last()["authorization"] == "Bearer secret-key"
    assert fake.last()["body"] == {**BODY, "stream": True}


async def test_the_cards_are_the_upstreams_models(engine: ChatCompletions) -> None:
    assert [(card.id, card.context_length) for card in await engine.cards()] == [
        ("gpt-oss", 131072),
        ("qwen-parser", 131072),
    ]


async def test_cards_without_a_context_length_are_fine() -> None:
    listed = '{"object":"list","data":[{"id":"llama3","object":"model","created":7,"owned_by":"library"},'
    listed += '{"id":"bare","max_model_len":null,"created":null,"owned_by":null}]}'
    async with answering(refusal(200, listed)) as url:
        engine = ChatCompletions(url)
        cards = await engine.cards()
        await engine.close()

    assert cards == [ModelCard("llama3", None, 7, "library"), ModelCard("bare", None, 0, "engine")]


@pytest.mark.parametrize(("status", "error"), [(200, EngineFailed), (500, EngineRefused)])
async def test_a_list_of_models_that_is_none_is_an_error(status: int, error: type[Exception]) -> None:
    async with answering(refusal(status, "nothing")) as url:
        engine = ChatCompletions(url)
        with pytest.raises(error):
            await engine.cards()
        await engine.close()


async def test_closing_aborts_the_generation_at_once(engine: ChatCompletions, fake: FakeVllm) -> None:
    fake.script({"chat": CHAT * 500, "pace_ms": 50})  # 100 s
    async with aclosing(engine.complete(BODY)) as chunks:
        async for chunk in chunks:
            if chunk:
                break

    await fake.wait(lambda server: server.active() == 0)
    assert fake.last()["state"] == "aborted"


@pytest.mark.parametrize("kind", ["reset", "cut"])
async def test_a_broken_connection_is_a_failure(engine: ChatCompletions, fake: FakeVllm, kind: str) -> None:
    fake.script({"chat": CHAT, "fault": {"kind": kind, "after": 2, "held": True}})
    chunks: list[Mapping[str, Any]] = []

    with pytest.raises(EngineFailed, match="broke off"):
        async for chunk in engine.complete(BODY):
            chunks += [chunk]
            if said(chunks, "reasoning") == "Greet back.":  # a reset may overtake what is not read yet
                fake.release()

    assert said(chunks, "reasoning") == "Greet back."


async def test_an_error_inside_the_stream_is_a_failure_with_its_sentence(
    engine: ChatCompletions, fake: FakeVllm
) -> None:
    fake.script({"chat": CHAT, "fault": {"kind": "error_chunk", "after": 2, "error": {"message": "out of memory"}}})

    with pytest.raises(EngineFailed, match=r"^out of memory$"):
        await complete(engine)


async def test_a_refusal_that_comes_inside_the_stream_is_a_refusal() -> None:
    error = '{"error":{"message":"Requested token count exceeds the model\'s maximum context length","code":400}}'

    with pytest.raises(ContextTooLong):
        await told_by(f"{EVENTS}data: {error}\n\ndata: [DONE]\n\n")


@pytest.mark.parametrize("payload", ["nonsense", "[1]", '"text"'])
async def test_nonsense_is_a_failure(payload: str) -> None:
    with pytest.raises(EngineFailed, match="makes no sense"):
        await told_by(f"{EVENTS}data: {payload}\n\n")


HALF = ['{"choices":[{"index":0,"delta":{"content":"Hel"}}]}', '{"choices":[{"index":0,"delta":{"content":"lo"}}]}']


@pytest.mark.parametrize(
    "frames",
    [
        "\ufeffdata: {}\n\ndata: {}\n\ndata: [DONE]\n\n",
        "data:\n\ndata: \n\ndata: {}\n\ndata: {}\n\ndata: [DONE]\n\n",
        "data:{}\r\n\r\nevent: x\r\nid: 1\r\ndata:{}\r\n\r\ndata:[DONE]\r\n\r\n",
        "data: {}\n\ndata: {}\n\ndata: [DONE]",
        "data: {}\n\ndata: {}",
    ],
)
async def test_frames_are_read_however_they_are_written(frames: str) -> None:
    before, between, after = frames.split("{}")

    assert said(await told_by(EVENTS + before + HALF[0] + between + HALF[1] + after), "content") == "Hello"


@pytest.mark.parametrize(
    ("broken", "mended"),
    [
        (rb'"He\ud83d"', "He\ufffd"),  # half of a surrogate pair
        (b'"He\xc3"', "He\ufffd"),  # half of a character
        (rb'"He","logprob":NaN', "He"),
    ],
)
async def test_a_broken_character_costs_no_answer(broken: bytes, mended: str) -> None:
    chunk = b'data: {"choices":[{"index":0,"delta":{"content":' + broken + b"}}]}\n\n"

    (heard,) = (await told_by(EVENTS.encode() + chunk + b"data: [DONE]\n\n"))[1:]

    assert said([heard], "content") == mended


async def test_a_silent_upstream_is_stalled(fake: FakeVllm) -> None:
    fake.script({"chat": CHAT, "fault": {"kind": "hang", "after": 1}})
    engine = ChatCompletions(fake.url, deadlines=Deadlines(stall=0.05))

    with pytest.raises(EngineStalled):
        await complete(engine)

    await fake.wait(lambda server: server.active() == 0)
    await engine.close()


async def test_keep_alive_comments_keep_a_slow_upstream_alive() -> None:
    end = '{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'

    chunks = await told_by(f"{EVENTS}: ping\n\n: ping\n\ndata: {end}\n\ndata: [DONE]\n\n")

    assert len(chunks) == 2


@pytest.mark.parametrize(
    "body",
    [
        '{"error":{"message":"This model\'s maximum context length is 4096 tokens. You wanted 5000","code":400}}',
        '{"error":{"message":"request (20031 tokens) exceeds","type":"exceed_context_size_error","code":400}}',
        '{"error":{"message":"max 4096, got 5000","code":"context_length_exceeded"}}',
        '{"error":{"message":"the request exceeds the available context size, try increasing it","code":400}}',
    ],
)
async def test_the_many_ways_to_say_that_an_input_is_too_long(body: str) -> None:
    with pytest.raises(ContextTooLong) as refused:
        await told_by(refusal(400, body))

    assert refused.value.code == "context_length_exceeded"
    assert refused.value.message in body


async def test_an_upstream_that_is_not_there_is_a_failure(nowhere: str) -> None:
    engine = ChatCompletions(nowhere)

    with pytest.raises(EngineFailed, match=r"^The engine could not be reached\.$"):
        await complete(engine)
    await engine.close()


async def test_a_refusal_keeps_its_status(engine: ChatCompletions, fake: FakeVllm) -> None:
    fake.script({"chat": CHAT, "fault": {"kind": "http", "status": 503, "error": {"message": "starting up"}}})

    with pytest.raises(EngineRefused, match="starting up") as refused:
        await complete(engine)

    assert refused.value.status == 503
