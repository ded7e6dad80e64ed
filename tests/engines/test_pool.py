"""Several engines as one: who is asked, who is set aside, and what a client sees of it."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from app.engines.chat import ChatCompletions
from app.engines.pool import KEY_TOKENS, ChatPool, Members, TokenPool
from app.engines.scripted import ScriptedChat, ScriptedTokens
from app.engines.scripts import Fault, Output
from app.engines.vllm import VllmEngine
from app.errors import EngineFailed, EngineLacksModel, EngineRefused, EngineStalled, EngineUnreachable
from app.ports import ChatEngine, ModelCard, Sampling, TokenEngine, Tokens
from tests.engines.raw_server import answering, refusal

NAMES = ("one", "two", "three")
SAMPLING = Sampling()


class Health:
    """Probes that say what a test wants, and count."""

    def __init__(self, *names: str) -> None:
        self.ill: set[str] = set()
        self.broken: set[str] = set()
        self.asked = dict.fromkeys(names, 0)

    def probes(self) -> Mapping[str, Callable[[], Any]]:
        return {name: self._probe_of(name) for name in self.asked}

    def _probe_of(self, name: str) -> Callable[[], Any]:
        async def probe() -> None:
            self.asked[name] += 1
            if name in self.broken:
                raise ValueError("what is this?")
            if name in self.ill:
                raise EngineFailed

        return probe


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 45
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.001)


def saying(name: str, **fields: Any) -> ScriptedTokens:
    """An engine whose tokens are the letters of its name."""
    output = Output(**({"text": name} | fields))
    return ScriptedTokens(lambda text: [ord(letter) for letter in text], lambda ids: "", [output], models=(name,))


def refusing(status: int) -> Fault:
    return Fault(kind="refuse", status=status, message="not now")


@asynccontextmanager
async def pool_of(
    engines: Mapping[str, TokenEngine], health: Health | None = None, seconds: float = 0.01
) -> AsyncIterator[tuple[TokenPool, Members]]:
    members = Members((health or Health(*engines)).probes(), seconds=seconds)
    pool = TokenPool(members, engines)
    yield pool, members
    await pool.close()


def prompt_of(number: int) -> list[int]:
    return [number] * (KEY_TOKENS + 10)


async def answer(pool: TokenPool, prompt: list[int]) -> str:
    """Which engine spoke."""
    told = [tokens async for tokens in pool.generate("any", prompt, SAMPLING)]
    return "".join(chr(token) for tokens in told for token in tokens.ids)


async def prompt_for(pool: TokenPool, name: str) -> list[int]:
    """A prompt that this engine is asked first."""
    for number in range(1, 500):
        if await answer(pool, prompt_of(number)) == name:
            return prompt_of(number)
    raise AssertionError(f"nothing is for {name}")


@asynccontextmanager
async def under_way(pool: TokenPool, prompt: list[int]) -> AsyncIterator[None]:
    """As long as the block lasts an engine works on this prompt."""
    async with aclosing(pool.generate("any", prompt, SAMPLING)) as generation:
        assert await anext(generation) == Tokens()
        yield


async def test_prompts_are_spread_and_a_conversation_keeps_to_its_engine() -> None:
    async with pool_of({name: saying(name) for name in NAMES}) as (pool, _):
        first = {number: await answer(pool, prompt_of(number)) for number in range(1, 60)}
        later = {number: await answer(pool, [*prompt_of(number), 7, 8, 9]) for number in range(1, 60)}

    assert set(first.values()) == set(NAMES)
    assert later == first


async def test_a_lost_engine_moves_only_its_own_conversations() -> None:
    health = Health(*NAMES)
    async with pool_of({name: saying(name) for name in NAMES}, health) as (pool, members):
        before = [await answer(pool, prompt_of(number)) for number in range(1, 60)]
        health.ill.add("two")
        await until(lambda: len(members.best_first(b"")) == 2)
        without = [await answer(pool, prompt_of(number)) for number in range(1, 60)]
        health.ill.clear()
        await until(lambda: len(members.best_first(b"")) == 3)
        after = [await answer(pool, prompt_of(number)) for number in range(1, 60)]

    assert "two" in before
    assert "two" not in without
    assert [one for one in zip(before, without, strict=True) if one[0] not in ("two", one[1])] == []
    assert after == before


async def test_an_engine_that_is_clearly_busier_is_spared() -> None:
    engines = {name: saying(name) for name in ("one", "two")}
    async with pool_of(engines) as (pool, _), contextlib.AsyncExitStack() as work:
        prompt = await prompt_for(pool, "one")
        spoken = []
        for _ in range(6):
            spoken.append(await answer(pool, prompt))
            await work.enter_async_context(under_way(pool, prompt))

        assert spoken == ["one"] * 5 + ["two"]


async def test_work_that_has_ended_or_was_given_up_no_longer_counts() -> None:
    async with pool_of({name: saying(name) for name in NAMES}) as (pool, members):
        async with under_way(pool, prompt_of(1)), under_way(pool, prompt_of(2)):
            assert sum(member.busy for member in members.best_first(b"")) == 2

        assert [member.busy for member in members.best_first(b"")] == [0, 0, 0]


@pytest.mark.parametrize("status", [502, 503])
async def test_a_request_that_was_not_taken_goes_to_another_engine_at_once(status: int) -> None:
    health = Health("one", "two")
    engines = {"one": saying("one"), "two": saying("two")}
    async with pool_of(engines, health, seconds=60) as (pool, members):
        prompt = await prompt_for(pool, "one")
        engines["one"] = saying("one", fault=refusing(status))
        health.ill.add("one")  # a probe soon after must not bring it back

        assert await answer(pool, prompt) == "two"
        assert [member.name for member in members.best_first(b"")] == ["two"]


@pytest.mark.parametrize("status", [400, 404, 422, 429, 500, 504])
async def test_what_another_engine_could_not_do_better_is_not_tried_again(status: int) -> None:
    health = Health("one", "two")
    engines = {"one": saying("one"), "two": saying("two")}
    async with pool_of(engines, health, seconds=60) as (pool, members):
        prompt = await prompt_for(pool, "one")
        engines["one"] = saying("one", fault=refusing(status))
        health.ill.add("one")

        with pytest.raises(EngineRefused, match="not now") as refused:
            await answer(pool, prompt)

        assert refused.value.status == status
        assert len(members.best_first(b"")) == (2 if status < 500 else 1)


async def test_an_engine_that_breaks_off_after_it_accepted_is_not_replaced_but_set_aside() -> None:
    health = Health("one", "two")
    engines = {"one": saying("one"), "two": saying("two")}
    async with pool_of(engines, health, seconds=60) as (pool, members):
        prompt = await prompt_for(pool, "one")
        engines["one"] = saying("one", fault=Fault(kind="reset", after=1))
        health.ill.add("one")
        told: list[Tokens] = []

        with pytest.raises(EngineFailed):
            async for tokens in pool.generate("any", prompt, SAMPLING):
                told += [tokens]

        assert [list(tokens.ids) for tokens in told] == [[], [ord("o")]]
        assert [member.name for member in members.best_first(b"")] == ["two"]


async def test_a_silent_engine_is_not_replaced() -> None:
    engines = {"one": saying("one"), "two": saying("two")}
    async with pool_of(engines, seconds=60) as (pool, _):
        prompt = await prompt_for(pool, "one")
        engines["one"] = ScriptedTokens(
            lambda text: [1], lambda ids: "", [Output(text="x", fault=Fault(kind="stall"))], stall_seconds=0
        )

        with pytest.raises(EngineStalled):
            await answer(pool, prompt)


async def test_an_engine_that_was_set_aside_is_probed_and_comes_back() -> None:
    health = Health("one", "two")
    engines = {"one": saying("one"), "two": saying("two")}
    async with pool_of(engines, health) as (pool, members):
        prompt = await prompt_for(pool, "one")
        health.ill.add("one")
        engines["one"] = saying("one", fault=refusing(503))
        assert await answer(pool, prompt) == "two"
        engines["one"] = saying("one")
        asked = health.asked["one"]
        await until(lambda: health.asked["one"] > asked + 2)
        assert await answer(pool, prompt) == "two"

        health.ill.clear()
        await until(lambda: len(members.best_first(b"")) == 2)

        assert await answer(pool, prompt) == "one"


async def test_a_probe_that_breaks_makes_its_engine_ill_and_does_not_end_the_watch() -> None:
    health = Health("one", "two")
    health.broken.add("one")
    async with pool_of({"one": saying("one"), "two": saying("two")}, health) as (pool, members):
        await answer(pool, prompt_of(1))
        await until(lambda: len(members.best_first(b"")) == 1)
        health.broken.clear()
        await until(lambda: len(members.best_first(b"")) == 2)


async def test_engines_that_are_all_ill_are_tried_nevertheless() -> None:
    health = Health("one", "two")
    async with pool_of({"one": saying("one"), "two": saying("two")}, health) as (pool, members):
        health.ill |= {"one", "two"}
        await answer(pool, prompt_of(1))
        await until(lambda: not any(member.is_well for member in members.best_first(b"")))

        assert await answer(pool, prompt_of(1)) in ("one", "two")


def watching() -> set[str]:
    """The tasks that probe."""
    return {name for task in asyncio.all_tasks() if (name := task.get_name()).startswith(("engine pool", "watch "))}


async def test_nobody_is_probed_before_the_first_request_nor_after_the_end() -> None:
    health = Health("one", "two")
    async with pool_of({"one": saying("one"), "two": saying("two")}, health) as (pool, _):
        assert watching() == set()
        await answer(pool, prompt_of(1))
        await until(lambda: all(health.asked.values()))
        assert watching() == {"engine pool", "watch one", "watch two"}
        await pool.close()
        assert watching() == set()


async def test_cards_come_from_any_engine_that_is_there(nowhere: str) -> None:
    there, gone = saying("two"), VllmEngine(nowhere)
    async with pool_of({"one": gone, "two": there, "three": gone}, seconds=60) as (pool, members):
        assert await pool.cards() == await there.cards()
        assert await pool.cards() == await there.cards()
        assert "two" in [member.name for member in members.best_first(b"")]


async def test_the_models_of_an_engine_that_goes_away_are_not_forgotten() -> None:
    class Restarting(ScriptedTokens):
        is_away = False

        async def cards(self) -> Sequence[ModelCard]:
            if self.is_away:
                raise EngineUnreachable
            return [ModelCard("two"), ModelCard("same")]

    two = Restarting(lambda text: [], lambda ids: "", [])
    async with pool_of({"one": saying("same"), "two": two}, seconds=60) as (pool, _):
        assert [card.id for card in await pool.cards()] == ["same", "two"]
        two.is_away = True
        for _ in range(3):
            assert [card.id for card in await pool.cards()] == ["same", "two"]


class Lacking(ScriptedTokens):
    """An engine of another model."""

    async def generate(self, model: str, prompt: Sequence[int], sampling: Sampling) -> AsyncGenerator[Tokens, None]:
        raise EngineLacksModel
        yield


def lacking() -> TokenEngine:
    return Lacking(lambda text: [], lambda ids: "", [])


async def test_an_engine_that_lacks_the_model_is_passed_over() -> None:
    async with pool_of({"one": lacking(), "two": saying("two")}, seconds=60) as (pool, members):
        assert {await answer(pool, prompt_of(number)) for number in range(1, 10)} == {"two"}
        assert len(members.best_first(b"")) == 2, "it is well, and may serve other models"


async def test_a_model_that_all_lack_is_not_found() -> None:
    async with pool_of({name: lacking() for name in NAMES}, seconds=60) as (pool, _):
        with pytest.raises(EngineLacksModel):
            await answer(pool, prompt_of(1))


async def test_a_model_that_may_be_where_nobody_answers_is_not_called_unknown(nowhere: str) -> None:
    async with pool_of({"one": lacking(), "two": VllmEngine(nowhere), "three": lacking()}, seconds=60) as (pool, _):
        for number in range(1, 10):  # at the first one nobody knows yet that one of them is away
            with pytest.raises(EngineFailed, match="could not be reached"):
                await answer_of_eight(pool, number)


async def test_an_engine_that_was_set_aside_is_asked_for_what_the_others_lack() -> None:
    health = Health("one", "two")
    health.ill.add("two")
    async with pool_of({"one": lacking(), "two": saying("two")}, health, seconds=60) as (pool, members):
        await answer(pool, prompt_of(1))
        await until(lambda: len(members.best_first(b"")) == 1)
        assert await answer(pool, prompt_of(1)) == "two"


async def test_an_engine_that_is_not_there_is_passed_over(nowhere: str) -> None:
    health = Health("one", "two")
    engines: dict[str, TokenEngine] = {"one": saying("one"), "two": saying("two")}
    async with pool_of(engines, health, seconds=60) as (pool, members):
        prompt = await prompt_for(pool, "one")
        engines["one"] = VllmEngine(nowhere)
        health.ill.add("one")

        assert await answer(pool, prompt) == "two"
        assert {await answer(pool, prompt_of(number)) for number in range(1, 10)} == {"two"}
        assert [member.name for member in members.best_first(b"")] == ["two"]


async def test_when_none_is_there_the_error_does_not_tell_addresses(nowhere: str) -> None:
    async with pool_of({"one": VllmEngine(nowhere), "two": VllmEngine(nowhere)}, seconds=60) as (pool, _):
        with pytest.raises(EngineFailed) as failure:
            await answer(pool, prompt_of(1))
        with pytest.raises(EngineFailed):
            await pool.cards()

    assert failure.value.message == "The engine could not be reached."


async def test_an_engine_that_hangs_up_before_it_answers_is_passed_over() -> None:
    async with answering("") as url:
        engines = {"one": VllmEngine(url), "two": saying("two")}
        async with pool_of(engines, seconds=60) as (pool, _):
            assert {await answer_of_eight(pool, number) for number in range(1, 10)} == {"two"}


async def answer_of_eight(pool: TokenPool, number: int) -> str:
    told = [tokens async for tokens in pool.generate("any", prompt_of(number), Sampling(max_tokens=8))]
    return "".join(chr(token) for tokens in told for token in tokens.ids)


# chat

USER = {"role": "user", "content": "Hi"}


def chatting(name: str, **fields: Any) -> ScriptedChat:
    return ScriptedChat([Output(**({"text": name} | fields))], models=(name,))


@asynccontextmanager
async def chats_of(engines: Mapping[str, ChatEngine]) -> AsyncIterator[ChatPool]:
    pool = ChatPool(Members(Health(*engines).probes(), seconds=60), engines)
    yield pool
    await pool.close()


async def chat(pool: ChatPool, *messages: Mapping[str, Any]) -> str:
    chunks = [chunk async for chunk in pool.complete({"messages": list(messages)})]
    assert chunks[0] == {}
    return "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk.get("choices", ()))


async def test_a_chat_keeps_to_the_engine_that_its_first_question_chose() -> None:
    async with chats_of({name: chatting(name) for name in NAMES}) as pool:
        rules = {"role": "system", "content": "Be brief."}
        questions = [{"role": "user", "content": f"Question {number}"} for number in range(40)]
        first = [await chat(pool, rules, question) for question in questions]
        told = {"role": "assistant", "content": "Yes."}
        later = [await chat(pool, rules, question, told, USER) for question in questions]

    assert set(first) == set(NAMES)
    assert later == first


async def test_messages_without_a_user_choose_by_all_of_them() -> None:
    async with chats_of({name: chatting(name) for name in NAMES}) as pool:
        assert {await chat(pool, {"role": "system", "content": str(n)}) for n in range(40)} == set(NAMES)


async def test_a_chat_that_was_not_taken_goes_to_another_engine_and_a_refused_one_does_not() -> None:
    async with chats_of({"one": chatting("one", fault=refusing(503)), "two": chatting("two")}) as pool:
        assert {await chat(pool, {"role": "user", "content": str(n)}) for n in range(10)} == {"two"}
    async with chats_of({name: chatting(name, fault=refusing(400)) for name in ("one", "two")}) as pool:
        with pytest.raises(EngineRefused, match="not now"):
            await chat(pool, USER)


async def test_cards_of_chats_come_from_all() -> None:
    async with chats_of({"one": chatting("one"), "two": chatting("two")}) as pool:
        assert [card.id for card in await pool.cards()] == ["one", "two"]


# probes over HTTP

HEALTHY = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


async def probed(answer: str) -> None:
    async with answering(answer) as url:
        engine = ChatCompletions(url)
        try:
            await engine.probe()
        finally:
            await engine.close()


async def test_a_healthy_server_passes_its_probe() -> None:
    await probed(HEALTHY)


@pytest.mark.parametrize("answer", [refusal(503, ""), refusal(404, ""), ""])
async def test_an_unhealthy_server_does_not(answer: str) -> None:
    with pytest.raises(EngineFailed):
        await probed(answer)
