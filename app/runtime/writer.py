"""The one who appends to a stream: what was said becomes events, at most one commit in flight."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from app.ports import EventLog
from app.responses.decider import decide
from app.responses.events import ENDED, Draft, encode
from app.responses.ids import Kind, item_id
from app.responses.projection import Projection, evolve
from app.responses.said import Said, Spoken, Usage, merge

_CROWDED: Final = 256  # things said that wait for a commit before the speaker has to wait too


@dataclass(frozen=True, slots=True)
class Chance:
    """Clock and dice, so that tests can hold them. `now` gives unix seconds, `digits(n)` n hexadecimal digits."""

    now: Callable[[], float]
    digits: Callable[[int], str]


class Writer:
    """Writes one stream. While a commit is in flight, what is said gathers and goes out as one append (law L8)."""

    def __init__(self, log: EventLog, response_id: str, projection: Projection, chance: Chance) -> None:
        self.projection = projection
        self.usage: Usage | None = None
        self.spoke_at: float | None = None  # monotonic: when the first item was begun
        self._is_silent = not projection.output
        self._log = log
        self._id = response_id
        self._chance = chance
        self._status = projection.resource.get("status")  # as the log's header has it
        self._said: list[Said] = []
        self._tokens: list[int] = []
        self._commit: asyncio.Future[None] | None = None
        self._failure: BaseException | None = None

    @property
    def closed(self) -> bool:
        """Whether the terminal event was decided."""
        return self.projection.resource["status"] in ENDED

    @property
    def crowded(self) -> bool:
        """Whether so much waits that the speaker should `settle` first."""
        return len(self._said) > _CROWDED

    def say(self, spoken: Spoken) -> None:
        """Take what was said. Raises what the last commit raised."""
        self._raise_failure()
        self._said.extend(spoken.said)
        self._tokens.extend(spoken.tokens)
        if spoken.usage is not None:
            self.usage = spoken.usage
        if self._commit is None:
            self._append()

    def write(self, drafts: Sequence[Draft]) -> None:
        """Append drafts decided elsewhere, while nothing is in flight."""
        self._fold(drafts)
        self._send(drafts)

    async def settle(self) -> None:
        """Wait until everything said is committed. Raises what a commit raised."""
        await self.quiet()
        self._raise_failure()

    async def quiet(self) -> None:
        """Wait until no commit is in flight, whatever came of it."""
        while self._commit is not None:
            await asyncio.wait({self._commit})

    async def end(self, ending: Callable[[Projection], Sequence[Draft]]) -> None:
        """Append what still waits and, unless that closed the stream, an ending, in one append. Idempotent."""
        await self.quiet()
        self._raise_failure()
        said, self._said = self._said, []
        drafts = self._decide(said)
        if not self.closed:
            last = ending(self.projection)
            self._fold(last)
            drafts.extend(last)
        self._send(drafts)
        await self.settle()

    def new_id(self, kind: Kind) -> str:
        """An id for something inside this response."""
        return item_id(kind, self._id, self._chance.digits(8))

    def _append(self) -> None:
        said, self._said = self._said, []
        self._send(self._decide(said))

    def _decide(self, said: Sequence[Said]) -> list[Draft]:
        drafts: list[Draft] = []
        for piece in merge(said):
            if self.closed:
                break
            decided = decide(self.projection, piece, new_id=self.new_id, now=int(self._chance.now()))
            self._fold(decided)
            drafts += decided
        return drafts

    def _fold(self, drafts: Iterable[Draft]) -> None:
        for draft in drafts:
            evolve(self.projection, draft)

    def _send(self, drafts: Sequence[Draft]) -> None:
        if not drafts:  # tokens without a visible effect wait for the next append
            return
        if self._is_silent and self.projection.output:
            self._is_silent, self.spoke_at = False, time.monotonic()
        version = self.projection.version - len(drafts)
        events = encode(drafts, after=version)
        tokens, self._tokens = self._tokens, []
        status = self.projection.resource["status"]
        moved_on, self._status = status != self._status, status
        self._commit = asyncio.ensure_future(
            self._log.append(
                self._id,
                events,
                expected_version=version,
                tokens=tokens,
                status=status if moved_on else None,
            )
        )
        self._commit.add_done_callback(self._committed)

    def _committed(self, commit: asyncio.Future[None]) -> None:
        self._commit = None
        self._failure = asyncio.CancelledError() if commit.cancelled() else commit.exception()
        if self._failure is None and self._said:
            self._append_in_callback()

    def _append_in_callback(self) -> None:
        try:
            self._append()
        except Exception as error:  # noqa: BLE001 - nobody stands above a callback: the next `say` or `settle` raises it
            self._failure = error

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
