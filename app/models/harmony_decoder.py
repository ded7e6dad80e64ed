"""The upper half of the harmony decoder: messages to what was said.

Recipient first, then channel. A call to something that is not one of the request's functions (a built-in like
`python`, or any function while `tool_choice` forbids it) is shown as reasoning: not lost, and never a call that nobody
can answer. Messages that the model wrote in another role's name, such as an invented tool result, are not shown.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.models.harmony_framing import Closed, Framing, Mark, Opened, Piece, Text
from app.models.harmony_header import CONTENT_TYPES, Header
from app.models.vocabulary import Vocabulary
from app.responses.said import ArgumentsSaid, CallStarted, ItemEnded, MessageSaid, Phase, ReasoningSaid, Said

PREFIX: Final = "functions."
_NOBODY: Final = frozenset({"assistant", "user", "all"})  # recipients that make no call

Sayer = Callable[[Text], Said]


@dataclass(frozen=True, slots=True)
class Functions:
    """The functions a model may call. `exclusive`: a call to any other is not a call."""

    names: frozenset[str] = frozenset()
    exclusive: bool = False

    def called_by(self, recipient: str) -> str | None:
        """The function that a recipient means, or None. A content type glued to a declared name is cut off."""
        name = recipient.removeprefix(PREFIX)
        if name in self.names:
            return name
        for glued in CONTENT_TYPES:
            if name.removesuffix(glued) in self.names:
                return name.removesuffix(glued)
        if name and recipient.startswith(PREFIX) and not self.exclusive:
            return name
        return None


class HarmonyDecoder:
    """Feed it what follows `<|start|>assistant`; it gives what was said. One decoder is one generation.

    `MessageSaid.logprobs` are the wire objects of the tokens, when `feed` was given logprobs. `parallel` false: the
    end of the first call is the end of the turn.
    """

    __slots__ = ("_framing", "_functions", "_is_reasoning", "_parallel", "_reasoned", "_said", "_sayer", "_vocabulary")

    def __init__(self, vocabulary: Vocabulary, functions: Functions | None = None, *, parallel: bool = True) -> None:
        self._vocabulary = vocabulary
        self._functions = functions or Functions()
        self._parallel = parallel
        self._framing = Framing(vocabulary.load())
        self._sayer: Sayer | None = None  # of the open message; None: it is not shown
        self._is_reasoning = False
        self._said = False  # whether the open message has said something
        self._reasoned = 0

    @property
    def holds_nothing(self) -> bool:
        """Whether a cut here is exact: no bytes, header or logprobs are held back."""
        return self._framing.holds_nothing

    @property
    def stopped(self) -> bool:
        """Whether the turn is at its end: nothing after it exists."""
        return self._framing.stopped

    @property
    def seen(self) -> int:
        """Tokens taken, up to and including a stop token."""
        return self._framing.seen

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of reasoning messages, framing included."""
        return self._reasoned + (self._framing.message_tokens if self._is_reasoning else 0)

    def feed(self, tokens: Sequence[int], logprobs: Sequence[Any] = ()) -> list[Said]:
        """Take tokens, as many as there are; `logprobs` as in `Tokens`."""
        if self._parallel:
            return self._read(self._framing.feed(tokens, logprobs))
        said: list[Said] = []
        for i in range(len(tokens)):  # one by one: a call may end anywhere
            said += self._read(self._framing.feed(tokens[i : i + 1], logprobs[i : i + 1]))
        return said

    def close(self, *, complete: bool) -> list[Said]:
        """Say what is still held. `complete`: the engine says that the model stopped; else the output was cut off."""
        return self._read(self._framing.close(complete=complete))

    def _read(self, pieces: Sequence[Piece]) -> list[Said]:
        said: list[Said] = []
        for piece in pieces:
            if type(piece) is Text:
                if self._sayer is not None:
                    said.append(self._sayer(piece))
                    self._said = True
            elif isinstance(piece, Opened):
                self._open(piece.header, said)
            elif isinstance(piece, Closed):
                self._close(piece, said)
        return said

    def _open(self, header: Header, said: list[Said]) -> None:
        self._said = self._is_reasoning = False
        self._sayer = None
        if header.role != "assistant":
            return
        recipient = header.recipient if header.recipient not in _NOBODY else None
        name = self._functions.called_by(recipient) if recipient else None
        if name is not None:
            self._sayer, self._said = _arguments, True
            said.append(CallStarted(name))
        elif recipient or header.channel == "analysis":
            self._sayer, self._is_reasoning = _reasoning, True
        else:
            self._sayer = self._message("commentary" if header.channel == "commentary" else "final_answer")

    def _close(self, closed: Closed, said: list[Said]) -> None:
        if self._is_reasoning:
            self._reasoned += closed.tokens
        if closed.end != "eos":
            if self._sayer is not None and not self._said and not self._is_reasoning:
                said.append(self._sayer(Text("")))
                self._said = True
            if self._said:
                said.append(ItemEnded())
            if self._sayer is _arguments and not self._parallel:
                self._framing.stopped = True
        self._sayer, self._is_reasoning, self._said = None, False, False

    def _message(self, phase: Phase) -> Sayer:
        def say(piece: Text) -> Said:
            return MessageSaid(piece.text, phase, [self._logprob(mark) for mark in piece.marks] if piece.marks else ())

        return say

    def _logprob(self, mark: Mark) -> dict[str, Any]:
        token, (logprob, others) = mark
        return {
            **_wire(self._vocabulary.bytes_of(token), logprob),
            "top_logprobs": [_wire(spelling, other[2]) for other in others if (spelling := self._spelling(*other[:2]))],
        }

    def _spelling(self, token: int | None, text: str) -> bytes:
        """The bytes of an alternative; empty for a special token, which is no text."""
        return (token is not None and self._vocabulary.bytes_of(token)) or text.encode("utf-8", "replace")


def _wire(spelling: bytes, logprob: float) -> dict[str, Any]:
    return {"token": spelling.decode("utf-8", "replace"), "bytes": list(spelling), "logprob": logprob}


def _reasoning(piece: Text) -> Said:
    return ReasoningSaid(piece.text)


def _arguments(piece: Text) -> Said:
    return ArgumentsSaid(piece.text)
