"""One followed writer: its rows from the tail while that is fine, from the record's journal as soon as it is not."""

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from app.errors import LogUnavailable
from app.log.live import Buffer
from app.log.packing import UNREADABLE, Folded, unfold
from app.log.pauses import event_within
from app.log.record import Place, Record
from app.ports import Tail

POLL_SECONDS: Final = (0.01, 0.05)
QUIET_SECONDS: Final = 0.5
HELD_EVENTS: Final = 2048
"""A followed buffer holds at most so many events; readers that are further behind read segments."""
HELD_ROWS: Final = 1024
"""So many rows are kept that the tail tells while the record is being read."""

logger: Final = logging.getLogger(__name__)


class Followed(Buffer):
    """A stream of another process (`owner`), or of nobody yet (None). `ready`: it has begun.

    `heard_at`: when it last gave a sign of life, on our monotonic clock.
    """

    __slots__ = ("heard_at", "owner", "ready")

    def __init__(self, place: Place) -> None:
        super().__init__(place.response, version=place.version)
        self.owner = place.owner
        self.heard_at = time.monotonic()
        self.ready = asyncio.get_running_loop().create_future()

    def hear(self, entry: Folded) -> None:
        """Take an entry of the owner's journal."""
        self.heard_at = time.monotonic()
        opened = unfold(entry)
        if not self.ready.done() and not self.events:
            self.first = opened.first
        self.extend(opened.first, opened.events)
        self.closed = self.closed or opened.ends
        self.drop(before=self.version + 1 - HELD_EVENTS)

    def begin(self, place: Place | None) -> None:
        """The journal was read, then the place: what the journal did not have is in segments."""
        if place is None or place.owner != self.owner or (self.events and self.first > place.version + 1):
            self.left = True
        elif not self.events:
            self.first = place.version + 1
        if not self.ready.done():
            self.ready.set_result(None)

    def leave(self) -> None:
        """Send the readers to look anew, also those who are still joining."""
        if not self.ready.done():
            self.ready.set_result(None)
        super().leave()


class Scanner:
    """Reads one writer's journal for all its readers in this process. A `Hearer` of the tail.

    Rows are taken from the tail as long as they are consecutive; after a jump the record is read at once. The tail is
    trusted while it has told all that we know: while it is away, or the record knew more, the record is polled. It is
    trusted from the start, but after a break it has to tell news first. Even a trusted tail is compared with the record
    when it has told nothing for `QUIET_SECONDS`.
    """

    def __init__(self, record: Record, tail: Tail, writer: int) -> None:
        self._record = record
        self._tail = tail
        self.writer = writer
        self.seen = 0
        self.looks = 0
        self.followed: dict[str, Followed] = {}
        self._journal: str | None = None
        self._followed_at = self._news_at = time.monotonic()
        self._live = False
        self._told = 0
        self._held: list[tuple[int, bytes]] | None = None
        self._pause = POLL_SECONDS[0]
        self._called = asyncio.Event()
        self._stopped = False
        self.task = asyncio.get_running_loop().create_task(self._run(), name=f"scanner-{writer}")

    def add(self, followed: Followed) -> None:
        """Follow one more stream; the next look reads the whole journal for it."""
        self.followed[followed.response] = followed
        self._called.set()

    def stop(self) -> None:
        """End after the look that is under way: cancelling a query would break its connection."""
        self._stopped = True
        if self._journal is not None:
            self._tail.leave(self._journal)
        self._called.set()

    def tuned(self, live: bool) -> None:
        """See `Hearer.tuned`."""
        self._live = live
        if not live:
            self._told = -1
            self._called.set()
        elif self._told == 0:
            self._told = self.seen

    def hear(self, n: int, batch: bytes) -> None:
        """See `Hearer.hear`."""
        self._told, self._news_at = n, time.monotonic()
        if self._held is not None:
            if len(self._held) < HELD_ROWS:
                self._held.append((n, batch))
        elif n > self.seen and not (n == self.seen + 1 and self._take(n, batch)):
            self._called.set()

    @property
    def trusts_the_tail(self) -> bool:
        """Whether the tail tells everything that we know of."""
        return self._live and self._told >= self.seen

    async def _run(self) -> None:
        while not self._stopped:
            try:
                heard = await self._look()
                if not self._stopped and self._journal is None:
                    await self._find_in_tail()
            except (LogUnavailable, SQLAlchemyError, OSError, *UNREADABLE) as error:
                logger.warning("reading the journal of writer %s failed: %s", self.writer, error)
                heard = False
            if not self._stopped:  # it would follow again what `stop` has left, in the place of who came after it
                await self._rest(heard)

    async def _find_in_tail(self) -> None:
        journal = await self._record.journal_of(self.writer)
        if journal is not None and not self._stopped:
            self._journal = journal
            self._follow(journal)

    def _follow(self, journal: str) -> None:
        self._followed_at = time.monotonic()
        self._tail.follow(journal, self)

    async def _rest(self, heard: bool) -> None:
        if self.trusts_the_tail:
            while self.trusts_the_tail and (rest := self._news_at + QUIET_SECONDS - time.monotonic()) > 0:
                if await event_within(self._called, rest):
                    return
            return
        if self._live and self._journal is not None and time.monotonic() - self._followed_at > QUIET_SECONDS:
            self._follow(self._journal)
        self._pause = POLL_SECONDS[0] if heard else min(self._pause * 1.5, POLL_SECONDS[1])
        await event_within(self._called, self._pause)

    async def _look(self) -> bool:
        self._called.clear()
        self.looks += 1
        told, held = self._told, list[tuple[int, bytes]]()
        self._held = held
        try:
            heard = await self._read_journal()
        finally:
            self._held, self._news_at = None, time.monotonic()
        if told > self.seen:  # what it told was never committed: it is not this journal
            self._told = -1
        for n, batch in held:
            if n > self.seen and not (n == self.seen + 1 and self._take(n, batch)):
                self._called.set()
                break
        return heard

    async def _read_journal(self) -> bool:
        joining = {one for one in self.followed.values() if not one.ready.done()}
        seen, heard = self.seen, set[Followed]()
        async for n, entries in self._record.rows(self.writer, after=0 if joining else seen):
            for entry in entries:
                one = self.followed.get(entry.response)
                # One that joins during this look has missed its beginning: the next look is for it.
                if one is not None and (one in joining or (n > seen and one.ready.done())):
                    one.hear(entry)
                    heard.add(one)
            self.seen = max(self.seen, n)
        if joining:
            places = await self._record.places([one.response for one in joining])
            for one in joining:
                one.begin(places.get(one.response))
        _wake(heard)
        return bool(heard)

    def _take(self, n: int, batch: bytes) -> bool:
        """Take the next row from the tail; False: it cannot be read."""
        heard = set[Followed]()
        try:
            for entry in self._record.unpacked(batch):
                one = self.followed.get(entry.response)
                if one is not None and one.ready.done():
                    one.hear(entry)
                    heard.add(one)
        except UNREADABLE as error:
            logger.warning("row %s of writer %s in the tail is broken: %s", n, self.writer, error)
            return False
        self.seen = n
        _wake(heard)
        return True


def _wake(heard: Iterable[Followed]) -> None:
    for one in heard:
        one.wake()
