"""Each run is one log line and one count when it is over, however it ended."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Sequence
from typing import Any

import pytest
import structlog

from app.errors import EngineFailed, Fenced
from app.log.memory import MemoryLog
from app.meters import Meters
from app.responses.said import Finished, MessageSaid, Spoken, Usage
from app.runtime.reporting import Reporter
from app.runtime.run import Run
from app.runtime.runs import Runs
from tests.runtime.test_run import ID, REQUEST, SECONDS, Speaker, chance, opened
from tests.telemetry.numbers import number

USAGE = Usage(10, 7, 4)


class Deaf(MemoryLog):
    """A log that takes no more appends from us."""

    def append(self, response_id: str, events: Sequence[bytes], **more: Any) -> Awaitable[None]:
        refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        refused.set_exception(Fenced())
        return refused


async def reported(log: MemoryLog, *words: Any) -> tuple[dict[str, Any], str]:
    """The line and the numbers of a run over this log."""
    return await report_of(await opened(log), *words)


async def orphan(log: MemoryLog) -> Run:
    """A background run that another process began."""
    begun = await opened(log)
    header, projection = dataclasses.replace(begun.header, background=True), begun._writer.projection

    async def release(response_id: str) -> None:
        assert response_id == ID

    return Run(header, log, projection, chance(), release)


async def report_of(run: Run, *words: Any, drain_seconds: float = SECONDS) -> tuple[dict[str, Any], str]:
    """The line and the numbers of this run."""
    meters, over = Meters(), asyncio.Event()
    reporter = Reporter(meters)
    run.when_ended(over.set)
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as logs:
        async with Runs(1) as runs:
            runs.on_begin, runs.on_end = reporter.began, reporter.ended
            runs.start(run, Speaker(words), REQUEST)
            if drain_seconds:
                await asyncio.wait_for(over.wait(), SECONDS)
            else:
                await asyncio.wait_for(run.accepted.wait(), SECONDS)
            await asyncio.wait_for(runs.drain(drain_seconds), SECONDS)
    (line,) = [line for line in logs if line["event"] == "run"]
    return line, meters.exposition().decode()


async def test_a_run_tells_how_long_it_took_and_what_it_used() -> None:
    line, numbers = await reported(MemoryLog(), Spoken([MessageSaid("Hi"), Finished("stop", USAGE)], usage=USAGE))

    assert 0 <= line.pop("first_token_ms") <= line.pop("duration_ms")
    assert line == {
        "event": "run", "log_level": "info", "response_id": ID, "model": "m", "status": "completed",
        "background": False, "reason": None, "tokens_in": 10, "tokens_cached": 4, "tokens_out": 7,
    }  # fmt: skip
    assert number(numbers, "verbatim_runs_total", model="m", outcome="completed") == 1
    assert number(numbers, "verbatim_first_token_seconds_count", model="m") == 1
    assert number(numbers, "verbatim_tokens_total", kind="generated") == 7
    assert number(numbers, "verbatim_running") == 0


@pytest.mark.parametrize(
    ("log", "words", "outcome", "reason", "has_spoken"),
    [
        (MemoryLog, [MessageSaid("Hal"), EngineFailed()], "failed", "EngineFailed", True),
        (MemoryLog, [EngineFailed()], "failed", "EngineFailed", False),
        (MemoryLog, [MessageSaid("Hal"), Finished("length", USAGE)], "incomplete", None, True),
        (Deaf, [MessageSaid("Hal"), Finished("stop", USAGE)], "lost", "Fenced", False),
    ],
)
async def test_every_end_has_its_name(
    log: type[MemoryLog], words: Sequence[Any], outcome: str, reason: str | None, has_spoken: bool
) -> None:
    line, numbers = await reported(log(), *words)

    assert (line["status"], line["reason"]) == (outcome, reason)
    assert (line["first_token_ms"] is not None) == has_spoken
    assert number(numbers, "verbatim_runs_total", outcome=outcome) == 1
    assert number(numbers, "verbatim_running") == 0


async def test_a_run_that_goes_on_where_another_process_left_it_counts_as_that() -> None:
    _, numbers = await report_of(await orphan(MemoryLog()), Spoken([Finished("stop", USAGE)], usage=USAGE))

    assert number(numbers, "verbatim_continuations_total", model="m") == 1
    assert number(numbers, "verbatim_tokens_total", kind="generated") == 7


async def test_the_tokens_of_a_released_run_are_left_to_whoever_goes_on() -> None:
    words = [Spoken([MessageSaid("Hal")], [1], usage=USAGE), asyncio.Event()]
    line, numbers = await report_of(await orphan(MemoryLog()), *words, drain_seconds=0)

    assert (line["status"], line["reason"]) == ("released", None)
    assert number(numbers, "verbatim_tokens_total") == 0


async def test_the_lines_that_a_run_writes_name_its_response() -> None:
    seen: list[Any] = []

    class Curious(Speaker):
        def respond(self, *given: Any, **named: Any) -> Any:
            seen.append(structlog.contextvars.get_contextvars().get("response_id"))
            return super().respond(*given, **named)

    over, run = asyncio.Event(), await opened(MemoryLog())
    run.when_ended(over.set)
    async with Runs(1) as runs:
        runs.on_begin = Reporter(Meters()).began
        runs.start(run, Curious([Finished("stop", USAGE)]), REQUEST)
        await asyncio.wait_for(over.wait(), SECONDS)
        await asyncio.wait_for(runs.drain(SECONDS), SECONDS)

    assert seen == [ID]
    assert "response_id" not in structlog.contextvars.get_contextvars()


async def test_a_broken_report_ends_neither_the_run_nor_the_others() -> None:
    def broken(_run: Run) -> None:
        raise ValueError

    with structlog.testing.capture_logs() as logs:
        async with Runs(1) as runs:
            runs.on_begin = runs.on_end = broken
            for log in (MemoryLog(), MemoryLog()):
                over, run = asyncio.Event(), await opened(log)
                run.when_ended(over.set)
                runs.start(run, Speaker([Spoken([Finished("stop", USAGE)], usage=USAGE)]), REQUEST)
                await asyncio.wait_for(over.wait(), SECONDS)
                assert run.outcome == "completed"
            await asyncio.wait_for(runs.drain(SECONDS), SECONDS)

    assert [line["event"] for line in logs] == ["run_not_told"] * 4
