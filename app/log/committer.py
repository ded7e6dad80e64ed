"""Group commit: everything that waits, from all streams, becomes one transaction; then the next one, without a timer.

All state lives in the event loop; only the transaction itself runs elsewhere (see `Driver`).
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Iterable, Sequence
from typing import Final

from app.errors import AppendRejected, Fenced, LogError, NotOwned, StreamClosed, WrongExpectedVersion
from app.log.commit import Commit, Driver, Identity, Interrupted, Refused
from app.log.hooks import Hooks
from app.log.journal import JournalBook, Pace
from app.log.live import KEPT, LiveStream, LiveStreams
from app.log.plan import Order, leave, lose, plan
from app.log.segments import Move
from app.ports import Header, Tail
from app.responses.events import ENDED, Status

CLOSE_SECONDS: Final = 10.0
RETRY_SECONDS: Final = (0.01, 0.05, 0.2, 1.0)
_CLOSED: Final = "The log is closed."

logger: Final = logging.getLogger(__name__)


class Committer:
    """The one writer of this process."""

    def __init__(self, driver: Driver, live: LiveStreams, hooks: Hooks, tail: Tail, pace: Pace) -> None:
        self.identity: Identity | None = None
        self._driver = driver
        self._live = live
        self._hooks = hooks
        self._tail = tail
        self._pace = pace
        self._book = JournalBook(pace)
        self._orders: list[Order] = []
        self._in_flight: list[Order] = []
        self._work_waits = asyncio.Event()
        self._next_sweep = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run(), name="committer")
        self._task.add_done_callback(self._died)

    def begin(self, identity: Identity) -> None:
        """Write as this writer, with an empty journal."""
        self.identity = identity
        self._book = JournalBook(self._pace)

    def open(self, header: Header, events: Sequence[bytes], *, queued: bool) -> asyncio.Future[None]:
        """Put the opening among what is committed next."""
        if (refusal := self.refusal()) is not None:
            return self._failed(refusal)
        if header.id in self._live:
            return self._failed(AppendRejected(f"Response '{header.id}' exists already."))
        stream = LiveStream(header.id, version=-1)
        stream.appended = len(events) - 1
        if not queued:
            self._live.add(stream)
        return self._put(Order(stream, 0, events, self._loop.create_future(), opens=header, releases=queued))

    def withdraw(self, opening: asyncio.Future[None]) -> bool:
        """Take back an opening that waits; False: it is done, or being committed just now."""
        if (order := next((one for one in self._orders if one.done is opening), None)) is None:
            return False
        self._orders.remove(order)
        self.forget(order.stream)
        return opening.cancel()

    def append(
        self,
        response: str,
        events: Sequence[bytes],
        expected_version: int,
        tokens: Sequence[int],
        status: Status | None,
    ) -> Awaitable[None]:
        """See `EventLog.append`."""
        if (refusal := self.refusal()) is not None:
            return self._failed(refusal)
        stream = self._live.get(response)
        if stream is None:
            return self._failed(NotOwned(f"This process does not own response '{response}'."))
        if stream.closing:
            return self._failed(StreamClosed())
        if stream.appended != expected_version:
            return self._failed(WrongExpectedVersion(f"Believed {expected_version}, is {stream.appended}."))
        if status in ENDED:
            if not events:
                return self._failed(AppendRejected("A terminal append needs its terminal event."))
            stream.closing = True
        stream.appended += len(events)
        return self._put(Order(stream, expected_version + 1, events, self._loop.create_future(), tokens, status))

    def release(self, response: str) -> Awaitable[None]:
        """See `Ownership.release`."""
        if (refusal := self.refusal()) is not None:
            return self._failed(refusal)
        stream = self._live.get(response)
        if stream is None or stream.closing:
            return self._failed(NotOwned(f"This process does not own response '{response}'."))
        stream.closing = True
        self._live.remove(stream)
        return self._put(Order(stream, stream.appended + 1, (), self._loop.create_future(), releases=True))

    def lose(self) -> None:
        """This writer was fenced: what waits is refused, and its streams are lost."""
        self.identity = None
        orders, self._orders = self._orders, []
        lose(orders)
        for stream in self._live:
            self.forget(stream)
        self._hooks.on_fenced()

    def fenced(self, identity: Identity) -> None:
        """The database says that this writer was fenced."""
        if self.identity is identity:
            self.lose()

    @property
    def busy(self) -> set[str]:
        """The responses that this process writes, or is just releasing."""
        orders = {order.stream.response for order in (*self._in_flight, *self._orders)}
        return orders | {stream.response for stream in self._live}

    def forget(self, stream: LiveStream) -> None:
        """The response is lost, or deleted: stop writing it, send its readers to look anew."""
        self._live.remove(stream)
        self._book.moved(stream)
        stream.closing = True
        stream.buffer.leave()

    async def close(self) -> None:
        """Commit what waits, then stop."""
        if self._timer is not None:
            self._timer.cancel()
        if waiting := [order.done for order in (*self._in_flight, *self._orders) if not order.done.done()]:
            await asyncio.wait(waiting, timeout=CLOSE_SECONDS)
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._driver.close()

    def refusal(self) -> LogError | None:
        """Why nothing can be written at the moment."""
        if self.identity is None and not self._task.done():
            return Fenced("This process is not a writer: it has not registered, or it was fenced.")
        return LogError(_CLOSED) if self._task.done() else None

    def _failed(self, error: LogError) -> asyncio.Future[None]:
        done = self._loop.create_future()
        done.set_exception(error)
        return done

    def _put(self, order: Order) -> asyncio.Future[None]:
        self._orders.append(order)
        self._work_waits.set()
        return order.done

    async def _run(self) -> None:
        while True:
            await self._work_waits.wait()
            self._work_waits.clear()
            while self._orders or self._sweep_is_due():
                orders, self._orders = self._orders, []
                self._in_flight = orders
                await self._commit(self.identity, orders, *self._sweep())
                self._in_flight = []
            self._sweep_later()

    def _sweep_is_due(self) -> bool:
        return self.identity is not None and not self._book.settled and time.monotonic() >= self._next_sweep

    def _sweep(self) -> tuple[list[LiveStream], int]:
        if not self._sweep_is_due():
            return [], 0
        now = time.monotonic()
        self._next_sweep = now + self._pace.sweep_seconds
        return self._book.due(now=now), self._book.trimmable(now=now)

    def _sweep_later(self) -> None:
        if self._timer is None and not self._book.settled:
            self._timer = self._loop.call_later(self._pace.sweep_seconds, self._wake_for_sweep)

    def _wake_for_sweep(self) -> None:
        self._timer = None
        self._work_waits.set()

    async def _commit(
        self, identity: Identity | None, orders: Sequence[Order], due: Sequence[LiveStream], trim: int
    ) -> None:
        if identity is None or self.identity is not identity:
            lose(orders)
            return
        if not (orders or due or trim):
            return
        work, began = plan(identity, self._book.newest + 1, orders, due, trim), time.monotonic()
        try:
            await self._send(work)
        except Fenced:
            lose(orders)
            self.fenced(identity)
        except Refused as refusal:
            await self._split(identity, orders, due, trim, refusal)
        else:
            if self.identity is identity:
                self._apply(work, orders, due)
            else:
                leave(orders)
            for order in orders:
                order.succeed()
            self._hooks.on_commit(sum(len(order.events) for order in orders), time.monotonic() - began)

    async def _send(self, work: Commit) -> None:
        pauses = itertools.chain(RETRY_SECONDS, itertools.repeat(RETRY_SECONDS[-1]))
        while True:
            try:
                await self._driver.commit(work)
            except Interrupted as interruption:
                work.resent = True
                logger.warning("commit interrupted, sending it again: %s", interruption)
            else:
                return
            await asyncio.sleep(next(pauses))

    async def _split(
        self, identity: Identity, orders: Sequence[Order], due: Sequence[LiveStream], trim: int, refusal: Refused
    ) -> None:
        """Find the guilty one; all others are committed, in their order."""
        if orders and (due or trim):
            await self._commit(identity, (), due, trim)
            await self._commit(identity, orders, (), 0)
        elif len(orders) > 1:
            middle = len(orders) // 2
            await self._commit(identity, orders[:middle], (), 0)
            await self._commit(identity, orders[middle:], (), 0)
        elif orders:
            self._reject(orders[0], refusal)
        else:
            logger.error("moving events to segments was refused: %s", refusal)

    def _reject(self, order: Order, refusal: Refused) -> None:
        stream = order.stream
        stream.appended = stream.buffer.version
        if order.opens is not None:
            self._live.remove(stream)
            stream.buffer.leave()
        elif order.ends or order.releases:  # it is still ours, and open
            stream.closing = False
            self._live.add(stream)
        order.fail(AppendRejected(f"{AppendRejected.__doc__} ({refusal})"))

    def _apply(self, work: Commit, orders: Sequence[Order], due: Iterable[LiveStream]) -> None:
        streams = {stream.response: stream for stream in due}
        for order in orders:
            stream = streams[order.stream.response] = order.stream
            stream.buffer.extend(order.first, order.events)
            stream.buffer.closed = order.ends
            if order.tokens:
                stream.tokens.append((order.first, order.tokens))
        moved, now = {move.response for move in work.moves}, time.monotonic()
        journaled = {entry.response for entry in work.entries} - moved
        self._book.committed([streams[response] for response in journaled], holds_events=bool(work.entries), now=now)
        for move in work.moves:
            self._moved(streams[move.response], move)
        for response in work.missing:
            self.forget(streams[response])
        self._book.trimmed(work.trim)
        for order in orders:
            order.stream.buffer.wake()
        if any(order.is_queued for order in orders):
            self._hooks.on_queued()
        self._tail.tell(work.identity.journal, work.n, work.batch)
        if any(order.releases for order in orders):
            self._tail.wake("queued")

    def _moved(self, stream: LiveStream, move: Move) -> None:
        self._book.moved(stream)
        if move.events:
            stream.moved = move.version
            stream.group = move.next_group()
            stream.tokens.clear()
        if move.ending is not None:
            self._live.remove(stream)
        elif move.releases:
            stream.buffer.leave()
        else:
            stream.buffer.drop(before=stream.moved + 1 - KEPT)

    def _died(self, task: asyncio.Task[None]) -> None:
        for order in (*self._in_flight, *self._orders):
            order.fail(LogError(_CLOSED))
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.critical("the committer broke: this process writes nothing more", exc_info=error)
            self.lose()
