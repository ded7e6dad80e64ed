"""Markup that arrives inside text because the upstream has no parser for it: `<think>` and `<tool_call>`
(https://github.com/vllm-project/vllm/issues/36435).

Fed piece by piece; how the text was cut into pieces changes only where the pieces that come out are cut.
"""

import re
from collections.abc import Callable
from typing import Any, Final

import orjson

from app.responses.said import ArgumentsSaid, CallStarted, ItemEnded, MessageSaid, ReasoningSaid, Said

_THINK: Final = "<think>"
_THOUGHT: Final = "</think>"
_CALL: Final = "<tool_call>"
_CALLED: Final = "</tool_call>"
_CUT_CALL: Final = re.compile(r'\{\s*"name"\s*:\s*"([^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(\{.*)', re.DOTALL)


class Markup:
    """Splits text into reasoning, message and calls.

    `<think>` counts only at the very beginning, `<tool_call>` only when tools were offered. White space around markup
    belongs to it: it opens no message and no reasoning.
    """

    def __init__(self, *, tools: bool, parallel: bool = True) -> None:
        self._tools, self._parallel = tools, parallel
        self._state: Callable[[bool], list[Said]] = self._start
        self._held = ""
        self._body: list[str] = []  # of an open call, but for what is held
        self._lead = ""  # white space that may open a text
        self._blank = self._first = True  # nothing was said yet: of the current text, at all
        self._called = False

    @property
    def holds(self) -> bool:
        """Whether some text waits for what comes next."""
        return bool(self._held or self._body or self._lead)

    @property
    def thinks(self) -> bool:
        """Whether the text is reasoning now."""
        return self._state == self._reasoning

    def feed(self, text: str) -> list[Said]:
        """What is clear with this text."""
        self._held += text
        return self._run(final=False)

    def reasoned(self) -> list[Said]:
        """The upstream parses reasoning itself: text that follows is no `<think>`, its leading white space no text."""
        said = self.interrupted()
        self._first = False
        return said

    def interrupted(self) -> list[Said]:
        """Something else comes between: what was held as the beginning of markup was text after all."""
        if self._state in (self._start, self._message) and (self._held or self._lead):
            self._held = self._held.rstrip()
            said = self._run(final=True)
        else:
            said = []
        self._blank, self._lead = True, ""
        if self._state == self._start:
            self._state = self._message
        return said

    def end(self, *, cut: bool) -> list[Said]:
        """What is left at the end. `cut`: the answer broke off, so an open call stays open."""
        said = self._run(final=True)
        if self._state == self._call:
            said += self._told(_calls(self._take_body(self._held), cut=cut))
            self._held = ""
        return said

    def _run(self, *, final: bool) -> list[Said]:
        said: list[Said] = []
        while True:
            state = self._state
            said += state(final)
            if self._state == state:
                return said

    def _start(self, final: bool) -> list[Said]:
        text = self._held.lstrip()
        if text.startswith(_THINK):
            self._held, self._state, self._first = text.removeprefix(_THINK), self._reasoning, False
        elif final or not _THINK.startswith(text):
            self._state = self._message
        return []

    def _reasoning(self, final: bool) -> list[Said]:
        text, closed = self._until(_THOUGHT, final)
        if closed:
            self._state = self._message
        return [ReasoningSaid(text)] if text else []

    def _message(self, final: bool) -> list[Said]:
        if not self._tools:
            text, self._held = self._clear(self._held), ""
            return [MessageSaid(text)] if text else []
        text, closed = self._until(_CALL, final)
        if closed:
            self._state, self._first = self._call, False
        return [MessageSaid(text)] if text else []

    def _call(self, final: bool) -> list[Said]:  # noqa: ARG002 - one signature for all states
        body, tag, rest = self._held.partition(_CALLED)
        if not tag:
            end = _end(body, _CALLED)
            self._body.append(body[:end])
            self._held = body[end:]
            return []
        self._held, self._state = rest, self._message
        return self._told(_calls(self._take_body(body), cut=False))

    def _take_body(self, last: str) -> str:
        body, self._body = "".join([*self._body, last]), []
        return body

    def _until(self, tag: str, final: bool) -> tuple[str, bool]:
        """The text before a tag that is clear now, and whether the tag came."""
        text, found, rest = self._held.partition(tag)
        if found:
            self._held = rest
            clear = self._clear(text.rstrip())
            self._blank, self._lead = True, ""
            return clear, True
        cut = len(text) if final else _safe(text, tag)
        self._held = text[cut:]
        return self._clear(text[:cut]), False

    def _clear(self, text: str) -> str:
        """Text whose leading white space is kept only if nothing was said before it."""
        if not self._blank:
            return text
        self._lead += text
        if not self._lead.strip():
            return ""
        text, self._lead, self._blank = self._lead if self._first else self._lead.lstrip(), "", False
        self._first = False
        return text

    def _told(self, calls: list[Said]) -> list[Said]:
        """All calls of a block, or only the first of the answer."""
        kept: list[Said] = []
        for said in calls:
            if isinstance(said, CallStarted) and self._called and not self._parallel:
                break
            self._called = self._called or isinstance(said, CallStarted)
            kept.append(said)
        return kept


def _safe(text: str, tag: str) -> int:
    """How much of a text can't belong to a tag that is still coming, or to the white space before one."""
    return len(text[: _end(text, tag)].rstrip())


def _end(text: str, tag: str) -> int:
    """Where in a text a tag that is still coming may begin."""
    for size in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:size]):
            return len(text) - size
    return len(text)


def _calls(body: str, *, cut: bool) -> list[Said]:
    """The calls in a block. What can't be read is shown as text, without the markup: nothing a model says is lost."""
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return _broken(body.strip(), cut=cut)
    calls = parsed if isinstance(parsed, list) else [parsed]
    if not calls or not all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls):
        return _broken(body.strip(), cut=False)
    return [said for call in calls for said in (CallStarted(call["name"]), ArgumentsSaid(_text(call)), ItemEnded())]


def _text(call: dict[str, Any]) -> str:
    arguments = call.get("arguments", call.get("parameters", {}))
    return arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()


def _broken(body: str, *, cut: bool) -> list[Said]:
    if cut and (begun := _CUT_CALL.match(body)):
        return [CallStarted(begun[1]), ArgumentsSaid(begun[2])]
    return [MessageSaid(body)] if body else []
