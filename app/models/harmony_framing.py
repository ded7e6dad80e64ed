"""The lower half of the harmony decoder: token ids to messages, tolerant of everything that models really write.

Stop tokens are `<|return|>`, `<|call|>` and `<|endoftext|>`; nothing after one exists. A message that is not closed is
closed by the next header. Special tokens inside a text are dropped. Nothing here raises.
"""

from codecs import utf_8_decode
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from app.models.harmony_header import End, Header, Opening, Section, is_prose, read_header, read_unmarked
from app.models.vocabulary import FIRST_SPECIAL

END_OF_TEXT: Final = 199_999
RETURN: Final = 200_002
CONSTRAIN: Final = 200_003
CHANNEL: Final = 200_005
START: Final = 200_006
END: Final = 200_007
MESSAGE: Final = 200_008
CALL: Final = 200_012

STOPS: Final[dict[int, End]] = {RETURN: "return", CALL: "call", END_OF_TEXT: "return"}
_SECTIONS: Final[dict[int, Section]] = {CHANNEL: "channel", CONSTRAIN: "constrain"}

Mark = tuple[int, Any]  # a token of a text, and the engine's logprob entry for it


class Opened(msgspec.Struct, frozen=True):
    """A message begins."""

    header: Header


class Text(msgspec.Struct, frozen=True):
    """Whole code points of the open message. `marks` are the tokens that made them, when logprobs were given."""

    text: str
    marks: Sequence[Mark] = ()


class Closed(msgspec.Struct, frozen=True):
    """The open message is over; `tokens` counts its header, its text and its end."""

    end: End
    tokens: int


Piece = Opened | Text | Closed


class Framing:
    """Feed it what follows `<|start|>assistant`. How the tokens are chunked never changes the messages."""

    __slots__ = ("_began", "_in_text", "_marks", "_opening", "_pending", "_sections", "_table", "seen", "stopped")

    def __init__(self, table: Sequence[bytes]) -> None:
        self._table = table
        self._opening = Opening.PROMPT
        self._sections: list[tuple[Section, bytearray]] = [("role", bytearray())]
        self._in_text = False
        self._pending = b""  # the beginning of a character
        self._marks: list[Mark] = []  # of the tokens that `_pending` is from
        self._began = 0  # how many tokens had been seen when this message began
        self.seen = 0
        self.stopped = False

    @property
    def holds_nothing(self) -> bool:
        """Whether everything that was fed has had its whole effect."""
        if self._in_text:
            return not self._pending
        return self.stopped or (self._opening is not Opening.START and self._header_is_empty())

    @property
    def message_tokens(self) -> int:
        """Tokens of the message under way, its header included."""
        return self.seen - self._began

    def feed(self, tokens: Sequence[int], entries: Sequence[Any] = ()) -> list[Piece]:
        """Take tokens (and, when logprobs are wanted, one entry for each); nothing is taken after a stop."""
        pieces: list[Piece] = []
        start = 0
        for i, token in enumerate(tokens):
            if self.stopped:
                return pieces
            if not 0 <= token < FIRST_SPECIAL:
                if i > start:
                    self._run(tokens[start:i], entries[start:i], pieces)
                self._marker(token, pieces)
                start = i + 1
        if start < len(tokens) and not self.stopped:
            self._run(tokens[start:], entries[start:], pieces)
        return pieces

    def close(self, *, complete: bool) -> list[Piece]:
        """The output is over: `complete` when the engine says that the model stopped, else it was cut off."""
        pieces: list[Piece] = []
        if self.stopped:
            return pieces
        if complete:
            self._close("return", pieces)
        elif self._in_text or is_prose(self._decoded()):
            self._close("eos", pieces)
        self.stopped = True
        return pieces

    def _run(self, tokens: Sequence[int], entries: Sequence[Any], pieces: list[Piece]) -> None:
        """Ordinary tokens in a row."""
        self.seen += len(tokens)
        table = self._table
        data = table[tokens[0]] if len(tokens) == 1 else b"".join([table[token] for token in tokens])
        if not self._in_text:
            self._sections[-1][1].extend(data)
            return
        if self._pending:
            data = self._pending + data
        text, used = utf_8_decode(data, "replace", False)
        self._pending = data[used:] if used < len(data) else b""
        marks: Sequence[Mark] = self._ripe_marks(tokens, entries) if entries else ()
        if text:
            pieces.append(Text(text, marks))

    def _ripe_marks(self, tokens: Sequence[int], entries: Sequence[Any]) -> Sequence[Mark]:
        """The tokens whose bytes are all text by now; those that reach into `_pending` stay for later."""
        self._marks.extend(zip(tokens, entries, strict=False))
        cut, held = len(self._marks), len(self._pending)
        while held > 0 and cut > 0:
            cut -= 1
            held -= len(self._table[self._marks[cut][0]])
        ripe, self._marks = self._marks[:cut], self._marks[cut:]
        return ripe

    def _marker(self, token: int, pieces: list[Piece]) -> None:
        if token == START or (token == CHANNEL and self._in_text):
            if self._in_text or not self._header_is_empty():
                self._close("implicit", pieces)
            self._opening = Opening.START if token == START else Opening.MISSING
        self.seen += 1
        if token in STOPS:
            self._close(STOPS[token], pieces)
            self.stopped = True
        elif token == END:
            self._close("end", pieces)
        elif self._in_text:
            return
        elif token in _SECTIONS:
            self._sections.append((_SECTIONS[token], bytearray()))
        elif token == MESSAGE:
            pieces.append(Opened(read_header(self._decoded(), self._opening)))
            self._in_text = True

    def _close(self, end: End, pieces: list[Piece]) -> None:
        """Close the open message, or find the one in a header without `<|message|>`; then expect another."""
        unmarked = None if self._in_text else read_unmarked(self._decoded(), self._opening, end)
        if unmarked:
            header, body = unmarked
            pieces.append(Opened(header))
            if body:
                pieces.append(Text(body))
        elif self._pending:
            text, _ = utf_8_decode(self._pending, "replace", True)
            pieces.append(Text(text, tuple(self._marks)))
        if unmarked or self._in_text:
            pieces.append(Closed(end, self.message_tokens))
        self._opening = Opening.MISSING
        self._sections = [("role", bytearray())]
        self._in_text, self._pending, self._marks, self._began = False, b"", [], self.seen

    def _header_is_empty(self) -> bool:
        return len(self._sections) == 1 and not self._sections[0][1]

    def _decoded(self) -> list[tuple[Section, str]]:
        return [(kind, data.decode("utf-8", "replace")) for kind, data in self._sections]
