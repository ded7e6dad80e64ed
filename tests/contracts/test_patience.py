"""A database that does not answer: those who ask are told in time, and what was refused to them is never there."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncpg
import pytest
from sqlalchemy import text

from app.errors import Fenced, LogError, LogUnavailable, NotOwned
from app.log import database
from app.log.commit import CrashPoints
from app.log.following import Following
from app.log.live import LiveStreams
from app.log.record import Place, Record
from app.log.source import SqlSource
from app.log.tail import NoTail
from app.ports import Span
from tests.contracts.logs import DEADLINE_SECONDS, Backend, Run, collect, deltas, start, until

WAIT_SECONDS: Final = 0.2
LONG_SECONDS: Final = 30.0


@asynccontextmanager
async def silent(place: Backend, log: Any) -> AsyncIterator[None]:
    """The database does not answer, and for so long this log waits for a short while only."""
    async with _locked(place):
        log._wait_seconds = log._openings._seconds = WAIT_SECONDS
        yield
        log._wait_seconds = log._openings._seconds = LONG_SECONDS


@asynccontextmanager
async def _locked(place: Backend) -> AsyncIterator[None]:
    """Nobody else can write, and on PostgreSQL nobody can read headers."""
    assert place.url is not None
    if place.url.startswith("sqlite"):
        file = place.url.removeprefix("sqlite:///")
        with sqlite3.connect(file, isolation_level=None, timeout=DEADLINE_SECONDS) as other:
            other.execute("BEGIN IMMEDIATE")
            yield
            other.execute("COMMIT")
        other.close()
        return
    connection = await asyncpg.connect(place.url)
    async with connection.transaction():
        await connection.execute("LOCK TABLE responses, journal IN ACCESS EXCLUSIVE MODE")
        yield
    await connection.close()


async def started(place: Backend) -> Any:
    return await place.start(wait_seconds=LONG_SECONDS, lease_seconds=LONG_SECONDS)


async def ids(place: Backend) -> set[str]:
    return {row.id for row in await place.query("SELECT id FROM responses")}


@pytest.mark.parametrize("queued", [True, False])
async def test_an_opening_that_takes_too_long_is_refused_and_leaves_nothing(shared: Backend, queued: bool) -> None:
    log = await started(shared)
    run = await Run(log).open()
    async with silent(shared, log):
        running = start(run.append())  # its commit is under way, and what is opened now waits behind it
        await asyncio.sleep(0)
        openings = [start(Run(log, f"resp_late_{number}").open(queued=queued)) for number in range(5)]
        refusals = await asyncio.gather(*openings, return_exceptions=True)
        assert [type(one) for one in refusals] == [LogUnavailable] * 5
        assert not running.done()
    await running
    await Run(log, "resp_after").open(queued=queued)
    assert await ids(shared) == {"resp_1", "resp_after"}
    for number in range(5):
        with pytest.raises(NotOwned):
            await log.append(f"resp_late_{number}", deltas(2, 1), expected_version=1)
    await run.end()
    assert await collect(log) == run.events


@pytest.mark.parametrize("queued", [True, False])
async def test_an_opening_whose_commit_was_under_way_is_removed_when_it_comes_late(
    shared: Backend, queued: bool
) -> None:
    log = await started(shared)
    opened = await Run(log).open()
    async with silent(shared, log):
        opening = start(Run(log, "resp_late").open(queued=queued))
        with pytest.raises(LogUnavailable):
            await opening
    await opened.append()  # committed behind it

    async def removed() -> bool:
        return not log._openings._removals and await ids(shared) == {"resp_1"}

    await until(removed)
    with pytest.raises(NotOwned):
        await log.append("resp_late", deltas(2, 1), expected_version=1)
    await opened.end()


@pytest.mark.parametrize("queued", [True, False])
async def test_an_opening_whose_writer_is_fenced_before_it_hears_of_its_commit_leaves_nothing(
    shared: Backend, queued: bool
) -> None:
    def fenced_and_cut() -> None:
        with ThreadPoolExecutor() as elsewhere:
            for burying in ("UPDATE writers SET fenced = TRUE", "DELETE FROM journal"):
                elsewhere.submit(asyncio.run, shared.execute(burying)).result()
        raise ConnectionResetError

    log = await shared.start(crash_points=CrashPoints(after_commit=fenced_and_cut), lease_seconds=LONG_SECONDS)
    with pytest.raises(Fenced):
        await Run(log, "resp_refused").open(queued=queued)

    async def removed() -> bool:
        return await ids(shared) == set()

    await until(removed)


async def test_an_opening_whose_asker_has_gone_is_taken_back(shared: Backend) -> None:
    log = await started(shared)
    run = await Run(log).open()
    async with silent(shared, log):
        running = start(run.append())
        await asyncio.sleep(0)
        opening = start(Run(log, "resp_gone").open())
        await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait({opening})
    await running
    await run.append()
    assert await ids(shared) == {"resp_1"}


async def test_a_question_that_is_not_answered_is_refused_in_time(postgres_url: str) -> None:
    backend = Backend(postgres_url)
    log = await started(backend)
    run = await Run(log).open()
    async with silent(backend, log):
        questions = [log.header("resp_1"), log.chain("resp_1"), log.waiting(), log.check(), log.delete("resp_1")]
        answers = await asyncio.gather(*questions, log.request_cancel("resp_1"), return_exceptions=True)
        assert [type(answer) for answer in answers] == [LogUnavailable] * 6
    assert (await log.header("resp_1")).id == "resp_1"
    await run.end()
    await backend.stop()


async def test_a_pool_without_a_free_connection_is_a_database_that_does_not_answer(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(database._ENGINE, "pool_timeout", WAIT_SECONDS)
    pool, given_back = database.Database(database.parse_url(postgres_url), connections=1), asyncio.Event()
    holding = start(pool.transaction(lambda _: given_back.wait()))
    await asyncio.sleep(0)
    with pytest.raises(LogUnavailable):
        await pool.rows(text("SELECT 1"))
    given_back.set()
    await holding
    await pool.close()


class Away(Record):
    """A record that can't be reached for a while."""

    def __init__(self) -> None:
        self.asked = 0

    async def place(self, response: str) -> Place | None:
        self.asked += 1
        if self.asked < 3:
            raise LogUnavailable
        return Place(response, 7, None, ended=True)

    async def span(self, response: str, *, after: int) -> Span | None:
        raise LogUnavailable


async def test_a_subscription_waits_for_as_long_as_the_database_is_away() -> None:
    record = Away()
    source = SqlSource(LiveStreams(), record, Following(record, NoTail(), lambda _: False))
    assert (await source.join("resp_1")).version == 7
    assert record.asked == 3


async def test_a_subscription_ends_with_the_log_also_while_the_database_is_away() -> None:
    record = Away()
    source = SqlSource(LiveStreams(), record, Following(record, NoTail(), lambda _: False))
    await source.close()
    with pytest.raises(LogError):
        await source.backfill("resp_1", after=0)
