"""A stream in the making, for tests of the core: ids from a counter, a clock that stands still."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import orjson

from app.responses.decider import Failure, begin, cancel, decide, fail, start
from app.responses.events import Draft, encode
from app.responses.ids import Kind, item_id
from app.responses.projection import Projection, evolve
from app.responses.request import Request
from app.responses.resource import born
from app.responses.said import Said, Usage

RESPONSE_ID: Final = "resp_" + "0" * 32
CREATED_AT: Final = 1_700_000_000
NOW: Final = 1_700_000_005
REQUEST: Final = Request(
    model="gpt-oss-20b",
    items=[{"id": "msg_1", "type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
)


class Turn:
    """Everything said to it becomes drafts, folded at once, as a writer does it."""

    def __init__(self, request: Request = REQUEST, *, queued: bool = False) -> None:
        self.projection = Projection()
        self.drafts: list[Draft] = []
        self.minted: list[str] = []
        status: Any = "queued" if queued else "in_progress"
        self._take(start(born(request, RESPONSE_ID, created_at=CREATED_AT, status=status), queued=queued))

    def new_id(self, kind: Kind) -> str:
        """The next id: a counter, so that equal turns have equal ids."""
        self.minted.append(item_id(kind, RESPONSE_ID, f"{len(self.minted):08x}"))
        return self.minted[-1]

    def begin(self) -> list[Draft]:
        """A worker takes it up."""
        return self._take(begin(self.projection))

    def say(self, *said: Said) -> list[Draft]:
        """The drafts that these make, one after the other."""
        return [
            draft for one in said for draft in self._take(decide(self.projection, one, new_id=self.new_id, now=NOW))
        ]

    def cancel(self, usage: Usage | None = None) -> list[Draft]:
        """The end of a cancelled stream."""
        return self._take(cancel(self.projection, usage))

    def fail(self, failure: Failure, usage: Usage | None = None) -> list[Draft]:
        """The end of a failed stream."""
        return self._take(fail(self.projection, failure, usage))

    @property
    def stored(self) -> list[bytes]:
        """The stream as the log would hold it."""
        return encode(self.drafts, after=-1)

    @property
    def events(self) -> list[dict[str, Any]]:
        """The stream as a client reads it."""
        return [orjson.loads(data) for data in self.stored]

    @property
    def response(self) -> dict[str, Any]:
        """The response inside the last event."""
        response: dict[str, Any] = self.events[-1]["response"]
        return response

    def _take(self, drafts: Sequence[Draft]) -> list[Draft]:
        for draft in drafts:
            evolve(self.projection, draft)
        self.drafts += drafts
        return list(drafts)


def running(*said: Said) -> Turn:
    """A turn that has begun, in which these things were said."""
    turn = Turn()
    turn.begin()
    turn.say(*said)
    return turn


def types(drafts: Iterable[Draft]) -> list[str]:
    """Their types, without the prefix that all but `error` have."""
    return [draft.type.removeprefix("response.") for draft in drafts]
