"""Which models are served, and with which defaults."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec

from app.errors import EngineError, ModelNotFound
from app.ports import Model, ModelCard
from app.responses.request import Request

_LISTED_FOR: Final = 30.0  # seconds an upstream's list is believed
_NOT_FOUND: Final = "The model '{}' does not exist here; GET /v1/models lists those that do."

# What a request leaves out and its model has no default for is still sent, so that the echo tells the truth.
_NEUTRAL: Final[Mapping[str, Any]] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}


class Lister(Protocol):
    """Anything that can list models: both kinds of engine."""

    async def cards(self) -> Sequence[ModelCard]:
        """The models it serves. Raises EngineError."""


@dataclass(frozen=True, slots=True)
class Source:
    """One configured engine: the models it gives, and how to speak to them.

    `names` empty: whatever the engine lists. `sampling` are the defaults of its models.
    """

    engine: Lister
    build: Callable[[str], Model]
    names: Sequence[str] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict)


class Registry:
    """Finds the model of a name. An engine's list is believed for half a minute, its names until it lists others."""

    def __init__(self, sources: Sequence[Source], monotonic: Callable[[], float]) -> None:
        self._sources = sources
        self._monotonic = monotonic
        self._models: dict[str, tuple[Source, Model]] = {}
        self._owners: dict[str, Source] = {name: source for source in sources for name in source.names}
        self._listed: dict[int, tuple[float, Sequence[ModelCard]]] = {}
        self._listing = asyncio.Lock()

    async def find(self, name: str) -> Model:
        """The model. Raises ModelNotFound; EngineError when an engine that may have it can't be asked."""
        unheard = await self._learn() if name not in self._owners else []
        source = self._owners.get(name)
        if source is None:
            raise unheard[0] if unheard else ModelNotFound(_NOT_FOUND.format(name))
        built = self._models.get(name)
        if built is None or built[0] is not source:
            built = self._models[name] = source, source.build(name)
        return built[1]

    async def greet(self) -> None:
        """Ask every engine once: one that is away tells its log so, at the start and not at the first request."""
        for source in self._sources:
            with suppress(EngineError):
                await source.engine.cards()

    def doubt(self, name: str) -> None:
        """The engine does not serve this model, which it had listed: ask it again when somebody wants it."""
        source = self._owners.get(name)
        if source is not None and not source.names:
            del self._owners[name]
            self._listed[id(source)] = (float("-inf"), self._listed_by(source)[1])

    async def cards(self) -> list[ModelCard]:
        """What `GET /v1/models` lists: configured names, and what engines list where none are configured.

        An engine that is away hides no other one's models. Raises EngineError when there is nothing else.
        """
        unheard = await self._learn()
        cards = [ModelCard(name) for source in self._sources for name in source.names]
        cards += [card for source in self._sources if not source.names for card in self._listed_by(source)[1]]
        if unheard and not cards:
            raise unheard[0]
        return cards

    async def names(self) -> list[str]:
        """The names a worker may claim responses for; what was learned before counts while an engine is away."""
        await self._learn()
        return list(self._owners)

    def effective(self, request: Request) -> Request:
        """The request with the defaults of its model, which must have been found before; settings come first."""
        source, model = self._models[request.model]
        defaults = {**_NEUTRAL, **model.defaults, **source.sampling}
        missing = {key: value for key, value in defaults.items() if getattr(request, key) is None}
        return msgspec.structs.replace(request, **missing)

    async def _learn(self) -> list[EngineError]:
        """Ask the engines whose list is not believed any more; gives what those said that can't be asked."""
        unheard: list[EngineError] = []
        async with self._listing:
            for source in self._sources:
                if not source.names and self._monotonic() - self._listed_by(source)[0] > _LISTED_FOR:
                    try:
                        cards = await source.engine.cards()
                    except EngineError as error:
                        unheard.append(error)
                    else:
                        self._listed[id(source)] = (self._monotonic(), cards)
                        self._owners = dict(self._named())
        return unheard

    def _named(self) -> Iterator[tuple[str, Source]]:
        """Every name that is configured, or was listed when its engine could last be asked, and whose it is."""
        for source in self._sources:
            names = source.names or [card.id for card in self._listed_by(source)[1]]
            yield from ((name, source) for name in names)

    def _listed_by(self, source: Source) -> tuple[float, Sequence[ModelCard]]:
        """When an engine last listed its models, and which."""
        return self._listed.get(id(source), (float("-inf"), ()))
