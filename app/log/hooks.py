"""What a log tells its own process: wake-ups, each backed by polling, and how its commits go."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Hooks:
    """Called in the event loop; they must not block or raise.

    `on_queued`: a queued response was committed. `on_cancel`: somebody wants this open response of ours cancelled.
    `on_fenced`: this writer was declared dead; its runs are to stop, before it registers anew. `on_commit`: so many
    events were committed in so many seconds. `on_lag`: so long after its commit elsewhere a row was heard here.
    """

    on_queued: Callable[[], None] = lambda: None
    on_cancel: Callable[[str], None] = lambda _: None
    on_fenced: Callable[[], None] = lambda: None
    on_commit: Callable[[int, float], None] = lambda _events, _seconds: None
    on_lag: Callable[[float], None] = lambda _: None
