"""One transaction of the committer: what it writes, and the port to the database that writes it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from app.log.packing import Entry, Packing
from app.log.segments import Move
from app.ports import Header
from app.responses.events import Status


class Interrupted(Exception):
    """Nobody knows whether the transaction was committed, or it could not begin: send it again."""


class Refused(Exception):
    """The database refuses the data of the transaction; nothing of it was written."""


class Identity(NamedTuple):
    """A writer: its id, and the fencing token that it got when it registered."""

    writer: int
    token: int

    @property
    def journal(self) -> str:
        """Its journal's name in the tail: no other one's, even where several databases share a Redis."""
        return f"{self.writer}:{self.token:x}"


class Opened(NamedTuple):
    """A new header; `owner` None means queued."""

    header: Header
    owner: int | None


@dataclass(slots=True)
class Commit:
    """One transaction and one journal row: number `n` of this writer.

    `trim`: journal rows up to this number go. `resent`: an earlier attempt may have succeeded. `batch` and the segments
    of the moves are packed once, however often it is sent. `missing`: headers to be changed that were deleted, or that
    are not ours.
    """

    identity: Identity
    n: int
    entries: Sequence[Entry]
    opened: Sequence[Opened]
    statuses: Sequence[tuple[str, Status]]
    moves: Sequence[Move]
    trim: int = 0
    batch: bytes = b""
    resent: bool = False
    missing: set[str] = field(default_factory=set)

    def pack(self, packing: Packing) -> None:
        """Make the stored bytes. Raises Refused for what cannot be packed."""
        try:
            self.batch = self.batch or packing.batch(self.entries)
            for move in self.moves:
                move.pack(packing)
        except (TypeError, ValueError, OverflowError) as error:
            raise Refused(str(error)) from error

    @property
    def is_small(self) -> bool:
        """Whether it is nothing but a journal row."""
        return not (self.opened or self.statuses or self.moves or self.trim)


class Driver(Protocol):
    """The database's side of the committer, on a thread or connection of its own."""

    async def commit(self, work: Commit) -> None:
        """Write all of it or nothing. Raises Fenced, Refused, Interrupted.

        When the journal has this row already, the transaction was committed before.
        """

    async def close(self) -> None:
        """Give up the connection."""


def nothing() -> None:
    """The crash point that does not crash."""


@dataclass(frozen=True, slots=True)
class CrashPoints:
    """Places inside a commit where fault tests may raise or kill."""

    before_commit: Callable[[], None] = nothing
    after_commit: Callable[[], None] = nothing


HEADER_COLUMNS = (
    "id", "tenant", "model", "status", "background", "stream", "request", "parent", "root", "priority", "created_at",
    "prompt", "version", "owner", "attempts", "claimed_version", "cancel_requested", "ended_at", "terminal",
)  # fmt: skip


def header_row(opened: Opened) -> tuple[object, ...]:
    """A new header in the order of `HEADER_COLUMNS`. Its version is what has moved to segments: nothing yet."""
    header = opened.header
    return (
        header.id, header.tenant, header.model, header.status, header.background, header.stream, header.request,
        header.parent, header.root, header.priority, header.created_at, header.prompt, -1, opened.owner,
        header.attempts, header.claimed_version, header.cancel_requested, None, None,
    )  # fmt: skip
