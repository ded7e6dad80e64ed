"""Going on behind logged tokens, after a crash or an engine that breaks off: nothing lost, nothing said twice."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from app.errors import CanNotContinue, EngineError, EngineFailed, EngineRefused, EngineStalled, EngineUnreachable
from app.models.harmony import HarmonyModel
from app.models.harmony_framing import CALL, CHANNEL, CONSTRAIN, MESSAGE, RETURN
from app.models.patience import Patience
from app.ports import ModelCard, Sampling, Tokens
from app.responses.request import Request
from app.responses.said import CallStarted, Finished, Said, Spoken, merge
from tests.models.test_harmony_model import ITEM, NEXT, RENDERER, TOOL, VOCABULARY, encoded

HASTY = Patience(tries=2, seconds=60, pause=0.001)
REQUEST = Request(model="gpt-oss", items=[ITEM], tools=[TOOL], background=True)

ANALYSIS = [CHANNEL, *encoded("analysis"), MESSAGE, *encoded("Think 🫠 hard."), *NEXT]
PREAMBLE = [CHANNEL, *encoded("commentary"), MESSAGE, *encoded("I will ping Ænima 🫠."), *NEXT]
HEADER = [CHANNEL, *encoded("commentary to=functions.ping "), CONSTRAIN, *encoded("json"), MESSAGE]
CALLING = [*HEADER, *encoded('{"a": "🫠 1"}'), CALL]
ANSWERING = [CHANNEL, *encoded("final"), MESSAGE, *encoded("Hello 🫠, Ænima."), RETURN]
TURNS = {
    "a call after reasoning and a preamble": [*ANALYSIS, *PREAMBLE, *CALLING],
    "an answer after reasoning": [*ANALYSIS, *ANSWERING],
    "an answer alone": ANSWERING,
}


class Engine:
    """Goes on wherever a prompt ends inside its turn. Faults strike once each, when so many tokens are there."""

    def __init__(self, turn: Sequence[int], faults: dict[int, list[EngineError]] | None = None) -> None:
        self.turn = turn
        self.prompt_length = 0
        self.faults = faults or {}
        self.requests: list[int] = []

    async def cards(self) -> Sequence[ModelCard]:
        return [ModelCard("gpt-oss", 4000)]

    async def generate(self, model: str, prompt: Sequence[int], sampling: Sampling) -> AsyncGenerator[Tokens, None]:
        there = len(prompt) - self.prompt_length
        assert list(prompt[self.prompt_length :]) == list(self.turn[:there])
        self.requests.append(there)
        for at in range(there, len(self.turn) + 1):
            if self.faults.get(at):
                raise self.faults[at].pop(0)
            if at == there:
                yield Tokens(cached_tokens=8)
            if at == len(self.turn):
                yield Tokens(finish_reason="stop")
            elif at - there == sampling.max_tokens:
                yield Tokens(finish_reason="length")
                return
            else:
                yield Tokens([self.turn[at]])

    async def close(self) -> None:
        pass


async def ready(engine: Engine, request: Request = REQUEST) -> tuple[HarmonyModel, bytes]:
    model = HarmonyModel("gpt-oss", engine, VOCABULARY, RENDERER, patience=HASTY)
    prompt = await model.render(request, request.items)
    first = model.respond(request, prompt)
    engine.prompt_length = 0
    lengths: list[int] = []

    async def measure(model: str, tokens: Sequence[int], sampling: Sampling) -> AsyncGenerator[Tokens, None]:
        lengths.append(len(tokens))
        yield Tokens(finish_reason="stop")

    real, engine.generate = engine.generate, measure  # type: ignore[method-assign, assignment]
    async for _ in first:
        pass
    engine.generate = real  # type: ignore[method-assign]
    engine.prompt_length = lengths[0]
    return model, prompt


def said_in(spoken: Sequence[Spoken]) -> list[Said]:
    return [piece for one in spoken for piece in one.said]


def without_usage(said: Sequence[Said]) -> list[Any]:
    return [piece.reason if isinstance(piece, Finished) else piece for piece in merge(said)]


@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS)
async def test_from_every_cut_a_turn_goes_on_as_if_nothing_had_happened(turn: list[int]) -> None:
    model, prompt = await ready(Engine(turn))
    whole = [spoken async for spoken in model.respond(REQUEST, prompt)]
    for cut in range(len(whole)):
        logged = [token for spoken in whole[:cut] for token in spoken.tokens]
        rest = [spoken async for spoken in model.respond(REQUEST, prompt, logged=logged)]
        assert without_usage([*said_in(whole[:cut]), *said_in(rest)]) == without_usage(said_in(whole))
        assert [*logged, *(token for spoken in rest for token in spoken.tokens)] == turn
        calls = [piece for piece in [*said_in(whole[:cut]), *said_in(rest)] if isinstance(piece, CallStarted)]
        assert len(calls) == (1 if CALL in turn else 0)


async def test_usage_counts_what_was_logged() -> None:
    turn = TURNS["an answer after reasoning"]
    model, prompt = await ready(Engine(turn))
    whole = [spoken async for spoken in model.respond(REQUEST, prompt)]
    logged = [token for spoken in whole[:5] for token in spoken.tokens]
    rest = [spoken async for spoken in model.respond(REQUEST, prompt, logged=logged)]
    assert whole[-1].usage is not None
    assert rest[-1].usage is not None
    assert rest[-1].usage.output_tokens == whole[-1].usage.output_tokens == len(turn)
    assert rest[-1].usage.reasoning_tokens == whole[-1].usage.reasoning_tokens
    assert rest[-1].usage.cached_tokens == 0


async def test_a_turn_whose_logged_tokens_end_it_asks_no_engine() -> None:
    engine = Engine(ANSWERING)
    model, prompt = await ready(engine)
    rest = [spoken async for spoken in model.respond(REQUEST, prompt, logged=ANSWERING)]
    assert engine.requests == []
    assert without_usage(said_in(rest))[-1] == "stop"


async def test_a_used_up_budget_ends_the_turn_without_the_engine() -> None:
    engine = Engine(ANSWERING)
    request = Request(model="gpt-oss", items=[ITEM], max_output_tokens=5)
    model, prompt = await ready(engine, request)
    rest = [spoken async for spoken in model.respond(request, prompt, logged=ANSWERING[:5])]
    assert engine.requests == []
    assert without_usage(said_in(rest))[-1] == "length"


async def test_the_budget_counts_what_was_logged() -> None:
    request = Request(model="gpt-oss", items=[ITEM], max_output_tokens=6)
    model, prompt = await ready(Engine(ANSWERING), request)
    rest = [spoken async for spoken in model.respond(request, prompt, logged=ANSWERING[:4])]
    assert rest[-1].usage is not None
    assert rest[-1].usage.output_tokens == 6


async def test_an_answer_in_a_given_format_is_not_continued() -> None:
    request = Request(model="gpt-oss", items=[ITEM], text_format={"type": "json_object"})
    model, prompt = await ready(Engine(ANSWERING), request)
    with pytest.raises(CanNotContinue):
        [spoken async for spoken in model.respond(request, prompt, logged=ANSWERING[:4])]


@pytest.mark.parametrize(
    "fault", [EngineFailed(), EngineStalled(), EngineUnreachable(), EngineRefused("Busy.", status=503)]
)
async def test_an_engine_that_breaks_anywhere_is_asked_again_behind_its_last_token(fault: EngineError) -> None:
    turn = TURNS["a call after reasoning and a preamble"]
    model, prompt = await ready(Engine(turn))
    whole = said_in([spoken async for spoken in model.respond(REQUEST, prompt)])
    for at in range(1, len(turn)):
        engine = Engine(turn, {at: [fault]})
        model, prompt = await ready(engine)
        spoken = [one async for one in model.respond(REQUEST, prompt)]
        assert without_usage(said_in(spoken)) == without_usage(whole)
        assert engine.requests == [0, at]
        assert [one for one in spoken if not one.said] == [Spoken()]


async def test_an_engine_that_breaks_at_the_same_place_again_and_again_is_given_up() -> None:
    engine = Engine(ANSWERING, {4: [EngineFailed("It broke.")] * 9})
    model, prompt = await ready(engine)
    with pytest.raises(EngineFailed, match="It broke"):
        [spoken async for spoken in model.respond(REQUEST, prompt)]
    assert engine.requests == [0, 4, 4]


async def test_progress_renews_the_patience() -> None:
    engine = Engine(ANSWERING, {at: [EngineFailed()] * 2 for at in range(1, len(ANSWERING))})
    model, prompt = await ready(engine)
    spoken = [one async for one in model.respond(REQUEST, prompt)]
    assert without_usage(said_in(spoken))[-1] == "stop"


async def test_what_the_engine_refuses_for_good_is_not_asked_again() -> None:
    engine = Engine(ANSWERING, {3: [EngineRefused("No.", status=400)]})
    model, prompt = await ready(engine)
    with pytest.raises(EngineRefused):
        [spoken async for spoken in model.respond(REQUEST, prompt)]
    assert engine.requests == [0]


async def test_a_foreground_request_hears_at_once_that_nobody_accepts_it() -> None:
    request = Request(model="gpt-oss", items=[ITEM])
    engine = Engine(ANSWERING, {0: [EngineUnreachable()]})
    model, prompt = await ready(engine, request)
    with pytest.raises(EngineUnreachable):
        [spoken async for spoken in model.respond(request, prompt)]


async def test_a_background_request_waits_for_an_engine_that_restarts() -> None:
    engine = Engine(ANSWERING, {0: [EngineUnreachable()] * 5})
    model, prompt = await ready(engine)
    spoken = [one async for one in model.respond(REQUEST, prompt)]
    assert without_usage(said_in(spoken))[-1] == "stop"
