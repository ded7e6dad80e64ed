"""Where a reader finds a stream: in this process, in another one's journal, or at rest in segments."""

import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from app.errors import LogError, LogUnavailable, ResponseNotFound
from app.log.following import Following
from app.log.live import Buffer, LiveStream, LiveStreams
from app.log.record import Record
from app.ports import Span

T = TypeVar("T")

logger: Final = logging.getLogger(__name__)


class SqlSource:
    """The `Source` of subscriptions on SQL, and reading up to now."""

    def __init__(self, live: LiveStreams, record: Record, following: Following) -> None:
        self._live = live
        self._record = record
        self._following = following
        self._closed = False

    async def close(self) -> None:
        """Send all readers away."""
        self._closed = True
        await self._following.close()

    async def join(self, response: str) -> Buffer:
        """See `Source.join`."""
        self._check()
        if (stream := self._live.get(response)) is not None:
            return _joined(stream.buffer)
        place = await self._patiently(lambda: self._record.place(response))
        self._check()
        if (stream := self._live.get(response)) is not None:
            return _joined(stream.buffer)
        if place is None:
            raise ResponseNotFound(response)
        if place.ended:
            return _joined(Buffer(response, version=place.version, closed=True))
        return await self._following.join(place)

    def leave(self, buffer: Buffer) -> None:
        """See `Source.leave`."""
        self._following.leave(buffer)

    async def backfill(self, response: str, *, after: int) -> Span | None:
        """See `Source.backfill`."""
        return await self._patiently(lambda: self._record.span(response, after=after))

    async def read(self, response: str, *, after: int) -> Span:
        """The committed events after a position, up to now. Raises ResponseNotFound."""
        stream = self._live.get(response)
        span = await self._record.read(response, after=after) if stream is None else await self._read(stream, after)
        if span is None:
            raise ResponseNotFound(response)
        return span

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """A subscription outlasts any time that the database is away."""
        while True:
            try:
                return await ask()
            except LogUnavailable:
                logger.warning("a reader waits for the database")
            self._check()

    def _check(self) -> None:
        if self._closed:
            raise LogError("The log is closed.")

    async def _read(self, stream: LiveStream, after: int) -> Span | None:
        events: list[bytes] = []
        buffer = stream.buffer
        while (position := after + len(events)) < buffer.version:
            span = buffer.after(position) or await self._record.span(stream.response, after=position)
            if span is None:  # deleted by another process
                return None
            events.extend(span.events)
        return Span(after + 1, events)


def _joined(buffer: Buffer) -> Buffer:
    buffer.readers += 1
    return buffer
