"""What this writer's journal holds: which rows still have events that are not in segments, and what may be trimmed."""

from collections import deque
from dataclasses import dataclass
from typing import Final

from app.log.live import LiveStream

MOVES_PER_SWEEP: Final = 4
EMPTY_ROWS: Final = 64
"""So many rows without events may stay: a process that only queues writes no others."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long events stay in the journal.

    They move to segments after so many events of their response, or so many seconds. A row stays at least
    `kept_seconds`, for readers in other processes that poll the journal.
    """

    moved_after_events: int = 512
    moved_after_seconds: float = 4.0
    kept_seconds: float = 1.0
    sweep_seconds: float = 0.05


@dataclass(slots=True)
class _Row:
    n: int
    committed_at: float
    holds_events: bool
    unmoved: int  # so many responses have events in it that are not in segments


class JournalBook:
    """Rows by number, and streams by the age of their oldest unmoved event.

    A sweep takes few streams at a time: moving a thousand at once would hold up a commit.
    """

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self.newest = 0
        self._rows: deque[_Row] = deque()
        self._holding = 0
        self._next_trim = 0.0
        self._waiting: deque[tuple[float, LiveStream]] = deque()
        self._full: list[LiveStream] = []

    def committed(self, streams: list[LiveStream], *, holds_events: bool, now: float) -> None:
        """The next row was committed; these streams have unmoved events in it."""
        self.newest += 1
        self._holding += holds_events
        self._rows.append(_Row(self.newest, now, holds_events, len(streams)))
        for stream in streams:
            if not stream.rows:
                self._waiting.append((now, stream))
            stream.rows.append(self.newest)
            if stream.buffer.version - stream.moved >= self._pace.moved_after_events:
                self._full.append(stream)

    def moved(self, stream: LiveStream) -> None:
        """All events of a stream are in segments, or nobody wants them any more."""
        if stream.rows:
            oldest = self._rows[0].n
            for n in stream.rows:
                self._rows[n - oldest].unmoved -= 1
            stream.rows.clear()

    def due(self, *, now: float) -> list[LiveStream]:
        """Streams whose events are to move now."""
        taken, self._full = [stream for stream in self._full if stream.rows], []
        limit = MOVES_PER_SWEEP + len(self._waiting) // 64  # so that all have their turn in time
        while self._waiting and len(taken) < limit:
            since, stream = self._waiting[0]
            if stream.rows and self._rows[stream.rows[0] - self._rows[0].n].committed_at <= since:
                if now - since < self._pace.moved_after_seconds:
                    break
                taken.append(stream)
            self._waiting.popleft()
        return taken

    def trimmable(self, *, now: float) -> int:
        """The number up to which rows may go; 0: none, or it is not worth it.

        All may go: the transaction that trims adds a row, and so there is always one that says which numbers are taken.
        """
        if now < self._next_trim:
            return 0
        self._next_trim = now + self._pace.kept_seconds / 2
        upto, holding = 0, False
        for row in self._rows:
            if row.unmoved or (row.holds_events and now - row.committed_at < self._pace.kept_seconds):
                break
            upto, holding = row.n, holding or row.holds_events
        return upto if holding or len(self._rows) > EMPTY_ROWS else 0

    def trimmed(self, upto: int) -> None:
        """Rows up to this number are gone."""
        while self._rows and self._rows[0].n <= upto:
            self._holding -= self._rows.popleft().holds_events

    @property
    def settled(self) -> bool:
        """Whether there is nothing to move or trim, now or later."""
        return not (self._waiting or self._full or self._holding or len(self._rows) > EMPTY_ROWS)
