"""The harmony model over a token engine: prompts that fit, spoken words with exactly their tokens, every way to end."""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from app.errors import ContextTooLong, EngineFailed, InvalidRequest, SettingsError, UnsupportedValue
from app.models.harmony import UNKNOWN_ROOM, HarmonyModel, load_prompt
from app.models.harmony_decoder import HarmonyDecoder
from app.models.harmony_framing import CALL, CHANNEL, CONSTRAIN, END, END_OF_TEXT, MESSAGE, RETURN, START
from app.models.harmony_rendering import HarmonyRenderer
from app.models.patience import Patience
from app.models.vocabulary import FILE_NAME, SHA256, Vocabulary
from app.ports import ModelCard, Sampling, Tokens
from app.responses.request import Request
from app.responses.said import ArgumentsSaid, CallStarted, Finished, ItemEnded, MessageSaid, ReasoningSaid, Spoken

VOCABULARY = Vocabulary()
RENDERER = HarmonyRenderer(VOCABULARY, today=lambda: date(2026, 1, 2))
NEXT = [END, START, 173781]
ITEM = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"type": "function", "name": "ping", "description": "", "parameters": PARAMETERS}
OTHER = {**TOOL, "name": "pong"}


def encoded(text: str) -> list[int]:
    return RENDERER.load().encode(text, disallowed_special=())


THOUGHT = [CHANNEL, *encoded("analysis"), MESSAGE, *encoded("Greet back."), *NEXT]
ANSWER = [CHANNEL, *encoded("final"), MESSAGE, *encoded("Hello there."), RETURN]


class ScriptedEngine:
    """A `TokenEngine` that plays chunks and remembers how it was asked."""

    def __init__(self, *chunks: Tokens, context_length: int | None = 1000) -> None:
        self._chunks = chunks
        self._context_length = context_length
        self.asked_for_cards = 0
        self.prompt: list[int] = []
        self.sampling = Sampling()
        self.closed = False

    async def cards(self) -> Sequence[ModelCard]:
        self.asked_for_cards += 1
        return [ModelCard("gpt-oss", self._context_length)]

    async def generate(self, model: str, prompt: Sequence[int], sampling: Sampling) -> AsyncGenerator[Tokens, None]:
        self.prompt, self.sampling = list(prompt), sampling
        try:
            yield Tokens()
            for chunk in self._chunks:
                yield chunk
        finally:
            self.closed = True

    async def close(self) -> None:
        self.closed = True


def model_of(engine: ScriptedEngine, **more: Any) -> HarmonyModel:
    return HarmonyModel("gpt-oss", engine, VOCABULARY, RENDERER, **{"patience": Patience(tries=0), **more})


def chunked(tokens: list[int], size: int, finish: str | None = "stop") -> list[Tokens]:
    chunks = [Tokens(tokens[i : i + size]) for i in range(0, len(tokens), size)]
    return [*chunks[:-1], Tokens(chunks[-1].ids, finish_reason=finish, cached_tokens=16)]


async def spoken_by(*chunks: Tokens, **fields: Any) -> list[Spoken]:
    model = model_of(ScriptedEngine(*chunks))
    request = Request(model="gpt-oss", items=[ITEM], **fields)
    prompt = await model.render(request, request.items)
    return [spoken async for spoken in model.respond(request, prompt)]


def everything(spoken: list[Spoken]) -> list[Any]:
    return [said for one in spoken for said in one.said]


async def rendered(engine: ScriptedEngine | None = None, **fields: Any) -> bytes:
    request = Request(model="gpt-oss", items=[ITEM], **fields)
    return await model_of(engine or ScriptedEngine()).render(request, request.items)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
async def test_a_turn_is_spoken_whole_however_it_is_chunked(size: int) -> None:
    spoken = await spoken_by(*chunked([*THOUGHT, *ANSWER], size))
    assert Spoken() == spoken[0]
    said = everything(spoken)
    assert "".join(one.text for one in said if isinstance(one, ReasoningSaid)) == "Greet back."
    assert "".join(one.text for one in said if isinstance(one, MessageSaid)) == "Hello there."
    assert [ItemEnded(), ItemEnded()] == [one for one in said if isinstance(one, ItemEnded)]
    assert [*THOUGHT, *ANSWER] == [token for one in spoken for token in one.tokens]


async def test_usage_is_counted_from_tokens() -> None:
    spoken = await spoken_by(*chunked([*THOUGHT, *ANSWER], 1))
    finished = spoken[-1].said[-1]
    assert isinstance(finished, Finished)
    assert finished.reason == "stop"
    assert len([*THOUGHT, *ANSWER]) == finished.usage.output_tokens
    assert len(THOUGHT) - 2 == finished.usage.reasoning_tokens
    assert finished.usage.cached_tokens == 16
    prompt, _ = load_prompt(await rendered())
    assert len(prompt) == finished.usage.input_tokens
    assert spoken[-1].usage == finished.usage


@pytest.mark.parametrize("size", [1, 2, 3])
async def test_every_cut_is_exact(size: int) -> None:
    tokens = [*THOUGHT, CHANNEL, *encoded("final"), MESSAGE, *encoded("ok \U0001fae0 \U00020d0e!"), RETURN]
    before: list[int] = []
    for one in (await spoken_by(*chunked(tokens, size)))[1:]:
        before += one.tokens
        decoder = HarmonyDecoder(VOCABULARY)
        decoder.feed(before)
        assert decoder.holds_nothing
        assert decoder.close(complete=False) == []


async def test_several_tokens_of_a_chunk_are_one_piece() -> None:
    spoken = await spoken_by(*chunked([*THOUGHT, *ANSWER], 1000))
    assert [ReasoningSaid("Greet back."), ItemEnded()] == list(spoken[1].said[:2])
    assert [one.text for one in everything(spoken) if isinstance(one, MessageSaid)] == ["Hello there."]


async def test_a_call_ends_the_turn() -> None:
    header = [*encoded("commentary to=functions.ping "), CONSTRAIN, *encoded("json")]
    tokens = [CHANNEL, *header, MESSAGE, *encoded('{"a":1}'), CALL]
    said = everything(await spoken_by(*chunked(tokens, 1), tools=[TOOL]))
    assert CallStarted("ping") == said[0]
    assert "".join(one.text for one in said if isinstance(one, ArgumentsSaid)) == '{"a":1}'
    assert [ItemEnded(), "stop"] == [said[-2], said[-1].reason]


@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_without_parallel_calls_the_first_one_ends_the_turn(size: int) -> None:
    """gpt-oss ends a call with `<|end|>` now and then, and makes another."""
    header = [*encoded("commentary to=functions.ping "), CONSTRAIN, *encoded("json")]
    call = [CHANNEL, *header, MESSAGE, *encoded('{"a":1}'), END]
    tokens = [*THOUGHT, *call, START, *encoded("assistant"), *call]
    both = everything(await spoken_by(*chunked(tokens, size), tools=[TOOL]))
    assert [one for one in both if isinstance(one, CallStarted)] == [CallStarted("ping")] * 2

    spoken = await spoken_by(*chunked(tokens, size), tools=[TOOL], parallel_tool_calls=False)

    said = everything(spoken)
    assert [one for one in said if isinstance(one, CallStarted)] == [CallStarted("ping")]
    assert ([ItemEnded(), "stop"]) == [said[-2], said[-1].reason]
    assert [token for one in spoken for token in one.tokens] == [*THOUGHT, *call]
    assert said[-1].usage.output_tokens == len([*THOUGHT, *call])


async def test_an_engine_that_goes_on_after_a_stop_token_is_not_listened_to() -> None:
    engine = ScriptedEngine(*(Tokens([token]) for token in [*ANSWER, *ANSWER, *ANSWER]))
    request = Request(model="gpt-oss", items=[ITEM])
    model = model_of(engine)
    spoken = [one async for one in model.respond(request, await model.render(request, [ITEM]))]
    assert [token for one in spoken for token in one.tokens] == ANSWER
    assert engine.closed
    spoken = await spoken_by(Tokens([*ANSWER, *ANSWER], finish_reason="length"))
    assert ("stop", len(ANSWER)) == (spoken[-1].said[-1].reason, spoken[-1].usage.output_tokens)


async def test_a_cut_message_is_finished_by_length_after_the_held_text() -> None:
    tokens = [CHANNEL, *encoded("final"), MESSAGE, *encoded("ok "), *encoded("\U0001fae0")[:2]]
    spoken = await spoken_by(*chunked(tokens, 1, finish="length"))
    said = everything(spoken)
    assert "".join(one.text for one in said if isinstance(one, MessageSaid)) == "ok \ufffd"
    assert said[-1].reason == "length"
    assert ItemEnded() not in said
    assert tokens == [token for one in spoken for token in one.tokens]


async def test_output_cut_in_a_header_says_nothing_but_is_counted() -> None:
    spoken = await spoken_by(Tokens([CHANNEL], finish_reason="length"))
    assert [Finished("length", spoken[-1].usage)] == everything(spoken)
    assert spoken[-1].usage.output_tokens == 1


async def test_a_stop_token_that_the_engine_kept_to_itself_still_ends_the_turn() -> None:
    said = everything(await spoken_by(*chunked(ANSWER[:-1], 1)))
    assert [ItemEnded(), "stop"] == [said[-2], said[-1].reason]


async def test_a_stop_token_without_a_finish_is_an_end() -> None:
    assert everything(await spoken_by(*chunked(ANSWER, 1, finish=None)))[-1].reason == "stop"


async def test_end_of_text_is_a_stop() -> None:
    assert everything(await spoken_by(*chunked([*ANSWER[:-1], END_OF_TEXT], 1)))[-1].reason == "stop"


@pytest.mark.parametrize("finish", [None, "abort", "error"])
async def test_an_engine_that_breaks_off_is_a_failure(finish: str | None) -> None:
    with pytest.raises(EngineFailed):
        await spoken_by(*chunked(ANSWER[:-2], 1, finish=finish))


async def test_an_engine_that_says_nothing_at_all_is_a_failure() -> None:
    with pytest.raises(EngineFailed):
        await spoken_by()


async def test_closing_the_stream_closes_the_engines() -> None:
    engine = ScriptedEngine(*chunked(ANSWER, 1))
    request = Request(model="gpt-oss", items=[ITEM])
    model = model_of(engine)
    async with aclosing(model.respond(request, await model.render(request, [ITEM]))) as speech:
        assert Spoken() == await anext(speech)
        assert not engine.closed
    assert engine.closed


async def test_logprobs_are_asked_for_and_given_with_the_visible_text_only() -> None:
    tokens = [*THOUGHT, *ANSWER]
    chunks = [Tokens([one], [(-0.5, [(one, "?", -0.5)])]) for one in tokens[:-1]]
    chunks.append(Tokens(tokens[-1:], [(-0.5, [])], finish_reason="stop"))
    fields: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    said = everything(await spoken_by(*chunks, **fields))
    marks = [mark for one in said if isinstance(one, MessageSaid) for mark in one.logprobs]
    assert "".join(mark["token"] for mark in marks) == "Hello there."
    assert {"token": "Hello", "bytes": list(b"Hello"), "logprob": -0.5} == marks[0]["top_logprobs"][0]
    engine = ScriptedEngine(*chunked(ANSWER, 1))
    for wants, asked in ((fields, 1), ({"include": fields["include"]}, 0), ({"top_logprobs": 3}, None)):
        request = Request(model="gpt-oss", items=[ITEM], **wants)
        model = model_of(engine)
        async for _ in model.respond(request, await model.render(request, [ITEM])):
            pass
        assert asked == engine.sampling.logprobs


async def test_sampling_is_the_requests_and_the_stop_tokens_are_always_sent() -> None:
    engine = ScriptedEngine(*chunked(ANSWER, 1))
    request = Request(model="gpt-oss", items=[ITEM], temperature=0.25, top_k=7, seed=3, priority=2)
    model = model_of(engine)
    prompt = await model.render(request, [ITEM])
    async for _ in model.respond(request, prompt):
        pass
    assert {RETURN, CALL, END_OF_TEXT} == set(engine.sampling.stop_token_ids)
    assert (
        engine.sampling.temperature,
        engine.sampling.top_k,
        engine.sampling.seed,
        engine.sampling.priority,
    ) == (0.25, 7, 3, 2)
    assert (engine.sampling.top_p, engine.sampling.structured_outputs) == (None, None)
    assert load_prompt(prompt)[0] == engine.prompt


async def test_max_output_tokens_is_cut_to_what_fits() -> None:
    tokens, stored = load_prompt(await rendered(max_output_tokens=20))
    assert stored.max_tokens == 20
    for asked in (5000, None):
        assert 1000 - len(tokens) == load_prompt(await rendered(max_output_tokens=asked))[1].max_tokens
    unknown = ScriptedEngine(context_length=None)
    assert load_prompt(await rendered(unknown, max_output_tokens=5000))[1].max_tokens == 5000
    assert load_prompt(await rendered(unknown))[1].max_tokens == UNKNOWN_ROOM


async def test_a_prompt_that_fills_the_context_is_refused() -> None:
    length = len(load_prompt(await rendered())[0])
    assert load_prompt(await rendered(ScriptedEngine(context_length=length + 1)))[1].max_tokens == 1
    with pytest.raises(ContextTooLong, match=str(length)) as refused:
        await rendered(ScriptedEngine(context_length=length))
    assert refused.value.param == "input"


async def test_the_engine_is_asked_for_its_card_again_only_after_a_while() -> None:
    now = [0.0]
    engine = ScriptedEngine()
    model = model_of(engine, patience=Patience(clock=lambda: now[0]))
    request = Request(model="gpt-oss", items=[ITEM])
    for now[0], asked in ((0.0, 1), (59.0, 1), (61.0, 2)):
        await model.render(request, [ITEM])
        assert asked == engine.asked_for_cards


@pytest.mark.parametrize("token", ["hello", "", "-1", "1.0", "201088", "\u0665", "9" * 5000])
async def test_a_bias_of_what_is_no_token_is_refused(token: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await rendered(logit_bias={"201087": 1.0, token: 1.0})
    assert refused.value.param == "logit_bias"


async def test_stop_sequences_are_refused() -> None:
    with pytest.raises(UnsupportedValue) as refused:
        await rendered(stop=["\n"])
    assert refused.value.param == "stop"


@pytest.mark.parametrize("context_length", [None, 1000])
async def test_the_engine_is_always_given_a_number_of_tokens(context_length: int | None) -> None:
    """To vLLM, null is 16."""
    engine = ScriptedEngine(*chunked(ANSWER, 1), context_length=context_length)
    request = Request(model="gpt-oss", items=[ITEM])
    model = model_of(engine)
    async for _ in model.respond(request, await model.render(request, [ITEM])):
        pass
    assert engine.sampling.max_tokens == (1000 - len(engine.prompt) if context_length else UNKNOWN_ROOM)


async def held_by(**fields: Any) -> tuple[list[str], list[Any]]:
    """The heads and the contents of the ways in which a held turn may end."""
    held = load_prompt(await rendered(**fields))[1].held
    assert held is not None
    _, ends = json.loads(held)["format"]["elements"]
    return [tag["begin"] for tag in ends["elements"]], [tag["content"]["json_schema"] for tag in ends["elements"]]


async def test_nothing_is_held_unless_it_is_asked_for() -> None:
    assert load_prompt(await rendered(tools=[TOOL]))[1].held is None


async def test_the_answers_form_is_held_in_the_final_body_and_calls_stay_possible() -> None:
    schema = {"type": "object", "properties": {"p": {"type": "integer"}}}
    text_format = {"type": "json_schema", "name": "r", "schema": schema}
    heads, schemas = await held_by(text_format=text_format, tools=[TOOL])
    assert heads[0] == "<|channel|>final <|constrain|>json<|message|>"
    assert heads[-1] == "<|channel|>commentary to=functions.ping <|constrain|>json<|message|>"
    assert [schema, TOOL["parameters"]] == [schemas[0], schemas[-1]]
    assert (await held_by(text_format={"type": "json_object"}))[1][0] == {"type": "object"}


async def test_a_held_turn_ends_with_its_body_whatever_stop_token_follows() -> None:
    """A stop token is no text to an engine: it would be written in letters, behind the arguments."""
    text_format = {"type": "json_object"}
    held = load_prompt(await rendered(text_format=text_format, tools=[TOOL]))[1].held
    assert held is not None
    _, ends = json.loads(held)["format"]["elements"]
    assert {tag["end"] for tag in ends["elements"]} == {""}
    assert all(tag["content"]["max_whitespace_cnt"] > 0 for tag in ends["elements"])


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", ["ping", "pong"]),
        ({"type": "function", "name": "pong"}, ["pong"]),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "ping"}]}, ["ping"]),
    ],
)
async def test_a_demanded_call_is_the_only_way_to_end_the_turn(choice: Any, names: list[str]) -> None:
    heads, _ = await held_by(tools=[TOOL, OTHER], tool_choice=choice)
    assert [f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>" for name in names] == heads


async def test_what_must_be_held_is_sent_to_the_engine() -> None:
    engine = ScriptedEngine(*chunked(ANSWER, 1))
    request = Request(model="gpt-oss", items=[ITEM], text_format={"type": "json_object"})
    model = model_of(engine)
    prompt = await model.render(request, [ITEM])
    async for _ in model.respond(request, prompt):
        pass
    assert {"structural_tag": load_prompt(prompt)[1].held} == engine.sampling.structured_outputs


async def test_tool_choice_decides_which_tools_the_model_sees() -> None:
    async def seen(choice: Any) -> list[bool]:
        tokens, _ = load_prompt(await rendered(tools=[TOOL, OTHER], tool_choice=choice))
        prompt = RENDERER.load().decode(tokens)
        return ["type ping" in prompt, "type pong" in prompt]

    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "pong"}]}
    assert await seen("auto") == [True, True]
    assert await seen("none") == [False, False]
    assert await seen({"type": "function", "name": "ping"}) == [True, True]
    assert await seen(allowed) == [False, True]


async def test_a_call_against_tool_choice_none_is_not_a_call() -> None:
    tokens = [CHANNEL, *encoded("commentary to=functions.ping"), MESSAGE, *encoded("{}"), CALL]
    said = everything(await spoken_by(*chunked(tokens, 1), tools=[TOOL], tool_choice="none"))
    assert [ReasoningSaid("{}"), ItemEnded()] == said[:2]


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "name": "nope"},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "nope"}]},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp", "server_label": "x"}]},
        {"type": "allowed_tools", "mode": "required", "tools": []},
        {"type": "web_search_preview"},
        "sometimes",
    ],
)
async def test_a_tool_choice_that_cannot_be_kept_is_refused(choice: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await rendered(tools=[TOOL], tool_choice=choice)
    assert refused.value.param == "tool_choice"


async def test_a_demanded_call_without_tools_is_refused() -> None:
    with pytest.raises(InvalidRequest) as refused:
        await rendered(tool_choice="required")
    assert refused.value.param == "tool_choice"


def test_the_vocabulary_is_unpacked_once_and_checked(tmp_path: Path) -> None:
    vocabulary = Vocabulary({"XDG_CACHE_HOME": str(tmp_path)})
    assert len(vocabulary.load()) == 199_998
    file = tmp_path / "verbatim" / "o200k" / FILE_NAME
    assert [file] == list(file.parent.iterdir())
    file.write_bytes(b"damaged")
    again = Vocabulary({"XDG_CACHE_HOME": str(tmp_path)})
    assert vocabulary.load() == again.load()
    assert file.read_bytes() != b"damaged"
    assert (again.bytes_of(RETURN), again.bytes_of(-1)) == (b"", b"")
    assert len(SHA256) == 64


def test_an_operators_own_vocabulary_is_respected_and_checked(tmp_path: Path) -> None:
    own = Vocabulary({"TIKTOKEN_ENCODINGS_BASE": str(tmp_path)})
    with pytest.raises(SettingsError, match="missing"):
        own.load()
    (tmp_path / FILE_NAME).write_bytes(b"wrong")
    with pytest.raises(SettingsError, match="sha256"):
        own.load()
