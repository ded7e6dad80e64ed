"""Items to harmony messages: what a conversation looks like to gpt-oss.

Reasoning before the last answer is dropped, that of the turn under way is kept. A call is rendered token by token as
the model generated it. Roles `system` and `developer` are both developer messages, where they stand.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from openai_harmony import Author, Message, Role, TextContent

from app.errors import InvalidRequest, UnsupportedValue
from app.models.harmony_decoder import PREFIX
from app.responses.request import Item

INSTRUCTIONS: Final = "# Instructions\n\n"
_PIECE: Final = 1_000
# Matched, not searched: what was passed over once is never looked at again, so that a text costs its length.
_LONG_RUN: Final = re.compile(
    rf"(?:\S{{1,{_PIECE - 1}}}+(?!\S)|\s{{1,{_PIECE - 1}}}+(?!\s))*+"
    rf"(?:\S{{{_PIECE}}}|\s{{{_PIECE - 1}}}(?:\r\n|\s))"  # one line end is never cut in two
)
_STRETCH: Final = 32_768
_WORD_END: Final = re.compile(r"\w(?= \w)")
_TEXT_PARTS: Final = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}


def pieces_of(text: str) -> list[str]:
    """A text in pieces, none of which takes long to encode.

    A run without a break is cut, because encoding one takes time with the square of its length. A long text is cut
    where a word ends: its tokens stay the same there.
    """
    return [piece for run in _cut(text, _LONG_RUN.match) for piece in _cut(run, _stretch)]


def _stretch(text: str, start: int) -> re.Match[str] | None:
    return _WORD_END.search(text, start + _STRETCH)


def _cut(text: str, find: Callable[[str, int], re.Match[str] | None]) -> list[str]:
    """Cut behind each find; the first that there is none ends it."""
    pieces, start = [], 0
    while found := find(text, start):
        pieces.append(text[start : found.end()])
        start = found.end()
    return [*pieces, text[start:]] if start < len(text) or not pieces else pieces


def contents_of(text: str) -> list[TextContent]:
    """A text as content pieces."""
    return [TextContent(text=piece) for piece in pieces_of(text)]


class Conversation:
    """The items of one prompt. The last `own` of them are the request's input: errors name their place there."""

    def __init__(self, items: Sequence[Item], own: int) -> None:
        self._items = items
        self._offset = len(items) - own
        self._names = {item["call_id"]: item["name"] for item in items if item["type"] == "function_call"}
        self._led = self._count_leading()

    def leading_instructions(self) -> list[str]:
        """The texts of the system and developer items that stand before everything else."""
        return [self._message_text(i) for i in range(self._led)]

    def messages(self) -> Iterator[Message]:
        """Everything after the leading instructions."""
        answered = max((i for i in range(len(self._items)) if self._is_answer(i)), default=-1)
        for i in range(self._led, len(self._items)):
            item = self._items[i]
            match item["type"]:
                case "message":
                    yield self._message(i)
                case "reasoning":
                    thought = self._reasoning_text(i) if i > answered else ""
                    if thought:
                        yield _assistant(thought, "analysis")
                case "function_call":
                    yield self._call(i)
                case "function_call_output":
                    yield self._output(i)
                case other:
                    raise UnsupportedValue(f"This model cannot take an item of type '{other}'.", param=self._place(i))

    def _place(self, i: int) -> str:
        return f"input[{i - self._offset}]" if i >= self._offset else "input"

    def _count_leading(self) -> int:
        for i, item in enumerate(self._items):
            if item["type"] != "message" or item["role"] not in ("system", "developer"):
                return i
        return len(self._items)

    def _is_answer(self, i: int) -> bool:
        item = self._items[i]
        return item["type"] == "message" and item["role"] == "assistant" and self._channel(i) == "final"

    def _channel(self, i: int) -> str:
        """A message before a call of the same turn is a preamble, also when the client lost its `phase`."""
        phase = self._items[i].get("phase")
        if phase is not None:
            return "commentary" if phase == "commentary" else "final"
        types = (self._items[j]["type"] for j in range(i + 1, len(self._items)))
        following = next((kind for kind in types if kind != "reasoning"), None)
        return "commentary" if following == "function_call" else "final"

    def _message(self, i: int) -> Message:
        text = self._message_text(i)
        match self._items[i]["role"]:
            case "user":
                return Message.from_role_and_contents(Role.USER, contents_of(text))
            case "assistant":
                return _assistant(text, self._channel(i))
            case "system" | "developer":
                return Message.from_role_and_contents(Role.DEVELOPER, contents_of(INSTRUCTIONS + text))
            case other:
                raise InvalidRequest(f"Unknown role '{other}'.", param=f"{self._place(i)}.role")

    def _call(self, i: int) -> Message:
        """Channel first, as the model writes it; openai_harmony by itself would put the recipient first."""
        item = self._items[i]
        arguments = self._text(item["arguments"], f"{self._place(i)}.arguments")
        channel = f"commentary to={PREFIX}{self._text(item['name'], f'{self._place(i)}.name')}"
        return _assistant(arguments, channel).with_recipient("all").with_content_type("<|constrain|>json")

    def _output(self, i: int) -> Message:
        item = self._items[i]
        name = self._names.get(item["call_id"])
        if name is None:
            sentence = f"No tool call found for function call output with call_id {item['call_id']}."
            raise InvalidRequest(sentence, param="input")
        text = self._joined(item["output"], f"{self._place(i)}.output")
        author = Author(role=Role.TOOL, name=f"{PREFIX}{name}")
        return Message(author=author, content=contents_of(text)).with_recipient("assistant").with_channel("commentary")

    def _reasoning_text(self, i: int) -> str:
        item = self._items[i]
        parts = item.get("content") or item.get("summary") or ()
        return self._text("".join(part["text"] for part in parts), f"{self._place(i)}.content")

    def _message_text(self, i: int) -> str:
        return self._joined(self._items[i]["content"], f"{self._place(i)}.content")

    def _joined(self, content: str | Sequence[Mapping[str, Any]], place: str) -> str:
        if isinstance(content, str):
            return self._text(content, place)
        return "".join(self._part(part, f"{place}[{j}]") for j, part in enumerate(content))

    def _part(self, part: Mapping[str, Any], place: str) -> str:
        field = _TEXT_PARTS.get(part["type"])
        if field is None:
            raise UnsupportedValue(f"This model reads text only, not '{part['type']}'.", param=place)
        return self._text(part[field], place)

    @staticmethod
    def _text(text: str, place: str) -> str:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest("The text holds half a surrogate pair, so it is not Unicode.", param=place) from error
        return text


def _assistant(text: str, channel: str) -> Message:
    return Message.from_role_and_contents(Role.ASSISTANT, contents_of(text)).with_channel(channel)
