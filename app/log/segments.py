"""Moving: from what a run left in the journal to segments in stream order, small while it runs and big at its end."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from app.log.packing import Packing, TokenRun
from app.responses.events import Status

SEGMENT_EVENTS: Final = 4096
"""A segment holds at most so many events."""


class Segment(NamedTuple):
    """Events `first` to `last` of a stream, packed; `tokens` while the run is open."""

    first: int
    last: int
    events: bytes
    tokens: bytes | None

    @property
    def size(self) -> int:
        """How many events it holds."""
        return self.last - self.first + 1


class Ending(NamedTuple):
    """What a terminal append writes into the header."""

    status: Status
    terminal: bytes
    ended_at: float


@dataclass(slots=True)
class Move:
    """All events of one response that are in the journal only, on their way to segments.

    It is done only while the response has this `owner` (None: just queued). `group` are the small segments just before
    them; when `merges`, these are replaced by big ones. `ending` closes the response, `releases` makes it nobody's.
    `segments` is the outcome.
    """

    response: str
    owner: int | None
    first: int
    events: Sequence[bytes]
    tokens: Sequence[TokenRun]
    group: Sequence[Segment] = ()
    ending: Ending | None = None
    releases: bool = False
    segments: list[Segment] = field(default_factory=list)

    @property
    def version(self) -> int:
        """Position of the last event."""
        return self.first + len(self.events) - 1

    @property
    def merges(self) -> bool:
        """Whether the group becomes part of this move's segments: at the end, and when it is large enough.

        So an event is packed twice, however long the run.
        """
        if not self.group:
            return False
        return self.ending is not None or self.version - self.group[0].first + 1 >= SEGMENT_EVENTS

    @property
    def group_first(self) -> int:
        """Position where the outcome begins."""
        return self.group[0].first if self.merges else self.first

    def pack(self, packing: Packing) -> None:
        """Make the segments, once."""
        if self.segments:
            return
        first, events, runs = self.group_first, list(self.events), list(self.tokens)
        if self.merges:
            events = [event for segment in self.group for event in packing.events_in(segment.events)] + events
            runs = [run for segment in self.group for run in packing.runs_in(segment.tokens)] + runs
        if self.ending is not None:
            runs = []
        self.segments = cut(packing, first, events, runs)

    def next_group(self) -> list[Segment]:
        """The small segments that the next move may merge."""
        kept = [*([] if self.merges else self.group), *self.segments]
        while kept and kept[0].size >= SEGMENT_EVENTS:
            del kept[0]
        return kept


def cut(packing: Packing, first: int, events: Sequence[bytes], runs: Sequence[TokenRun]) -> list[Segment]:
    """Consecutive events as segments, each with the tokens of the appends that begin in it.

    An append may have tokens and no events; its tokens go with the events before it.
    """
    made = []
    for start in range(0, len(events), SEGMENT_EVENTS):
        part = events[start : start + SEGMENT_EVENTS]
        begin, end = first + start, first + start + len(part) - 1
        final = start + SEGMENT_EVENTS >= len(events)
        inside = [run for run in runs if begin <= run[0] and (final or run[0] <= end)]
        made.append(Segment(begin, end, packing.events(part), packing.tokens(inside)))
    return made
