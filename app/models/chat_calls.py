"""Tool calls of a chat stream: fragments in any order become calls told one after the other.

Upstreams differ: ids are repeated, missing or new with every fragment, names come in pieces or never, indexes are left
out, used twice or interleaved. None of that may stop a stream (vLLM #52418, #55284).
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import orjson

from app.responses.said import ArgumentsSaid, CallStarted, ItemEnded, MessageSaid, ReasoningSaid, Said


class Function(msgspec.Struct):
    """The function of a fragment. Some upstreams send arguments as an object."""

    name: str | None = None
    arguments: str | dict[str, Any] | list[Any] | None = None


class Fragment(msgspec.Struct):
    """One element of `delta.tool_calls`."""

    index: int | None = None
    id: str | int | None = None
    function: Function | None = None


@dataclass(slots=True)
class _Call:
    id: str | int | None = None
    name: str = ""
    pending: str = ""  # arguments that were not told yet
    told: list[str] = field(default_factory=list)
    depth: int = 0  # of braces, those in strings included: cheaper than to parse what can't be whole

    @property
    def begun(self) -> bool:
        return bool(self.pending or self.told)

    @property
    def called(self) -> str:
        """The function."""
        return self.name.strip()

    @property
    def whole(self) -> bool:
        """Whether all that came so far is a whole JSON object."""
        return self.depth == 0 and _is_object([*self.told, self.pending] if self.pending else self.told)

    def hear(self, function: Function) -> None:
        if function.name and self.begun and self.whole:
            return  # the same call once more
        if function.name and not self.begun and function.name != self.name:
            self.name += function.name
        arguments = "" if function.arguments is None else function.arguments
        text = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
        self.depth += text.count("{") - text.count("}")
        self.pending += text

    def tell(self) -> list[Said]:
        """The start waits for the arguments: until then the name may grow, and white space alone is none."""
        if not (self.called and (self.pending if self.told else self.pending.strip())):
            return []
        said: list[Said] = [ArgumentsSaid(self.pending)]
        if not self.told:
            said.insert(0, CallStarted(self.called))
        self.told.append(self.pending)
        self.pending = ""
        return said

    def complete(self) -> bool:
        """Whether the arguments told so far are a whole JSON object."""
        return _is_object(self.told)

    def finish(self, *, cut: bool) -> list[Said]:
        """What is left of the call. Without a name it is no call: its text is shown, nothing is lost."""
        if not self.called:
            return [MessageSaid(self.pending)] if self.pending.strip() else []
        said = self.tell()
        if not self.told:
            said += [CallStarted(self.called)] if cut else [CallStarted(self.called), ArgumentsSaid("{}")]
        return said if cut else [*said, ItemEnded()]


class Calls:
    """The calls of one answer. `parallel` false: all but the first are ignored."""

    def __init__(self, *, parallel: bool) -> None:
        self._parallel = parallel
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._newest: _Call | None = None
        self._current = 0  # the call that is being told

    @property
    def open(self) -> bool:
        """Whether a call has come that has not ended yet."""
        return self._current < len(self._calls)

    def hear(self, fragments: Iterable[Fragment]) -> list[Said]:
        """What is clear with these fragments."""
        for fragment in fragments:
            function = fragment.function or Function()
            call = self._call_of(fragment, function)
            call.id = call.id or fragment.id
            call.hear(function)
        said: list[Said] = []
        while self.open:
            said += self._calls[self._current].tell()
            if self._current == len(self._calls) - 1 or not self._calls[self._current].complete():
                break
            said += self.settle()
        return said

    def settle(self) -> list[Said]:
        """End the call that is being told, if it is complete."""
        if not self.open or not self._calls[self._current].complete():
            return []
        self._current += 1
        return [ItemEnded()]

    def end(self, *, cut: bool) -> list[Said]:
        """All that is left. `cut`: the last call broke off and stays open."""
        left, self._current = self._calls[self._current :], len(self._calls)
        return [said for call in left for said in call.finish(cut=cut and call is left[-1])]

    def _call_of(self, fragment: Fragment, function: Function) -> _Call:
        known = self._newest if fragment.index is None else self._by_index.get(fragment.index)
        if known is None or _opens_another(known, fragment, function):
            known = _Call()
            if self._parallel or not self._calls:
                self._calls.append(known)
        self._newest = known
        if fragment.index is not None:
            self._by_index[fragment.index] = known
        return known


def _opens_another(known: _Call, fragment: Fragment, function: Function) -> bool:
    """Whether a fragment with the same index, or none, is nevertheless another call.

    It has a name again, and a new id; or no id, and arguments behind those that are whole.
    """
    if not (known.begun and function.name):
        return False
    if fragment.id and known.id:
        return fragment.id != known.id
    return bool(function.arguments) and known.whole


def _is_object(pieces: Sequence[str]) -> bool:
    if not pieces or not pieces[-1].rstrip().endswith("}"):
        return False
    try:
        return isinstance(orjson.loads("".join(pieces)), dict)
    except orjson.JSONDecodeError:
        return False


class Allowed:
    """Holds an upstream to the functions that a request allows; None: to any.

    Another call is shown as reasoning, as the harmony decoder does: not lost, and never a call that nobody can answer.
    """

    def __init__(self, names: Collection[str] | None) -> None:
        self._names = names
        self._refused = False  # whether the call that is being told is not allowed

    def hear(self, said: list[Said]) -> list[Said]:
        """The same, with calls that are not allowed as reasoning."""
        return said if self._names is None else [self._judged(one, self._names) for one in said]

    def _judged(self, said: Said, names: Collection[str]) -> Said:
        if isinstance(said, CallStarted):
            self._refused = said.name not in names
            return ReasoningSaid(said.name) if self._refused else said
        return ReasoningSaid(said.text) if self._refused and isinstance(said, ArgumentsSaid) else said
