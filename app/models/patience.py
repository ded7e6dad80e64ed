"""How long a broken engine is waited for, before a turn is given up."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from app.errors import EngineError, EngineFailed, EngineRefused, EngineStalled, EngineUnreachable

_SERVER_ERROR, _TOO_MANY = 500, 429


@dataclass(frozen=True, slots=True)
class Patience:
    """How often an engine may break off without a new token between, and for how long it may be away.

    The pause before the next try doubles from `pause` up to `longest`. All in seconds.
    """

    tries: int = 4
    seconds: float = 60.0
    pause: float = 0.1
    longest: float = 5.0
    clock: Callable[[], float] = time.monotonic


@dataclass(slots=True)
class Setbacks:
    """The failures of one turn since it last got a token."""

    patience: Patience
    failures: int = 0
    breaks: int = 0
    since: float = 0.0
    got: int = 0

    async def bear(self, error: EngineError, *, at: int) -> None:
        """Wait before the next try, with so many tokens got. Raises the error when there must not be one."""
        if not is_passing(error):
            raise error
        if self.failures == 0 or at > self.got:
            self.failures, self.breaks, self.since, self.got = 0, 0, self.patience.clock(), at
        self.failures += 1
        self.breaks += not isinstance(error, EngineUnreachable)  # one that restarts is waited for
        pause = error.retry_after or min(self.patience.longest, self.patience.pause * 2 ** (self.failures - 1))
        if self.breaks > self.patience.tries or self.patience.clock() + pause - self.since > self.patience.seconds:
            raise error
        await asyncio.sleep(pause)


def is_passing(error: EngineError) -> bool:
    """Whether the same request may well succeed a little later."""
    if isinstance(error, EngineRefused):
        return error.status >= _SERVER_ERROR or error.status == _TOO_MANY
    return isinstance(error, EngineFailed | EngineStalled)
