"""What is on disk: rows are few, blobs are packed, and nothing stays that is not needed."""

import asyncio
import itertools
import math
import os
import sqlite3
from functools import partial
from pathlib import Path

import pytest

from app.errors import SettingsError
from app.log.journal import EMPTY_ROWS, Pace
from app.log.packing import Packing
from app.log.schema import migrate
from app.log.segments import SEGMENT_EVENTS
from app.log.sql import SqlLog, open_log
from tests.contracts.logs import DEADLINE_SECONDS, Backend, Run, collect, delta, start, until
from tests.contracts.sharing import HASTY, STAYS


async def test_a_finished_response_is_one_row_of_segments(shared: Backend) -> None:
    log = await shared.start(pace=HASTY)
    run = await Run(log).open(queued=True)
    await log.claim(["model"], limit=1)
    for _ in range(100):
        await run.append(3, tokens=[1, 2, 3])
    await run.end()
    rows = await shared.query("SELECT first, last, tokens FROM segments")
    assert [(0, run.version, None)] == [tuple(row) for row in rows]


async def test_a_long_response_is_cut_into_segments(shared: Backend) -> None:
    log = await shared.start(pace=HASTY)
    run = await Run(log).open()
    while run.version < 3 * SEGMENT_EVENTS:
        await run.append(700, tokens=[1])

    async def moved() -> bool:
        return bool(await shared.query("SELECT last FROM segments WHERE tokens IS NOT NULL"))

    await until(moved)
    await run.end()
    rows = await shared.query("SELECT first, last, tokens FROM segments ORDER BY first")
    assert rows[0].first == 0 and run.version == rows[-1].last
    assert all(one.last + 1 == other.first for one, other in itertools.pairwise(rows))
    assert all(row.last - row.first < SEGMENT_EVENTS and row.tokens is None for row in rows)
    assert len(rows) == math.ceil(len(run.events) / SEGMENT_EVENTS)
    assert run.events == await collect(log)


async def rested(place: Backend, log: SqlLog) -> int:
    """Wait until the log has nothing more to write, also not later; gives the number of the one row that is left."""
    await until(partial(_writes_nothing_more, log))
    (row,) = await place.query("SELECT n FROM journal")
    return int(row.n)


async def _writes_nothing_more(log: SqlLog) -> bool:
    committer = log._committer
    return committer._book.settled and committer._timer is None and not committer._work_waits.is_set()


async def test_the_journal_keeps_its_newest_row_and_no_other(shared: Backend) -> None:
    log = await shared.start(pace=HASTY)
    run = await Run(log).open()
    for _ in range(20):
        await run.append()
    newest = await rested(shared, log)
    assert newest > 21
    await run.end()
    assert newest + 2 == await rested(shared, log), "one row for the end, and one that says that it was trimmed"


async def test_the_journal_of_a_process_that_only_queues_is_trimmed_too(shared: Backend) -> None:
    log = await shared.start(pace=HASTY)
    for number in range(3 * EMPTY_ROWS):
        await Run(log, f"resp_{number}").open(queued=True)
    await until(partial(_writes_nothing_more, log))
    rows = await shared.query("SELECT n FROM journal")
    assert 1 <= len(rows) <= EMPTY_ROWS


async def test_rows_of_the_journal_are_numbered_without_a_hole(shared: Backend) -> None:
    log = await shared.start(pace=STAYS)
    runs = [await Run(log, f"resp_{number}").open() for number in range(4)]
    for _ in range(10):
        await asyncio.gather(*(run.append() for run in runs))
    rows = await shared.query("SELECT n FROM journal ORDER BY n")
    assert list(range(1, len(rows) + 1)) == [row.n for row in rows]


async def test_appends_that_wait_together_are_one_row(shared: Backend) -> None:
    log = await shared.start(pace=Pace(moved_after_seconds=3600, kept_seconds=3600))
    runs = [await Run(log, f"resp_{number}").open() for number in range(40)]
    before = (await shared.query("SELECT max(n) AS n FROM journal"))[0].n
    await asyncio.gather(*(run.append() for run in runs))
    assert (await shared.query("SELECT max(n) AS n FROM journal"))[0].n == before + 1


async def test_a_closed_log_leaves_no_writer_and_no_journal(shared: Backend) -> None:
    log = await shared.start()
    await Run(log).open()
    await log.close()
    shared.started.remove(log)
    assert list(await shared.query("SELECT n FROM journal")) == []
    assert list(await shared.query("SELECT id FROM writers")) == []
    assert [row.owner for row in await shared.query("SELECT owner FROM responses")] == [None]


async def test_a_deleted_response_leaves_no_segments(shared: Backend) -> None:
    log = await shared.start(pace=HASTY)
    run = await Run(log).open()
    await run.append(20)
    await log.delete("resp_1")

    async def trimmed() -> bool:
        return len(await shared.query("SELECT n FROM journal")) == 1

    await until(trimmed)
    assert list(await shared.query("SELECT first FROM segments")) == []


async def test_a_delta_costs_few_bytes_at_rest(shared: Backend) -> None:
    log = await shared.start()
    run = await Run(log).open()
    texts = [str(i * i * 7919 % 1009) for i in range(999)]
    events = [delta(run.version + 1 + i, text) for i, text in enumerate(texts)]
    await log.append("resp_1", events, expected_version=run.version)
    await log.append("resp_1", [b"end"], expected_version=run.version + len(events), status="completed")
    rows = await shared.query("SELECT sum(length(events)) AS bytes FROM segments")
    assert rows[0].bytes / len(events) < 12


async def test_blobs_of_an_unknown_format_are_named() -> None:
    packing = Packing()
    assert packing.events_in(packing.events([b"1", b""])) == [b"1", b""]
    with pytest.raises(ValueError, match="format 07"):
        packing.events_in(b"\x07whatever")


async def test_memory_does_not_grow_with_a_long_run(shared: Backend) -> None:
    log = await shared.start(pace=HASTY)
    run = await Run(log).open()
    for _ in range(200):
        await run.append(50)

    async def dropped() -> bool:
        stream = log._live.get("resp_1")
        return len(stream.buffer.events) < 1_000 and len(stream.tokens) < 10

    await until(dropped)
    assert run.events == list((await log.read("resp_1", after=-1)).events)


async def test_a_locked_database_delays_and_loses_nothing(sqlite_url: str) -> None:
    backend = Backend(sqlite_url)
    log = await backend.start()
    run = await Run(log).open()
    file = sqlite_url.removeprefix("sqlite:///")
    with sqlite3.connect(file, isolation_level=None, timeout=DEADLINE_SECONDS) as other:
        other.execute("BEGIN IMMEDIATE")
        waiting = [start(run.append()), start(log.request_cancel("resp_1")), start(log.beat())]
        done, _ = await asyncio.wait(waiting, timeout=0.3)
        assert not done
        other.execute("COMMIT")
    other.close()
    await asyncio.gather(*waiting)
    await run.end()
    assert run.events == await collect(log)
    await backend.stop()


async def test_the_wal_is_begun_anew_again_and_again(sqlite_url: str) -> None:
    backend = Backend(sqlite_url)
    log = await backend.start(durability="relaxed")
    run = await Run(log).open()
    wal, written = Path(f"{sqlite_url.removeprefix('sqlite:///')}-wal"), 0

    async def is_small() -> bool:
        nonlocal written
        event = os.urandom(100_000)
        await log.append("resp_1", [event], expected_version=run.version)
        run.events.append(event)
        written += len(event)
        return written > 4 * wal.stat().st_size

    await until(is_small)
    await backend.stop()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nonsense", "not valid"),
        ("mysql://host/name", "not supported"),
        ("sqlite://", "needs a file"),
        ("sqlite:////nowhere/at/all/log.db", "does not exist"),
        ("postgresql://nobody@127.0.0.1:1/none", "cannot be opened"),
    ],
)
async def test_a_wrong_database_is_told_in_one_sentence(url: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words) as caught:
        await migrate(url)
    assert "\n" not in caught.value.message


async def test_a_database_that_is_not_migrated_is_refused(empty_postgres_url: str, tmp_path: object) -> None:
    for url in (empty_postgres_url, f"sqlite:///{tmp_path}/log.db"):
        with pytest.raises(SettingsError, match="verbatim migrate"):
            await open_log(url)


async def test_relaxed_durability_is_for_sqlite_only(postgres_url: str, sqlite_url: str) -> None:
    with pytest.raises(SettingsError, match="relaxed"):
        await open_log(postgres_url, durability="relaxed")
    await (await open_log(sqlite_url, durability="relaxed")).close()
