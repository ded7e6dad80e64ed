"""The event log on SQL: one object for three ports, composed of small parts."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, assert_never

from sqlalchemy.exc import SQLAlchemyError

from app.errors import Fenced, LogUnavailable, SettingsError
from app.log.archive import Archive
from app.log.checkpoints import Checkpoints
from app.log.claims import Claims
from app.log.commit import CrashPoints, Driver, Identity
from app.log.committer import Committer
from app.log.database import Database, is_sqlite, parse_url, sqlite_path
from app.log.following import Following
from app.log.hooks import Hooks
from app.log.journal import Pace
from app.log.live import LiveStreams
from app.log.openings import Openings
from app.log.pauses import answered_within
from app.log.postgres import PostgresDriver
from app.log.record import Record
from app.log.schema import check
from app.log.settling import Settling
from app.log.source import SqlSource
from app.log.sqlite import Durability, SqliteDriver
from app.log.subscription import follow
from app.log.tail import NoTail
from app.log.writers import Writers
from app.ports import Ancestor, Header, Span, Tail, Wake
from app.responses.events import Status

logger: Final = logging.getLogger(__name__)


class SqlLog(Hooks):
    """`EventLog`, `Archive` and `Ownership` on SQLite or PostgreSQL. Made by `open_log`."""

    def __init__(  # budget: made in one place
        self, database: Database, driver: Driver, tail: Tail, *, lease_seconds: float, wait_seconds: float, pace: Pace
    ) -> None:
        super().__init__()
        self._database = database
        self._tail = tail
        self._live = LiveStreams()
        self._committer = Committer(driver, self._live, self, tail, pace)
        self._wait_seconds = wait_seconds
        self._openings = Openings(self._committer, self.delete, seconds=wait_seconds)
        self._record = Record(database)
        self._following = Following(self._record, tail, self._is_mine)
        self._source = SqlSource(self._live, self._record, self._following)
        self._writers = Writers(database, lease_seconds=lease_seconds)
        self._claims = Claims(database, lambda: self._committer.busy)
        self._archive = Archive(database)
        self._claiming, self._registering = asyncio.Lock(), asyncio.Lock()
        self._checkpoints = Checkpoints(database, driver) if isinstance(driver, SqliteDriver) else None
        tail.start(self._woken, lambda seconds: self.on_lag(seconds))

    # EventLog

    async def open(self, header: Header, events: Sequence[bytes], *, queued: bool) -> None:
        """See `EventLog.open`."""
        await self._openings.open(header, events, queued=queued)

    def append(
        self,
        response_id: str,
        events: Sequence[bytes],
        *,
        expected_version: int,
        tokens: Sequence[int] = (),
        status: Status | None = None,
    ) -> Awaitable[None]:
        """See `EventLog.append`."""
        return self._committer.append(response_id, events, expected_version, tokens, status)

    async def read(self, response_id: str, *, after: int) -> Span:
        """See `EventLog.read`. Raises ResponseNotFound."""
        return await self._source.read(response_id, after=after)

    def subscribe(self, response_id: str, *, after: int) -> AsyncIterator[Span]:
        """See `EventLog.subscribe`."""
        return follow(self._source, response_id, after=after)

    async def header(self, response_id: str) -> Header | None:
        """See `EventLog.header`."""
        return await answered_within(self._record.header(response_id), self._wait_seconds)

    async def tokens(self, response_id: str) -> list[int]:
        """The logged tokens of an open response that this process owns, in order."""
        stream = self._live.get(response_id)
        if stream is None:
            return await self._record.tokens(response_id)
        tokens: list[int] = []
        version: int | None = None
        while version != stream.moved:  # again, if some moved while we were reading
            version = stream.moved
            tokens = await self._record.tokens(response_id)
        return tokens + [token for _, run in stream.tokens for token in run]

    # Archive

    async def chain(self, response_id: str) -> list[Ancestor]:
        """See `Archive.chain`."""
        return await answered_within(self._record.chain(response_id), self._wait_seconds)

    async def request_cancel(self, response_id: str) -> None:
        """See `Archive.request_cancel`."""
        await answered_within(self._archive.request_cancel(response_id), self._wait_seconds)
        if response_id in self._live:
            self.on_cancel(response_id)
        else:
            self._tail.wake("cancel", response_id)

    async def delete(self, response_id: str) -> bool:
        """See `Archive.delete`."""
        found = await answered_within(self._archive.delete(response_id), self._wait_seconds)
        if (stream := self._live.get(response_id)) is not None:
            self._committer.forget(stream)
        self._following.look_anew(response_id)
        return found

    async def check(self) -> None:
        """See `Archive.check`."""
        if (refusal := self._committer.refusal()) is not None:
            raise refusal
        await self.waiting()

    async def waiting(self) -> int:
        """See `Archive.waiting`."""
        return await answered_within(self._record.waiting(), self._wait_seconds)

    def ids(self) -> AsyncIterator[str]:
        """See `Archive.ids`."""
        return self._record.ids()

    async def expire(self, *, older_than_seconds: float) -> int:
        """Remove whole trees whose newest member ended before that; gives how many responses."""
        return await self._archive.expire(time.time() - older_than_seconds)

    # Ownership

    async def register(self) -> None:
        """See `Ownership.register`. Raises LogError when nothing can be written in this process any more."""
        async with self._registering:  # two duties may have heard of the same fence
            refusal = self._committer.refusal()
            if isinstance(refusal, Fenced):
                self._committer.begin(await self._writers.register())
                self._openings.registered()
            elif refusal is not None:
                raise refusal

    async def beat(self) -> Sequence[str]:
        """See `Ownership.beat`."""
        identity = self._identity()
        with self._noticing_fence(identity):
            return await self._writers.beat(identity)

    async def bury(self) -> int:
        """See `Ownership.bury`. To be called at least four times in a lease time."""
        identity = self._committer.identity
        with self._noticing_fence(identity):
            dead = await self._writers.dead(identity)
        settled = [await Settling(self._database, self._record, writer).settle() for writer in dead]
        if any(settled):
            self._tail.wake("queued")
        return sum(settled)

    @contextmanager
    def _noticing_fence(self, identity: Identity | None) -> Iterator[None]:
        try:
            yield
        except Fenced:
            if identity is not None:
                self._committer.fenced(identity)
            raise

    async def claim(self, models: Sequence[str], *, limit: int) -> list[Header]:
        """See `Ownership.claim`."""
        identity = self._identity()
        with self._noticing_fence(identity):
            async with self._claiming:
                claimed = await self._claims.claim(identity, models, limit=limit)
        if self._committer.identity is not identity:
            raise Fenced
        for header, stream in claimed:
            self._live.add(stream)
            self._following.look_anew(header.id)
            self._tail.wake("claimed", header.id)
        return [header for header, _ in claimed]

    async def release(self, response_id: str) -> None:
        """See `Ownership.release`."""
        await self._committer.release(response_id)

    async def close(self) -> None:
        """Commit what waits, then stop being a writer: what is still open becomes nobody's at once."""
        identity = self._committer.identity
        await self._committer.close()
        await self._openings.close()
        await self._source.close()
        for stream in self._live:
            stream.buffer.leave()
        if self._checkpoints is not None:
            await self._checkpoints.close()
        try:
            if identity is not None:
                await self._writers.retire(identity)
                await Settling(self._database, self._record, identity.writer).settle()
                self._tail.wake("queued")
        except (LogUnavailable, SQLAlchemyError, OSError) as error:
            logger.warning("could not settle at the end, another process will: %s", error)
        finally:
            await self._tail.close()
            await self._writers.close()
            await self._database.close()

    def _woken(self, wake: Wake, response_id: str) -> None:
        """Another process says so."""
        match wake:
            case "queued":
                self.on_queued()
            case "claimed":
                self._following.look_anew(response_id)
            case "cancel":
                if response_id in self._live:
                    self.on_cancel(response_id)
            case _:
                assert_never(wake)

    def _is_mine(self, writer: int | None) -> bool:
        identity = self._committer.identity
        return identity is not None and identity.writer == writer

    def _identity(self) -> Identity:
        if self._committer.identity is None:
            raise Fenced("This process is not a writer: it has not registered, or it was fenced.")
        return self._committer.identity


async def open_log(  # noqa: PLR0913 # budget: every part that can be chosen is an option with a default
    url: str,
    *,
    tail: Tail | None = None,
    durability: Durability = "strict",
    lease_seconds: float = 10.0,
    wait_seconds: float = 10.0,
    pace: Pace | None = None,
    crash_points: CrashPoints | None = None,
) -> SqlLog:
    """The log of a migrated database. Raises SettingsError. It writes after `register`.

    `wait_seconds` is how long those who ask or open wait for a database that does not answer.
    """
    parsed = parse_url(url)
    points = crash_points or CrashPoints()
    if durability == "relaxed" and not is_sqlite(parsed):
        raise SettingsError("Durability 'relaxed' exists on SQLite only: PostgreSQL would lose acknowledged events.")
    synchronous = "FULL" if durability == "strict" else "NORMAL"
    database = Database(parsed, synchronous=synchronous, idle_seconds=lease_seconds)
    try:
        await check(database)
    except SettingsError:
        await database.close()
        raise
    driver: Driver
    if is_sqlite(parsed):
        driver = SqliteDriver(sqlite_path(parsed), durability=durability, crash_points=points)
    else:
        driver = PostgresDriver(parsed, lease_seconds=lease_seconds, crash_points=points)
    return SqlLog(
        database, driver, tail or NoTail(), lease_seconds=lease_seconds, wait_seconds=wait_seconds, pace=pace or Pace()
    )
