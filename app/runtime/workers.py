"""The worker of a process: takes up queued and orphaned responses, keeps the beat, buries the dead."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import structlog

from app.errors import AppendRejected, CanNotContinue, Fenced, LogError, LogUnavailable, VerbatimError
from app.ports import EventLog, Header, Ownership, Retention
from app.responses.events import decode
from app.responses.projection import project
from app.responses.request import load_request
from app.runtime.registry import Registry
from app.runtime.run import Run
from app.runtime.runs import Runs
from app.runtime.writer import Chance

_LOGGER: Final = structlog.get_logger()
_CLIENT_GONE: Final = "The process that ran this response died before the response was complete."
_POISON: Final = "This response was given up: {} processes died on it without getting any further."


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a worker looks, in seconds; a beat also brings cancel flags set elsewhere. Older trees are expired.

    `attempts` is how many times a response is taken up without getting any further.
    """

    beat: float
    bury: float
    claim: float
    expire: float = 3600.0
    retention_seconds: float = float("inf")
    attempts: int = 5


class OwnedLog(EventLog, Ownership, Retention, Protocol):
    """A log that also knows who owns what, and what is too old."""


class Worker:
    """Works until its task is cancelled."""

    def __init__(self, log: OwnedLog, registry: Registry, runs: Runs, chance: Chance, pace: Pace) -> None:
        self._log = log
        self._registry = registry
        self._runs = runs
        self._chance = chance
        self._pace = pace
        self._queued = asyncio.Event()
        self._hungry = False
        self._untaken: set[str] = set()  # claimed, not taken up, and not given back yet

    def wake(self) -> None:
        """Something was queued."""
        self._queued.set()

    def place_freed(self) -> None:
        """A run ended. Only worth a look when the last claim could not take all."""
        if self._hungry:
            self._queued.set()

    async def work(self) -> None:
        """Beat, bury and claim, each at its own pace."""
        async with asyncio.TaskGroup() as duties:
            self._keep_alive(duties)
            duties.create_task(self._claim_when_woken(), name="claim")

    async def keep_watch(self) -> None:
        """Beat and bury, and claim only what needs its end: for a process that leaves background responses to workers.

        They may all be away; a cancelled response, or one whose client died with its process, waits for none of them.
        """
        async with asyncio.TaskGroup() as duties:
            self._keep_alive(duties)
            duties.create_task(self._every(self._pace.claim, self._claim_endings), name="claim")

    def _keep_alive(self, duties: asyncio.TaskGroup) -> None:
        duties.create_task(self._every(self._pace.beat, self._beat), name="beat")
        duties.create_task(self._every(self._pace.bury, self._bury), name="bury")
        duties.create_task(self._every(self._pace.expire, self._expire), name="expire")

    async def _every(self, seconds: float, duty: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self._survive(duty)
            await asyncio.sleep(seconds)

    async def _claim_when_woken(self) -> None:
        while True:
            self._queued.clear()
            await self._survive(self._claim)
            try:
                async with asyncio.timeout(self._pace.claim):
                    await self._queued.wait()
            except TimeoutError:
                continue

    async def _survive(self, duty: Callable[[], Awaitable[None]]) -> None:
        try:
            await duty()
        except Fenced:  # the log has told so already, and its runs have stopped; there may be new ones
            _LOGGER.warning("fenced")
            await self._survive(self._log.register)
        except LogUnavailable:
            _LOGGER.warning("database_away", duty=getattr(duty, "__name__", "duty"))
        except Exception:  # a database that is away comes back; a worker that died does not
            _LOGGER.exception("duty_failed", duty=getattr(duty, "__name__", "duty"))

    async def _beat(self) -> None:
        for response_id in await self._log.beat():
            self._runs.stop(response_id)

    async def _bury(self) -> None:
        if await self._log.bury():
            self._queued.set()

    async def _expire(self) -> None:
        if self._pace.retention_seconds != float("inf"):
            await self._log.expire(older_than_seconds=self._pace.retention_seconds)

    async def _claim(self) -> None:
        free = self._runs.free
        claimed = await self._claim_up_to(free)
        self._hungry = claimed >= free
        if claimed and self._hungry and self._runs.free:
            self._queued.set()

    async def _claim_endings(self) -> None:
        await self._claim_up_to(0)

    async def _claim_up_to(self, limit: int) -> int:
        await self._give_back()
        headers = await self._log.claim(await self._registry.names(), limit=limit)
        for header in headers:
            await self._survive(partial(self._take_up_or_release, header))
        return len(headers)

    async def _take_up_or_release(self, header: Header) -> None:
        try:
            await self._take_up(header)
        except BaseException:  # whatever it was: what nobody runs must not have an owner
            self._untaken.add(header.id)
            await self._give_back()
            raise

    async def _give_back(self) -> None:
        """Let go of what nobody runs. What the log does not take back now is tried again before the next claim."""
        for response_id in list(self._untaken):
            try:
                await self._log.release(response_id)
            except AppendRejected as error:
                _LOGGER.warning("release_refused", response_id=response_id, reason=str(error))
                continue
            except LogError:  # it is not ours any more
                pass
            self._untaken.discard(response_id)

    async def _take_up(self, header: Header) -> None:
        span = await self._log.read(header.id, after=-1)
        projection = project(decode(data) for data in span.events)
        run = Run(header, self._log, projection, self._chance, self._log.release)
        try:
            self._check(header)
            model = await self._registry.find(header.model)
        except VerbatimError as error:
            self._runs.bury(run, error)
            return
        logged = await self._log.tokens(header.id) if run.continues else ()
        if run.continues:
            _LOGGER.info("run_continues", response_id=header.id, after=header.version, attempts=header.attempts)
        self._runs.start(run, model, load_request(header.request), logged)

    def _check(self, header: Header) -> None:
        """Whether it makes sense to go on with what was claimed. Raises CanNotContinue."""
        if not header.background:
            raise CanNotContinue(_CLIENT_GONE)
        if header.attempts > self._pace.attempts:
            raise CanNotContinue(_POISON.format(header.attempts - 1))
