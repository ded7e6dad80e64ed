"""A response that has been accepted, as its client sees it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Final

from app.errors import LogUnavailable, VerbatimError
from app.ports import EventLog, Span
from app.responses.events import response_inside
from app.runtime.run import Run

_ACCEPTED_WITHIN: Final = 0.5  # seconds an answer waits for the engine's word: a refusal can still be an HTTP error


class Foreground:
    """Runs in this process, for the client that is connected. `on_left` is called when that client is done."""

    def __init__(self, run: Run, log: EventLog, on_left: Callable[[], None]) -> None:
        self.response_id = run.header.id
        self._run = run
        self._log = log
        self._on_left = on_left

    async def follow(self) -> AsyncIterator[Span]:
        """Its events from position 0 to the terminal event."""
        try:
            async for span in self._log.subscribe(self.response_id, after=-1):
                yield span
        finally:
            self._on_left()

    async def result(self) -> bytes:
        """The final response object. Raises the error of a failed one: there is nothing else to show."""
        try:
            await self._run.ended.wait()
            if self._run.error is not None:
                raise self._run.error
            return await terminal_response(self._log, self.response_id)
        finally:
            self._on_left()

    def abandon(self) -> None:
        """The client is gone: stop the generation."""
        self._run.stop("abandoned")
        self._on_left()

    async def accepted(self) -> None:
        """Wait for the engine's word, half a second at most. Raises its refusal."""
        waits = [asyncio.ensure_future(event.wait()) for event in (self._run.accepted, self._run.ended)]
        try:
            await asyncio.wait(waits, timeout=_ACCEPTED_WITHIN, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self._run.error is not None and not self._run.accepted.is_set():
            await self._run.ended.wait()
            self._on_left()
            raise self._run.error


class Background:
    """Waits in the log for a worker, here or elsewhere."""

    def __init__(self, response_id: str, log: EventLog, born: bytes) -> None:
        self.response_id = response_id
        self._log = log
        self._born = born

    def follow(self) -> AsyncIterator[Span]:
        """Its events from position 0 to the terminal event, whoever writes them."""
        return self._log.subscribe(self.response_id, after=-1)

    async def result(self) -> bytes:
        """The answer of a background create: the response as it was born."""
        return self._born

    def abandon(self) -> None:
        """Nothing happens: a background response outlives its clients."""


async def terminal_response(log: EventLog, response_id: str) -> bytes:
    """The response inside the terminal event of a closed stream: it is there, however long the database is away."""
    while True:
        with suppress(LogUnavailable):
            header = await log.header(response_id)
            break
    if header is None or header.terminal is None:
        raise VerbatimError("The response was deleted while it was being answered.")
    return response_inside(header.terminal)
