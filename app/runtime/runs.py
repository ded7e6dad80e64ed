"""All runs of this process: started under one roof, stopped and drained together."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Self

import structlog

from app.errors import TooManyRequests, VerbatimError
from app.ports import EventLog, Model
from app.responses.request import Request
from app.runtime.run import Run

_LOGGER: Final = structlog.get_logger()


class Runs:
    """Owns the task of every run. Use as an async context manager; leaving it cancels what still runs."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.draining = False
        self.on_free: Callable[[], None] = lambda: None  # a run ended, another one may start
        self.on_begin: Callable[[Run], None] = lambda _run: None  # called in the task of the run
        self.on_end: Callable[[Run], None] = lambda _run: None
        self._over = False  # the deadline of the drain: what starts now ends at once
        self._reserved = 0
        self._running: dict[str, Run] = {}
        self._tasks = asyncio.TaskGroup()
        self._freed = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for run in self._running.values():
            run.abort()
        await self._tasks.__aexit__(kind, error, trace)

    @property
    def free(self) -> int:
        """How many more runs may start."""
        return 0 if self.draining else max(0, self.limit - len(self._running) - self._reserved)

    @contextmanager
    def reserved(self) -> Iterator[None]:
        """Keep a place for a run that will be started inside. Raises TooManyRequests when there is none."""
        if not self.free:
            raise TooManyRequests("All runs of this server are busy; try again later.")
        self._reserved += 1
        try:
            yield
        finally:
            self._reserved -= 1
            self._freed.set()

    def start(self, run: Run, model: Model, request: Request, logged: Sequence[int] = ()) -> None:
        """Let a run generate, behind the tokens that are logged."""
        if self._over:
            run.drain()
        self._begin(run, run.live(model, request, logged))

    def bury(self, run: Run, error: VerbatimError) -> None:
        """Let a run give a stream that can't go on its end."""
        self._begin(run, run.bury(error))

    def stop(self, response_id: str) -> None:
        """Cancel a run of this process; nothing happens for others."""
        if run := self._running.get(response_id):
            run.stop("cancelled")

    def abort(self, log: EventLog) -> None:
        """This process was fenced: its runs in this log are others' now."""
        for run in list(self._running.values()):
            if run.log is log:
                run.abort()

    async def drain(self, seconds: float) -> None:
        """Accept nothing more; let runs finish until the deadline, then end them."""
        self.draining = True
        try:
            async with asyncio.timeout(seconds):
                while self._running or self._reserved:
                    await self._change()
        except TimeoutError:
            self._over = True
            for run in list(self._running.values()):
                run.drain()
            while self._running:
                await self._change()

    async def _change(self) -> None:
        self._freed.clear()
        await self._freed.wait()

    def _begin(self, run: Run, life: Coroutine[Any, Any, None]) -> None:
        self._running[run.header.id] = run
        self._tasks.create_task(self._watch(run, life), name=f"run {run.header.id}")

    async def _watch(self, run: Run, life: Coroutine[Any, Any, None]) -> None:
        _tell(self.on_begin, run)
        try:
            await life
        finally:
            if self._running.get(run.header.id) is run:  # one that was aborted may still end when it is ours again
                del self._running[run.header.id]
            self._freed.set()
            self.on_free()
            _tell(self.on_end, run)


def _tell(hear: Callable[[Run], None], run: Run) -> None:
    """Who hears of a run may break: that ends neither this run nor the others."""
    try:
        hear(run)
    except Exception:  # a bug in what is told, not in what was done
        _LOGGER.exception("run_not_told", response_id=run.header.id)
