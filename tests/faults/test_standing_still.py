"""A database that takes no writes but can be read: every beat in it stands still, and nobody is dead."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress
from functools import partial

import asyncpg
import pytest

from app.errors import LogUnavailable
from tests.contracts.logs import DEADLINE_SECONDS, Backend, Run, collect, start, until

LEASE_SECONDS = 2.0
LOCKED_SECONDS = 2 * LEASE_SECONDS


async def keep(duty: Callable[[], Awaitable[object]], done: Counter[str], name: str) -> None:
    """What a process does: beat and bury, each by itself. Raises Fenced when it is held dead."""
    while True:
        with suppress(LogUnavailable):
            await duty()
            done[name] += 1
        await asyncio.sleep(LEASE_SECONDS / 8)


@pytest.fixture(params=["sqlite", "postgres"])
def shared_url(request: pytest.FixtureRequest) -> str:
    """A record that processes share."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@asynccontextmanager
async def write_locked(url: str) -> AsyncIterator[None]:
    """Nobody can write into the table of writers, but everybody can read it."""
    if url.startswith("sqlite"):
        file = url.removeprefix("sqlite:///")
        with closing(sqlite3.connect(file, isolation_level=None, timeout=DEADLINE_SECONDS)) as locking:
            locking.execute("BEGIN IMMEDIATE")
            yield
            locking.execute("ROLLBACK")
    else:
        connection = await asyncpg.connect(url)
        async with connection.transaction():
            await connection.execute("LOCK TABLE writers IN EXCLUSIVE MODE")
            yield
        await connection.close()


async def test_a_lock_that_outlasts_the_lease_fences_nobody(shared_url: str) -> None:
    backend = Backend(shared_url)
    logs = [await backend.start(lease_seconds=LEASE_SECONDS) for _ in range(3)]
    runs = [await Run(log, f"resp_{number}").open() for number, log in enumerate(logs)]
    done = Counter[str]()

    def keeping(name: str) -> dict[str, asyncio.Task[None]]:
        return {f"{n} {name}": start(keep(getattr(log, name), done, f"{n} {name}")) for n, log in enumerate(logs)}

    async def all_did(times: int, watching: dict[str, asyncio.Task[None]], since: Counter[str]) -> bool:
        assert not any(watch.done() for watch in watching.values()), "somebody was fenced"
        return all(done[name] - since[name] >= times for name in watching)

    burying, beating = keeping("bury"), keeping("beat")
    await until(partial(all_did, 2, burying | beating, Counter()))

    # A beat that waits at the lock would come right behind it, and with luck just before a fence that waits there, too.
    await stop(beating)
    async with write_locked(shared_url):
        appends = [start(run.append()) for run in runs]
        await asyncio.sleep(LOCKED_SECONDS)
        assert not any(append.done() for append in appends)
    await asyncio.gather(*appends)
    beating = keeping("beat")
    await until(partial(all_did, 8, burying | beating, done.copy()))  # a lease

    for run in runs:
        await run.end()
        assert await collect(logs[0], run.id) == run.events
    await stop(burying | beating)
    await backend.stop()


async def stop(watching: dict[str, asyncio.Task[None]]) -> None:
    for watch in watching.values():
        watch.cancel()
    await asyncio.wait(watching.values())
