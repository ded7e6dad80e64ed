"""What tests of the event log share: backends, streams to write, and waiting with a deadline."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any, TypeVar

from sqlalchemy import text

from app.log.database import Database, parse_url
from app.log.memory import MemoryLog
from app.log.redis import RedisTail
from app.log.sql import SqlLog, open_log
from app.log.tail import NoTail
from app.ports import Header
from app.responses.events import Status

Log = SqlLog | MemoryLog
T = TypeVar("T")

LEASE_SECONDS = 0.4
DEADLINE_SECONDS = 60


@dataclass
class Backend:
    """A place where logs live; each `start` is a process of its own, as far as the log can tell. No url: memory."""

    url: str | None = None
    redis_url: str | None = None
    prefix: str = field(default_factory=lambda: f"test-{token_hex(8)}")
    started: list[Log] = field(default_factory=list)

    async def start(self, **options: Any) -> Any:
        """A registered log."""
        log: Log
        if self.url is None:
            log = MemoryLog()
        else:
            tail = RedisTail(self.redis_url, prefix=self.prefix) if self.redis_url is not None else NoTail()
            waits: dict[str, Any] = {"lease_seconds": LEASE_SECONDS, "wait_seconds": DEADLINE_SECONDS}
            log = await open_log(self.url, **{"tail": tail, **waits, **options})
        self.started.append(log)
        await log.register()
        return log

    async def query(self, sql: str) -> Sequence[Any]:
        """What the record holds, past the log."""
        assert self.url is not None
        database = Database(parse_url(self.url))
        rows = await database.rows(text(sql))
        await database.close()
        return rows

    async def execute(self, sql: str) -> None:
        """Change the record, past the log."""
        assert self.url is not None
        database = Database(parse_url(self.url))
        await database.transaction(lambda connection: connection.execute(text(sql)))
        await database.close()

    @asynccontextmanager
    async def refusing(self, change: str) -> AsyncIterator[None]:
        """The database refuses to change a header in this way, whoever asks: a condition on `NEW`."""
        assert self.url is not None
        if self.url.startswith("sqlite"):
            raising, of_table = "BEGIN SELECT RAISE(ABORT, 'unwilling'); END", ""
            await self.execute(f"CREATE TRIGGER unwilling BEFORE UPDATE ON responses WHEN {change} {raising}")
        else:
            raising, of_table = "BEGIN RAISE EXCEPTION 'unwilling'; END", "ON responses"
            await self.execute(f"CREATE FUNCTION unwilling() RETURNS trigger LANGUAGE plpgsql AS $${raising}$$")
            trigger = f"FOR EACH ROW WHEN ({change}) EXECUTE FUNCTION unwilling()"
            await self.execute(f"CREATE TRIGGER unwilling BEFORE UPDATE ON responses {trigger}")
        try:
            yield
        finally:
            await self.execute(f"DROP TRIGGER unwilling {of_table}")
            if of_table:
                await self.execute("DROP FUNCTION unwilling")

    async def stop(self) -> None:
        """Close what was started."""
        for log in self.started:
            await log.close()
        ours = {"committer", "checkpoints", "quiet-watch", "scanner", "redis"}
        left = [one.get_name() for one in asyncio.all_tasks() if one.get_name().partition("-1")[0] in ours]
        assert not left, "tasks outlive their log"


def header(response_id: str = "resp_1", **changes: Any) -> Header:
    """A header of an open response."""
    usual: dict[str, Any] = {
        "id": response_id,
        "tenant": "tenant",
        "model": "model",
        "status": "in_progress",
        "background": True,
        "stream": True,
        "request": b'{"model":"model"}',
        "parent": None,
        "root": response_id,
        "priority": 0,
        "created_at": 1_700_000_000,
    }
    return Header(**{**usual, **changes})


def delta(position: int, text: str = "word") -> bytes:
    """The bytes of an event; what is in it does not matter to the log."""
    return b'{"type":"response.output_text.delta","sequence_number":%d,"delta":"%s"}' % (position, text.encode())


def deltas(first: int, count: int) -> list[bytes]:
    """Consecutive events."""
    return [delta(position) for position in range(first, first + count)]


class Run:
    """Writes one response, and remembers what it wrote."""

    def __init__(self, log: Log, response_id: str = "resp_1") -> None:
        self.log = log
        self.id = response_id
        self.events: list[bytes] = []

    @property
    def version(self) -> int:
        """Position of the last event."""
        return len(self.events) - 1

    async def open(self, count: int = 2, *, queued: bool = False, **changes: Any) -> "Run":
        """Open with some events."""
        events = deltas(0, count)
        status = {"status": "queued"} if queued else {}
        await self.log.open(header(self.id, **{**status, **changes}), events, queued=queued)
        self.events += events
        return self

    async def append(self, count: int = 1, *, tokens: Sequence[int] = (), status: Status | None = None) -> None:
        """Append some events."""
        events = deltas(len(self.events), count)
        await self.log.append(self.id, events, expected_version=self.version, tokens=tokens, status=status)
        self.events += events

    async def end(self, status: Status = "completed", count: int = 1) -> None:
        """Append the terminal event."""
        await self.append(count, status=status)


async def collect(log: Log, response_id: str = "resp_1", *, after: int = -1) -> list[bytes]:
    """Everything a subscriber gets, checked to be without a hole."""
    events: list[bytes] = []
    async for span in log.subscribe(response_id, after=after):
        assert span.events, "an empty span"
        assert span.first == after + 1 + len(events), "a hole or an overlap"
        events.extend(span.events)
    return events


def start(coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Run something beside the test; the test awaits or cancels it."""
    return asyncio.get_running_loop().create_task(coroutine)


async def until(condition: Callable[[], Awaitable[object]]) -> Any:
    """Wait until something is true, and give it."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not (result := await condition()):
            await asyncio.sleep(0.01)
        return result
