"""A vLLM server as a TokenEngine: `/v1/completions` with token ids in and out; needs no flag."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
import orjson

from app.engines.deadlines import Deadlines
from app.engines.http import Upstream, broke_off
from app.engines.refusals import broken
from app.errors import EngineFailed
from app.ports import ModelCard, Sampling, Tokens

_NO_IDS: Final = (
    "The engine gave text without token ids. It has to be a vLLM that knows `return_token_ids`, with nothing between "
    "that takes them away."
)
_TOKEN_ID: Final = "token_id:"  # how vLLM spells ids in logprobs when asked to


class _Logprobs(msgspec.Struct):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Any = None  # it only goes with the tokens: what makes no sense in it is left out
    error: dict[str, Any] | str | None = None


_CHUNK: Final = msgspec.json.Decoder(_Chunk)


class VllmEngine:
    """Token ids in, token ids out, over HTTP. `url` is the base URL, ending in `/v1`."""

    def __init__(self, url: str, *, api_key: str | None = None, deadlines: Deadlines | None = None) -> None:
        self._upstream = Upstream(url, api_key=api_key, deadlines=deadlines)

    async def cards(self) -> Sequence[ModelCard]:
        """The models that this vLLM serves."""
        return await self._upstream.cards()

    async def generate(self, model: str, prompt: Sequence[int], sampling: Sampling) -> AsyncGenerator[Tokens, None]:
        """Generate after a prompt. All chunks that one network read brought become one `Tokens`.

        vLLM has no word for "as many as fit": without `max_tokens`, or with null, it stops after 16 tokens. So a
        number is always sent; who gives none makes the engine look up its own card first.
        """
        with self._upstream.telling("/completions", model):
            if sampling.max_tokens is None:
                sampling = replace(sampling, max_tokens=await self._room(model, len(prompt)))
            body = orjson.dumps(completion_body(model, prompt, sampling))
            answer = _Answer(sampling.logprobs or 0)
            async with aclosing(self._upstream.stream("/completions", body)) as reads:
                async for payloads in reads:
                    if not payloads:
                        yield Tokens()
                    elif tokens := answer.hear(payloads):
                        yield tokens
            yield answer.end()

    async def close(self) -> None:
        """Close all connections."""
        await self._upstream.close()

    async def _room(self, model: str, prompt_tokens: int) -> int:
        """How many tokens fit behind the prompt. Raises EngineFailed when the card does not tell."""
        context = next((card.context_length for card in await self.cards() if card.id == model), None)
        if context is None:
            raise EngineFailed("The engine does not say how long its context is, so `max_tokens` has to be given.")
        return max(1, context - prompt_tokens)  # a prompt that leaves no room is refused by vLLM itself


def completion_body(model: str, prompt: Sequence[int], sampling: Sampling) -> dict[str, Any]:
    """The request; `sampling.max_tokens` must be a number by now."""
    body: dict[str, Any] = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": sampling.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "skip_special_tokens": False,
    }
    body |= {name: value for name, value in _plain(sampling).items() if value is not None}
    if sampling.top_p == 0:  # out of vLLM's range; of no mass at all there is one token
        body |= {"top_p": 1.0, "top_k": 1}
    if sampling.stop_token_ids:
        body["stop_token_ids"] = list(sampling.stop_token_ids)
    if sampling.logprobs is not None:
        # as ids: different tokens with one spelling (pieces of a character) must not fall together
        body |= {"logprobs": sampling.logprobs, "return_tokens_as_token_ids": True}
    if sampling.priority:
        body["priority"] = sampling.priority
    return body


def _plain(sampling: Sampling) -> dict[str, Any]:
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "seed": sampling.seed,
        "logit_bias": sampling.logit_bias,
        "structured_outputs": sampling.structured_outputs,
    }


@dataclass(slots=True)
class _Answer:
    """One generation as it comes in. The finish is held until the end of the stream: usage comes after it."""

    top: int  # alternatives wanted per token
    finish: str | None = None
    cached: int | None = None
    started: bool = False
    _held: Tokens = field(default_factory=Tokens)

    def hear(self, payloads: Sequence[bytes]) -> Tokens | None:
        """The tokens of some chunks; None when there are none to tell yet."""
        ids: list[int] = []
        logprobs: list[Any] = []
        for payload in payloads:
            for choice in self._chunk(payload).choices or ():
                if choice.text and choice.token_ids is None:
                    raise EngineFailed(_NO_IDS)  # an answer without a word would look complete
                ids += choice.token_ids or ()
                if choice.logprobs is not None:
                    logprobs += _logprobs(choice.logprobs, self.top)
                self.finish = choice.finish_reason or self.finish
        self.started = self.started or bool(ids)
        tokens = Tokens(ids, logprobs)
        if self.finish is not None:
            self._held = Tokens([*self._held.ids, *ids], [*self._held.logprobs, *logprobs])
            return None
        return tokens if ids else None

    def end(self) -> Tokens:
        """The last tokens, with the finish reason."""
        if self.finish is None:
            raise broke_off()
        if self.finish in ("abort", "error"):
            raise EngineFailed("The engine aborted the generation.")
        return Tokens(self._held.ids, self._held.logprobs, self.finish, self.cached)

    def _chunk(self, payload: bytes) -> _Chunk:
        try:
            chunk = _CHUNK.decode(payload)
        except msgspec.MsgspecError as error:
            raise EngineFailed("The engine sent something that makes no sense.") from error
        if chunk.error is not None:
            raise broken(chunk.error, nothing_said=not self.started)
        match chunk.usage:
            case {"prompt_tokens_details": {"cached_tokens": int(cached)}}:
                self.cached = cached
        return chunk


def _logprobs(told: _Logprobs, top: int) -> list[tuple[float, list[tuple[int | None, str, float]]]]:
    """The port's shape. An id stands without its text: whoever has the vocabulary knows it exactly."""
    tops: Sequence[Mapping[str, float] | None] = told.top_logprobs or [None] * len(told.tokens)
    return [
        (logprob or 0.0, sorted(map(_alternative, (others or {}).items()), key=lambda one: -one[2])[:top])
        for logprob, others in zip(told.token_logprobs, tops, strict=True)
    ]


def _alternative(pair: tuple[str, float]) -> tuple[int | None, str, float]:
    spelling, logprob = pair
    if spelling.startswith(_TOKEN_ID):
        return int(spelling.removeprefix(_TOKEN_ID)), "", logprob
    return None, spelling, logprob
