"""From what waits to one transaction: orders of many streams in, a `Commit` out. Nothing changes here."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from app.errors import Fenced
from app.log.commit import Commit, Identity, Opened
from app.log.live import LiveStream
from app.log.packing import Entry
from app.log.segments import Ending, Move
from app.ports import Header
from app.responses.events import ENDED, Status


@dataclass(slots=True, eq=False)
class Order:
    """One wish of a stream: to open, to append, or to be released. `releases` moves its events, and makes it nobody's.

    What `opens` and `releases` is queued: its first events are a segment from the start.
    """

    stream: LiveStream
    first: int
    events: Sequence[bytes]
    done: asyncio.Future[None]
    tokens: Sequence[int] = ()
    status: Status | None = None
    opens: Header | None = None
    releases: bool = False

    @property
    def ends(self) -> bool:
        """Whether its last event is the terminal event."""
        return self.status in ENDED

    @property
    def is_queued(self) -> bool:
        """Whether it opens a response for any worker."""
        return self.releases and self.opens is not None

    @property
    def is_journaled(self) -> bool:
        """Whether the journal row holds it."""
        return bool(self.events or self.tokens) and not self.is_queued

    def succeed(self) -> None:
        """It is committed."""
        if not self.done.done():
            self.done.set_result(None)

    def fail(self, error: Exception) -> None:
        """It was not committed, and will not be."""
        if not self.done.done():
            self.done.set_exception(error)


@dataclass(slots=True)
class _Moving:
    stream: LiveStream
    orders: list[Order] = field(default_factory=list)

    def move(self, writer: int) -> Move:
        stream, last = self.stream, self.orders[-1] if self.orders else None
        events, tokens = stream.unmoved(), list(stream.tokens)
        for order in self.orders:
            events.extend(order.events)
            if order.tokens:
                tokens.append((order.first, order.tokens))
        ending = None
        if last is not None and last.status is not None and last.ends:
            ending = Ending(last.status, events[-1], time.time())
        releases = last is not None and last.releases
        owner = None if last is not None and last.is_queued else writer
        return Move(stream.response, owner, stream.moved + 1, events, tokens, stream.group, ending, releases)


def plan(identity: Identity, n: int, orders: Sequence[Order], due: Iterable[LiveStream], trim: int) -> Commit:
    """The transaction that does these orders, moves what is due, and trims the journal."""
    moving = {stream.response: _Moving(stream) for stream in due}
    for order in orders:
        if order.ends or order.releases:
            moving[order.stream.response] = _Moving(order.stream)
    if moving:
        for order in orders:
            if (one := moving.get(order.stream.response)) is not None:
                one.orders.append(order)
    return Commit(
        identity=identity,
        n=n,
        entries=[
            Entry(order.stream.response, order.first, order.events, order.tokens, order.ends)
            for order in orders
            if order.is_journaled
        ],
        opened=[
            Opened(order.opens, None if order.is_queued else identity.writer)
            for order in orders
            if order.opens is not None
        ],
        statuses=[
            (order.stream.response, order.status) for order in orders if order.status is not None and not order.ends
        ],
        moves=[one.move(identity.writer) for one in moving.values()],
        trim=trim,
    )


def lose(orders: Sequence[Order]) -> None:
    """Refuse what a fenced writer was to do."""
    for order in orders:
        order.fail(Fenced())
    leave(orders)


def leave(orders: Iterable[Order]) -> None:
    """Send readers to look anew: a stream that was being released is not among the live ones, but may have some."""
    for order in orders:
        order.stream.buffer.leave()
