"""What a model said: the only vocabulary the decider knows.

A model family turns engine output into these. Order matters, chunking does not (law L8): a piece of text opens an
item of its kind if none is open, and `ItemEnded` closes the open one.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

Phase = Literal["commentary", "final_answer"]
FinishReason = Literal["stop", "length", "content_filter"]


class ReasoningSaid(msgspec.Struct, frozen=True):
    """A piece of raw chain of thought."""

    text: str


class MessageSaid(msgspec.Struct, frozen=True):
    """A piece of visible text. `text` may be empty once, to open a message that stays empty.

    `logprobs` are wire objects (`token`, `bytes`, `logprob`, `top_logprobs`) of exactly this text.
    """

    text: str
    phase: Phase | None = None
    logprobs: Sequence[Mapping[str, Any]] = ()


class CallStarted(msgspec.Struct, frozen=True):
    """A function call opens; its arguments follow. It closes whatever was open.

    `call_id` None: the decider mints one.
    """

    name: str
    call_id: str | None = None


class ArgumentsSaid(msgspec.Struct, frozen=True):
    """A piece of the open call's argument text."""

    text: str


class ItemEnded(msgspec.Struct, frozen=True):
    """The open item is complete."""


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one turn. `cached_tokens` ≤ `input_tokens`, `reasoning_tokens` ≤ `output_tokens`."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class Finished(msgspec.Struct, frozen=True):
    """The model is done. With `stop` an open item is complete, otherwise it was cut off."""

    reason: FinishReason
    usage: Usage


_WHOLE: Final = (CallStarted, ItemEnded, Finished)  # what is never joined
Said = ReasoningSaid | MessageSaid | CallStarted | ArgumentsSaid | ItemEnded | Finished


class Spoken(msgspec.Struct, frozen=True):
    """What one step of a model gave: things said, and the engine tokens whose whole effect they are.

    A cut in the log falls between two of these, so `tokens` are exactly those after which the decoder holds nothing
    back. An empty one means that the engine has accepted the request. `usage` is the count so far (for endings that the
    model does not make itself: cancel, failure).
    """

    said: Sequence[Said] = ()
    tokens: Sequence[int] = ()
    usage: Usage | None = None


DELTA_LIMIT: Final = 4096
"""The most characters of one delta: a client that shows text as it comes wants small pieces,
and some read no lines above 64 kB (https://github.com/openai/openai-go/issues/368)."""


def merge(pieces: Sequence[Said]) -> list[Said]:
    """Join neighbouring pieces of the same text, so that what arrived together becomes one delta of bounded size."""
    if len(pieces) == 1:  # the usual case
        return list(_joined(pieces))
    merged: list[Said] = []
    run: list[Said] = []
    for piece in pieces:
        if run and not _joins(run[-1], piece):
            merged.extend(_joined(run))
            run = []
        run.append(piece)
    if run:
        merged.extend(_joined(run))
    return merged


def _joins(left: Said, right: Said) -> bool:
    match left, right:
        case (ReasoningSaid(), ReasoningSaid()) | (ArgumentsSaid(), ArgumentsSaid()):
            return True
        case MessageSaid(phase=one), MessageSaid(phase=other):
            return one == other
        case _:
            return False


def _joined(run: Sequence[Said]) -> Iterable[Said]:
    if len(run) == 1 and (isinstance(run[0], _WHOLE) or len(run[0].text) <= DELTA_LIMIT):
        return run
    text = "".join(piece.text for piece in run if not isinstance(piece, _WHOLE))
    match run[0]:
        case ReasoningSaid():
            return map(ReasoningSaid, _cut(text))
        case ArgumentsSaid():
            return map(ArgumentsSaid, _cut(text))
        case MessageSaid(phase=phase):
            logprobs = tuple(one for piece in run if isinstance(piece, MessageSaid) for one in piece.logprobs)
            if logprobs:  # they belong to exactly this text
                return [MessageSaid(text, phase, logprobs)]
            return [MessageSaid(cut, phase) for cut in _cut(text)]
    return run


def _cut(text: str) -> list[str]:
    return [text[start : start + DELTA_LIMIT] for start in range(0, len(text), DELTA_LIMIT)] or [text]
