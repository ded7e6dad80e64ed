"""A request and its items as a chat-completions body. The upstream applies the chat template.

Templates are strict: one system message, at the beginning; one assistant message per turn with its reasoning,
text and calls, directly followed by the results of these calls.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from app.errors import InvalidRequest, UnsupportedValue
from app.models.chat_options import options
from app.responses.request import Item, Request

_TEXT_KEYS: Final[Mapping[str, str]] = {
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "reasoning_text": "text",
    "summary_text": "text",
}
_SYSTEM_ROLES: Final = frozenset({"system", "developer"})
_DETAILS: Final[Mapping[str, str]] = {"original": "high"}  # chat completions know auto, low and high


def render_body(request: Request, items: Sequence[Item], *, model: str, images: bool) -> dict[str, Any]:
    """The body. `images`: whether the model takes pictures. Raises InvalidRequest naming a part it can't be given."""
    history = _History(request, items, images)
    for index, item in enumerate(items):
        history.add(index, item)
    return {
        "model": model,
        "messages": history.messages(),
        "stream": True,
        "stream_options": {"include_usage": True},
        **options(request),
    }


def dump_body(body: Mapping[str, Any]) -> bytes:
    """The stored form. Raises InvalidRequest for text that is no Unicode."""
    try:
        return orjson.dumps(body)
    except orjson.JSONEncodeError:
        raise InvalidRequest("The input has half of a surrogate pair: that is no character.", param="input") from None


@dataclass(slots=True)
class _Assistant:
    """An assistant turn under construction: all that comes before the next user message or tool result."""

    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)

    def message(self) -> dict[str, Any] | None:
        """The message, None when it would say nothing. Reasoning alone is nothing: no template takes it."""
        if not self.texts and not self.calls:
            return None
        message: dict[str, Any] = {"role": "assistant", "content": "\n\n".join(self.texts) or None}
        if self.reasoning:
            message["reasoning"] = "\n\n".join(self.reasoning)
        if self.calls:
            message["tool_calls"] = self.calls
        return message


class _History:
    """Items become messages, one after the other."""

    def __init__(self, request: Request, items: Sequence[Item], images: bool) -> None:
        self._images = images
        self._own_from = len(items) - len(request.items)  # what stands before comes from earlier responses
        # models are trained to see the reasoning of the tool calls they are at, not that of earlier turns
        self._turn_from = max((i for i, item in enumerate(items) if item.get("role") == "user"), default=-1)
        self._system = [request.instructions] if request.instructions else []
        self._messages: list[dict[str, Any]] = []
        self._open = _Assistant()
        self._calls: set[str] = set()
        self._results: dict[str, dict[str, Any]] = {}

    def add(self, index: int, item: Item) -> None:
        """The next item."""
        match item["type"]:
            case "message":
                self._message(index, item)
            case "reasoning":
                if index > self._turn_from and (text := _reasoning(item)):
                    self._open.reasoning.append(text)
            case "function_call":
                self._call(item)
            case "function_call_output":
                self._result(index, item)
            case other:
                raise UnsupportedValue(f"Items of type '{other}' are not supported here.", param=self._at(index))

    def messages(self) -> list[dict[str, Any]]:
        """All messages, each call followed by its result."""
        self._close()
        system = [{"role": "system", "content": "\n\n".join(self._system)}] if self._system else []
        return system + [one for message in self._messages for one in (message, *self._results_of(message))]

    def _message(self, index: int, item: Item) -> None:
        role = item["role"]
        content = self._content(item["content"], f"{self._at(index)}.content", pictures=role == "user")
        if role == "user":
            self._close()
            self._messages.append({"role": "user", "content": content})
        elif content:
            (self._system if role in _SYSTEM_ROLES else self._open.texts).append(str(content))

    def _call(self, item: Item) -> None:
        if item["call_id"] in self._calls:
            return  # the same call twice in the history is one call
        self._calls.add(item["call_id"])
        function = {"name": item["name"], "arguments": _arguments(item["arguments"])}
        self._open.calls.append({"id": item["call_id"], "type": "function", "function": function})

    def _result(self, index: int, item: Item) -> None:
        call_id, output = item["call_id"], item["output"]
        if call_id not in self._calls:
            raise InvalidRequest(f"No tool call found for function call output with call_id {call_id}.", param="input")
        self._close()
        parts = [{"type": "input_text", "text": output}] if isinstance(output, str) else output
        content = self._content(parts, f"{self._at(index)}.output", pictures=True)
        self._results.setdefault(call_id, {"role": "tool", "tool_call_id": call_id, "content": content})

    def _results_of(self, message: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
        ids = [call["id"] for call in message.get("tool_calls", ())]
        return [self._results[call_id] for call_id in ids if call_id in self._results]

    def _close(self) -> None:
        if message := self._open.message():
            self._messages.append(message)
        self._open = _Assistant()

    def _content(self, parts: Sequence[Mapping[str, Any]], at: str, *, pictures: bool) -> str | list[dict[str, Any]]:
        """The parts as one text, or as a list when there is a picture among them."""
        rendered = [self._part(part, f"{at}[{i}]", pictures=pictures) for i, part in enumerate(parts)]
        if any(part["type"] == "image_url" for part in rendered):
            return rendered
        return "".join(part["text"] for part in rendered)

    def _part(self, part: Mapping[str, Any], at: str, *, pictures: bool) -> dict[str, Any]:
        kind = part["type"]
        if kind in _TEXT_KEYS:
            return {"type": "text", "text": part[_TEXT_KEYS[kind]]}
        if kind != "input_image":
            raise UnsupportedValue(f"This model takes no parts of type '{kind}'.", param=at)
        if not (self._images and pictures):
            raise UnsupportedValue("This model takes no images here.", param=at)
        if not part.get("image_url"):
            raise UnsupportedValue("An image must be given as a URL or as a data URL in `image_url`.", param=at)
        detail = part.get("detail") or "auto"
        return {"type": "image_url", "image_url": {"url": part["image_url"], "detail": _DETAILS.get(detail, detail)}}

    def _at(self, index: int) -> str:
        own = index - self._own_from
        return f"input[{own}]" if own >= 0 else "previous_response_id"


def _reasoning(item: Item) -> str:
    parts = item.get("content") or item.get("summary") or ()
    return "".join(part["text"] for part in parts)


def _arguments(text: str) -> str:
    """Arguments that every template can take: they are parsed there, and a cut call would refuse the whole history."""
    try:
        parsed = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        parsed = None
    return (text or "{}") if isinstance(parsed, dict) else orjson.dumps({"arguments": text}).decode()
