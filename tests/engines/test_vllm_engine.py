"""vLLM over HTTP, against a fake that speaks its wire format."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
import pytest_asyncio

from app.engines.deadlines import Deadlines
from app.engines.vllm import VllmEngine
from app.errors import ContextTooLong, EngineError, EngineFailed, EngineLacksModel, EngineRefused, EngineStalled
from app.ports import Sampling, Tokens
from tests.engines.raw_server import EVENTS, answering, refusal
from tests.fakes.harmony_vocab import encode_harmony
from tests.fakes.running import FakeVllm

TEXT = (
    "<|channel|>analysis<|message|>Greet back.<|end|><|start|>assistant<|channel|>final<|message|>Hello 👋🏽.<|return|>"
)
PROMPT = [1, 2, 3]
LIMITED = Sampling(max_tokens=4000)


@pytest_asyncio.fixture
async def engine(fake: FakeVllm) -> AsyncIterator[VllmEngine]:
    vllm = VllmEngine(fake.url, api_key="secret-key")
    yield vllm
    await vllm.close()


async def generate(
    engine: VllmEngine, sampling: Sampling | None = None, prompt: list[int] | None = None
) -> list[Tokens]:
    return [tokens async for tokens in engine.generate("gpt-oss", prompt or PROMPT, sampling or LIMITED)]


async def told_by(answer: str, deadlines: Deadlines | None = None) -> list[Tokens]:
    async with answering(answer) as url:
        engine = VllmEngine(url, deadlines=deadlines)
        try:
            return await generate(engine)
        finally:
            await engine.close()


def ids_of(told: list[Tokens]) -> list[int]:
    return [token for tokens in told for token in tokens.ids]


@pytest.mark.parametrize(("per_chunk", "pace"), [(1, 0), (1, 1), (3, 1), (100, 0)])
async def test_all_tokens_arrive_however_they_are_chunked(
    engine: VllmEngine, fake: FakeVllm, per_chunk: int, pace: int
) -> None:
    fake.script({"text": TEXT, "tokens_per_chunk": per_chunk, "pace_ms": pace, "cached_tokens": 2})

    told = await generate(engine)

    assert told[0] == Tokens()
    assert ids_of(told) == encode_harmony(TEXT)
    assert [tokens.finish_reason for tokens in told[:-1]] == [None] * (len(told) - 1)
    assert (told[-1].finish_reason, told[-1].cached_tokens) == ("stop", 2)


def chunks(ids: Iterable[int], finish: str | None = None) -> str:
    """A chunk for each of these tokens, with this finish reason."""
    choices = [{"token_ids": [one], "finish_reason": finish} for one in ids]
    return "".join(f"data: {json.dumps({'choices': [choice]})}\n\n" for choice in choices)


async def test_chunks_of_one_network_read_become_one() -> None:
    """What a server writes at once, and less than a packet of the loopback, is there at once."""
    first_are_told, told = asyncio.Event(), list[Tokens]()
    answer = (EVENTS + chunks(range(200)), first_are_told, chunks(range(200, 300)) + chunks([300], "stop"))
    async with answering(*answer) as url:
        engine = VllmEngine(url)
        async for tokens in engine.generate("gpt-oss", PROMPT, LIMITED):
            told.append(tokens)
            if tokens.ids:
                first_are_told.set()
        await engine.close()

    assert [list(tokens.ids) for tokens in told] == [[], [*range(200)], [*range(200, 301)]]


async def test_a_nucleus_of_nothing_is_the_most_probable_token(engine: VllmEngine, fake: FakeVllm) -> None:
    await generate(engine, Sampling(max_tokens=7, top_p=0.0, top_k=5))

    assert (fake.last()["body"]["top_p"], fake.last()["body"]["top_k"]) == (1.0, 1)


async def test_the_request_says_what_was_asked_and_the_key(engine: VllmEngine, fake: FakeVllm) -> None:
    asked = Sampling(
        max_tokens=7, temperature=0.5, top_p=0.9, top_k=5, min_p=0.1, presence_penalty=0.1, frequency_penalty=0.2,
        repetition_penalty=1.1, seed=3, logit_bias={"5": 1.0}, stop_token_ids=(200012,),
        structured_outputs={"json": {}}, priority=-1,
    )  # fmt: skip
    await generate(engine, asked)

    request = fake.last()
    assert request["authorization"] == "Bearer secret-key"
    assert request["body"] == {
        "model": "gpt-oss", "prompt": PROMPT, "stream": True, "stream_options": {"include_usage": True},
        "return_token_ids": True, "skip_special_tokens": False, "max_tokens": 7, "temperature": 0.5, "top_p": 0.9,
        "top_k": 5, "min_p": 0.1, "presence_penalty": 0.1, "frequency_penalty": 0.2, "repetition_penalty": 1.1,
        "seed": 3, "logit_bias": {"5": 1.0}, "stop_token_ids": [200012], "structured_outputs": {"json": {}},
        "priority": -1,
    }  # fmt: skip


async def test_what_was_not_asked_is_not_sent_but_max_tokens_is_what_fits(engine: VllmEngine, fake: FakeVllm) -> None:
    """Left out or null, it would be 16 to vLLM."""
    await generate(engine, Sampling())

    assert fake.last()["body"] == {
        "model": "gpt-oss", "prompt": PROMPT, "stream": True, "stream_options": {"include_usage": True},
        "return_token_ids": True, "skip_special_tokens": False, "max_tokens": 131072 - len(PROMPT),
    }  # fmt: skip


async def test_without_a_limit_and_a_context_length_nothing_is_sent() -> None:
    async with answering(refusal(200, '{"object":"list","data":[{"id":"gpt-oss"}]}')) as url:
        engine = VllmEngine(url)
        with pytest.raises(EngineFailed, match="context"):
            await generate(engine, Sampling())
        await engine.close()


async def test_max_tokens_cuts_with_length(engine: VllmEngine) -> None:
    told = await generate(engine, Sampling(max_tokens=3))

    assert (len(ids_of(told)), told[-1].finish_reason) == (3, "length")


async def test_a_stop_token_ends_and_is_told(engine: VllmEngine, fake: FakeVllm) -> None:
    fake.script({"text": "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|> more"})

    told = await generate(engine, Sampling(stop_token_ids=[200012]))

    assert (ids_of(told)[-1], told[-1].finish_reason) == (200012, "stop")


async def test_logprobs_have_one_entry_per_token_with_the_best_alternatives_as_ids(engine: VllmEngine) -> None:
    told = await generate(engine, Sampling(logprobs=2, max_tokens=5))

    entries = [entry for tokens in told for entry in tokens.logprobs]
    tokens = ids_of(told)
    assert len(entries) == len(tokens) == 5
    for token, (logprob, others) in zip(tokens, entries, strict=True):
        assert others[0] == (token, "", logprob)
        assert len(others) == 2
        assert others[1][2] < logprob


async def test_logprobs_without_alternatives(engine: VllmEngine) -> None:
    told = await generate(engine, Sampling(logprobs=0, max_tokens=1))

    ((logprob, others),) = told[-1].logprobs
    assert logprob < 0
    assert others == []


async def test_the_cards_are_the_engines_models(engine: VllmEngine) -> None:
    cards = await engine.cards()

    assert [(card.id, card.context_length, card.owned_by) for card in cards] == [
        ("gpt-oss", 131072, "vllm"),
        ("qwen-parser", 131072, "vllm"),
    ]


async def test_closing_aborts_the_generation_at_once(engine: VllmEngine, fake: FakeVllm) -> None:
    fake.script({"load": {"tokens": 5000}, "pace_ms": 20})  # 100 s
    async with aclosing(engine.generate("gpt-oss", PROMPT, Sampling())) as generation:
        async for tokens in generation:
            if tokens.ids:
                break
        assert fake.active() == 1

    await fake.wait(lambda server: server.active() == 0)
    assert fake.last()["state"] == "aborted"
    assert fake.last()["produced"] < 5000


async def test_closing_before_the_first_token_aborts_too(engine: VllmEngine, fake: FakeVllm) -> None:
    fake.script({"text": TEXT, "first_token_delay_ms": 60_000})
    async with aclosing(engine.generate("gpt-oss", PROMPT, Sampling())) as generation:
        assert await anext(generation) == Tokens()

    await fake.wait(lambda server: server.active() == 0)
    assert fake.last()["state"] == "aborted"


async def test_a_whole_answer_leaves_the_connection_for_the_next(engine: VllmEngine, fake: FakeVllm) -> None:
    for _ in range(3):
        await generate(engine)

    assert [request["state"] for request in fake.log()] == ["done"] * 3
    assert fake.active() == 0


@pytest.mark.parametrize(("kind", "after"), [("reset", 0), ("reset", 5), ("close", 0), ("close", 5), ("cut", 5)])
async def test_a_stream_that_breaks_off_is_a_failure_after_what_was_said(
    engine: VllmEngine, fake: FakeVllm, kind: str, after: int
) -> None:
    fake.script({"text": TEXT, "fault": {"kind": kind, "after": after, "held": True}})
    told: list[Tokens] = []

    with pytest.raises(EngineFailed, match="broke off") as failure:
        async for tokens in engine.generate("gpt-oss", PROMPT, Sampling()):
            told += [tokens]
            if len(ids_of(told)) == after:  # a reset may overtake what is not read yet
                fake.release()

    assert ids_of(told) == encode_harmony(TEXT)[:after]
    assert "127.0.0.1" not in failure.value.message


async def test_an_answer_without_any_event_is_a_failure(engine: VllmEngine, fake: FakeVllm) -> None:
    fake.script({"text": "", "fault": {"kind": "close", "after": 0}})

    with pytest.raises(EngineFailed, match="broke off"):
        await generate(engine)


async def test_an_error_inside_the_stream_is_a_failure_with_its_sentence(engine: VllmEngine, fake: FakeVllm) -> None:
    fake.script({"text": TEXT, "fault": {"kind": "error_chunk", "after": 4, "error": {"message": "engine queue full"}}})

    with pytest.raises(EngineFailed, match=r"^engine queue full$"):
        await generate(engine)


async def test_a_refusal_that_comes_inside_the_stream_is_a_refusal() -> None:
    error = 'data: {"error": {"message": "maximum context length is 10", "code": 400}}\n\n'

    with pytest.raises(ContextTooLong, match="10"):
        await told_by(EVENTS + error)


@pytest.mark.parametrize("reason", ["abort", "error"])
async def test_an_aborted_generation_is_no_success(engine: VllmEngine, fake: FakeVllm, reason: str) -> None:
    fake.script({"text": TEXT, "finish": reason, "tokens": [5, 6]})

    with pytest.raises(EngineFailed, match="aborted"):
        await generate(engine)


async def test_nonsense_is_a_failure() -> None:
    with pytest.raises(EngineFailed, match="makes no sense"):
        await told_by(EVENTS + "data: {not json\n\n")


async def test_text_without_token_ids_is_a_failure() -> None:
    chunk = '{"choices":[{"text":"Hello","finish_reason":null}]}'
    end = '{"choices":[{"text":"","finish_reason":"stop"}]}'

    with pytest.raises(EngineFailed, match="return_token_ids"):
        await told_by(f"{EVENTS}data: {chunk}\n\ndata: {end}\n\ndata: [DONE]\n\n")


@pytest.mark.parametrize("usage", ['"many"', "[]", '{"prompt_tokens_details":[]}', '{"prompt_tokens_details":null}'])
async def test_a_usage_that_makes_no_sense_costs_no_answer(usage: str) -> None:
    end = '{"choices":[{"token_ids":[7],"finish_reason":"stop"}]}'

    told = await told_by(f'{EVENTS}data: {end}\n\ndata: {{"choices":null,"usage":{usage}}}\n\n')

    assert (ids_of(told), told[-1].cached_tokens) == ([7], None)


async def test_comments_carriage_returns_and_a_missing_last_line_break_are_fine() -> None:
    one = '{"choices":[{"token_ids":[7],"finish_reason":null}]}'
    two = '{"choices":[{"token_ids":[8],"finish_reason":"stop"}]}'

    told = await told_by(f"{EVENTS}: ping\r\n\r\nevent: x\r\ndata:{one}\r\n\r\nid: 1\r\ndata: {two}")

    assert (ids_of(told), told[-1].finish_reason) == ([7, 8], "stop")


async def test_a_silent_engine_is_stalled(fake: FakeVllm) -> None:
    fake.script({"text": TEXT, "fault": {"kind": "hang", "after": 3}})
    engine = VllmEngine(fake.url, deadlines=Deadlines(stall=0.05))
    told: list[Tokens] = []

    with pytest.raises(EngineStalled) as stall:
        async for tokens in engine.generate("gpt-oss", PROMPT, Sampling()):
            told += [tokens]

    assert stall.value.status == 504
    assert ids_of(told) == encode_harmony(TEXT)[:3]
    await fake.wait(lambda server: server.active() == 0)
    await engine.close()


async def test_the_first_token_has_a_deadline_of_its_own(fake: FakeVllm) -> None:
    fake.script({"text": TEXT, "first_token_delay_ms": 60_000})
    engine = VllmEngine(fake.url, deadlines=Deadlines(first_token=0.05, stall=30))

    with pytest.raises(EngineStalled):
        await generate(engine)

    await fake.wait(lambda server: server.active() == 0)
    await engine.close()


async def test_waiting_for_the_first_token_is_no_stall(fake: FakeVllm) -> None:
    fake.script({"text": TEXT, "first_token_delay_ms": 200})
    engine = VllmEngine(fake.url, deadlines=Deadlines(stall=0.05))

    assert ids_of(await generate(engine)) == encode_harmony(TEXT)
    await engine.close()


async def test_an_engine_that_is_not_there_is_a_failure_that_does_not_tell_its_address(nowhere: str) -> None:
    engine = VllmEngine(nowhere, api_key="secret-key")

    with pytest.raises(EngineFailed) as failure:
        await generate(engine)
    with pytest.raises(EngineFailed):
        await engine.cards()

    assert failure.value.message == "The engine could not be reached."
    await engine.close()


async def test_a_name_that_does_not_resolve_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)  # a name server that is away would be waited for
    engine = VllmEngine("http://no-such-host.invalid:9/v1")

    with pytest.raises(EngineFailed, match=r"^The engine could not be reached\.$"):
        await generate(engine)
    await engine.close()


async def test_an_engine_that_hangs_up_without_an_answer_is_a_failure() -> None:
    with pytest.raises(EngineFailed):
        await told_by("")


async def test_too_long_a_prompt_is_told_as_that(engine: VllmEngine, fake: FakeVllm) -> None:
    fake.script({"text": TEXT}, max_model_len=4)
    try:
        with pytest.raises(ContextTooLong, match="4 tokens") as refused:
            await generate(engine, prompt=list(range(1, 9)))
    finally:
        fake.script({"text": TEXT}, max_model_len=131072)

    assert (refused.value.status, refused.value.code, refused.value.param) == (400, "context_length_exceeded", "input")


@pytest.mark.parametrize("limit", [None, 1, 3])
async def test_a_prompt_that_leaves_no_room_is_too_long(engine: VllmEngine, fake: FakeVllm, limit: int | None) -> None:
    """vLLM complains of `max_tokens` then, which is not what is wrong."""
    fake.script({"text": TEXT}, max_model_len=len(PROMPT))
    try:
        with pytest.raises(ContextTooLong) as refused:
            await generate(engine, Sampling(max_tokens=limit))
    finally:
        fake.script({"text": TEXT}, max_model_len=131072)

    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")


async def test_too_many_tokens_wanted_is_about_that_parameter(engine: VllmEngine) -> None:
    with pytest.raises(EngineRefused, match="max_tokens=") as refused:
        await generate(engine, Sampling(max_tokens=10**7))

    assert (refused.value.status, refused.value.param) == (400, "max_output_tokens")


async def test_a_model_that_the_engine_does_not_know_is_not_found(engine: VllmEngine) -> None:
    with pytest.raises(EngineLacksModel, match="does not exist"):
        async for _ in engine.generate("nope", PROMPT, Sampling(max_tokens=5)):
            pass


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (
            404,
            '{"error":{"message":"The model `m` does not exist.","type":"NotFoundError","param":"model","code":404}}',
        ),
        (404, '{"error":{"message":"model \'m\' not found","type":"api_error","param":null,"code":null}}'),
        (400, '{"error":{"message":"No such thing.","type":"invalid_request_error","code":"model_not_found"}}'),
    ],
)
async def test_however_an_engine_says_that_it_lacks_the_model_it_is_not_found(status: int, body: str) -> None:
    async with answering(refusal(status, body)) as url:
        engine = VllmEngine(url)
        with pytest.raises(EngineLacksModel) as lacking:
            await generate(engine)
        await engine.close()

    told = lacking.value
    assert (told.status, told.type, told.code, told.param) == (404, "invalid_request_error", "model_not_found", "model")


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, '{"detail":"Not Found"}'),
        (404, "404 page not found"),
        (404, ""),
        (405, '{"detail":"Method Not Allowed"}'),
        (404, '{"error":{"code":404,"message":"File Not Found","type":"not_found_error"}}'),
    ],
)
async def test_an_engine_that_has_nothing_there_is_no_fault_of_the_client_and_the_url_is_suspected(
    status: int, body: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with answering(refusal(status, body)) as url:
        engine = VllmEngine(url.replace("://", "://user:secret@"))
        with pytest.raises(EngineRefused, match="ends in /v1") as generated:
            await generate(engine)
        with pytest.raises(EngineRefused, match="ends in /v1") as listed:
            await engine.cards()
        await engine.close()

    for refused in (generated, listed):
        assert (refused.value.status, refused.value.type, refused.value.param) == (502, "server_error", None)
    address = url.removeprefix("http://")
    assert f"{address}/completions" in caplog.messages[0]
    assert f"{address}/models" in caplog.messages[1]
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (
            500,
            '{"error":{"message":"boom","type":"InternalServerError","code":500}}',
            ("boom", "server_error", "server_error"),
        ),
        (503, '{"message":"starting","object":"error"}', ("starting", "server_error", "server_error")),
        (429, '{"error":{"message":"slow down"}}', ("slow down", "rate_limit_error", "rate_limit_exceeded")),
        (400, '{"error":{"message":"no","code":"odd"}}', ("no", "invalid_request_error", "odd")),
        (400, '{"detail":"Not like this"}', ("Not like this", "invalid_request_error", None)),
        (502, "<html>bad gateway</html>", ("<html>bad gateway</html>", "server_error", "server_error")),
        (422, "", ("The engine refused the request with status 422.", "invalid_request_error", None)),
    ],
)
async def test_a_refusal_keeps_status_message_and_code(status: int, body: str, expected: Any) -> None:
    with pytest.raises(EngineRefused) as refused:
        await told_by(refusal(status, body))

    error = refused.value
    assert (error.status, (error.message, error.type, error.code)) == (status, expected)


async def test_retry_after_is_read_as_seconds_and_as_a_date() -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(hours=2), usegmt=True)

    async def retry_after(header: str) -> float | None:
        with pytest.raises(EngineRefused) as refused:
            await told_by(refusal(429, "{}", f"retry-after: {header}"))
        return refused.value.retry_after

    assert await retry_after("7") == 7.0
    assert 3600 < (await retry_after(later) or 0) <= 7200
    for odd in ("soon", "inf", "1e400", "nan"):  # clients are told a whole number
        assert await retry_after(odd) is None
    assert await retry_after("1e300") == await retry_after("Wed, 21 Oct 9999 07:28:00 GMT") == 86_400.0
    assert await retry_after("-1") == 0.0


@pytest.mark.parametrize("status", [401, 403])
async def test_a_wrong_key_of_ours_is_no_fault_of_the_client_and_is_not_shown(status: int) -> None:
    with pytest.raises(EngineRefused) as refused:
        await told_by(refusal(status, '{"error":"invalid key secret-key"}'))

    assert refused.value.status == 502
    assert "secret-key" not in refused.value.message


async def test_a_redirect_is_not_followed() -> None:
    with pytest.raises(EngineFailed, match="status 302"):
        await told_by(refusal(302, "", "location: http://127.0.0.1:1/"))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (refusal(503, "my prompt"), "EngineRefused, status 503"),
        (refusal(404, "The model `m` does not exist: my prompt"), "EngineLacksModel, status 404"),
        ("", "EngineFailed, status 502"),
    ],
)
async def test_what_goes_wrong_is_logged_with_the_engines_url_and_the_model_and_no_secret(
    answer: str, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with answering(answer) as url:
        engine = VllmEngine(url.replace("://", "://user:secret@"))
        with pytest.raises(EngineError):
            async for _ in engine.generate("gpt-oss-7", PROMPT, Sampling(max_tokens=5)):
                pass
        await engine.close()

    assert caplog.messages == [f"engine at {url}/completions failed, model gpt-oss-7: {expected}"]


async def test_an_engine_that_is_away_is_logged_once(nowhere: str, caplog: pytest.LogCaptureFixture) -> None:
    engine = VllmEngine(nowhere.replace("://", "://user:secret@"))
    for _ in range(3):
        with pytest.raises(EngineError):
            await engine.cards()
    await engine.close()

    assert caplog.messages == [f"engine at {nowhere}/models lists no models: EngineUnreachable, status 502"]


async def test_a_url_that_does_not_end_in_v1_is_suspected(nowhere: str, caplog: pytest.LogCaptureFixture) -> None:
    engine = VllmEngine(nowhere.removesuffix("/v1"))
    with pytest.raises(EngineError):
        await engine.cards()
    await engine.close()

    assert caplog.messages[0].endswith("EngineUnreachable, status 502; is the URL right? It ends in /v1")
