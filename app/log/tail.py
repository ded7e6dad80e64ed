"""The tail that is always away: readers ask the record. For SQLite, and for PostgreSQL without Redis."""

from collections.abc import Callable

from app.ports import Hearer, Wake


class NoTail:
    """The `Tail` that tells nobody anything."""

    def start(self, on_wake: Callable[[Wake, str], None], on_lag: Callable[[float], None]) -> None:
        """See `Tail.start`."""

    def tell(self, journal: str, n: int, batch: bytes) -> None:
        """See `Tail.tell`."""

    def wake(self, wake: Wake, response_id: str = "") -> None:
        """See `Tail.wake`."""

    def follow(self, journal: str, hearer: Hearer) -> None:
        """See `Tail.follow`."""

    def leave(self, journal: str) -> None:
        """See `Tail.leave`."""

    async def close(self) -> None:
        """See `Tail.close`."""
