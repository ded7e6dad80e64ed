"""The seams of the system on one page. Each is a small Protocol, specified by its suite in `tests/contracts`.

A *span* is a run of consecutive events of one stream, as the exact bytes of their `data:` lines.

Values that are made for every token are `msgspec.Struct`s: a frozen dataclass takes ten times as long to make.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec

from app.responses.events import Status
from app.responses.request import Item, Request
from app.responses.said import Spoken


@dataclass(frozen=True, slots=True)
class Header:
    """What a response is apart from its events.

    `version` is the position of the last event known to the header (-1: none); while a run is open the journal may know
    more. `attempts` counts the claims since it last got further than `claimed_version`.
    `prompt` is what the model rendered, dropped at the end. `terminal` is the terminal event's bytes.
    Times are unix seconds.
    """

    id: str
    tenant: str
    model: str
    status: Status
    background: bool
    stream: bool
    request: bytes
    parent: str | None
    root: str
    priority: int
    created_at: int
    prompt: bytes | None = None
    version: int = -1
    owner: int | None = None
    attempts: int = 0
    claimed_version: int = -1
    cancel_requested: bool = False
    ended_at: float | None = None
    terminal: bytes | None = None


class Span(msgspec.Struct, frozen=True):
    """Consecutive events; `events[i]` stands at position `first + i`."""

    first: int
    events: Sequence[bytes]

    @property
    def last(self) -> int:
        """Position of the last event."""
        return self.first + len(self.events) - 1


@dataclass(frozen=True, slots=True)
class Ancestor:
    """One response of a chain, as the next turn needs it."""

    id: str
    tenant: str
    status: Status
    request: bytes
    terminal: bytes | None


class EventLog(Protocol):
    """The streams. What a reader gets was committed before; positions have no hole; a closed stream takes nothing."""

    def open(self, header: Header, events: Sequence[bytes], *, queued: bool) -> Awaitable[None]:
        """Write the header and the first events. `queued`: without an owner, for any worker; else owned by us.

        Raises LogUnavailable, or Fenced when this process is no writer, after a while; then nothing of it is left.
        """

    def append(
        self,
        response_id: str,
        events: Sequence[bytes],
        *,
        expected_version: int,
        tokens: Sequence[int] = (),
        status: Status | None = None,
    ) -> Awaitable[None]:
        """Add events after `expected_version`, with the tokens that produced them; never split. Done = committed.

        Starts at once, also before it is awaited; the caller keeps at most one append per response in flight.
        `status` changes the header in the same commit; a terminal one closes the stream, its last event being the
        terminal event. Raises WrongExpectedVersion, StreamClosed, Fenced, AppendRejected.
        """

    async def read(self, response_id: str, *, after: int) -> Span:
        """The committed events after a position, up to now (empty when there are none)."""

    def subscribe(self, response_id: str, *, after: int) -> AsyncIterator[Span]:
        """Read, then follow until the stream closes. Raises ResponseNotFound, also when it is deleted under way."""

    async def header(self, response_id: str) -> Header | None:
        """The header as committed."""


class Archive(Protocol):
    """Questions and orders about headers."""

    async def chain(self, response_id: str) -> list[Ancestor]:
        """The response and its ancestors, oldest first, in one query.

        A missing ancestor ends the walk: then the first element's parent is not in the list. Empty: unknown id.
        """

    async def request_cancel(self, response_id: str) -> None:
        """Set the durable cancel flag and wake the owner."""

    async def delete(self, response_id: str) -> bool:
        """Remove header and events; False when there was no such response."""

    async def check(self) -> None:
        """Raises LogError when this process can't read or can't write at the moment."""

    async def waiting(self) -> int:
        """How many responses are queued."""

    def ids(self) -> AsyncIterator[str]:
        """All response ids, oldest first."""


class Retention(Protocol):
    """What is too old to be kept."""

    async def expire(self, *, older_than_seconds: float) -> int:
        """Remove whole trees of chained responses whose newest member ended before that. Gives how many responses."""


class Ownership(Protocol):
    """Who writes what. Ownership shares the log's transactions, so one adapter is both.

    A method more than a port should have: a claim that carried the tokens of everything claimed would be larger.
    """

    async def register(self) -> None:
        """Become a writer with a fresh fencing token."""

    async def beat(self) -> Sequence[str]:
        """Count the beat up; gives the ids of this writer's open responses whose cancel flag is set. Raises Fenced."""

    async def bury(self) -> int:
        """Look at the other writers; fence and settle those without a beat for the lease time. Gives how many."""

    async def claim(self, models: Sequence[str], *, limit: int) -> list[Header]:
        """Become the owner of what nobody owns, by priority (lower first, as in vLLM) and age.

        `limit` holds for responses of these models that are to be generated. Those that only need their end come in
        addition: cancelled ones, foreground ones, and those whose model nobody has served for an hour.
        """

    async def tokens(self, response_id: str) -> list[int]:
        """The logged tokens of an open response of ours, in order: where its turn can be continued."""

    async def release(self, response_id: str) -> None:
        """Stop being the owner of an open response: its events move to segments, further appends are refused."""


Wake = Literal["queued", "claimed", "cancel"]
"""What processes tell each other: there is something to claim; this response was claimed; cancel this one of yours."""


class Hearer(Protocol):
    """A reader of one writer's journal, to whom the tail tells new rows. Its methods neither block nor raise."""

    @property
    def seen(self) -> int:
        """Rows up to this number are known."""

    def hear(self, n: int, batch: bytes) -> None:
        """Row `n` was committed. It may come twice; a jump means that rows were missed."""

    def tuned(self, live: bool) -> None:
        """Whether the rows after `seen` are heard from now on, as soon as they are told."""


class Tail(Protocol):
    """The newest rows of all journals, past the record, and wake-ups between processes.

    It may forget, repeat, or be away: whoever hears nothing asks the record. It holds up nobody, and raises nothing.
    """

    def start(self, on_wake: Callable[[Wake, str], None], on_lag: Callable[[float], None]) -> None:
        """Begin. `on_wake` gets the wake-ups of other processes, with the response that they are about.

        `on_lag` gets now and then how many seconds after its commit a row was heard, by both machines' clocks.
        """

    def tell(self, journal: str, n: int, batch: bytes) -> None:
        """Row `n` of a journal of ours was committed. In order of `n`."""

    def wake(self, wake: Wake, response_id: str = "") -> None:
        """Tell all other processes."""

    def follow(self, journal: str, hearer: Hearer) -> None:
        """Tell this one what comes after its `seen`; said again, begin there again."""

    def leave(self, journal: str) -> None:
        """Follow that journal no more."""

    async def close(self) -> None:
        """Tell what waits, if that is quick, and end."""


class Model(Protocol):
    """A model family behind a name: items to a prompt, and engine output to what was said."""

    name: str
    defaults: Mapping[str, Any]  # what it does where a request and the settings say nothing: fields of a `Request`

    async def render(self, request: Request, items: Sequence[Item]) -> bytes:
        """The prompt for these items (the whole chain and the new input), in a form that can be stored.

        Raises InvalidRequest for what this model cannot do or hold, ContextTooLong, EngineError.
        """

    def respond(self, request: Request, prompt: bytes, *, logged: Sequence[int] = ()) -> AsyncGenerator[Spoken, None]:
        """Generate. The first element is empty: the engine has accepted. The last one holds `Finished`.

        `logged` are the tokens of this turn that the log holds, with all that they said: go on behind them, say nothing
        again. Closing the iterator aborts the engine's request. Raises EngineError, CanNotContinue.
        """


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw tokens. None: the engine's own default. `max_tokens` None: as many as fit."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    logit_bias: Mapping[str, float] | None = None
    logprobs: int | None = None
    stop_token_ids: Sequence[int] = ()
    structured_outputs: Mapping[str, Any] | None = None
    priority: int = 0


class Tokens(msgspec.Struct, frozen=True):
    """A chunk of generation. `finish_reason` is set on the last one; an empty first one means accepted.

    `logprobs` has one entry per token id: `(logprob, [(token_id or None, token text, logprob), …])`, or is empty.
    """

    ids: Sequence[int] = ()
    logprobs: Sequence[Any] = ()
    finish_reason: str | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A model as its engine lists it. `context_length` in tokens."""

    id: str
    context_length: int | None = None
    created: int = 0
    owned_by: str = "verbatim"


class TokenEngine(Protocol):
    """Token ids in, token ids out."""

    async def cards(self) -> Sequence[ModelCard]:
        """The models this engine serves. Raises EngineError."""

    def generate(self, model: str, prompt: Sequence[int], sampling: Sampling) -> AsyncGenerator[Tokens, None]:
        """Generate after a prompt. First an empty `Tokens` (accepted). Closing aborts. Raises EngineError."""

    async def close(self) -> None:
        """Give up connections and threads."""


class ChatEngine(Protocol):
    """A chat-completions body in, its parsed stream chunks out."""

    async def cards(self) -> Sequence[ModelCard]:
        """The models this engine serves. Raises EngineError."""

    def complete(self, body: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        """Stream a completion: an empty mapping (accepted), then parsed chunks. Closing aborts. Raises EngineError."""

    async def close(self) -> None:
        """Give up connections and threads."""
