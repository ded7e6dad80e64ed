"""Streams that other processes write: who follows them, and one watch over all that are quiet."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextvars import Context
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from app.errors import LogUnavailable
from app.log.live import Buffer
from app.log.pauses import event_within
from app.log.record import Place, Record
from app.log.scanner import QUIET_SECONDS, Followed, Scanner
from app.ports import Tail

WATCH_SECONDS: Final = 0.1

logger: Final = logging.getLogger(__name__)


class Following:
    """All streams that this process follows and does not write."""

    def __init__(self, record: Record, tail: Tail, is_mine: Callable[[int | None], bool]) -> None:
        self._record = record
        self._tail = tail
        self._is_mine = is_mine
        self._followed: dict[str, Followed] = {}
        self._scanners: dict[int, Scanner] = {}
        self._watch: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = asyncio.Event()

    async def join(self, place: Place) -> Buffer:
        """Follow an open stream that was found there."""
        one = self._followed.get(place.response)
        if one is None or one.left or one.owner != place.owner:
            one = self._begin(place)
        one.readers += 1
        try:
            await asyncio.shield(one.ready)
        except asyncio.CancelledError:
            self.leave(one)
            raise
        return one

    def leave(self, buffer: Buffer) -> None:
        """A reader is gone; the last one ends the following."""
        buffer.readers -= 1
        if isinstance(buffer, Followed) and buffer.readers <= 0:
            self._end(buffer)

    def look_anew(self, response: str) -> None:
        """Something happened to this response in this process, or was told: it was claimed, released or deleted."""
        if (one := self._followed.get(response)) is not None:
            one.leave()

    async def close(self) -> None:
        """End all tasks; the readers look anew."""
        self._closed.set()
        for scanner in self._scanners.values():
            scanner.stop()
        tasks = {scanner.task for scanner in self._scanners.values()} | self._ending
        if self._watch is not None:
            tasks.add(self._watch)
        await asyncio.gather(*tasks)
        for one in list(self._followed.values()):
            one.leave()

    def _begin(self, place: Place) -> Followed:
        if (old := self._followed.get(place.response)) is not None:
            old.leave()
            self._end(old)
        one = self._followed[place.response] = Followed(place)
        if place.owner is None or self._is_mine(place.owner):
            one.begin(place)
        else:
            scanner = self._scanners.get(place.owner)
            if scanner is None:  # it serves other requests too: what it logs is not about the first one
                scanner = self._scanners[place.owner] = Context().run(Scanner, self._record, self._tail, place.owner)
            scanner.add(one)
        if self._watch is None or self._watch.done():
            loop, of_no_request = asyncio.get_running_loop(), Context()
            self._watch = loop.create_task(self._watch_quiet(), name="quiet-watch", context=of_no_request)
        return one

    def _end(self, one: Followed) -> None:
        if self._followed.get(one.response) is one:
            del self._followed[one.response]
        scanner = self._scanners.get(one.owner) if one.owner is not None else None
        if scanner is None or scanner.followed.get(one.response) is not one:
            return
        del scanner.followed[one.response]
        if not scanner.followed:
            del self._scanners[scanner.writer]
            scanner.stop()
            self._ending.add(scanner.task)
            scanner.task.add_done_callback(self._ending.discard)

    async def _watch_quiet(self) -> None:
        while self._followed and not await event_within(self._closed, WATCH_SECONDS):
            now = time.monotonic()
            quiet = [one for one in self._followed.values() if self._is_quiet(one, now)]
            try:
                places = await self._record.places([one.response for one in quiet])
            except (LogUnavailable, SQLAlchemyError, OSError) as error:
                logger.warning("looking after quiet streams failed: %s", error)
                continue
            for one in quiet:
                self._compare(one, places.get(one.response))

    def _is_quiet(self, one: Followed, now: float) -> bool:
        return one.ready.done() and not one.left and (one.owner is None or now - one.heard_at >= QUIET_SECONDS)

    def _compare(self, one: Followed, place: Place | None) -> None:
        if place is None or place.owner != one.owner or place.ended or place.version > one.version:
            one.leave()
        else:
            one.heard_at = time.monotonic()
