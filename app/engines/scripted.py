"""Engines that say what a script tells them: for tests, and for people who test their own clients.

Outputs are taken in order, the last one repeats; those with a `match` only by prompts that contain it. No randomness.
A prompt that already ends inside a scripted answer continues that answer, in whichever process: what a crash or a fault
broke off goes on token-exactly.
"""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import orjson

from app.engines.scripts import DEFAULT, Fault, Output, Piece, ToolCall
from app.errors import EngineError, EngineFailed, EngineRefused, EngineStalled
from app.ports import ModelCard, Sampling, Tokens

_CONTEXT: Final = 131072
_LOGPROB: Final = -0.1
_LOOK_SECONDS: Final = 0.02  # how often a held output looks for its file
_CRASHED: Final = 70  # the exit code of a scripted crash


class _Outputs:
    """The outputs, in the order in which requests take them. Remembers how often each was taken and each fault met."""

    def __init__(self, outputs: Sequence[Output]) -> None:
        self.outputs = list(outputs)
        self._taken: Counter[int] = Counter()
        self._struck: Counter[int] = Counter()

    def next_for(self, contains: Callable[[str], bool]) -> int:
        """The index of the output for a new prompt; the last one that fits repeats. DEFAULT's when none fits."""
        fitting = [i for i, output in enumerate(self.outputs) if output.match is None or contains(output.match)]
        fresh = [i for i in fitting if self._taken[i] < self.outputs[i].repeat]
        if not fitting:
            raise EngineRefused("No scripted output fits this prompt.", status=400)
        # an output that asks for a text stands before those that take everything
        index = next((i for i in fresh if self.outputs[i].match), (fresh or fitting[-1:])[0])
        self._taken[index] += 1
        return index

    def fault(self, index: int, *, start: int) -> Fault | None:
        """The fault that a generation from `start` runs into."""
        fault = self.outputs[index].fault
        if fault is None or (start and start >= fault.after) or (fault.times and self._struck[index] >= fault.times):
            return None
        return fault

    def strike(self, index: int) -> None:
        """A fault was met."""
        self._struck[index] += 1


class ScriptedTokens:
    """A TokenEngine over a script. `encode` makes tokens of model-side text, markers included."""

    def __init__(
        self,
        encode: Callable[[str], Sequence[int]],
        decode: Callable[[Sequence[int]], str],
        outputs: Sequence[Output] = (DEFAULT,),
        *,
        models: Sequence[str] = ("scripted",),
        stall_seconds: float = 120.0,
    ) -> None:
        self._outputs, self._decode = _Outputs(outputs), decode
        self._tokens = [list(encode(output.as_text())) for output in outputs]
        self._models, self._stall_seconds = tuple(models), stall_seconds

    async def cards(self) -> Sequence[ModelCard]:
        """The models by whose names it answers."""
        return [ModelCard(model, _CONTEXT, owned_by="scripted") for model in self._models]

    async def generate(
        self,
        model: str,  # noqa: ARG002 - a script speaks for all models
        prompt: Sequence[int],
        sampling: Sampling,
    ) -> AsyncGenerator[Tokens, None]:
        """The next output, or the rest of the one that the prompt ends in."""
        index, start = self._place(list(prompt))
        output, said = self._outputs.outputs[index], self._tokens[index][start:]
        end, finish = _cut(said, sampling, output.finish or "stop")
        play = _Play(output, self._outputs.fault(index, start=start), start, self._stall_seconds)
        try:
            play.refuse()
            yield Tokens()
            async for begin, until in play.chunks(end):
                chunk = said[begin:until]
                last = until == end
                logprobs = [] if sampling.logprobs is None else [(_LOGPROB, [(t, "", _LOGPROB)]) for t in chunk]
                yield Tokens(chunk, logprobs, finish if last else None, output.cached_tokens if last else None)
        except EngineError:
            self._outputs.strike(index)
            raise
        if not end:
            yield Tokens((), (), finish, output.cached_tokens)

    async def close(self) -> None:
        """There is nothing to close."""

    def _place(self, prompt: list[int]) -> tuple[int, int]:
        """Which output, from which of its tokens on."""
        text = self._decode(prompt) if any(output.match for output in self._outputs.outputs) else ""
        begun = [
            (n, output.match is not None, -i)
            for i, (output, tokens) in enumerate(zip(self._outputs.outputs, self._tokens, strict=True))
            if (output.match is None or output.match in text) and (n := _overlap(prompt, tokens))
        ]
        if begun:
            longest, _, place = max(begun)
            return -place, longest
        return self._outputs.next_for(lambda wanted: wanted in text), 0


class ScriptedChat:
    """A ChatEngine over a script."""

    def __init__(
        self,
        outputs: Sequence[Output] = (DEFAULT,),
        *,
        models: Sequence[str] = ("scripted",),
        stall_seconds: float = 120.0,
    ) -> None:
        self._outputs = _Outputs(outputs)
        self._models, self._stall_seconds = tuple(models), stall_seconds

    async def cards(self) -> Sequence[ModelCard]:
        """The models by whose names it answers."""
        return [ModelCard(model, _CONTEXT, owned_by="scripted") for model in self._models]

    async def complete(self, body: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        """The next output as chunks, the usage at the end."""
        messages = orjson.dumps(body["messages"]).decode()
        index = self._outputs.next_for(lambda wanted: orjson.dumps(wanted).decode()[1:-1] in messages)
        output = self._outputs.outputs[index]
        deltas = _deltas(output.as_chat())
        limit = body.get("max_tokens") or len(deltas)
        natural = "tool_calls" if any("tool_calls" in delta for delta in deltas) else "stop"
        finish = "length" if limit < len(deltas) else output.finish or natural
        play = _Play(output, self._outputs.fault(index, start=0), 0, self._stall_seconds)
        try:
            play.refuse()
            yield {}
            async for begin, until in play.chunks(min(limit, len(deltas))):
                for delta in deltas[begin:until]:
                    yield {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        except EngineError:
            self._outputs.strike(index)
            raise
        yield {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}
        yield {"choices": [], "usage": _usage(messages, deltas[:limit], output.cached_tokens)}

    async def close(self) -> None:
        """There is nothing to close."""


class _Play:
    """The timing and the fault of one generation."""

    def __init__(self, output: Output, fault: Fault | None, start: int, stall_seconds: float) -> None:
        self._output, self._fault, self._stall_seconds = output, fault, stall_seconds
        self._until_fault = max(0, fault.after - start) if fault is not None and fault.kind != "refuse" else None
        self._until_hold = -1 if output.hold is None else output.hold.after - start  # negative: it is behind us

    def refuse(self) -> None:
        """Raise when the script refuses the request."""
        if self._fault is not None and self._fault.kind == "refuse":
            fault = self._fault
            raise EngineRefused(fault.message, status=fault.status, retry_after=fault.retry_after)

    async def chunks(self, end: int) -> AsyncGenerator[tuple[int, int], None]:
        """From where to where each chunk goes, at the script's pace (by due times, so that it does not drift)."""
        size, pace = self._output.tokens_per_chunk, self._output.pace_ms / 1000
        loop = asyncio.get_running_loop()
        due = loop.time() + self._output.first_token_delay_ms / 1000
        whole = end if self._until_fault is None else min(end, self._until_fault)
        begins = sorted({*range(0, whole, size)} | ({self._until_hold} & {*range(whole)}))
        for begin, until in pairwise([*begins, whole]):
            if begin == self._until_hold:
                await self._hold()
                due = max(due, loop.time())
            await asyncio.sleep(max(0.0, due - loop.time()))
            yield begin, until
            due += pace * (until - begin)
        if self._until_fault is not None and self._until_fault <= end:
            await self._strike()

    async def _hold(self) -> None:
        assert self._output.hold is not None
        while not Path(self._output.hold.until).exists():  # noqa: ASYNC110, ASYNC240 - another process makes it
            await asyncio.sleep(_LOOK_SECONDS)

    async def _strike(self) -> None:
        assert self._fault is not None
        match self._fault.kind:
            case "crash":
                os._exit(_CRASHED)
            case "reset":
                raise EngineFailed
            case "stall":
                await asyncio.sleep(self._stall_seconds)
                raise EngineStalled
            case _:
                raise EngineFailed(self._fault.message)


def _cut(tokens: Sequence[int], sampling: Sampling, finish: str) -> tuple[int, str]:
    """How many tokens come, and why they end."""
    stop = next((i + 1 for i, token in enumerate(tokens) if token in sampling.stop_token_ids), None)
    end = len(tokens) if stop is None else stop
    if sampling.max_tokens is not None and sampling.max_tokens < end:
        return sampling.max_tokens, "length"
    return end, finish


def _overlap(prompt: list[int], tokens: list[int]) -> int:
    """The largest n, short of all, with which the prompt ends in the first n tokens."""
    for n in range(min(len(prompt), len(tokens) - 1), 0, -1):
        if prompt[-1] == tokens[n - 1] and prompt[-n:] == tokens[:n]:
            return n
    return 0


def _deltas(pieces: Sequence[Piece]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    calls = 0
    for piece in pieces:
        if piece.tool_call is not None:
            found += _call_deltas(calls, piece.tool_call)
            calls += 1
        elif piece.reasoning is not None:
            found.append({"reasoning": piece.reasoning})
        else:
            found.append({"content": piece.content})
    return found


def _call_deltas(index: int, call: ToolCall) -> list[dict[str, Any]]:
    function = {"name": call.name, "arguments": ""}
    opening = {"index": index, "id": f"call_{index}", "type": "function", "function": function}
    body = {"index": index, "function": {"arguments": call.arguments}}
    return [{"tool_calls": [opening]}, {"tool_calls": [body]}]


def _usage(messages: str, deltas: Sequence[Mapping[str, Any]], cached: int) -> dict[str, Any]:
    prompt = max(1, len(messages) // 4)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": len(deltas),
        "total_tokens": prompt + len(deltas),
        "prompt_tokens_details": {"cached_tokens": min(cached, prompt)},
        "completion_tokens_details": {"reasoning_tokens": sum("reasoning" in delta for delta in deltas)},
    }
