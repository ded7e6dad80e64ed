"""One response's life in this process: from its first event to its terminal event, whatever happens in between."""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, Final, Literal

import structlog

from app.errors import (
    AppendRejected,
    CanNotContinue,
    EngineFailed,
    Fenced,
    LogError,
    LogUnavailable,
    ShuttingDown,
    VerbatimError,
    WrongExpectedVersion,
)
from app.ports import EventLog, Header, Model
from app.responses.decider import Failure, begin, cancel, fail
from app.responses.events import decode
from app.responses.projection import Projection, project
from app.responses.request import Request
from app.responses.said import Usage
from app.runtime.writer import Chance, Writer

Stop = Literal["cancelled", "abandoned", "drained", "released"]

_LOGGER: Final = structlog.get_logger()
# `cancelled` by a client, `abandoned` by the client of a foreground response; `drained` at the end of the process, or
# `released` then for others to continue
_DRAINED: Final = "The server was shut down before the response was complete."
_NOTHING_LOGGED: Final = (
    "The process that ran this response ended in the middle of it, and this kind of model can't go on from there."
)
_BROKEN: Final = "The server had an internal error."
_PASSING: Final = (AppendRejected, WrongExpectedVersion, LogUnavailable)
"""What a log says of a stream that is still ours; after any other `LogError` its end is somebody else's."""
_AGAIN_SECONDS: Final = (0.0, 0.2, 1.0)
_LATER_SECONDS: Final = 2.0
"""Pauses before an end that was refused is tried again, and between later tries and attempts to hand it over."""


class Run:
    """Writes one stream of this process's own to its end.

    `accepted` is set when the engine has taken the request, `ended` when the terminal event is committed, or the stream
    is another writer's. `error` tells why it failed. `outcome` is how it went for this process: the response's status,
    `released` for others to go on, or `lost`. `release` makes a response nobody's: a drained background run is left for
    others to continue, and an end that the log refuses again and again for others to write.
    """

    def __init__(
        self,
        header: Header,
        log: EventLog,
        projection: Projection,
        chance: Chance,
        release: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        self.header = header
        self._release = release
        self.accepted = asyncio.Event()
        self.ended = asyncio.Event()
        self.error: VerbatimError | None = None
        self.outcome = "lost"
        self.log = log
        self._chance = chance
        self._writer = Writer(log, header.id, projection, chance)
        self._then: list[Callable[[], None]] = []
        self._stop: Stop | None = None
        self._ending = False
        self._refused = False  # the log did not take the end
        self._leaving = False
        self._handed_over = False
        self._aborted = False
        self._task: asyncio.Task[None] | None = None
        self._began = time.monotonic()

    @property
    def age(self) -> float:
        """How many seconds ago it was taken up."""
        return time.monotonic() - self._began

    @property
    def silent_for(self) -> float | None:
        """How many seconds it took to the first words, if there were any."""
        spoke_at = self._writer.spoke_at
        return None if spoke_at is None else spoke_at - self._began

    @property
    def usage(self) -> Usage | None:
        """The tokens of the turn, as far as they are known."""
        return self._writer.usage

    @property
    def continues(self) -> bool:
        """Whether another process began this run."""
        return self.header.background and self.header.status != "queued"

    def drain(self) -> None:
        """The process is going: what others can continue becomes nobody's, the rest ends.

        An end that is refused holds nobody up: when the log closes, what is open becomes nobody's.
        """
        self._leaving = True
        if self._refused:
            self.abort()
        self.stop("released" if self._release is not None and self.header.background else "drained")

    def when_ended(self, then: Callable[[], None]) -> None:
        """Call this at the end, or at once if that was already."""
        if self.ended.is_set():
            then()
        else:
            self._then.append(then)

    def stop(self, why: Stop) -> None:
        """End the stream soon, with the terminal event that fits; idempotent."""
        if self._stop is None and not self._ending and not self._writer.closed:
            self._stop = why
            if self._task is not None:
                self._task.cancel()

    def abort(self) -> None:
        """Stop at once and write nothing: the stream is not ours any more, or this process is going."""
        self._aborted = True
        self.error = self.error or Fenced()
        if self._task is not None:
            self._task.cancel()

    async def live(self, model: Model, request: Request, logged: Sequence[int] = ()) -> None:
        """Generate until the end, behind what is logged. Never raises but for cancellation from outside."""
        await self._guard(self._generate(model, request, logged))

    async def bury(self, error: VerbatimError) -> None:
        """Give a stream that can't go on its end."""
        if self.header.cancel_requested:
            self._stop = "cancelled"
        else:
            self.error = error
        await self._guard(self._finish())

    async def _guard(self, life: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.current_task()
        try:
            await self._interruptible(life)
            ended = self._writer.closed and not self._handed_over
            self.outcome = self._writer.projection.resource["status"] if ended else "released"
        except LogError as error:
            _LOGGER.warning("stream_lost", response_id=self.header.id, reason=type(error).__name__)
            self.error = error
        except Exception as error:  # a bug in what ends streams: the other runs go on
            _LOGGER.critical("stream_left_open", response_id=self.header.id, exc_info=error)
            self.error = VerbatimError(_BROKEN)
        finally:
            self._task = None
            self.ended.set()
            for then in self._then:
                then()

    async def _interruptible(self, life: Coroutine[Any, Any, None]) -> None:
        try:
            await life
            return
        except asyncio.CancelledError:
            self._take_back_own_cancel()
        except _PASSING as error:
            self.error = error
        except LogError:
            raise
        except VerbatimError as error:
            self.error = error
        except Exception:  # a bug or a broken dependency: the stream ends, the server goes on
            _LOGGER.exception("run_failed", response_id=self.header.id)
            self.error = VerbatimError(_BROKEN)
        await self._finish()

    def _take_back_own_cancel(self) -> None:
        """If the cancellation is our own `stop`, the stream still needs its end; else it passes on."""
        if self._stop is None or self._aborted or self._task is None:
            raise asyncio.CancelledError
        self._task.uncancel()

    async def _generate(self, model: Model, request: Request, logged: Sequence[int]) -> None:
        if self._stop is not None or self.header.cancel_requested:
            self._stop = self._stop or "cancelled"
            await self._finish()
            return
        writer = self._writer
        if not self.continues:
            writer.write(begin(writer.projection))
        elif writer.projection.output and not logged:
            raise CanNotContinue(_NOTHING_LOGGED)
        async with aclosing(model.respond(request, self.header.prompt or b"", logged=logged)) as speech:
            async for spoken in speech:
                self.accepted.set()
                writer.say(spoken)
                if writer.closed:
                    break
                if writer.crowded:
                    await writer.settle()
        await writer.settle()
        if not writer.closed:
            raise EngineFailed("The engine stopped without saying why.")

    async def _finish(self) -> None:
        """Give the stream its end. From here on a `stop` comes too late."""
        self._ending = True
        try:
            await self._end_surely()
        except asyncio.CancelledError:  # a stop that came with the error, and is thrown only now
            self._take_back_own_cancel()
            await self._end_surely()

    async def _end_surely(self) -> None:
        """Try until the stream has its end, or is nobody's, so that whoever claims it ends it.

        Raises LogError when it is not ours any more, or is left to the end of this process.
        """
        tries = len(_AGAIN_SECONDS)
        pauses = itertools.chain([0.0], _AGAIN_SECONDS, itertools.repeat(_LATER_SECONDS))
        ways = itertools.chain(
            [self._end], itertools.repeat(self._end_anew, tries), itertools.cycle([self._hand_over, self._end_anew])
        )
        for pause, way in zip(pauses, ways, strict=False):
            await asyncio.sleep(pause)
            if await self._has_worked(way):
                return
            if self._leaving:
                raise LogError("The end was refused, and this process is going.")

    async def _has_worked(self, way: Callable[[], Awaitable[None]]) -> bool:
        try:
            await way()
        except _PASSING as error:
            self.error = self.error or error
            _LOGGER.warning("end_refused", response_id=self.header.id, reason=str(error))
        except LogError:
            raise
        except Exception as error:  # what was folded last can't be written, or what is stored can't be read
            if self._refused:  # it may be what the error says
                self.error = VerbatimError(_BROKEN)
            trace = None if self._refused else error
            _LOGGER.error("end_failed", response_id=self.header.id, reason=str(error), exc_info=trace)
        else:
            return True
        self._refused = True
        return False

    async def _hand_over(self) -> None:
        """What this process can't end becomes nobody's."""
        if self._release is None:
            raise AppendRejected
        await self._writer.quiet()
        await self._release(self.header.id)
        self._handed_over = True
        self.error = self.error or VerbatimError(_BROKEN)
        _LOGGER.critical("end_left_to_others", response_id=self.header.id)

    async def _end(self) -> None:
        """Append the ending that fits what happened, unless the last words were one."""
        if self._stop == "released" and self._release is not None and self.error is None:
            await self._writer.quiet()
            if not self._writer.closed:
                await self._release(self.header.id)
                return
        await self._write_end()
        if self._writer.projection.resource["status"] != "failed":
            self.error = None

    async def _end_anew(self) -> None:
        """What was folded is not what the log holds: fold the log, and end from there."""
        await self._writer.quiet()
        span = await self.log.read(self.header.id, after=-1)
        projection = project(decode(data) for data in span.events)
        self._writer = Writer(self.log, self.header.id, projection, self._chance)
        await self._end()

    async def _write_end(self) -> None:
        usage = self._writer.usage
        if self._stop == "drained":
            self.error = self.error or ShuttingDown(_DRAINED)
        if self.error is None or self._stop in ("cancelled", "abandoned"):
            await self._writer.end(lambda projection: cancel(projection, usage))
            return
        failure = _failure(self.error)
        await self._writer.end(lambda projection: fail(projection, failure, usage))


def _failure(error: VerbatimError) -> Failure:
    code = error.code or ("invalid_prompt" if error.status < 500 else "server_error")
    return Failure(error.message, code, error.type, error.param)
