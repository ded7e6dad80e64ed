"""Claiming: becoming the owner of responses that nobody owns. The same for queued, released and orphaned ones."""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence, Set
from typing import Final

from sqlalchemy import CTE, ColumnElement, case, func, literal, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.errors import Fenced
from app.log.commit import Identity
from app.log.database import Database
from app.log.live import LiveStream
from app.log.record import header_from
from app.log.segments import SEGMENT_EVENTS, Segment
from app.log.tables import responses, segments, writers
from app.log.writers import is_unfenced
from app.ports import Header

UNSERVED_SECONDS: Final = 3600
"""A response whose model no worker has served for so long is taken by any, which can only end it."""

ENDINGS: Final = 100
"""So many responses that only need their end are claimed at once."""

LIVES: Final = 2
"""What was claimed so often without getting any further may be what ends its processes. Of these, a process takes one
at a time, so that no other response dies with it again and again.
"""

logger: Final = logging.getLogger(__name__)


class Claims:
    """Takes responses for this process; each comes back with its header and as a stream that may be appended to.

    `busy` tells which ones the process knows of. When a claim is broken off, or its answer is lost, the next attempt
    first gives back what was taken without anybody knowing.
    """

    def __init__(self, database: Database, busy: Callable[[], Set[str]]) -> None:
        self._database = database
        self._busy = busy
        self._in_doubt = False
        self._suspect: LiveStream | None = None
        self._suspect_from = -1

    async def claim(
        self, identity: Identity, models: Sequence[str], *, limit: int
    ) -> list[tuple[Header, LiveStream]]:
        """The oldest ones first, by priority. Raises Fenced."""

        async def take(connection: AsyncConnection) -> list[tuple[Header, LiveStream]]:
            # Locked, so that a fence comes before or after this claim; never in its middle.
            lock = select(writers.c.id).where(is_unfenced(identity)).with_for_update(read=True)
            if (await connection.execute(lock)).first() is None:
                raise Fenced
            if self._in_doubt:
                await self._give_back(connection, identity.writer)
            self._in_doubt = True
            headers = await self._take(connection, identity.writer, models, limit)
            parts = await self._segments(connection, [header.id for header in headers])
            return [(header, _stream(header.id, parts[header.id])) for header in headers if _is_whole(header, parts)]

        claimed = await self._database.transaction(take)
        self._in_doubt = False
        for header, stream in claimed:
            if is_suspect(header):
                self._suspect, self._suspect_from = stream, header.version
        return claimed

    @property
    def _may_try(self) -> bool:
        """Whether the last suspect of this process got further, or is not ours any more."""
        one = self._suspect
        return one is None or one.closing or one.buffer.version > self._suspect_from

    async def _give_back(self, connection: AsyncConnection, writer: int) -> None:
        """Claimed responses of this writer that it does not know of become nobody's again, as if never claimed."""
        mine = responses.c.owner == writer
        claimed = await connection.execute(select(responses.c.id).where(mine, responses.c.attempts > 0))
        lost = [response for response in claimed.scalars() if response not in self._busy()]
        unclaimed = {"owner": None, "attempts": responses.c.attempts - 1}
        await connection.execute(update(responses).where(mine, responses.c.id.in_(lost)).values(unclaimed))

    async def _take(
        self, connection: AsyncConnection, writer: int, models: Sequence[str], limit: int
    ) -> list[Header]:
        free = responses.c.owner.is_(None) & responses.c.ended_at.is_(None)
        served = responses.c.model.in_(models)
        unserved = ~served & (responses.c.created_at < int(time.time()) - UNSERVED_SECONDS)
        only_ends = responses.c.cancel_requested | ~responses.c.background | unserved
        ending = _picked("ending", free & only_ends, ENDINGS)
        further = responses.c.version > responses.c.claimed_version
        suspect = (responses.c.attempts >= LIVES) & ~further
        runnable = free & ~only_ends & served
        trying = _picked("trying", runnable & suspect, min(limit, int(self._may_try)))
        left = literal(limit) - select(func.count()).select_from(trying).scalar_subquery()
        running = _picked("running", runnable & ~suspect, left)
        taking = (
            update(responses)
            .where(or_(*(responses.c.id.in_(select(picked.c.id)) for picked in (ending, trying, running))))
            .values(
                owner=writer,
                attempts=case((further, 1), else_=responses.c.attempts + 1),
                claimed_version=responses.c.version,
            )
            .returning(responses)
        )
        headers = [header_from(row) for row in await connection.execute(taking)]
        return sorted(headers, key=lambda header: (header.priority, header.created_at, header.id))

    async def _segments(self, connection: AsyncConnection, ids: Sequence[str]) -> dict[str, list[Segment]]:
        parts: dict[str, list[Segment]] = defaultdict(list)
        columns = (segments.c.first, segments.c.last, segments.c.events, segments.c.tokens)
        query = select(segments.c.response, *columns).where(segments.c.response.in_(ids)).order_by(segments.c.last)
        for response, *segment in await connection.execute(query):
            parts[response].append(Segment(*segment))
        return parts


def is_suspect(header: Header) -> bool:
    """Whether a claimed response was claimed before, too often for nothing."""
    return header.background and header.attempts > LIVES


def _picked(name: str, which: ColumnElement[bool], limit: int | ColumnElement[int]) -> CTE:
    age = (responses.c.priority, responses.c.created_at, responses.c.id)
    found = select(responses.c.id).where(which).order_by(*age).limit(limit).with_for_update(skip_locked=True)
    return found.cte(name)


def _is_whole(header: Header, parts: dict[str, list[Segment]]) -> bool:
    """Positions have no hole. A broken stream stays with us: continued, it would contradict what was shown."""
    position = 0
    for segment in parts[header.id]:
        if segment.first != position:
            break
        position = segment.last + 1
    whole = position == header.version + 1
    if not whole:
        logger.critical("response %s has a hole at event %s: it is not continued", header.id, position)
    return whole


def _stream(response: str, parts: Sequence[Segment]) -> LiveStream:
    """Small segments at the end are to become one with what comes."""
    group: list[Segment] = []
    size = 0
    for segment in reversed(parts):
        size += segment.size
        if size >= SEGMENT_EVENTS:
            break
        group.insert(0, segment)
    return LiveStream(response, version=parts[-1].last if parts else -1, group=group)
