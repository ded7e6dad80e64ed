"""Settling: all that a fenced writer left in its journal goes into segments, and its open responses get no owner.

It may be interrupted and done again at any point, by any process: what has moved already is skipped.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from sqlalchemy import bindparam, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.log.database import Database
from app.log.packing import UNREADABLE, Folded, Packing, TokenRun, unfold
from app.log.record import IDS_PER_READ, Record
from app.log.segments import cut
from app.log.tables import journal, responses, segments, writers

BYTES_PER_BATCH: Final = 8_000_000

logger: Final = logging.getLogger(__name__)

_VERSION: Final = update(responses).where(responses.c.id == bindparam("response")).values(version=bindparam("at"))


@dataclass(slots=True)
class _Left:
    """What a dead writer left of one response: consecutive events after `version`."""

    version: int
    events: list[bytes] = field(default_factory=list)
    runs: list[TokenRun] = field(default_factory=list)

    def take(self, folded: Folded) -> bool:
        """Add an entry, unless its events have moved already; False: there is a hole before it."""
        position = self.version + 1 + len(self.events)
        if folded.first > position:
            return False
        entry = unfold(folded)
        new = entry.events[position - entry.first :]
        if new and entry.tokens:
            self.runs.append((entry.first, entry.tokens))
        self.events.extend(new)
        return True


class Settling:
    """Settles one fenced writer."""

    def __init__(self, database: Database, record: Record, writer: int) -> None:
        self._database = database
        self._record = record
        self._writer = writer
        self._packing = Packing()
        self._broken: set[str] = set()

    async def settle(self) -> bool:
        """Do it all; False when another process does it, or has done it, or this one can't read the journal."""
        try:
            return await self._settle()
        except UNREADABLE as error:
            logger.critical("the journal of writer %s can't be read, what it left has to wait: %s", self._writer, error)
            return False

    async def _settle(self) -> bool:
        batch: list[Folded] = []
        size = 0
        async for _, entries in self._record.rows(self._writer, after=0):
            batch.extend(entries)
            size += sum(len(bytes(entry.events)) for entry in entries)
            if size >= BYTES_PER_BATCH:
                if not await self._database.transaction(partial(self._move, batch)):
                    return False
                batch, size = [], 0
        if batch and not await self._database.transaction(partial(self._move, batch)):
            return False
        return await self._database.transaction(self._finish)

    async def _move(self, batch: Sequence[Folded], connection: AsyncConnection) -> bool:
        if not await self._is_ours(connection):
            return False
        lefts = await self._owned(connection, sorted({entry.response for entry in batch}))
        for entry in batch:
            left = lefts.get(entry.response)
            if left is not None and entry.response not in self._broken and not left.take(entry):
                self._broken.add(entry.response)
                logger.critical("response %s has a hole before event %s", entry.response, entry.first)
        moved = {response: left for response, left in lefts.items() if left.events}
        if moved:
            await connection.execute(insert(segments), list(self._segment_rows(moved)))
            await connection.execute(
                _VERSION,
                [{"response": response, "at": left.version + len(left.events)} for response, left in moved.items()],
            )
        return True

    async def _finish(self, connection: AsyncConnection) -> bool:
        if not await self._is_ours(connection):
            return False
        orphaned = responses.c.owner == self._writer
        if self._broken:
            orphaned &= responses.c.id.not_in(self._broken)
        await connection.execute(update(responses).where(orphaned).values(owner=None))
        await connection.execute(delete(journal).where(journal.c.writer == self._writer))
        await connection.execute(delete(writers).where(writers.c.id == self._writer))
        return True

    async def _is_ours(self, connection: AsyncConnection) -> bool:
        """Lock the dead writer's row: one process settles at a time."""
        lock = select(writers.c.id).where(writers.c.id == self._writer, writers.c.fenced)
        return (await connection.execute(lock.with_for_update(skip_locked=True))).first() is not None

    async def _owned(self, connection: AsyncConnection, ids: Sequence[str]) -> dict[str, _Left]:
        """The responses that are still this writer's: not closed, released or deleted. Locked against deletion."""
        found: dict[str, _Left] = {}
        for start in range(0, len(ids), IDS_PER_READ):
            owned = select(responses.c.id, responses.c.version).where(
                responses.c.owner == self._writer, responses.c.id.in_(ids[start : start + IDS_PER_READ])
            )
            rows = await connection.execute(owned.with_for_update())
            found.update((row.id, _Left(row.version)) for row in rows)
        return found

    def _segment_rows(self, moved: dict[str, _Left]) -> Iterator[dict[str, object]]:
        for response, left in moved.items():
            for segment in cut(self._packing, left.version + 1, left.events, left.runs):
                yield {"response": response, **segment._asdict()}
