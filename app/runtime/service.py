"""The use cases: create, retrieve, replay, cancel, delete, list."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec
import orjson
import structlog

from app.errors import InvalidRequest, NotEndedYet, ResponseNotFound, ShuttingDown, TooManyRequests
from app.ports import Ancestor, Archive, EventLog, Header, Model, ModelCard, Span
from app.responses.decider import start
from app.responses.events import ENDED, encode, response_inside
from app.responses.history import with_ids
from app.responses.ids import RESPONSE_DIGITS, RESPONSE_PREFIX, Kind, item_id
from app.responses.projection import Projection, evolve
from app.responses.request import Item, Request, dump_request, load_request
from app.responses.resource import born
from app.runtime.chains import Chains, context, listed
from app.runtime.interface import Started
from app.runtime.registry import Registry
from app.runtime.run import Run
from app.runtime.runs import Runs
from app.runtime.started import Background, Foreground
from app.runtime.writer import Chance

_SYNCHRONOUS: Final = "Cannot cancel a synchronous response."
_NOT_REPLAYABLE: Final = (
    "This response cannot be streamed because it was not created with background=true and stream=true."
)
_SEEN_WITHIN: Final = 1.0  # seconds in which readers in other processes see an end, also without a tail
_ENDED_WITHIN: Final = 30.0  # seconds a cancel or delete waits for the terminal event, of the owner or a new one


class Record(EventLog, Archive, Protocol):
    """A log whose headers can be asked about."""

    async def release(self, response_id: str) -> None:
        """See `Ownership.release`."""


class Volatile(EventLog, Protocol):
    """A log whose streams go when their client has gone."""

    def forget(self, response_id: str) -> None:
        """Drop a stream."""


@dataclass(frozen=True, slots=True)
class Logs:
    """Where responses go: `record` keeps them, `memory` holds those that must not be stored."""

    record: Record
    memory: Volatile


class Responses:
    """What clients can do with responses. `queue_limit` is how many background responses may wait."""

    def __init__(self, logs: Logs, registry: Registry, runs: Runs, chance: Chance, queue_limit: int) -> None:
        self._log = logs.record
        self._memory = logs.memory
        self._registry = registry
        self._runs = runs
        self._chance = chance
        self._queue_limit = queue_limit
        self._chains = Chains(logs.record)

    async def create(self, request: Request, *, tenant: str) -> Started:
        """Accept a request: everything that can be known to be bad is refused before anything is written."""
        if self._runs.draining:
            raise ShuttingDown
        if not request.background:
            with self._runs.reserved():
                started = await self._run(*await self._prepare(request, tenant))
            await started.accepted()
            return started
        if await self._log.waiting() >= self._queue_limit:
            raise TooManyRequests("The queue of background responses is full; try again later.")
        header, request, _ = await self._prepare(request, tenant)
        await self._open(self._log, header, request)
        return Background(header.id, self._log, _body(header))

    async def snapshot(self, response_id: str, *, tenant: str) -> bytes:
        """The response as JSON: the terminal one, or as it was born while it is not finished."""
        return _body(await self._header_of(response_id, tenant))

    async def replay(self, response_id: str, *, tenant: str, after: int) -> AsyncIterator[Span]:
        """The events after a position, live if the response is still running."""
        header = await self._header_of(response_id, tenant)
        if not (header.background and header.stream):
            raise InvalidRequest(_NOT_REPLAYABLE, param="stream")
        return self._log.subscribe(response_id, after=after)

    async def cancel(self, response_id: str, *, tenant: str) -> bytes:
        """Cancel a background response and give its final object; idempotent."""
        header = await self._header_of(response_id, tenant)
        if not header.background:
            raise InvalidRequest(_SYNCHRONOUS)
        if header.status not in ENDED:
            await self._stop(header)
        return _body(await self._header_of(response_id, tenant))

    async def delete(self, response_id: str, *, tenant: str) -> None:
        """Remove a response; a running one is cancelled first, so that its readers get their terminal event."""
        header = await self._header_of(response_id, tenant)
        if header.status not in ENDED:
            await self._stop(header)
            await asyncio.sleep(_SEEN_WITHIN)
        if not await self._log.delete(response_id):
            raise ResponseNotFound(response_id)

    async def input_items(self, response_id: str, *, tenant: str) -> Sequence[Item]:
        """The chain's items and the response's own input, oldest first."""
        chain = await self._log.chain(response_id)
        if not chain or chain[-1].tenant != tenant:
            raise ResponseNotFound(response_id)
        return listed(chain[:-1], load_request(chain[-1].request).items)

    async def models(self) -> Sequence[ModelCard]:
        """The models served."""
        return await self._registry.cards()

    async def ready(self) -> None:
        """Raises when this process should get no requests."""
        if self._runs.draining:
            raise ShuttingDown
        await self._log.check()

    def _when_left(self, run: Run, request: Request) -> Callable[[], None]:
        def forget() -> None:
            run.when_ended(lambda: self._memory.forget(run.header.id))

        return (lambda: None) if request.store else forget

    async def _prepare(self, request: Request, tenant: str) -> tuple[Header, Request, Model]:
        model = await self._registry.find(request.model)
        request = self._registry.effective(request)
        chain = await self._parent(request, tenant)
        response_id = RESPONSE_PREFIX + self._chance.digits(RESPONSE_DIGITS)
        structlog.contextvars.bind_contextvars(response_id=response_id)
        own, earlier = await self._chains.resolved(chain, request.items, tenant), listed(chain)
        items = with_ids(own, lambda kind: self._new_id(kind, response_id), earlier=earlier)
        request = msgspec.structs.replace(request, items=items)
        prompt = await model.render(request, context(earlier, items))
        return self._header(response_id, tenant, request, chain, prompt), request, model

    async def _run(self, header: Header, request: Request, model: Model) -> Foreground:
        log = self._log if request.store else self._memory
        release = self._log.release if request.store else None
        run = Run(header, log, await self._open(log, header, request), self._chance, release)
        self._runs.start(run, model, request)
        return Foreground(run, log, self._when_left(run, request))

    async def _parent(self, request: Request, tenant: str) -> list[Ancestor]:
        if request.previous_response_id is None:
            return []
        return await self._chains.parent(request.previous_response_id, tenant)

    def _new_id(self, kind: Kind, response_id: str) -> str:
        return item_id(kind, response_id, self._chance.digits(8))

    def _header(
        self, response_id: str, tenant: str, request: Request, chain: Sequence[Ancestor], prompt: bytes
    ) -> Header:
        return Header(
            id=response_id,
            tenant=tenant,
            model=request.model,
            status="queued" if request.background else "in_progress",
            background=request.background,
            stream=request.stream,
            request=dump_request(request),
            parent=request.previous_response_id,
            root=chain[0].id if chain else response_id,
            priority=request.priority,
            created_at=int(self._chance.now()),
            prompt=prompt,
        )

    async def _open(self, log: EventLog, header: Header, request: Request) -> Projection:
        resource = born(request, header.id, created_at=header.created_at, status=header.status)
        drafts = start(resource, queued=header.background)
        await log.open(header, encode(drafts, after=-1), queued=header.background)
        projection = Projection()
        for draft in drafts:
            evolve(projection, draft)
        return projection

    async def _header_of(self, response_id: str, tenant: str) -> Header:
        header = await self._log.header(response_id)
        if header is None or header.tenant != tenant:
            raise ResponseNotFound(response_id)
        return header

    async def _stop(self, header: Header) -> None:
        """Raise the cancel flag and wait for the terminal event, whoever writes it."""
        await self._log.request_cancel(header.id)
        self._runs.stop(header.id)
        try:
            async with asyncio.timeout(_ENDED_WITHIN):
                async for _ in self._log.subscribe(header.id, after=header.version):
                    pass
        except TimeoutError as error:
            raise NotEndedYet from error


def _body(header: Header) -> bytes:
    if header.terminal is not None:
        return response_inside(header.terminal)
    request = load_request(header.request)
    return orjson.dumps(born(request, header.id, created_at=header.created_at, status=header.status))
