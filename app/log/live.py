"""Streams in memory: the newest committed events of each, and those who wait for more.

A buffer is what every reader pulls from, by position. So a slow reader costs no memory: what the buffer has dropped is
in the record.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

from app.log.packing import TokenRun
from app.log.segments import Segment
from app.ports import Span

KEPT: Final = 64
"""So many events stay in memory after they moved, for readers that are a little behind."""


class Buffer:
    """Committed events from `first` to `version`; everything before `first` is in segments.

    `closed`: the last one is the terminal event. `left`: the stream goes on elsewhere, or is deleted; look anew.
    """

    __slots__ = ("_waiters", "closed", "events", "first", "left", "readers", "response")

    def __init__(self, response: str, *, version: int, closed: bool = False) -> None:
        self.response = response
        self.first = version + 1
        self.events: list[bytes] = []
        self.closed = closed
        self.left = False
        self.readers = 0
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def version(self) -> int:
        """Position of the last committed event."""
        return self.first + len(self.events) - 1

    def extend(self, first: int, events: Sequence[bytes]) -> None:
        """Take committed events. Known ones are skipped; after a gap (it is in segments) the buffer starts anew."""
        known = self.version + 1 - first
        if known < 0:
            self.first, self.events = first, list(events)
        elif known < len(events):
            self.events.extend(events[known:] if known else events)

    def after(self, position: int) -> Span | None:
        """What memory holds after a position; None when there is nothing, or it begins later."""
        start = position + 1 - self.first
        if start < 0 or start >= len(self.events):
            return None
        return Span(position + 1, self.events[start:])

    def drop(self, *, before: int) -> None:
        """Forget the events before a position."""
        if before > self.first:
            del self.events[: before - self.first]
            self.first = before

    def changed(self) -> asyncio.Future[None]:
        """Done at the next wake-up."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        return waiter

    def wake(self) -> None:
        """Tell everybody who waits."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def leave(self) -> None:
        """Send the readers to look anew."""
        self.left = True
        self.wake()


class LiveStream:
    """A stream that this process writes. Committed events after `moved` are in the journal only.

    `appended` counts what is on its way, too. `group` are the segments that are to become one big segment.
    """

    __slots__ = ("appended", "buffer", "closing", "group", "moved", "response", "rows", "tokens")

    def __init__(self, response: str, *, version: int, group: Sequence[Segment] = ()) -> None:
        self.response = response
        self.buffer = Buffer(response, version=version)
        self.appended = version
        self.moved = version
        self.closing = False
        self.tokens: list[TokenRun] = []
        self.rows: list[int] = []
        self.group: list[Segment] = list(group)

    def unmoved(self) -> list[bytes]:
        """Committed events that are in the journal only."""
        return self.buffer.events[self.moved + 1 - self.buffer.first :]


class LiveStreams:
    """The streams that this process writes, by response."""

    def __init__(self) -> None:
        self._streams: dict[str, LiveStream] = {}

    def __contains__(self, response: str) -> bool:
        return response in self._streams

    def __iter__(self) -> Iterator[LiveStream]:
        return iter(list(self._streams.values()))

    def get(self, response: str) -> LiveStream | None:
        """The stream, if this process writes it."""
        return self._streams.get(response)

    def add(self, stream: LiveStream) -> None:
        """Begin to write."""
        self._streams[stream.response] = stream

    def remove(self, stream: LiveStream) -> None:
        """Stop writing; readers who hold the buffer finish with it."""
        if self._streams.get(stream.response) is stream:
            del self._streams[stream.response]
