"""A service in memory: it records what it was asked, and answers with what a test put in."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import orjson

from app.errors import ResponseNotFound, VerbatimError
from app.ports import ModelCard, Span
from app.responses.request import Item, Request

CREATED = b'{"type":"response.created","sequence_number":0,"response":{"id":"resp_1","status":"in_progress"}}'
DELTA = b'{"type":"response.output_text.delta","sequence_number":1,"item_id":"msg_1","delta":"Hi"}'
COMPLETED = b'{"type":"response.completed","sequence_number":2,"response":{"id":"resp_1","status":"completed"}}'
FINAL = b'{"id":"resp_1","status":"completed"}'
EVENTS = (CREATED, DELTA, COMPLETED)


class Feed:
    """Spans that a test gives one by one; `None` ends it, an exception breaks it off."""

    def __init__(self, *entries: Span | Exception | None) -> None:
        self._queue: asyncio.Queue[Span | Exception | None] = asyncio.Queue()
        self.closed = asyncio.Event()
        for entry in entries:
            self.give(entry)

    def give(self, entry: Span | Exception | None) -> None:
        self._queue.put_nowait(entry)

    async def spans(self) -> AsyncIterator[Span]:
        try:
            while (entry := await self._queue.get()) is not None:
                if isinstance(entry, Exception):
                    raise entry
                yield entry
        finally:
            self.closed.set()


def whole_stream() -> Feed:
    """All events, in two spans."""
    return Feed(Span(0, [CREATED]), Span(1, [DELTA, COMPLETED]), None)


class FakeStarted:
    """A started response: its events come from a feed, its result when `finish` is called or from the start."""

    def __init__(self, feed: Feed, result: asyncio.Future[bytes], waiting: asyncio.Event) -> None:
        self.response_id = "resp_1"
        self.abandoned = 0
        self.cancelled = False
        self._feed = feed
        self._result = result
        self._waiting = waiting

    def follow(self) -> AsyncIterator[Span]:
        return self._feed.spans()

    async def result(self) -> bytes:
        self._waiting.set()
        try:
            return await asyncio.shield(self._result)
        except asyncio.CancelledError:
            self.cancelled = True
            raise

    def abandon(self) -> None:
        self.abandoned += 1


@dataclass
class FakeService:
    """See the module. `error` is raised by every use case."""

    feed: Feed = field(default_factory=whole_stream)
    result: bytes | Exception | None = FINAL
    error: Exception | None = None
    items: Sequence[Item] = ()
    cards: Sequence[ModelCard] = (ModelCard("openai/gpt-oss-20b", 131072, 7), ModelCard("tiny"))
    known: frozenset[str] = frozenset({"resp_1"})
    requests: list[Request] = field(default_factory=list)
    calls: list[tuple[object, ...]] = field(default_factory=list)
    started: list[FakeStarted] = field(default_factory=list)
    waiting: asyncio.Event = field(default_factory=asyncio.Event)  # somebody waits for a result

    async def create(self, request: Request, *, tenant: str) -> FakeStarted:
        self._note("create", tenant)
        self.requests.append(request)
        result: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if isinstance(self.result, Exception):
            result.set_exception(self.result)
        elif self.result is not None:
            result.set_result(self.result)
        self.started.append(FakeStarted(self.feed, result, self.waiting))
        return self.started[-1]

    async def snapshot(self, response_id: str, *, tenant: str) -> bytes:
        self._note("snapshot", response_id, tenant)
        return orjson.dumps({"id": response_id, "status": "queued"})

    async def replay(self, response_id: str, *, tenant: str, after: int) -> AsyncIterator[Span]:
        self._note("replay", response_id, tenant, after)
        if response_id not in self.known:
            raise ResponseNotFound(response_id)
        return self.feed.spans()

    async def cancel(self, response_id: str, *, tenant: str) -> bytes:
        self._note("cancel", response_id, tenant)
        return orjson.dumps({"id": response_id, "status": "cancelled"})

    async def delete(self, response_id: str, *, tenant: str) -> None:
        self._note("delete", response_id, tenant)

    async def input_items(self, response_id: str, *, tenant: str) -> Sequence[Item]:
        self._note("input_items", response_id, tenant)
        return self.items

    async def models(self) -> Sequence[ModelCard]:
        self._note("models")
        return self.cards

    async def ready(self) -> None:
        self._note("ready")

    def _note(self, *call: object) -> None:
        self.calls.append(call)
        if self.error is not None:
            raise self.error


def refusal(error: VerbatimError) -> FakeService:
    """A service that refuses everything."""
    return FakeService(error=error)
