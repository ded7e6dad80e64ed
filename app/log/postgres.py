"""The committer's statements on PostgreSQL, on a connection of its own."""

import asyncio
from contextlib import suppress
from typing import Any, Final

import asyncpg
from sqlalchemy import URL

from app.errors import Fenced
from app.log.commit import HEADER_COLUMNS, Commit, CrashPoints, Interrupted, Refused, header_row
from app.log.database import POSTGRES_PASSING, idle_setting
from app.log.packing import Packing
from app.log.segments import Move

_JOURNAL: Final = (
    "WITH ok AS (SELECT 1 FROM writers WHERE id = $1 AND token = $4 AND NOT fenced FOR SHARE)"
    " INSERT INTO journal (writer, n, batch) SELECT $1, $2, $3 FROM ok"
)
_OPEN: Final = (
    f"INSERT INTO responses ({', '.join(HEADER_COLUMNS)})"
    f" VALUES ({', '.join(f'${i + 1}' for i in range(len(HEADER_COLUMNS)))})"
)
_STATUS: Final = "UPDATE responses SET status = $2 WHERE id = $1"
_MOVED: Final = (
    "UPDATE responses SET version = new.version, owner = CASE WHEN new.releases THEN NULL ELSE responses.owner END"
    " FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::boolean[]) AS new (id, owner, version, releases)"
    " WHERE responses.id = new.id AND responses.owner IS NOT DISTINCT FROM new.owner RETURNING responses.id"
)
_ENDED: Final = (
    "UPDATE responses SET version = new.version, status = new.status, terminal = new.terminal,"
    " ended_at = new.ended_at, owner = NULL, prompt = NULL"
    " FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::text[], $5::bytea[], $6::double precision[])"
    " AS new (id, owner, version, status, terminal, ended_at)"
    " WHERE responses.id = new.id AND responses.owner = new.owner RETURNING responses.id"
)
_REPLACED: Final = "DELETE FROM segments WHERE response = $1 AND last >= $2"
_TOKENS: Final = "UPDATE segments SET tokens = NULL WHERE response = ANY($1::text[]) AND tokens IS NOT NULL"
_SEGMENT: Final = "INSERT INTO segments (response, first, last, events, tokens) VALUES ($1, $2, $3, $4, $5)"
_TRIM: Final = "DELETE FROM journal WHERE writer = $1 AND n <= $2"


class PostgresDriver:
    """One connection, opened when it is needed. Always strict: asynchronous commit lost acknowledged commits."""

    def __init__(self, url: URL, *, lease_seconds: float, crash_points: CrashPoints) -> None:
        self._dsn = url.set(drivername="postgresql").render_as_string(hide_password=False)
        self._settings = {
            "synchronous_commit": "on",
            "application_name": "verbatim-committer",
            **idle_setting(lease_seconds),
        }
        self._crash_points = crash_points
        self._packing = Packing()
        self._connection: asyncpg.Connection[Any] | None = None

    async def commit(self, work: Commit) -> None:
        """See `Driver`."""
        if work.moves:
            await asyncio.to_thread(work.pack, self._packing)
        else:
            work.pack(self._packing)
        try:
            connection = await self._connected()
            if work.is_small:
                self._crash_points.before_commit()
                await self._journal(connection, work)
            else:
                async with connection.transaction():
                    await self._journal(connection, work)
                    await self._write(connection, work)
                    self._crash_points.before_commit()
            self._crash_points.after_commit()
        except asyncpg.PostgresError as error:
            if not _was_committed(work, error):
                raise self._verdict(error) from error
        except (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError) as error:
            self._disconnect()
            raise Interrupted(str(error)) from error
        except (OverflowError, TypeError, ValueError) as error:
            raise Refused(str(error)) from error

    async def close(self) -> None:
        """See `Driver`."""
        if self._connection is not None:
            with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                await self._connection.close(timeout=2)

    async def _connected(self) -> "asyncpg.Connection[Any]":
        if self._connection is None or self._connection.is_closed():
            self._connection = await asyncpg.connect(self._dsn, server_settings=self._settings)
        return self._connection

    def _verdict(self, error: asyncpg.PostgresError) -> Exception:
        if (error.sqlstate or "").startswith(POSTGRES_PASSING):
            self._disconnect()
            return Interrupted(str(error))
        return Refused(str(error))

    def _disconnect(self) -> None:
        """After an interruption nobody knows what the connection is in the middle of."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def _journal(self, connection: "asyncpg.Connection[Any]", work: Commit) -> None:
        writer, token = work.identity
        if await connection.execute(_JOURNAL, writer, work.n, work.batch, token) == "INSERT 0 0":
            raise Fenced

    async def _write(self, connection: "asyncpg.Connection[Any]", work: Commit) -> None:
        if work.opened:
            await connection.executemany(_OPEN, [header_row(opened) for opened in work.opened])
        if work.statuses:
            await connection.executemany(_STATUS, work.statuses)
        if work.moves:
            await self._move(connection, sorted(work.moves, key=lambda move: move.response), work.missing)
        if work.trim:
            await connection.execute(_TRIM, work.identity.writer, work.trim)

    async def _move(self, connection: "asyncpg.Connection[Any]", moves: list[Move], missing: set[str]) -> None:
        found: set[str] = set()
        kept = [move for move in moves if move.ending is None]
        if kept:
            columns = zip(*((move.response, move.owner, move.version, move.releases) for move in kept), strict=True)
            found.update(row[0] for row in await connection.fetch(_MOVED, *map(list, columns)))
        ended = [(move.response, move.owner, move.version, *move.ending) for move in moves if move.ending is not None]
        if ended:
            found.update(row[0] for row in await connection.fetch(_ENDED, *map(list, zip(*ended, strict=True))))
        missing.update(move.response for move in moves if move.response not in found)
        present = [move for move in moves if move.response in found]
        if replaced := [(move.response, move.group_first) for move in present if move.merges]:
            await connection.executemany(_REPLACED, replaced)
        if long := [move.response for move in present if move.ending is not None and move.group_first > 0]:
            await connection.execute(_TOKENS, long)
        rows = [(move.response, *segment) for move in present for segment in move.segments]
        if rows:
            await connection.executemany(_SEGMENT, rows)


def _was_committed(work: Commit, error: asyncpg.PostgresError) -> bool:
    """The journal has this row: an earlier attempt, whose outcome nobody knew, had succeeded."""
    return work.resent and isinstance(error, asyncpg.UniqueViolationError) and error.table_name == "journal"
