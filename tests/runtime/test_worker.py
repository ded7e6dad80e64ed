"""What a worker takes up is run or given back, and a cancellation that meets a claim is obeyed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from app.errors import Fenced
from app.log.memory import MemoryLog
from app.ports import Header, ModelCard
from app.responses.decider import start
from app.responses.events import encode
from app.responses.request import dump_request
from app.responses.resource import born
from app.responses.said import Finished, MessageSaid, Usage
from app.runtime.registry import Registry, Source
from app.runtime.runs import Runs
from app.runtime.workers import Pace, Worker
from tests.runtime.test_run import ID, REQUEST, SECONDS, Speaker, chance, told

OFTEN = Pace(beat=0.01, bury=0.01, claim=0.01)


class Engine:
    """An engine whose models are configured."""

    async def cards(self) -> Sequence[ModelCard]:
        raise AssertionError("nobody needs to ask")


async def queue(log: MemoryLog) -> None:
    resource = born(REQUEST, ID, created_at=1, status="queued")
    header = Header(ID, "", "m", "queued", True, True, dump_request(REQUEST), None, ID, 0, 1)
    await log.open(header, encode(start(resource, queued=True), after=-1), queued=True)


@asynccontextmanager
async def working(log: MemoryLog, build: Callable[[str], Speaker]) -> AsyncIterator[None]:
    """A worker of one model."""
    async with Runs(limit=1) as runs, asyncio.TaskGroup() as tasks:
        registry = Registry([Source(Engine(), build, names=["m"])], lambda: 0.0)
        worker = Worker(log, registry, runs, chance(), OFTEN)
        log.on_cancel = runs.stop
        task = tasks.create_task(worker.work())
        yield
        task.cancel()


async def ended(log: MemoryLog) -> None:
    async for _ in log.subscribe(ID, after=-1):
        pass


class Between(MemoryLog):
    """A log in which something happens after a claim, and before the run has begun."""

    def __init__(self, happens: Callable[["Between"], Awaitable[None]] | None = None) -> None:
        super().__init__()
        self._happens = happens
        self.claims: list[str] = []

    async def claim(self, models: Sequence[str], *, limit: int) -> list[Header]:
        claimed = await super().claim(models, limit=limit)
        if claimed and self._happens is not None:
            await self._happens(self)
        self.claims += [one.id for one in claimed]
        return claimed


class Late(MemoryLog):
    """A log one of whose claims hears late of a fence, when the process has registered anew and has runs again."""

    def __init__(self) -> None:
        super().__init__()
        self.told = asyncio.Event()

    async def claim(self, models: Sequence[str], *, limit: int) -> list[Header]:
        if claimed := await super().claim(models, limit=limit):
            return claimed
        if [one.owned for one in self._streams.values()] == [True] and not self.told.is_set():
            self.told.set()
            raise Fenced
        return []


async def test_a_cancellation_between_claim_and_run_is_obeyed() -> None:
    log = Between(lambda log: log.request_cancel(ID))
    async with asyncio.timeout(SECONDS), working(log, lambda _: Speaker([MessageSaid("a"), asyncio.Event()])):
        await queue(log)
        await ended(log)
    assert (await told(log))[-1]["response"]["status"] == "cancelled"


async def test_a_late_word_of_a_fence_stops_no_run_that_began_after_it() -> None:
    log, goes_on = Late(), asyncio.Event()
    words = [MessageSaid("a"), goes_on, Finished("stop", Usage(1, 1))]
    async with asyncio.timeout(SECONDS), working(log, lambda _: Speaker(words)):
        await queue(log)
        await log.told.wait()
        await asyncio.sleep(0)
        goes_on.set()
        await ended(log)
    assert (await told(log))[-1]["type"] == "response.completed"


async def test_what_can_not_be_taken_up_is_given_back_and_taken_again() -> None:
    log, failures = Between(), [ZeroDivisionError("a bug")]

    def build(_: str) -> Speaker:
        if failures:
            raise failures.pop()
        return Speaker([MessageSaid("a"), Finished("stop", Usage(1, 1))])

    async with asyncio.timeout(SECONDS), working(log, build):
        await queue(log)
        await ended(log)
    assert (await told(log))[-1]["type"] == "response.completed"
    assert log.claims == [ID, ID]
