"""Every stream gets its end, also when the log refuses it for a while, or refuses it to one process for ever."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.errors import AppendRejected, LogError, LogUnavailable, WrongExpectedVersion
from app.ports import Header, Span
from app.responses.decider import start as born_events
from app.responses.events import ENDED, decode, encode
from app.responses.projection import project, snapshot
from app.responses.request import Request, dump_request
from app.responses.resource import born
from app.responses.said import Finished, MessageSaid, Usage
from app.runtime import run as of_runs
from app.runtime.registry import Registry
from app.runtime.run import Run
from app.runtime.runs import Runs
from app.runtime.workers import Pace, Worker
from tests.contracts.logs import DEADLINE_SECONDS, Backend, Log, collect, start, until
from tests.oracle import assert_keeps_invariants
from tests.runtime.test_run import Speaker, chance

ID = "resp_" + "a" * 32
REQUEST = Request(model="m", items=[])
OFTEN = Pace(beat=0.05, bury=0.05, claim=0.02)
Mood = Callable[[], BaseException | None]


class Unwilling:
    """A process's view of a log: `mood` may refuse its ends, its reading, and its releases."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.refused = 0
        self.ends: Mood = lambda: None
        self.readings: Mood = lambda: None
        self.releases: Mood = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def append(self, response_id: str, events: Sequence[bytes], **more: Any) -> Awaitable[None]:
        if more.get("status") not in ENDED or (error := self.ends()) is None:
            return self._log.append(response_id, events, **more)
        self.refused += 1
        refusal: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        refusal.set_exception(error)
        return refusal

    async def read(self, response_id: str, *, after: int) -> Span:
        if (error := self.readings()) is not None:
            raise error
        return await self._log.read(response_id, after=after)

    async def release(self, response_id: str) -> None:
        if (error := self.releases()) is not None:
            raise error
        await self._log.release(response_id)


@pytest.fixture(autouse=True)
def logged(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Short pauses; gives the log lines."""
    monkeypatch.setattr(of_runs, "_AGAIN_SECONDS", (0.0, 0.02, 0.02))
    monkeypatch.setattr(of_runs, "_LATER_SECONDS", 0.02)
    with capture_logs() as lines:
        yield lines


async def opened(log: Any) -> Run:
    """A foreground run, as the service begins it."""
    drafts = born_events(born(REQUEST, ID, created_at=1, status="in_progress"), queued=False)
    header = Header(ID, "", "m", "in_progress", False, True, dump_request(REQUEST), None, ID, 0, 1)
    events = encode(drafts, after=-1)
    await log.open(header, events, queued=False)
    return Run(header, log, project(decode(data) for data in events), chance(), log.release)


async def speak(runs: Runs, log: Any) -> Run:
    """A run that says something, and whose end the log may refuse."""
    run = await opened(log)
    runs.start(run, Speaker([MessageSaid("Hal"), MessageSaid("lo"), Finished("stop", Usage(3, 2))]), REQUEST)
    return run


async def until_refused(run: Run) -> None:
    """Wait until the log has refused the end of this run."""

    async def was_refused() -> bool:
        return run._refused

    await until(was_refused)


@asynccontextmanager
async def watching(log: Any) -> AsyncIterator[None]:
    """Another process, which only ends what needs its end."""
    async with Runs(limit=1) as runs, asyncio.TaskGroup() as tasks:
        task = tasks.create_task(Worker(log, Registry([], lambda: 0.0), runs, chance(), OFTEN).keep_watch())
        yield
        task.cancel()


def assert_ended(events: Sequence[bytes], status: str) -> None:
    """One whole stream, with one end."""
    decoded = [decode(data) for data in events]
    assert snapshot(project(decoded)) == decoded[-1].payload["response"]
    assert decoded[-1].payload["response"]["status"] == status
    assert_keeps_invariants([{"type": one.type, "sequence_number": one.position, **one.payload} for one in decoded])


@pytest.mark.parametrize("error", [AppendRejected(), WrongExpectedVersion(), RuntimeError("a bug")])
async def test_an_end_that_is_refused_for_a_while_is_written_later(backend: Backend, error: Exception) -> None:
    log = Unwilling(await backend.start())
    log.ends = lambda: error if log.refused < 6 else None
    log.releases = lambda: AppendRejected()
    async with asyncio.timeout(DEADLINE_SECONDS), Runs(limit=1) as runs:
        run = await speak(runs, log)
        reader = start(collect(log, ID))  # type: ignore[arg-type]
        await run.ended.wait()
        assert_ended(await reader, "failed")
    assert (run.outcome, log.refused) == ("failed", 6)


@pytest.mark.parametrize("error", [LogUnavailable(), OSError("away"), ValueError("unreadable")])
async def test_a_stream_that_can_not_be_read_for_its_end_gets_it_later(backend: Backend, error: Exception) -> None:
    log, failures = Unwilling(await backend.start()), [error] * 5
    log.ends = lambda: AppendRejected() if log.refused < 1 else None
    log.readings = lambda: failures.pop() if failures else None
    log.releases = lambda: AppendRejected()
    async with asyncio.timeout(DEADLINE_SECONDS), Runs(limit=1) as runs:
        run = await speak(runs, log)
        await run.ended.wait()
        assert_ended(await collect(log, ID), "failed")  # type: ignore[arg-type]
    assert (run.outcome, failures) == ("failed", [])


@pytest.mark.parametrize("error", [AppendRejected(), WrongExpectedVersion(), RuntimeError("a bug")])
async def test_an_end_that_one_process_can_not_write_is_written_by_another(
    backend: Backend, error: Exception, logged: list[Any]
) -> None:
    log: Log = await backend.start(lease_seconds=DEADLINE_SECONDS)
    mine = Unwilling(log)
    mine.ends = lambda: error
    other = log if backend.url is None else await backend.start(lease_seconds=DEADLINE_SECONDS)
    async with asyncio.timeout(DEADLINE_SECONDS), Runs(limit=1) as runs, watching(other):
        run = await speak(runs, mine)
        readers = [start(collect(one, ID)) for one in (log, other)]
        await run.ended.wait()
        for reader in readers:
            assert_ended(await reader, "failed")
    assert run.outcome == "released"
    assert run.error is not None
    assert [line["event"] for line in logged if line["log_level"] == "critical"] == ["end_left_to_others"]


async def test_a_process_that_goes_leaves_a_refused_end_to_others(backend: Backend) -> None:
    log = Unwilling(await backend.start())
    log.ends = log.releases = lambda: AppendRejected()
    async with asyncio.timeout(DEADLINE_SECONDS), Runs(limit=1) as runs:
        run = await speak(runs, log)
        await until_refused(run)
        await runs.drain(0)
    assert run.outcome == "lost"
    if backend.url is not None:  # a memory ends with its process
        other: Log = await backend.start()
        async with asyncio.timeout(DEADLINE_SECONDS), watching(other):
            await log.close()
            assert_ended(await collect(other, ID), "failed")


@pytest.mark.parametrize("change", ["NEW.ended_at IS NOT NULL", "NEW.owner IS NULL"])
async def test_a_database_that_refuses_all_ends_for_a_while_gets_them_later(shared: Backend, change: str) -> None:
    log, other = [await shared.start(lease_seconds=DEADLINE_SECONDS) for _ in range(2)]
    async with asyncio.timeout(DEADLINE_SECONDS), Runs(limit=1) as runs, watching(other), watching(log):
        async with shared.refusing(change):
            run = await speak(runs, log)
            readers = [start(collect(one, ID)) for one in (log, other)]
            await until_refused(run)
            assert not any(reader.done() for reader in readers)
        for reader in readers:
            assert_ended(await reader, "failed")


async def test_what_can_be_neither_taken_up_nor_given_back_is_given_back_later(backend: Backend) -> None:
    log, refusals = Unwilling(await backend.start()), [AppendRejected() for _ in range(3)]
    readings: list[LogError] = [LogUnavailable()]
    drafts = born_events(born(REQUEST, ID, created_at=1, status="queued"), queued=True)
    header = Header(ID, "", "m", "queued", True, True, dump_request(REQUEST), None, ID, 0, 1, cancel_requested=True)
    await log.open(header, encode(drafts, after=-1), queued=True)
    log.readings = lambda: readings.pop() if readings else None
    log.releases = lambda: refusals.pop() if refusals else None
    async with asyncio.timeout(DEADLINE_SECONDS), watching(log):
        assert_ended(await collect(log, ID), "cancelled")  # type: ignore[arg-type]
    assert refusals == []
