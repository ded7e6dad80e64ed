"""Opening a response: soon, or not at all."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from app.errors import AppendRejected, Fenced, LogUnavailable
from app.log.committer import Committer
from app.log.pauses import event_within
from app.ports import Header

AGAIN_SECONDS: Final = 1.0

logger: Final = logging.getLogger(__name__)


class Openings:
    """Whoever opens a response waits for so many `seconds`. What nobody waits for any more is taken back.

    A commit that is under way can't be taken back; what it brings too late is removed by `remove`. So is what was
    refused to its client and may be there all the same: a commit whose answer was lost before its writer was fenced.
    """

    def __init__(self, committer: Committer, remove: Callable[[str], Awaitable[object]], *, seconds: float) -> None:
        self._committer = committer
        self._remove = remove
        self._seconds = seconds
        self._removals: set[asyncio.Task[None]] = set()
        self._registered = asyncio.Event()
        self._is_closed = False

    async def open(self, header: Header, events: Sequence[bytes], *, queued: bool) -> None:
        """See `EventLog.open`. A process that was fenced is a writer again soon: that is waited for."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._seconds
        if isinstance(self._committer.refusal(), Fenced):
            self._registered.clear()
            await event_within(self._registered, self._seconds)
        opening = self._committer.open(header, events, queued=queued)
        if opening.done():  # refused at once
            opening.result()
        try:
            in_time, _ = await asyncio.wait({opening}, timeout=deadline - loop.time())
        except asyncio.CancelledError:
            self._give_up(header.id, opening)
            raise
        if not in_time:
            self._give_up(header.id, opening)
            raise LogUnavailable
        if opening.exception() is not None:
            self._came_late(header.id, opening)
        opening.result()

    def registered(self) -> None:
        """This process is a writer again."""
        self._registered.set()

    async def close(self) -> None:
        """Remove nothing more: what is still there is ended by others, like what a dead process leaves."""
        self._is_closed = True
        for removal in self._removals:
            removal.cancel()
        await asyncio.gather(*self._removals, return_exceptions=True)

    def _give_up(self, response: str, opening: asyncio.Future[None]) -> None:
        if not self._committer.withdraw(opening):
            opening.add_done_callback(partial(self._came_late, response))

    def _came_late(self, response: str, opening: asyncio.Future[None]) -> None:
        if not (self._is_closed or isinstance(opening.exception(), AppendRejected)):
            removal = asyncio.get_running_loop().create_task(self._remove_surely(response), name="removal")
            self._removals.add(removal)
            removal.add_done_callback(self._removals.discard)

    async def _remove_surely(self, response: str) -> None:
        while True:
            try:
                await self._remove(response)
            except LogUnavailable:
                logger.warning("response %s, which nobody waits for any more, is still to be removed", response)
            except Exception:  # it has no other owner than us, and nobody runs it
                logger.exception("response %s, which nobody waits for any more, can't be removed", response)
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                return
