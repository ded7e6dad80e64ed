"""What a chat engine's chunks say: deltas in, the decider's vocabulary out."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from app.errors import EngineFailed
from app.models.chat_calls import Allowed, Calls, Fragment
from app.models.markup import Markup
from app.responses.said import Finished, FinishReason, MessageSaid, ReasoningSaid, Said, Usage

_BYTES_PER_TOKEN: Final = 4
_MANY: Final = 2**53  # no number of tokens reaches it
_REASONS: Final[Mapping[str, FinishReason]] = {"length": "length", "content_filter": "content_filter"}


class _Delta(msgspec.Struct):
    content: str | list[Any] | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Fragment] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None
    logprobs: Any = None


class _Chunk(msgspec.Struct):
    """What is said must make sense. Counts and logprobs only go with it: what makes none of them is left out."""

    choices: list[_Choice] | None = None
    usage: Any = None


class Listener:
    """One answer as it comes in.

    `tools`: whether markup may be a call. `allowed`: the functions that may be called, None for any. `prompt_bytes` is
    the size of the request, for upstreams that count nothing.
    """

    def __init__(self, *, tools: bool, allowed: Collection[str] | None, parallel: bool, prompt_bytes: int) -> None:
        self._markup = Markup(tools=tools, parallel=parallel)
        self._allowed = Allowed(allowed)
        self._calls = Calls(parallel=parallel)
        self._prompt_bytes = prompt_bytes
        self._lead, self._reasoned = "", False  # white space that reasoning may begin with, and whether it has begun
        self._logprobs: list[dict[str, Any]] = []  # of text that the markup holds
        self._later: list[Said] = []  # said while a call was open
        self._finish: str | None = None
        self._told: Any = None  # the upstream's usage
        self._deltas = self._thoughts = 0

    @property
    def usage(self) -> Usage:
        """The upstream's count; until it comes, or if it never does: every delta is a token, and so are 4 bytes."""
        told = self._told
        read = _count(told, "prompt_tokens", default=max(1, self._prompt_bytes // _BYTES_PER_TOKEN))
        written = _count(told, "completion_tokens", default=self._deltas)
        cached = _count(told, "prompt_tokens_details", "cached_tokens", default=0)
        thoughts = _count(told, "completion_tokens_details", "reasoning_tokens", default=self._thoughts)
        return Usage(read, written, cached_tokens=min(cached, read), reasoning_tokens=min(thoughts, written))

    def hear(self, chunk: Mapping[str, Any]) -> list[Said]:
        """What is clear with this chunk."""
        try:
            heard = msgspec.convert(chunk, _Chunk, strict=False)  # an index may come in letters
        except msgspec.ValidationError as error:
            raise EngineFailed("The engine sent something that makes no sense.") from error
        self._told = heard.usage or self._told
        if not heard.choices:
            return []
        choice = heard.choices[0]
        self._finish = choice.finish_reason or self._finish
        return self._allowed.hear(self._delta(choice.delta, choice.logprobs)) if choice.delta else []

    def end(self) -> list[Said]:
        """What is left, and the finish. Raises EngineFailed when the upstream gave no reason, or broke off."""
        if self._finish is None:
            raise EngineFailed("The engine's answer broke off before it was complete.")
        if self._finish in ("abort", "error"):
            raise EngineFailed("The engine aborted the generation.")
        reason = _REASONS.get(self._finish, "stop")
        said = self._between(self._with_logprobs(self._markup.end(cut=reason != "stop")))
        said += self._calls.end(cut=reason != "stop" and not self._later)
        return [*self._allowed.hear([*said, *self._later]), Finished(reason, self.usage)]

    def _delta(self, delta: _Delta, logprobs: Any) -> list[Said]:
        said: list[Said] = []
        thought, content = _parts(delta.content) if isinstance(delta.content, list) else ("", delta.content)
        reasoning, text = delta.reasoning or delta.reasoning_content or thought, content or delta.refusal
        if reasoning:
            said += self._between([*self._markup.reasoned(), *self._reasoning(reasoning)])
        if text:
            if logprobs is not None:
                self._logprobs += _wires(logprobs)
            said += self._between(self._with_logprobs(self._markup.feed(text)))
        if delta.tool_calls:
            said += self._between(self._with_logprobs(self._markup.interrupted()))
            said += self._calls.hear(delta.tool_calls)
        self._deltas += bool(reasoning or text or delta.tool_calls)
        self._thoughts += bool(reasoning or (text and self._markup.thinks))
        return said

    def _reasoning(self, text: str) -> list[Said]:
        """Reasoning that is only white space is none."""
        text, self._lead = self._lead + text, ""
        if not self._reasoned and not text.strip():
            self._lead = text
            return []
        self._reasoned = True
        return [ReasoningSaid(text)]

    def _between(self, said: list[Said]) -> list[Said]:
        """Text while a call is open: it ends a complete call, and waits for the end of any other."""
        if not said or not self._calls.open:
            return said
        ended = self._calls.settle()
        if self._calls.open:
            self._later += said
            return []
        return [*ended, *said]

    def _with_logprobs(self, said: list[Said]) -> list[Said]:
        """Give the logprobs that have come to the text that is clear now."""
        if not self._logprobs:
            return said
        first = next((i for i, one in enumerate(said) if isinstance(one, MessageSaid)), None)
        if first is not None and isinstance(one := said[first], MessageSaid):
            said[first] = msgspec.structs.replace(one, logprobs=_spelling(one.text, self._logprobs))
        if first is not None or not self._markup.holds:
            self._logprobs = []
        return said


def _count(usage: Any, *steps: str, default: int) -> int:
    """A number of tokens, wherever a usage has it."""
    told = usage
    for step in steps:
        told = told.get(step) if isinstance(told, Mapping) else None
    return int(told) if isinstance(told, int | float) and 0 <= told < _MANY else default


def _parts(content: Sequence[Any]) -> tuple[str, str]:
    """Reasoning and text of a content in parts, as Mistral's reasoning models have it."""
    reasoning = text = ""
    for part in content:
        match part:
            case {"type": "thinking", "thinking": list(inner)}:
                reasoning += "".join(_parts(inner))
            case {"type": "thinking", "thinking": str(thought)}:
                reasoning += thought
            case {"text": str(said)}:
                text += said
    return reasoning, text


def _spelling(text: str, logprobs: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Those that spell this text: white space and markup around it have logprobs, too. All, when none do."""
    for first in range(len(logprobs)):
        rest, last = text, first
        while rest and last < len(logprobs) and (token := logprobs[last]["token"]) and rest.startswith(token):
            rest, last = rest[len(token) :], last + 1
        if not rest:
            return logprobs[first:last]
    return logprobs


def _wires(logprobs: Any) -> list[dict[str, Any]]:
    """The logprobs of a chunk as the Responses API shows them."""
    match logprobs:
        case {"content": list(entries)}:
            return [
                {**token, "top_logprobs": _tokens(entry.get("top_logprobs"))}
                for entry in entries
                if (token := _token(entry))
            ]
    return []


def _tokens(entries: Any) -> list[dict[str, Any]]:
    return [token for entry in entries if (token := _token(entry))] if isinstance(entries, list) else []


def _token(entry: Any) -> dict[str, Any] | None:
    match entry:
        case {"token": str(token), "logprob": int() | float() as logprob}:
            return {"token": token, "bytes": entry.get("bytes") or list(token.encode()), "logprob": logprob}
    return None
