"""The database goes away, or a process dies in the middle of settling: nothing is lost, nothing is written twice."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy.ext.asyncio import AsyncConnection
from zstandard import ZstdError

from app.errors import Fenced, LogError
from app.log.commit import Commit, CrashPoints
from app.log.packing import Folded, Packing
from app.log.schema import migrate
from app.log.settling import Settling
from app.log.sql import SqlLog
from tests.contracts.logs import DEADLINE_SECONDS, LEASE_SECONDS, Backend, Run, collect, deltas, start, until
from tests.contracts.sharing import HASTY, STAYS, buried
from tests.servers import Postgres


async def test_a_database_that_restarts_under_load_loses_nothing(tmp_path: Path) -> None:
    with Postgres(tmp_path) as server:
        await migrate(server.url)
        backend = Backend(server.url)
        writer, other = await backend.start(pace=HASTY, lease_seconds=30), await backend.start(lease_seconds=30)
        runs = [await Run(writer, f"resp_{number}").open() for number in range(5)]
        readers = [start(collect(log, run.id)) for run in runs for log in (writer, other)]

        async def write(run: Run) -> None:
            for _ in range(150):
                await run.append(2)
            await run.end()

        writers = [start(write(run)) for run in runs]
        for _ in range(2):
            await until(partial(_beyond, runs[0], runs[0].version + 10))
            await asyncio.to_thread(server.stop, signal.SIGQUIT)
            await asyncio.to_thread(server.start)
        await asyncio.gather(*writers)
        for index, reader in enumerate(readers):
            assert runs[index // 2].events == await reader
        for run in runs:
            assert run.events == await collect(other, run.id)
        await backend.stop()


async def test_a_locked_table_keeps_no_beat_waiting(postgres_url: str) -> None:
    backend = Backend(postgres_url)
    log, other = await backend.start(pace=STAYS), await backend.start()
    await Run(log, "resp_1").open()
    await other.request_cancel("resp_1")
    locking = await asyncpg.connect(postgres_url)
    async with locking.transaction():
        await locking.execute("LOCK TABLE responses IN ACCESS EXCLUSIVE MODE")
        readers = [start(log.header("resp_1")) for _ in range(20)]
        for _ in range(5):
            assert list(await log.beat()) == []
            await asyncio.sleep(LEASE_SECONDS / 2)
            assert await other.bury() == 0
    await locking.close()
    assert await until(log.beat) == ["resp_1"]
    await asyncio.gather(*readers)
    await backend.stop()


class BrokenOff(Exception):
    """What we were doing ends here."""


async def _look(log: SqlLog, *others: SqlLog) -> int:
    await asyncio.gather(*(one.beat() for one in (log, *others)))
    return await log.bury()


async def _beyond(run: Run, version: int) -> bool:
    return run.version >= version or run.version > 290


@pytest.fixture(params=("sqlite", "postgres"))
def shared_url(request: pytest.FixtureRequest) -> str:
    """A record that processes share."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
async def place(shared_url: str) -> AsyncIterator[Backend]:
    """A place for logs, which are closed at the end."""
    made = Backend(shared_url)
    yield made
    await made.stop()


async def test_settling_may_be_broken_off_and_done_again(place: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    dead, heir, other = [await place.start() for _ in range(3)]
    runs = [await Run(dead, f"resp_{number}").open() for number in range(6)]
    for _ in range(10):
        await asyncio.gather(*(run.append() for run in runs))
    monkeypatch.setattr("app.log.settling.BYTES_PER_BATCH", 1)

    async def broken_off(self: Settling, connection: object) -> bool:
        raise BrokenOff("the settler dies before the end")

    finish = Settling._finish
    monkeypatch.setattr(Settling, "_finish", broken_off)
    with pytest.raises(BrokenOff):
        await until(partial(_look, heir, other))
    monkeypatch.setattr(Settling, "_finish", finish)
    assert await other.claim(["model"], limit=9) == []
    await until(partial(_look, other, heir))
    claimed = await other.claim(["model"], limit=9)
    assert [(run.id, run.version) for run in runs] == [(one.id, one.version) for one in claimed]
    for run in runs:
        run.log = other
        await run.end()
        assert run.events == await collect(heir, run.id)


async def test_a_stream_with_a_hole_is_never_claimed(place: Backend) -> None:
    dead, heir = await place.start(pace=STAYS), await place.start()
    good, bad = await Run(dead, "resp_good").open(), await Run(dead, "resp_bad").open()
    await bad.append()
    await place.execute("DELETE FROM journal WHERE n = 2")
    await buried(heir)
    assert [one.id for one in await heir.claim(["model"], limit=9)] == ["resp_good"]
    assert good.events == list((await heir.read("resp_good", after=-1)).events)


async def test_a_claim_that_was_broken_off_is_given_back(place: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    log = await place.start()
    await Run(log, "resp_1").open(queued=True)
    mine = await Run(log, "resp_mine").open()
    database, transaction = log._database, log._database.transaction

    async def lost(work: Callable[[AsyncConnection], Awaitable[object]]) -> object:
        await transaction(work)
        raise BrokenOff("the answer is lost")

    monkeypatch.setattr(database, "transaction", lost)
    with pytest.raises(BrokenOff):
        await log.claim(["model"], limit=5)
    monkeypatch.setattr(database, "transaction", transaction)
    (claimed,) = await log.claim(["model"], limit=5)
    assert (claimed.id, claimed.attempts) == ("resp_1", 1)
    await mine.end()


async def test_a_commit_that_hangs_while_we_are_fenced_ends_as_fenced(place: Backend) -> None:
    down = [False]

    def crash() -> None:
        if down[0]:
            raise ConnectionResetError("no way through")

    dead, heir = await place.start(crash_points=CrashPoints(before_commit=crash)), await place.start()
    run = await Run(dead).open()
    down[0] = True
    hanging = start(_append(dead, run))
    await buried(heir)
    down[0] = False
    with pytest.raises(Fenced):
        await hanging
    (claimed,) = await heir.claim(["model"], limit=1)
    assert run.version == claimed.version


async def _append(log: object, run: Run) -> None:
    await run.log.append(run.id, deltas(len(run.events), 1), expected_version=run.version)


async def test_readers_of_a_log_that_closes_are_sent_away(place: Backend) -> None:
    log, other = await place.start(), await place.start()
    await Run(log).open()
    await Run(log, "resp_queued").open(queued=True)
    readers = [start(collect(one, name)) for one in (log, other) for name in ("resp_1", "resp_queued")]
    await until(partial(_beyond_joining, log))
    await log.close()
    await other.close()
    place.started.clear()
    for reader in readers:
        with pytest.raises(LogError):
            await reader


async def _beyond_joining(log: SqlLog) -> bool:
    return bool(log._following._followed)


async def test_an_append_after_closing_is_refused(place: Backend) -> None:
    log = await place.start()
    run = await Run(log).open()
    await log.close()
    place.started.clear()
    with pytest.raises(LogError):
        await run.append()


async def test_a_committer_that_breaks_refuses_everything(place: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    log = await place.start()
    run = await Run(log).open()
    reader = start(collect(log))
    await run.append()

    async def broken(work: object) -> None:
        raise ZeroDivisionError("a bug of ours")

    monkeypatch.setattr(log._committer._driver, "commit", broken)
    for _ in range(2):
        with pytest.raises(LogError):
            await run.log.append(run.id, deltas(3, 1), expected_version=2)
    assert run.events == list((await log.read("resp_1", after=-1)).events)
    await log.close()
    place.started.clear()
    with pytest.raises(LogError):
        await reader


async def test_a_process_whose_committer_broke_takes_nothing_and_is_buried(
    place: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, heir = await place.start(), await place.start()
    run = await Run(log).open()
    await Run(heir, "resp_queued").open(queued=True)

    async def broken(work: object) -> None:
        raise ZeroDivisionError("a bug of ours")

    monkeypatch.setattr(log._committer._driver, "commit", broken)
    with pytest.raises(LogError):
        await run.append()
    for duty in (log.beat(), log.register(), log.beat(), log.claim(["model"], limit=9)):
        with pytest.raises(LogError):
            await duty
    await buried(heir)
    assert {one.id for one in await heir.claim(["model"], limit=9)} == {"resp_1", "resp_queued"}


async def test_readers_of_what_was_released_just_before_a_fence_follow_the_heir(
    place: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    fenced, heir = await place.start(), await place.start()
    run = await Run(fenced).open()
    reader = start(collect(fenced))
    await until(partial(_has_readers, fenced))
    driver = fenced._committer._driver
    commit = driver.commit

    async def slowly(work: Commit) -> None:
        await commit(work)
        await buried(heir)
        with pytest.raises(Fenced):
            await fenced.beat()

    monkeypatch.setattr(driver, "commit", slowly)
    await fenced.release("resp_1")
    assert [one.id for one in await heir.claim(["model"], limit=1)] == ["resp_1"]
    run.log = heir
    await run.end()
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert run.events == await reader


@pytest.mark.parametrize("duty", ["beat", "claim"])
async def test_a_process_that_hears_of_its_fence_from_two_sides_registers_once(place: Backend, duty: str) -> None:
    fenced, heir = await place.start(), await place.start()
    await Run(fenced).open()
    await buried(heir)
    duties = {"beat": fenced.beat, "claim": partial(fenced.claim, ["model"], limit=1)}
    with pytest.raises(Fenced):
        await duties[duty]()
    await asyncio.gather(fenced.register(), fenced.register())
    assert len(await place.query("SELECT id FROM writers")) == 2
    assert [one.id for one in await fenced.claim(["model"], limit=1)] == ["resp_1"]


async def _has_readers(log: SqlLog) -> bool:
    return any(stream.buffer.readers for stream in log._live)


async def test_a_row_that_can_not_be_read_now_is_read_again(place: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, other = await place.start(), await place.start()
    run = await Run(writer).open()
    entries, failures = Packing.entries, [ZstdError("not a frame")]

    def unreadable(self: Packing, batch: bytes) -> list[Folded]:
        if failures:
            raise failures.pop()
        return entries(self, batch)

    monkeypatch.setattr(Packing, "entries", unreadable)
    reader = start(collect(other))
    await until(partial(_are_none, failures))
    await run.end()
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert run.events == await reader


async def _are_none(these: list[Exception]) -> bool:
    return not these


async def test_a_journal_that_can_not_be_read_keeps_no_other_writer_from_being_settled(place: Backend) -> None:
    broken, dead, heir = await place.start(pace=STAYS), await place.start(), await place.start()
    await Run(broken, "resp_broken").open()
    await Run(dead).open()
    await place.execute(f"UPDATE journal SET batch = substr(batch, 1, 4) WHERE writer = {_writer(broken)}")
    await buried(heir)
    assert [one.id for one in await heir.claim(["model"], limit=9)] == ["resp_1"]


def _writer(log: SqlLog) -> int:
    return int(log._committer.identity.writer)
