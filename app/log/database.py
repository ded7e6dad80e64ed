"""The connections to the record for everything but the committer, and what to do when the database is busy or away."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy import URL, Connection, Executable, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolExhausted
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from app.errors import LogUnavailable, SettingsError

CLOSE_SECONDS: Final = 2.0
BUSY_MS: Final = 5_000
CONNECTIONS: Final = 8
RETRY_SECONDS: Final = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 1.0, 1.0)

SQLITE_PASSING: Final = frozenset({
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PROTOCOL,
})  # fmt: skip
"""SQLite's errors that have nothing to do with the data."""

POSTGRES_PASSING: Final = ("08", "0A000", "25006", "25P03", "40", "53", "55", "57", "58")
"""Codes, and classes of codes, of PostgreSQL's errors that have nothing to do with the data: connection, a plan made
before a migration, a server that only reads, a transaction that stood still, rollback, resources (connections, memory,
disk), locks, shutdown, system.
"""

T = TypeVar("T")

_DRIVERS: Final = {
    "sqlite": "sqlite+aiosqlite",
    "sqlite+aiosqlite": "sqlite+aiosqlite",
    "postgresql": "postgresql+asyncpg",
    "postgresql+asyncpg": "postgresql+asyncpg",
}
_ENGINE: Final[dict[str, Any]] = {
    "max_overflow": 0,
    "pool_timeout": 120,
    "hide_parameters": True,  # errors are logged, and what users wrote must not be
}
_IMMEDIATE: Final = "verbatim_immediate"


def parse_url(text: str) -> URL:
    """The URL with its async driver. Raises SettingsError."""
    try:
        url = make_url(text)
    except ArgumentError as error:
        raise SettingsError("The database URL is not valid: write sqlite:///path or postgresql://….") from error
    if url.drivername not in _DRIVERS:
        raise SettingsError(
            f"The database '{url.drivername}' is not supported: write sqlite:///path or postgresql://…."
        )
    url = url.set(drivername=_DRIVERS[url.drivername])
    if is_sqlite(url) and url.database in {None, "", ":memory:"}:
        raise SettingsError("An SQLite log needs a file: write sqlite:///path.")
    return url


def idle_setting(seconds: float) -> dict[str, str]:
    """PostgreSQL's setting that ends a transaction whose process was stopped."""
    return {"idle_in_transaction_session_timeout": str(max(1_000, int(seconds * 1_000)))}


def is_sqlite(url: URL) -> bool:
    """Whether the record is an SQLite file."""
    return url.get_backend_name() == "sqlite"


def sqlite_path(url: URL) -> Path:
    """Where the SQLite file is."""
    return Path(url.database or "")


class Database:
    """A pool of connections, for single statements and for short transactions.

    A process may be stopped at any point. A single statement is finished by the database alone; a transaction that
    stands still is ended by PostgreSQL after `idle_seconds`: its locks must not keep others from fencing its writer.

    Whoever asks may be cancelled at any point. asyncpg then breaks the connection; SQLite's statement would stay where
    it is, half done, with its lock, so it is finished without them.
    """

    def __init__(
        self, url: URL, *, synchronous: str = "FULL", idle_seconds: float = 60.0, connections: int = CONNECTIONS
    ) -> None:
        self.url = url
        self._synchronous, self._idle_seconds = synchronous, idle_seconds
        pool = {**_ENGINE, "pool_size": connections}
        if is_sqlite(url):
            connecting: dict[str, Any] = {"timeout": BUSY_MS / 1000, "isolation_level": None}
            self._engine = create_async_engine(url, connect_args=connecting, **pool)
            _prepare_sqlite(self._engine, synchronous)
            self._singles = self._engine
        else:
            connecting = {"server_settings": idle_setting(idle_seconds)}
            self._engine = create_async_engine(url, connect_args=connecting, **pool)
            self._singles = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        self._transactions = self._engine.execution_options(**{_IMMEDIATE: True})
        self._going_on = set[asyncio.Future[Any]]()
        self._lent = 0
        self._given_back = asyncio.Event()

    def apart(self) -> "Database":
        """The same over one connection of its own, for what must not wait until others give one back."""
        return Database(self.url, synchronous=self._synchronous, idle_seconds=self._idle_seconds, connections=1)

    async def rows(self, statement: Executable, parameters: dict[str, Any] | None = None) -> Sequence[Any]:
        """The rows of one statement, which is a transaction of its own."""

        async def query() -> Sequence[Any]:
            with self._lending():
                async with self._singles.connect() as connection:
                    return (await connection.execute(statement, parameters)).all()

        return await self._persist(query)

    async def transaction(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        """Do something in one transaction; again from its start when the database was busy or away before the end."""

        async def attempt() -> T:
            with self._lending():
                async with self._transactions.begin() as connection:
                    return await work(connection)

        return await self._persist(attempt)

    async def raw(self, sql: str) -> None:
        """Run one statement without a transaction."""

        async def statement() -> None:
            with self._lending():
                async with self._singles.connect() as connection:
                    await connection.exec_driver_sql(sql)

        await self._finished(statement)

    async def close(self) -> None:
        """Give up the connections, the lent ones too: given back to a pool that is gone, one would never close."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                if self._going_on:
                    await asyncio.wait(self._going_on)
                while self._lent:
                    self._given_back.clear()
                    await self._given_back.wait()
        await self._engine.dispose()

    async def _persist(self, attempt: Callable[[], Awaitable[T]]) -> T:
        for pause in RETRY_SECONDS:
            try:
                return await self._finished(attempt)
            except (DBAPIError, OSError) as error:
                if not _passes(error):
                    raise
            await asyncio.sleep(pause)
        try:
            return await self._finished(attempt)
        except (DBAPIError, OSError) as error:
            if not _passes(error):
                raise
            raise LogUnavailable from error

    async def _finished(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Make the attempt. On SQLite it goes on to its end when nobody waits for it any more; `close` waits."""
        if not is_sqlite(self.url):
            return await attempt()
        going_on = asyncio.ensure_future(attempt())
        self._going_on.add(going_on)
        going_on.add_done_callback(self._has_ended)
        return await asyncio.shield(going_on)

    def _has_ended(self, attempt: "asyncio.Future[Any]") -> None:
        self._going_on.discard(attempt)
        if not attempt.cancelled():
            attempt.exception()  # nobody may be left to hear of it

    @contextmanager
    def _lending(self) -> Iterator[None]:
        self._lent += 1
        try:
            yield
        except PoolExhausted as error:
            raise LogUnavailable from error
        finally:
            self._lent -= 1
            self._given_back.set()


def _passes(error: DBAPIError | OSError) -> bool:
    """Whether it may work next time: locked, deadlocked, full, disconnected, starting up.

    An error without a code is the driver's own: it was told to go while it asked nothing, and finds that out now.
    """
    if isinstance(error, OSError):
        return True
    if isinstance(error.orig, sqlite3.Error):
        return vars(error.orig).get("sqlite_errorcode", sqlite3.SQLITE_MISUSE) & 0xFF in SQLITE_PASSING
    if isinstance(error, OperationalError):
        return True
    code = vars(error.orig).get("sqlstate") if error.orig is not None else None
    passes = isinstance(error, InterfaceError | InternalError) if code is None else code.startswith(POSTGRES_PASSING)
    return error.connection_invalidated or passes


def _prepare_sqlite(engine: AsyncEngine, synchronous: str) -> None:
    def connected(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        for pragma in ("journal_mode = WAL", f"synchronous = {synchronous}", "wal_autocheckpoint = 0"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    def begins(connection: Connection) -> None:
        # Never a deferred read-then-write: it would fail with a stale snapshot.
        if connection.get_execution_options().get(_IMMEDIATE):
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    event.listen(engine.sync_engine, "connect", connected)
    event.listen(engine.sync_engine, "begin", begins)
