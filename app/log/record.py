"""Reading the record, which is the durable truth in SQL: headers, segments, journals."""

from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Row, bindparam, func, literal, select, tuple_

from app.errors import LogError
from app.log.commit import Identity
from app.log.database import Database
from app.log.packing import Folded, Packing, unfold
from app.log.tables import journal, responses, segments, writers
from app.ports import Ancestor, Header, Span

SEGMENTS_PER_READ: Final = 4
JOURNAL_ROWS_PER_READ: Final = 256
IDS_PER_READ: Final = 500


class Place(NamedTuple):
    """Where a stream is: up to `version` in segments, the rest in the journal of `owner`."""

    response: str
    version: int
    owner: int | None
    ended: bool


_PLACE: Final = (responses.c.id, responses.c.version, responses.c.owner, responses.c.ended_at.is_not(None))
_PLACES: Final = select(*_PLACE).where(responses.c.id.in_(bindparam("ids", expanding=True)))
_HEADER: Final = select(responses).where(responses.c.id == bindparam("id"))
_SEGMENTS: Final = (
    select(segments.c.first, segments.c.last, segments.c.events)
    .where(segments.c.response == bindparam("id"), segments.c.last > bindparam("after"))
    .order_by(segments.c.last)
    .limit(SEGMENTS_PER_READ)
)
_TOKENS: Final = (
    select(segments.c.tokens)
    .where(segments.c.response == bindparam("id"), segments.c.tokens.is_not(None))
    .order_by(segments.c.last)
)
_JOURNAL: Final = (
    select(journal.c.n, journal.c.batch)
    .where(journal.c.writer == bindparam("writer"), journal.c.n > bindparam("after"))
    .order_by(journal.c.n)
    .limit(JOURNAL_ROWS_PER_READ)
)
_NEWEST: Final = select(func.max(journal.c.n)).where(journal.c.writer == bindparam("writer"))
_TOKEN: Final = select(writers.c.token).where(writers.c.id == bindparam("writer"))
_WAITING: Final = select(func.count()).where(
    responses.c.owner.is_(None), responses.c.ended_at.is_(None), responses.c.status == "queued"
)


def header_from(row: Row[Any]) -> Header:
    """A row of `responses` as a header."""
    return Header(**row._mapping)  # noqa: SLF001 - public in SQLAlchemy, in spite of its name


class Record:
    """Questions to the database. Everything it answers was committed."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._packing = Packing()

    async def header(self, response: str) -> Header | None:
        """The header."""
        rows = await self._database.rows(_HEADER, {"id": response})
        return header_from(rows[0]) if rows else None

    async def place(self, response: str) -> Place | None:
        """Where a stream is; None for an unknown response."""
        return (await self.places([response])).get(response)

    async def places(self, ids: Sequence[str]) -> dict[str, Place]:
        """Where streams are, by response."""
        found: dict[str, Place] = {}
        for start in range(0, len(ids), IDS_PER_READ):
            rows = await self._database.rows(_PLACES, {"ids": ids[start : start + IDS_PER_READ]})
            found.update((row[0], Place(*row)) for row in rows)
        return found

    async def span(self, response: str, *, after: int) -> Span | None:
        """The next moved events after a position, some segments' worth; None when there are none."""
        events: list[bytes] = []
        for first, last, packed in await self._database.rows(_SEGMENTS, {"id": response, "after": after}):
            position = after + 1 + len(events)
            if first > position:
                raise LogError(f"Events {position} to {first - 1} of response '{response}' are missing in the record.")
            if last >= position:
                events.extend(self._packing.events_in(packed)[position - first :])
        return Span(after + 1, events) if events else None

    async def rows(self, writer: int, *, after: int) -> AsyncIterator[tuple[int, list[Folded]]]:
        """A writer's journal after a row: numbers and what is in them."""
        while rows := await self._database.rows(_JOURNAL, {"writer": writer, "after": after}):
            for n, batch in rows:
                yield n, self._packing.entries(batch)
            after = rows[-1][0]
            if len(rows) < JOURNAL_ROWS_PER_READ:
                return

    def unpacked(self, batch: bytes) -> list[Folded]:
        """What is in a row that came another way."""
        return self._packing.entries(batch)

    async def journal_of(self, writer: int) -> str | None:
        """The name of a writer's journal in the tail; None when the writer is gone."""
        rows = await self._database.rows(_TOKEN, {"writer": writer})
        return Identity(writer, rows[0][0]).journal if rows else None

    async def newest(self, writer: int) -> int:
        """The number of a writer's newest row; 0: none."""
        return (await self._database.rows(_NEWEST, {"writer": writer}))[0][0] or 0

    async def tokens(self, response: str) -> list[int]:
        """All tokens in the segments of an open response."""
        rows = await self._database.rows(_TOKENS, {"id": response})
        return [token for (packed,) in rows for _, run in self._packing.runs_in(packed) for token in run]

    async def read(self, response: str, *, after: int) -> Span | None:
        """The committed events after a position; None for an unknown response.

        The journal comes first: events only move from there to segments, so the other order could lose some.
        """
        place = await self.place(response)
        if place is None:
            return None
        journaled = [] if place.owner is None else await self._in_journal(place.owner, response)
        events: list[bytes] = []
        while (span := await self.span(response, after=after + len(events))) is not None:
            events.extend(span.events)
        for first, more in journaled:
            known = after + 1 + len(events) - first
            if known < 0:  # deleted under way: only the copies in the journal are left
                if await self.place(response) is None:
                    return None
                raise LogError(f"There is a hole before event {first} of response '{response}'.")
            events.extend(more[max(known, 0) :])
        return Span(after + 1, events)

    async def _in_journal(self, writer: int, response: str) -> list[tuple[int, Sequence[bytes]]]:
        found: list[tuple[int, Sequence[bytes]]] = []
        async for _, entries in self.rows(writer, after=0):
            found.extend((entry.first, unfold(entry).events) for entry in entries if entry.response == response)
        return found

    async def chain(self, response: str) -> list[Ancestor]:
        """See `Archive.chain`."""
        up = (
            select(responses.c.id, responses.c.parent, literal(0).label("depth"))
            .where(responses.c.id == response)
            .cte("up", recursive=True)
        )
        up = up.union_all(
            select(responses.c.id, responses.c.parent, up.c.depth + 1).where(responses.c.id == up.c.parent)
        )
        statement = (
            select(responses.c.id, responses.c.tenant, responses.c.status, responses.c.request, responses.c.terminal)
            .join(up, up.c.id == responses.c.id)
            .order_by(up.c.depth.desc())
        )
        return [Ancestor(*row) for row in await self._database.rows(statement)]

    async def waiting(self) -> int:
        """See `Archive.waiting`."""
        return int((await self._database.rows(_WAITING))[0][0])

    async def ids(self) -> AsyncIterator[str]:
        """See `Archive.ids`."""
        key = (responses.c.created_at, responses.c.id)
        page = select(*key).order_by(*key).limit(IDS_PER_READ)
        rows = await self._database.rows(page)
        while rows:
            for row in rows:
                yield row.id
            rows = await self._database.rows(page.where(tuple_(*key) > tuple_(rows[-1].created_at, rows[-1].id)))
