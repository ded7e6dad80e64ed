"""Real processes on one record: killed, stopped, fenced; no acknowledged event is ever lost or changed."""

import asyncio
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path

import psutil
import pytest
from sqlalchemy import text

from app.log.sql import SqlLog, open_log
from tests.contracts.logs import LEASE_SECONDS, Backend, Run, collect, deltas, start, until

ROOT = Path(__file__).parents[2]
STREAMS = 8


class Process:
    """A `log_writer`, and what it was promised."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.acknowledged: dict[str, int] = {}
        self.said: list[str] = []
        self._listening = start(self._listen())

    async def _listen(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            match line.decode().split():
                case [response_id, version]:
                    self.acknowledged[response_id] = int(version)
                case words:
                    self.said.extend(words)

    async def has_written(self, events: int) -> None:
        """Wait until every stream has so many acknowledged events."""

        async def enough() -> bool:
            return len(self.acknowledged) == STREAMS and min(self.acknowledged.values()) > events

        await until(enough)

    async def has_said(self, word: str) -> None:
        """Wait for a word."""

        async def said() -> bool:
            return word in self.said

        await until(said)

    def send(self, what: signal.Signals) -> None:
        """Kill, stop or continue it."""
        self.process.send_signal(what)

    async def end(self) -> None:
        """Make sure that it is gone, and hear its last words."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await self._listening


@asynccontextmanager
async def writing(url: str, prefix: str, *options: str) -> AsyncIterator[Process]:
    """A writer in a process of its own."""
    command = [sys.executable, "-m", "tests.faults.log_writer", url, prefix, str(STREAMS), *options]
    process = Process(await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE))
    try:
        yield process
    finally:
        await process.end()


@asynccontextmanager
async def observing(url: str, *, lease_seconds: float = LEASE_SECONDS) -> AsyncIterator[SqlLog]:
    """A log of this process, which beats."""
    log = await open_log(url, lease_seconds=lease_seconds)
    await log.register()

    async def beat() -> None:
        while True:
            await log.beat()
            await asyncio.sleep(LEASE_SECONDS / 5)

    beating = start(beat())
    try:
        yield log
    finally:
        beating.cancel()
        await asyncio.wait([beating])
        await log.close()


async def buried(log: SqlLog) -> None:
    """Look at the others until one is buried."""

    async def look() -> int:
        return await log.bury()

    await until(look)


async def fenced(log: SqlLog, response_id: str) -> None:
    """Fence who writes this response, as if it had been seen to stand still."""
    fencing = "UPDATE writers SET fenced = TRUE WHERE id = (SELECT owner FROM responses WHERE id = :id) RETURNING id"
    assert len(await log._database.rows(text(fencing), {"id": response_id})) == 1


async def inherited(log: SqlLog, promised: dict[str, int]) -> None:
    """Claim what the dead left: nothing that was acknowledged is missing; then end it all."""
    claimed = await log.claim(["model"], limit=2 * STREAMS)
    assert set(promised) <= {one.id for one in claimed}
    for one in claimed:
        run = Run(log, one.id)
        run.events = list((await log.read(one.id, after=-1)).events)
        assert promised.get(one.id, -1) <= one.version == run.version
        await run.end("failed")


@pytest.fixture(params=("sqlite", "postgres"))
def url(request: pytest.FixtureRequest) -> str:
    """A record that processes share."""
    return str(request.getfixturevalue(f"{request.param}_url"))


async def test_what_a_killed_process_was_promised_is_there(url: str) -> None:
    async with observing(url) as log:
        for life in range(3):
            async with writing(url, f"resp_{life}") as writer:
                await writer.has_written(20)
                readers = {one: start(collect(log, one)) for one in writer.acknowledged}
                await writer.has_written(60)
                late = {one: start(collect(log, one, after=30)) for one in writer.acknowledged}
                writer.send(signal.SIGKILL)
            await buried(log)
            await inherited(log, writer.acknowledged)
            for response_id, reader in readers.items():
                events = await reader
                assert deltas(0, len(events)) == events
                assert len(events) > writer.acknowledged[response_id]
                assert events[31:] == await late[response_id]
                assert events == await collect(log, response_id)


async def test_two_writers_at_work_disturb_no_reader(url: str) -> None:
    watching = observing(url, lease_seconds=60)  # who is alive and has no turn for a while must not be held dead
    async with watching as log, writing(url, "resp_a") as one, writing(url, "resp_b") as other:
        await asyncio.gather(one.has_written(10), other.has_written(10))
        ids = [*one.acknowledged, *other.acknowledged]
        readers = [start(collect(log, response_id, after=after)) for response_id in ids for after in (-1, 5)]
        await asyncio.gather(one.has_written(150), other.has_written(150))
        for killed in (one, other):
            killed.send(signal.SIGKILL)
            await killed.end()
            await fenced(log, next(iter(killed.acknowledged)))
            await buried(log)
            await inherited(log, killed.acknowledged)
        for reader in readers:
            events = await reader
            first = 0 if events[0] == deltas(0, 1)[0] else 6
            assert deltas(first, len(events)) == events


async def test_a_stopped_process_is_refused_when_it_comes_back(url: str) -> None:
    async with observing(url) as log, writing(url, "resp") as writer:
        await writer.has_written(20)
        await until(partial(_stands_still_between_commits, writer, url))
        await buried(log)
        await inherited(log, {})
        ends = {one: (await log.read(one, after=-1)).events for one in writer.acknowledged}
        writer.send(signal.SIGCONT)
        await writer.has_said("fenced")
        for response_id, version in writer.acknowledged.items():
            assert version < len(ends[response_id])
            assert list(ends[response_id]) == await collect(log, response_id)


async def _stands_still_between_commits(writer: Process, url: str) -> bool:
    """Stop it; on SQLite, go on when that was inside of a transaction, for then nobody can write until it goes on."""
    writer.send(signal.SIGSTOP)
    await until(partial(_is_stopped, writer))
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=0, isolation_level=None)) as other:
            try:
                other.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                writer.send(signal.SIGCONT)
                return False
    return True


async def _is_stopped(writer: Process) -> bool:
    """All of it: its committer is a thread of its own, and may be the last to stand."""
    threads = psutil.Process(writer.process.pid).threads()
    return all(psutil.Process(one.id).status() == psutil.STATUS_STOPPED for one in threads)


async def test_a_process_stopped_inside_a_transaction_does_not_hold_up_its_heirs(postgres_url: str) -> None:
    async with observing(postgres_url) as log, writing(postgres_url, "resp", "stop-in-commit") as writer:
        await writer.has_said("stopping")
        await buried(log)
        await inherited(log, {})
        writer.send(signal.SIGCONT)
        await writer.has_said("fenced")
        for response_id, version in writer.acknowledged.items():
            assert version < len((await log.read(response_id, after=-1)).events)


async def test_processes_that_start_at_once_work_on_one_file(sqlite_url: str) -> None:
    backend = Backend(sqlite_url)
    logs = await asyncio.gather(*(backend.start() for _ in range(4)))
    runs = [await Run(log, f"resp_{number}").open() for number, log in enumerate(logs)]

    async def write(run: Run) -> None:
        for _ in range(30):
            await run.append()
        await run.end()

    await asyncio.gather(*map(write, runs))
    for run in runs:
        for log in logs:
            assert run.events == await collect(log, run.id)
    await backend.stop()
