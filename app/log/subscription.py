"""Read, then follow until the stream closes: one loop for every kind of stream and every log."""

from collections.abc import AsyncIterator
from typing import Protocol

from app.log.live import Buffer
from app.ports import Span


class Source(Protocol):
    """Where a subscription finds its stream."""

    async def join(self, response: str) -> Buffer:
        """The buffer in which the stream's next events appear. Raises ResponseNotFound."""

    def leave(self, buffer: Buffer) -> None:
        """The reader that joined is gone."""

    async def backfill(self, response: str, *, after: int) -> Span | None:
        """Events after a position that the buffer does not hold any more; None: not there, look anew."""


async def follow(source: Source, response: str, *, after: int) -> AsyncIterator[Span]:
    """Committed events after a position, without a hole, until the terminal event. Raises ResponseNotFound."""
    closed = False
    while not closed:
        buffer = await source.join(response)
        try:
            while True:
                span = buffer.after(after)
                if span is None and after < buffer.version:
                    span = await source.backfill(response, after=after)
                    if span is None:
                        buffer.left = True
                if span is not None:
                    yield span
                    after = span.last
                    continue
                closed = buffer.closed and not buffer.left
                if closed or buffer.left:
                    break
                await buffer.changed()
        finally:
            source.leave(buffer)
