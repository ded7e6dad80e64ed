"""A run always leaves its stream with one terminal event, and what is folded is what the log holds."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from app.errors import AppendRejected, CanNotContinue, EngineFailed, EngineRefused, Fenced
from app.log.memory import MemoryLog
from app.ports import Header, Span
from app.responses.decider import start
from app.responses.events import decode, encode
from app.responses.projection import Projection, evolve, project, snapshot
from app.responses.request import Item, Request, dump_request
from app.responses.resource import born
from app.responses.said import ArgumentsSaid, CallStarted, Finished, MessageSaid, ReasoningSaid, Spoken, Usage
from app.runtime.run import Run
from app.runtime.runs import Runs
from app.runtime.writer import Chance
from tests.oracle import assert_keeps_invariants

ID = "resp_" + "a" * 32
REQUEST = Request(model="m", items=[])
USAGE = Usage(3, 2)
SECONDS = 60  # until what must happen has failed


def chance() -> Chance:
    numbers = itertools.count(1)
    return Chance(now=lambda: 1_700_000_000.0, digits=lambda count: f"{next(numbers):0{count}x}")


@dataclass
class Speaker:
    """A model that says what it is told to; an exception among the words is raised, an event is waited for."""

    words: Sequence[Any]
    name: str = "m"
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    logged: Sequence[int] = ()

    async def render(self, request: Request, items: Sequence[Item]) -> bytes:
        return b""

    async def respond(
        self, request: Request, prompt: bytes, *, logged: Sequence[int] = ()
    ) -> AsyncGenerator[Spoken, None]:
        self.logged = logged
        try:
            for word in self.words:
                if isinstance(word, BaseException):
                    raise word
                if isinstance(word, asyncio.Event):
                    await word.wait()
                else:
                    yield word if isinstance(word, Spoken) else Spoken([word], [1])
        finally:
            self.closed.set()


class Moody(MemoryLog):
    """A log that answers some appends as `moods` says."""

    def __init__(self, **moods: BaseException) -> None:
        super().__init__()
        self.moods = {int(at.removeprefix("at_")): error for at, error in moods.items()}
        self.calls = 0

    def append(self, response_id: str, events: Sequence[bytes], **more: Any) -> Awaitable[None]:
        self.calls += 1
        if (mood := self.moods.get(self.calls)) is None:
            return super().append(response_id, events, **more)
        refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        refused.set_exception(mood)
        return refused


async def opened(log: MemoryLog, response_id: str = ID, **header: Any) -> Run:
    resource = born(REQUEST, response_id, created_at=1, status="in_progress")
    drafts = start(resource, queued=False)
    made = Header(
        response_id, "", "m", "in_progress", False, False, dump_request(REQUEST), None, response_id, 0, 1, **header
    )  # fmt: skip
    await log.open(made, encode(drafts, after=-1), queued=False)
    projection = Projection()
    for draft in drafts:
        evolve(projection, draft)
    return Run(made, log, projection, chance())


async def told(log: MemoryLog, response_id: str = ID) -> list[dict[str, Any]]:
    span = await log.read(response_id, after=-1)
    events = [decode(data) for data in span.events]
    response = events[-1].payload["response"]
    assert snapshot(project(events)) == response
    wire = [{"type": event.type, "sequence_number": event.position, **event.payload} for event in events]
    assert_keeps_invariants(wire)
    return wire


async def live(log: MemoryLog, words: Sequence[Any], meanwhile: Callable[[Run], None] = lambda run: None) -> Run:
    run = await opened(log)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run.live(Speaker(words), REQUEST))
        if words and not isinstance(words[0], BaseException):
            await asyncio.wait_for(run.accepted.wait(), SECONDS)
        meanwhile(run)
    assert run.ended.is_set()
    return run


async def test_a_run_ends_with_what_the_model_said():
    log = MemoryLog()
    run = await live(log, [ReasoningSaid("hm"), MessageSaid("Hi"), Finished("stop", USAGE)])
    events = await told(log)
    assert (events[-1]["type"], run.error) == ("response.completed", None)
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["reasoning", "message"]


@pytest.mark.parametrize(
    "error", [EngineFailed(), EngineRefused("Too many.", status=429, retry_after=3.0), RuntimeError("a bug")]
)
async def test_whatever_a_model_raises_ends_the_stream_with_error_and_failed(error: Exception):
    log = MemoryLog()
    run = await live(log, [MessageSaid("Hal"), error])
    events = await told(log)
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "Hal"
    assert events[-1]["response"]["output"][0]["status"] == "incomplete"
    assert run.error is not None
    assert "a bug" not in str(events)


async def test_a_model_that_stops_without_a_word_is_a_failure():
    log = MemoryLog()
    await live(log, [MessageSaid("Hal")])
    assert (await told(log))[-1]["type"] == "response.failed"


@pytest.mark.parametrize("why", ["cancelled", "abandoned"])
async def test_a_stopped_run_keeps_what_was_said_and_ends_as_cancelled(why: Any):
    log, for_ever = MemoryLog(), asyncio.Event()
    await live(log, [CallStarted("f"), ArgumentsSaid('{"a'), for_ever], lambda run: run.stop(why))
    events = await told(log)
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"]["status"] == "cancelled"


async def test_a_stop_closes_the_models_answer():
    log, speaker = MemoryLog(), Speaker([MessageSaid("a"), asyncio.Event()])
    run = await opened(log)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run.live(speaker, REQUEST))
        await asyncio.wait_for(run.accepted.wait(), SECONDS)
        run.stop("cancelled")
    assert speaker.closed.is_set()


async def test_a_stop_before_the_first_step_still_gives_a_terminal_event():
    log = MemoryLog()
    run = await opened(log)
    run.stop("cancelled")
    await run.live(Speaker([MessageSaid("never")]), REQUEST)
    events = await told(log)
    assert events[-1]["response"]["status"] == "cancelled"
    assert events[-1]["response"]["output"] == []


async def test_a_cancel_flag_found_at_the_claim_is_obeyed():
    log = MemoryLog()
    run = await opened(log, cancel_requested=True)
    await run.live(Speaker([MessageSaid("never")]), REQUEST)
    assert (await told(log))[-1]["response"]["status"] == "cancelled"


async def test_a_stop_that_comes_while_the_end_is_written_changes_nothing():
    log = MemoryLog()
    run = await opened(log)

    def stop_at_the_end(*_: Any, **__: Any) -> Awaitable[None]:
        run.stop("cancelled")
        return MemoryLog.append(log, *_, **__)

    log.append = stop_at_the_end  # type: ignore[method-assign]
    await run.live(Speaker([EngineFailed()]), REQUEST)
    assert len([event for event in await told(log) if event["type"].startswith("response.") and "output" in
                event.get("response", {}) and event["response"]["status"] in ("failed", "cancelled")]) == 1  # fmt: skip


async def test_a_drained_run_fails_and_says_why():
    log = MemoryLog()
    run = await live(log, [MessageSaid("a"), asyncio.Event()], lambda run: run.stop("drained"))
    assert "shut down" in (await told(log))[-1]["response"]["error"]["message"]
    assert run.error is not None


async def test_a_rejected_append_fails_the_stream_from_what_the_log_holds():
    log = Moody(at_2=AppendRejected())
    await live(log, [MessageSaid("a"), MessageSaid("b"), Finished("stop", USAGE)])
    events = await told(log)
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["output"] == []


async def test_text_that_can_not_be_encoded_fails_its_stream_only():
    log = MemoryLog()
    run = await live(log, [MessageSaid("fine"), MessageSaid("\ud800"), Finished("stop", USAGE)])
    assert (await told(log))[-1]["type"] == "response.failed"
    assert run.error is not None


async def test_an_end_that_can_not_be_written_does_not_take_other_runs_with_it():
    log = Moody(at_2=AppendRejected(), at_3=RuntimeError("broken"))
    run = await live(log, [MessageSaid("a"), Finished("stop", USAGE)])
    assert run.error is not None


async def test_an_end_that_is_refused_once_still_says_why_the_run_failed():
    log = Moody(at_3=AppendRejected())
    run = await live(log, [MessageSaid("Hal"), EngineFailed("It broke.")])
    failed = (await told(log))[-1]["response"]
    assert (failed["error"]["message"], failed["output"][0]["content"][0]["text"]) == ("It broke.", "Hal")
    assert run.outcome == "failed"


async def test_a_fenced_run_writes_nothing_more():
    log = Moody(at_2=Fenced())
    run = await live(log, [MessageSaid("a"), MessageSaid("b"), Finished("stop", USAGE)])
    assert isinstance(run.error, Fenced)
    assert [decode(data).type for data in (await log.read(ID, after=-1)).events][-1] == "response.in_progress"


async def test_an_orphan_gets_its_end_after_what_its_writer_had_said():
    log = MemoryLog()
    run = await live(log, [MessageSaid("Hal"), asyncio.Event()], lambda run: run.abort())
    span: Span = await log.read(ID, after=-1)
    heir = Run(run.header, log, project(decode(data) for data in span.events), chance())
    await heir.bury(CanNotContinue("It died."))
    events = await told(log)
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "Hal"
    assert "died" in events[-1]["response"]["error"]["message"]


async def test_places_are_counted_from_the_reservation_on():
    async with Runs(limit=1) as runs:
        with runs.reserved():
            assert runs.free == 0
        assert runs.free == 1


async def test_a_drain_waits_for_runs_and_then_ends_them():
    log = MemoryLog()
    async with Runs(limit=2) as runs:
        run = await opened(log)
        runs.start(run, Speaker([MessageSaid("a"), asyncio.Event()]), REQUEST)
        await asyncio.wait_for(run.accepted.wait(), SECONDS)
        await runs.drain(0.05)
        assert run.ended.is_set()
        assert runs.free == 0
    assert (await told(log))[-1]["type"] == "response.failed"


class Held(Moody):
    """A log whose append number `holds` waits until it is let go, as do all readings when `holds_reads`."""

    def __init__(self, *, holds: int = 0, holds_reads: bool = False, **moods: BaseException) -> None:
        super().__init__(**moods)
        self.let_go = asyncio.Event()
        self.waits = asyncio.Event()
        self._holds, self._holds_reads = holds, holds_reads

    def append(self, response_id: str, events: Sequence[bytes], **more: Any) -> Awaitable[None]:
        if self.calls + 1 != self._holds:
            return super().append(response_id, events, **more)
        return asyncio.ensure_future(self._append_later(response_id, events, more))

    async def _append_later(self, response_id: str, events: Sequence[bytes], more: dict[str, Any]) -> None:
        self.waits.set()
        await self.let_go.wait()
        await super().append(response_id, events, **more)

    async def read(self, response_id: str, *, after: int) -> Span:
        if self._holds_reads:
            self.waits.set()
            await self.let_go.wait()
        return await super().read(response_id, after=after)


async def test_a_stop_that_comes_while_the_log_is_read_for_the_end_changes_nothing():
    log = Held(holds_reads=True, at_2=AppendRejected())
    run = await opened(log)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run.live(Speaker([MessageSaid("a"), MessageSaid("b")]), REQUEST))
        await asyncio.wait_for(log.waits.wait(), SECONDS)
        run.stop("cancelled")
        await asyncio.sleep(0)
        log.let_go.set()
    assert (await told(log))[-1]["type"] == "response.failed"


@pytest.mark.parametrize("why", ["cancelled", "drained", "released"])
async def test_a_stop_behind_the_last_word_changes_nothing(why: Any):
    log, goes_on, released = Held(holds=2), asyncio.Event(), list[str]()
    run = await opened(log)

    async def release(response_id: str) -> None:
        released.append(response_id)

    run._release = release
    words = [MessageSaid("a"), goes_on, Finished("stop", USAGE), asyncio.Event()]
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run.live(Speaker(words), REQUEST))
        await asyncio.wait_for(log.waits.wait(), SECONDS)
        goes_on.set()
        while not run._writer._said:
            await asyncio.sleep(0)
        run.stop(why)
        await asyncio.sleep(0)
        log.let_go.set()
    assert (await told(log))[-1]["type"] == "response.completed"
    assert (run.outcome, run.error, released) == ("completed", None, [])


async def test_an_error_behind_the_last_word_is_none():
    log, goes_on = Held(holds=2), asyncio.Event()
    run = await opened(log)
    words = [MessageSaid("a"), goes_on, Finished("stop", USAGE), EngineFailed()]
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run.live(Speaker(words), REQUEST))
        await asyncio.wait_for(log.waits.wait(), SECONDS)
        goes_on.set()
        while not run._writer._said:
            await asyncio.sleep(0)
        log.let_go.set()
    assert (await told(log))[-1]["type"] == "response.completed"
    assert (run.outcome, run.error) == ("completed", None)


async def test_a_response_that_is_claimed_anew_outlives_the_run_that_was_aborted():
    """The old run still waits for its engine to close, when the process has registered anew and got it back."""
    log, closes = MemoryLog(), asyncio.Event()
    old = await opened(log)

    class Slow(Speaker):
        async def respond(self, *words: Any, **more: Any) -> AsyncGenerator[Spoken, None]:
            try:
                async for spoken in super().respond(*words, **more):
                    yield spoken
            finally:
                await closes.wait()

    async with Runs(limit=2) as runs:
        runs.start(old, Slow([MessageSaid("a"), asyncio.Event()]), REQUEST)
        await asyncio.wait_for(old.accepted.wait(), SECONDS)
        runs.abort(log)
        span = await log.read(ID, after=-1)
        heir = Run(old.header, log, project(decode(data) for data in span.events), chance())
        runs.bury(heir, CanNotContinue("It died."))
        closes.set()
        await asyncio.wait_for(heir.ended.wait(), SECONDS)
        await asyncio.wait_for(old.ended.wait(), SECONDS)
    assert (await told(log))[-1]["type"] == "response.failed"


async def test_a_fence_stops_no_run_that_is_written_elsewhere():
    record, memory, goes_on = MemoryLog(), MemoryLog(), asyncio.Event()
    async with Runs(limit=2) as runs:
        stored, unstored = await opened(record), await opened(memory, "resp_" + "b" * 32)
        for run in (stored, unstored):
            runs.start(run, Speaker([MessageSaid("a"), goes_on, Finished("stop", USAGE)]), REQUEST)
            await asyncio.wait_for(run.accepted.wait(), SECONDS)
        runs.abort(record)
        goes_on.set()
        await asyncio.wait_for(asyncio.gather(stored.ended.wait(), unstored.ended.wait()), SECONDS)
    assert (await told(memory, unstored.header.id))[-1]["type"] == "response.completed"
    assert (stored.outcome, unstored.outcome) == ("lost", "completed")


async def test_a_drain_waits_for_what_has_its_place_already():
    log, drained = MemoryLog(), asyncio.Event()
    async with Runs(limit=2) as runs, asyncio.TaskGroup() as tasks:

        async def drain() -> None:
            await runs.drain(SECONDS)
            drained.set()

        with runs.reserved():
            tasks.create_task(drain())
            for _ in range(3):
                await asyncio.sleep(0)
            assert not drained.is_set()
            run = await opened(log)
            runs.start(run, Speaker([MessageSaid("a"), Finished("stop", USAGE)]), REQUEST)
        await asyncio.wait_for(drained.wait(), SECONDS)
    assert (await told(log))[-1]["type"] == "response.completed"


async def test_what_starts_behind_the_deadline_of_a_drain_ends_too():
    log, late_id = Held(holds=3), "resp_" + "b" * 32
    async with Runs(limit=2) as runs:
        first, late = await opened(log), await opened(log, late_id)
        runs.start(first, Speaker([MessageSaid("a"), asyncio.Event()]), REQUEST)
        await asyncio.wait_for(first.accepted.wait(), SECONDS)
        draining = asyncio.ensure_future(runs.drain(0))
        await asyncio.wait_for(log.waits.wait(), SECONDS)  # the end of the first one is being written
        runs.start(late, Speaker([MessageSaid("a"), asyncio.Event()]), REQUEST)
        log.let_go.set()
        await asyncio.wait_for(draining, SECONDS)
    for response_id in (ID, late_id):
        assert (await told(log, response_id))[-1]["type"] == "response.failed"
