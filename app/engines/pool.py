"""Several servers of one model as one engine: a conversation keeps to the server that knows its beginning."""

import asyncio
import logging
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from contextvars import Context
from hashlib import blake2b
from typing import Any, Final, TypeVar

import orjson

from app.engines.addresses import without_password
from app.errors import EngineError, EngineLacksModel, VerbatimError
from app.ports import ChatEngine, ModelCard, Sampling, TokenEngine, Tokens

PROBE_SECONDS: Final = 5.0
CALM_SECONDS: Final = 0.5  # between two looks at a member, whatever is heard of it
KEY_TOKENS: Final = 512
KEY_BYTES: Final = 64 * 1024
"""How much of a conversation's beginning chooses its server: what is shorter is quickly computed anew anyway."""

T = TypeVar("T")
Probe = Callable[[], Awaitable[object]]  # raises EngineError when the server is not well

_LOGGER: Final = logging.getLogger(__name__)
_NOT_TAKEN: Final = frozenset({502, 503})  # unreachable, broken off, not ready: another server may do it


class Member:
    """One of several servers, as we know it. `busy`: requests of ours that it is working on. Its name is its URL."""

    def __init__(self, name: str, probe: Probe) -> None:
        self.name = name
        self.busy = 0
        self.is_well = True
        self._address = without_password(name)
        self._probe = probe
        self._doubted = asyncio.Event()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count a request. An error of the server that passes through makes it a suspect."""
        self.busy += 1
        try:
            yield
        except EngineError as error:
            if error.status >= 500:
                self._set_aside(error)
            raise
        finally:
            self.busy -= 1

    async def watch(self, seconds: float) -> None:
        """Probe it now and then, and soon after it was set aside."""
        while True:
            await self._look()
            self._doubted.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._doubted.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(min(CALM_SECONDS, seconds))

    def score(self, key: bytes) -> bytes:
        """How much it is preferred for a key: rendezvous hashing, so that a lost member moves only its own keys."""
        return blake2b(self.name.encode(), key=key, digest_size=8).digest()

    async def _look(self) -> None:
        try:
            await self._probe()
        except VerbatimError as error:
            self._set_aside(error)
        except Exception:  # a probe that can't cope with an answer must not end the watch
            _LOGGER.exception("probe of engine %s broke", self._address)
            self.is_well = False
        else:
            if not self.is_well:
                _LOGGER.info("engine %s is well again", self._address)
            self.is_well = True

    def _set_aside(self, error: VerbatimError) -> None:
        if self.is_well:
            _LOGGER.warning("engine %s was set aside: %s, status %d", self._address, type(error).__name__, error.status)
            self.is_well = False
            self._doubted.set()


class Members:
    """The servers of one model and who watches them: from the first request on, until `close`."""

    def __init__(self, probes: Mapping[str, Probe], *, seconds: float = PROBE_SECONDS) -> None:
        self._members = [Member(name, probe) for name, probe in probes.items()]
        self._seconds = seconds
        self._watching: asyncio.Task[None] | None = None

    def best_first(self, key: bytes) -> list[Member]:
        """The members to try. The preferred one comes first unless it is clearly busier than the least busy one.

        Those that were set aside are left out, unless there are no others: one may be back.
        """
        if self._watching is None:
            loop, of_no_request = asyncio.get_running_loop(), Context()
            self._watching = loop.create_task(self._watch(), name="engine pool", context=of_no_request)
        usable = [member for member in self._members if member.is_well] or list(self._members)
        limit = 1.5 * min(member.busy for member in usable) + 4
        usable.sort(key=lambda member: member.score(key), reverse=True)
        usable.sort(key=lambda member: member.busy if member.busy > limit else 0)
        return usable

    async def relay(self, key: bytes, ask: Callable[[str], AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
        """What the first member says that takes the request; once it has, an error is an error."""
        failures: list[EngineError] = []
        for member in self._to_try(key, failures):
            is_taken = False
            try:
                with member.working():
                    async with aclosing(ask(member.name)) as answer:
                        async for said in answer:
                            is_taken = True
                            yield said
            except EngineError as error:
                failures.append(error)
                if is_taken or not (_lacks_model(error) or error.status in _NOT_TAKEN):
                    raise
            else:
                return
        raise next((error for error in reversed(failures) if not _lacks_model(error)), failures[-1])

    async def ask(self, question: Callable[[str], Awaitable[T]]) -> Mapping[str, T]:
        """The answers of those that are there, by name. Raises EngineError when nobody answers."""
        answers: dict[str, T] = {}
        failures: list[EngineError] = []

        async def hear(member: Member) -> None:
            try:
                with member.working():
                    answers[member.name] = await question(member.name)
            except EngineError as error:
                failures.append(error)

        await asyncio.gather(*map(hear, self.best_first(b"")))
        if failures and not answers:
            raise failures[-1]
        return answers

    def _to_try(self, key: bytes, failures: Sequence[EngineError]) -> Iterator[Member]:
        """The best first. A model that all of them lack may be with those that were set aside."""
        usable = self.best_first(key)
        yield from usable
        if all(map(_lacks_model, failures)):
            yield from (member for member in self._members if member not in usable)

    async def close(self) -> None:
        """Watch no longer. Idempotent."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])

    async def _watch(self) -> None:
        async with asyncio.TaskGroup() as watches:
            for member in self._members:
                watches.create_task(member.watch(self._seconds), name=f"watch {member.name}")


class _Cards:
    """What the members serve. One that is away counts with what it listed last: its models are not forgotten."""

    def __init__(self, members: Members, engines: Mapping[str, TokenEngine] | Mapping[str, ChatEngine]) -> None:
        self._members, self._engines = members, engines
        self._listed: dict[str, Sequence[ModelCard]] = {}

    async def all(self) -> Sequence[ModelCard]:
        """Each model once. Raises EngineError when nobody answers."""
        self._listed.update(await self._members.ask(lambda name: self._engines[name].cards()))
        cards: dict[str, ModelCard] = {}
        for name in self._engines:
            for card in self._listed.get(name, ()):
                cards.setdefault(card.id, card)
        return list(cards.values())


class TokenPool:
    """A TokenEngine over several. `engines` by the names of the members."""

    def __init__(self, members: Members, engines: Mapping[str, TokenEngine]) -> None:
        self._members, self._engines = members, engines
        self._cards = _Cards(members, engines)

    async def cards(self) -> Sequence[ModelCard]:
        """What any of them serves: mostly they all serve the same."""
        return await self._cards.all()

    def generate(self, model: str, prompt: Sequence[int], sampling: Sampling) -> AsyncGenerator[Tokens, None]:
        """See `TokenEngine.generate`."""
        begun = prompt[:KEY_TOKENS]
        key = _digest(struct.pack(f"<{len(begun)}I", *begun))
        return self._members.relay(key, lambda name: self._engines[name].generate(model, prompt, sampling))

    async def close(self) -> None:
        """Close them all."""
        await _close(self._members, self._engines)


class ChatPool:
    """A ChatEngine over several. `engines` by the names of the members."""

    def __init__(self, members: Members, engines: Mapping[str, ChatEngine]) -> None:
        self._members, self._engines = members, engines
        self._cards = _Cards(members, engines)

    async def cards(self) -> Sequence[ModelCard]:
        """What any of them serves: mostly they all serve the same."""
        return await self._cards.all()

    def complete(self, body: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        """See `ChatEngine.complete`."""
        key = _digest(orjson.dumps(_beginning(body["messages"]))[:KEY_BYTES])
        return self._members.relay(key, lambda name: self._engines[name].complete(body))

    async def close(self) -> None:
        """Close them all."""
        await _close(self._members, self._engines)


def _lacks_model(error: EngineError) -> bool:
    return isinstance(error, EngineLacksModel)


def _beginning(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The messages that stay what they are in every turn of a conversation: up to the first one of the user."""
    first = next((place for place, message in enumerate(messages) if message["role"] == "user"), len(messages))
    return messages[: first + 1]


def _digest(beginning: bytes) -> bytes:
    return blake2b(beginning, digest_size=16).digest()


async def _close(members: Members, engines: Mapping[str, TokenEngine] | Mapping[str, ChatEngine]) -> None:
    await members.close()
    for engine in engines.values():
        await engine.close()
