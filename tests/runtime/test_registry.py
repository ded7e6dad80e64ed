"""Models by name, and what is known of them while an engine is away."""

from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from app.errors import EngineUnreachable, ModelNotFound
from app.ports import ModelCard
from app.runtime.registry import Registry, Source


class Engine:
    """Lists these models, unless it is away."""

    def __init__(self, *names: str) -> None:
        self.names, self.is_away, self.asked = names, False, 0

    async def cards(self) -> Sequence[ModelCard]:
        self.asked += 1
        if self.is_away:
            raise EngineUnreachable
        return [ModelCard(name) for name in self.names]


def registry_of(*engines: Engine, named: Sequence[str] = (), clock: list[float] | None = None) -> Registry:
    def build(name: str) -> SimpleNamespace:
        return SimpleNamespace(name=name)

    sources = [Source(Engine(), build, names=named)] if named else []
    now = clock or [0.0]
    return Registry([*sources, *(Source(engine, build) for engine in engines)], lambda: now[0])


def ids(cards: Sequence[ModelCard]) -> list[str]:
    return [card.id for card in cards]


async def test_an_engine_that_is_away_hides_no_other_ones_models() -> None:
    away, here = Engine("a"), Engine("b")
    away.is_away = True
    registry = registry_of(away, here, named=["n"])

    assert ids(await registry.cards()) == ["n", "b"]
    assert (await registry.find("b")).name == "b"
    assert await registry.names() == ["n", "b"]


async def test_a_name_that_an_engine_which_is_away_may_have_is_not_called_unknown() -> None:
    away, here = Engine("a"), Engine("b")
    away.is_away = True
    registry = registry_of(away, here)

    with pytest.raises(EngineUnreachable):
        await registry.find("nowhere")
    away.is_away = False
    assert (await registry.find("a")).name == "a"
    with pytest.raises(ModelNotFound):
        await registry.find("nowhere")


async def test_when_the_only_engine_is_away_the_list_says_so_and_what_was_learned_stays() -> None:
    engine, clock = Engine("a"), [0.0]
    registry = registry_of(engine, clock=clock)
    engine.is_away = True
    with pytest.raises(EngineUnreachable):
        await registry.cards()

    engine.is_away = False
    assert ids(await registry.cards()) == ["a"]
    engine.is_away, clock[0] = True, 100.0

    assert ids(await registry.cards()) == ["a"]
    assert await registry.names() == ["a"]


async def test_a_list_is_believed_for_a_while() -> None:
    engine, clock = Engine("a"), [0.0]
    registry = registry_of(engine, clock=clock)
    for _ in range(3):
        await registry.cards()
    assert engine.asked == 1

    engine.names, clock[0] = ("a", "b"), 31.0

    assert ids(await registry.cards()) == ["a", "b"]
    assert engine.asked == 2


async def test_a_name_that_an_engine_lists_no_longer_is_forgotten() -> None:
    engine, other, clock = Engine("a"), Engine("b"), [0.0]
    registry = registry_of(engine, other, clock=clock)
    assert await registry.names() == ["a", "b"]

    engine.names, clock[0] = ("c",), 31.0

    assert await registry.names() == ["c", "b"]
    with pytest.raises(ModelNotFound):
        await registry.find("a")


async def test_after_a_doubt_the_engine_is_asked_at_once() -> None:
    engine = Engine("a")
    registry = registry_of(engine)
    await registry.find("a")
    engine.names = ("b",)
    assert (await registry.find("a")).name == "a", "the list is believed"

    registry.doubt("a")

    with pytest.raises(ModelNotFound):
        await registry.find("a")
    assert (await registry.find("b")).name == "b"
    assert engine.asked == 2


async def test_a_doubted_name_of_an_engine_that_is_away_is_not_called_unknown() -> None:
    engine = Engine("a")
    registry = registry_of(engine)
    await registry.find("a")
    registry.doubt("a")
    engine.is_away = True

    with pytest.raises(EngineUnreachable):
        await registry.find("a")
    engine.is_away = False
    assert (await registry.find("a")).name == "a"


async def test_settings_are_not_doubted() -> None:
    registry = registry_of(named=["n"])
    registry.doubt("n")
    registry.doubt("never heard of")

    assert (await registry.find("n")).name == "n"


async def test_a_name_that_wanders_to_another_engine_is_built_anew() -> None:
    first, second, clock = Engine("a"), Engine(), [0.0]
    sources = [Source(one, lambda name, one=one: SimpleNamespace(name=name, of=one)) for one in (first, second)]
    registry = Registry(sources, lambda: clock[0])
    assert (await registry.find("a")).of is first  # type: ignore[attr-defined]

    first.names, second.names, clock[0] = (), ("a",), 31.0
    await registry.names()

    assert (await registry.find("a")).of is second  # type: ignore[attr-defined]


async def test_every_engine_is_greeted_whoever_is_away() -> None:
    engines = [Engine("a"), Engine("b"), Engine("c")]
    engines[0].is_away = True
    registry = registry_of(*engines)

    await registry.greet()

    assert [engine.asked for engine in engines] == [1, 1, 1]
