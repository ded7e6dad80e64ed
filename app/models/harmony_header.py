"""What the header of a harmony message says, however badly the model wrote it.

A header is the text between `<|start|>` and `<|message|>`, cut into sections by `<|channel|>` and `<|constrain|>`. Here
is every tolerance about headers; nothing in it raises.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, Literal

End = Literal["end", "return", "call", "eos", "implicit"]
Section = Literal["role", "channel", "constrain"]


class Opening(Enum):
    """How a header came about: the prompt holds its start, a `<|start|>` was generated, or the model forgot it."""

    PROMPT = "prompt"
    START = "start"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Header:
    """Who speaks on which channel to whom. `name` is set for tools only."""

    role: str = "assistant"
    name: str | None = None
    channel: str | None = None
    recipient: str | None = None
    content_type: str | None = None


CONTENT_TYPES: Final = frozenset({"json", "code", "text"})
_ROLES: Final = frozenset({"user", "system", "developer", "tool"})
_CHANNEL: Final = re.compile(r"analysis|commentary|final")
_TO: Final = re.compile(r"to=\s*([^\s<{]+)")
_WORD: Final = re.compile(r"\s*([\w.\-]+)")
_ASSISTANT: Final = re.compile(r"\s*assistant(?=\s*$|\s*to=|\s*(?:analysis|commentary|final)\b)")
_TOOL: Final = re.compile(r"\s*([^\s=]+)\s+to=assistant\b")
_BUILT_IN: Final = re.compile(r"(?:python|browser|container|functions)(?:\.|$)")
# What may stand before the body in the last section of a header without `<|message|>`.
_BEFORE_BODY: Final[dict[Section, re.Pattern[str]]] = {
    "role": re.compile(r"\s*(?:to=\s*[^\s<{]+)?\s*"),
    "channel": re.compile(r"\s*(?:analysis|commentary|final)?\s*(?:to=\s*[^\s<{]+)?\s*(?:json|code)?\s*"),
    "constrain": re.compile(r"\s*(?:json|code|text)?\s*(?:to=\s*[^\s<{]+)?\s*"),
}


def read_header(sections: Sequence[tuple[Section, str]], opening: Opening) -> Header:
    """The header that a `<|message|>` closed. Words that mean nothing are dropped; the last known channel wins."""
    header, rest = _author(sections[0][1], opening)
    for kind, text in [("role", rest), *sections[1:]]:
        header = _with_section(header, kind, text)
    if header.channel is None and header.role == "assistant":
        return replace(header, channel="commentary" if header.recipient else "final")
    return header


def read_unmarked(sections: Sequence[tuple[Section, str]], opening: Opening, end: End) -> tuple[Header, str] | None:
    """Header and body of a message that ended without `<|message|>`; None when there is no message in it.

    Text without a channel is an answer when the turn ends with it, and reasoning when the model went on.
    """
    author, rest = _author(sections[0][1], opening)
    kind, last = sections[-1] if len(sections) > 1 else ("role", rest)
    before = _BEFORE_BODY[kind].match(last)
    cut = before.end() if before else 0
    inner = [*sections[1:-1], (kind, last[:cut])]
    if len(sections) > 1:
        inner.insert(0, ("role", rest))
    header = author
    for each, text in inner:
        header = _with_section(header, each, text)
    body = last[cut:]
    if not body.strip() and not (end == "call" and header.recipient):
        return None
    if header.channel is None:
        header = replace(header, channel=_channel_of_bare_text(header, end))
    return header, body


def is_prose(sections: Sequence[tuple[Section, str]]) -> bool:
    """Whether an unfinished header is clearly an answer without a header: several words, no marker, no recipient."""
    words = sections[0][1].split()
    return len(sections) == 1 and len(words) > 2 and not _TO.search(sections[0][1])


def _channel_of_bare_text(header: Header, end: End) -> str:
    if header.recipient:
        return "commentary"
    return "analysis" if end in {"end", "implicit"} else "final"


def _author(text: str, opening: Opening) -> tuple[Header, str]:
    """Who speaks, and what the role section says after it."""
    echoed = _TOOL.match(text)
    if echoed and echoed[1] != "assistant":
        return Header("tool", echoed[1]), text[echoed.end(1) :]
    if opening is Opening.START:
        return _named_author(text)
    said = _ASSISTANT.match(text)
    return Header(), text[said.end() :] if said else text


def _named_author(text: str) -> tuple[Header, str]:
    found = _WORD.match(text)
    word = found[1] if found else ""
    if word.startswith("assistant"):
        return Header(), text[text.index("assistant") + len("assistant") :]
    if found and word in _ROLES:
        return Header(word), text[found.end() :]
    if found and _BUILT_IN.match(word):
        return Header("tool", word), text[found.end() :]
    return Header(), text


def _with_section(header: Header, kind: str, text: str) -> Header:
    to = _TO.search(text)
    words = _TO.sub(" ", text).replace("<|", " <|").split()
    recipient = header.recipient or (to[1] if to else None)
    if kind == "constrain":
        return replace(header, recipient=recipient, content_type=words[0] if words else header.content_type)
    known = _CHANNEL.match(words[0]) if words else None
    content_type = next((word for word in words if word in CONTENT_TYPES), header.content_type)
    channel = known[0] if known else header.channel
    return replace(header, channel=channel, recipient=recipient, content_type=content_type)
