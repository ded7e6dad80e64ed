"""The harmony model: gpt-oss over any token engine."""

import asyncio
import re
import struct
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from types import MappingProxyType
from typing import Any, Final

import msgspec

from app.errors import CanNotContinue, EngineError, EngineFailed, InvalidRequest, UnsupportedValue, VerbatimError
from app.models.harmony_decoder import HarmonyDecoder
from app.models.harmony_framing import STOPS
from app.models.harmony_rendering import HarmonyRenderer
from app.models.harmony_tools import offer_of, structural_tag
from app.models.patience import Patience, Setbacks
from app.models.vocabulary import SIZE, Vocabulary
from app.ports import Sampling, TokenEngine, Tokens
from app.responses.request import Item, Request
from app.responses.said import Finished, FinishReason, Said, Spoken, Usage, merge

CARD_SECONDS: Final = 60.0  # how long what the engine said about its model is believed
UNKNOWN_ROOM: Final = 8192
"""Tokens of a turn without `max_output_tokens` when the engine does not say how long its context is.

vLLM itself always says it; a router in front of one may not. A longer turn ends as `incomplete`, never in silence.
"""
_HELD: Final = (
    "The process that ran this response ended in the middle of it, and an answer in a given format can't be continued."
)
_FORMAT: Final = b"\x01"
_TOKEN: Final = re.compile(r"[0-9]{1,6}\Z")


class Prompt(msgspec.Struct, frozen=True, omit_defaults=True):
    """A rendered prompt. `tokens` are unsigned 32-bit integers, little-endian; `held` is a structural tag."""

    tokens: bytes
    max_tokens: int
    held: str | None = None


class HarmonyModel:
    """The `Model` of gpt-oss: renders items with openai_harmony, decodes with a tolerant decoder of our own."""

    defaults: Mapping[str, Any] = MappingProxyType({"reasoning_effort": "medium"})

    def __init__(
        self,
        name: str,
        engine: TokenEngine,
        vocabulary: Vocabulary,
        renderer: HarmonyRenderer,
        patience: Patience = Patience(),  # frozen
    ) -> None:
        self.name = name
        self._engine = engine
        self._vocabulary = vocabulary
        self._renderer = renderer
        self._clock = patience.clock
        self._patience = patience
        self._context_length: int | None = None
        self._believed_until = float("-inf")

    async def render(self, request: Request, items: Sequence[Item]) -> bytes:
        """The prompt as it is stored. Raises InvalidRequest, ContextTooLong, EngineError."""
        if request.stop:
            raise UnsupportedValue("This model does not support stop sequences.", param="stop")
        _check_bias(request.logit_bias or ())
        offer = offer_of(request)
        held = structural_tag(request, offer)
        context = await self._context()
        tokens = await asyncio.to_thread(self._renderer.render, request, items, offer.tools, context_length=context)
        room = None if context is None else context - len(tokens)
        limits = [limit for limit in (request.max_output_tokens, room) if limit is not None]
        return dump_prompt(tokens, max_tokens=min(limits, default=UNKNOWN_ROOM), held=held)

    async def respond(
        self, request: Request, prompt: bytes, *, logged: Sequence[int] = ()
    ) -> AsyncGenerator[Spoken, None]:
        """Generate, as `Model` says. An engine that breaks off is asked again, behind the last token that it gave."""
        tokens, stored = load_prompt(prompt)
        if logged and stored.held:
            raise CanNotContinue(_HELD)
        parallel, functions = request.parallel_tool_calls, offer_of(request).functions
        decoder = HarmonyDecoder(self._vocabulary, functions, parallel=parallel)
        turn = Turn(decoder, len(tokens), stored.max_tokens)
        turn.replay(logged)
        setbacks = Setbacks(self._patience)
        accepted = False
        while not turn.is_over:
            sampling = sampling_of(request, stored, used=len(turn.tokens))
            try:
                async with aclosing(self._engine.generate(self.name, [*tokens, *turn.tokens], sampling)) as chunks:
                    async for chunk in chunks:
                        turn.take(chunk)
                        spoken = turn.spoken()
                        if spoken or not accepted:
                            accepted = True
                            yield spoken or Spoken()
                        if turn.stopped:
                            break  # an engine that does not know our stop tokens would go on
                turn.check_ended()
            except EngineError as error:
                if not (accepted or request.background) or (turn.tokens and stored.held):
                    raise
                await setbacks.bear(error, at=len(turn.tokens))
        yield turn.finish()

    async def _context(self) -> int | None:
        """How many tokens the model holds; None when the engine does not say."""
        if self._clock() >= self._believed_until:
            cards = await self._engine.cards()
            self._context_length = next((card.context_length for card in cards if card.id == self.name), None)
            self._believed_until = self._clock() + CARD_SECONDS
        return self._context_length


class Turn:
    """One generation under way: takes chunks, and gives what was said together with exactly the tokens that said it."""

    def __init__(self, decoder: HarmonyDecoder, prompt_tokens: int, max_tokens: int) -> None:
        self.tokens: list[int] = []  # all of the turn, in order
        self._decoder = decoder
        self._prompt_tokens = prompt_tokens
        self._max_tokens = max_tokens
        self._cached_tokens: int | None = None
        self._said: list[Said] = []
        self._unsaid = 0  # how many of the tokens belong to what is not shown yet
        self._finish_reason: str | None = None

    @property
    def stopped(self) -> bool:
        """Whether the model has ended its turn."""
        return self._decoder.stopped

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be generated."""
        return self.stopped or self._finish_reason is not None or len(self.tokens) >= self._max_tokens

    def replay(self, logged: Sequence[int]) -> None:
        """Take up a turn behind tokens whose words were said before."""
        self._decoder.feed(logged)
        self.tokens = list(logged)
        self._cached_tokens = 0 if logged else None  # what another process's engine had cached is not known

    def take(self, chunk: Tokens) -> None:
        """Decode a chunk; what comes after a stop token does not exist."""
        before = self._decoder.seen
        self._said += self._decoder.feed(chunk.ids, chunk.logprobs)
        seen = self._decoder.seen - before
        self.tokens += chunk.ids[:seen]
        self._unsaid += seen
        self._finish_reason = chunk.finish_reason
        if self._cached_tokens is None:
            self._cached_tokens = chunk.cached_tokens

    def spoken(self) -> Spoken | None:
        """What can be shown now: nothing while the decoder holds something back."""
        if not self._said or not self._decoder.holds_nothing:
            return None
        spoken = Spoken(merge(self._said), self._take_unsaid(), self._usage())
        self._said = []
        return spoken

    def check_ended(self) -> None:
        """The engine's stream has ended. Raises EngineFailed when it should not have."""
        if self.stopped or self._finish_reason in ("stop", "length"):
            return
        reason, self._finish_reason = self._finish_reason, None
        if reason is None:
            raise EngineFailed("The engine ended its stream before the answer was complete.")
        raise EngineFailed(f"The engine broke off the answer: {reason}.")

    def finish(self) -> Spoken:
        """The last words."""
        reason: FinishReason = "stop" if self.stopped or self._finish_reason == "stop" else "length"
        said = [*self._said, *self._decoder.close(complete=reason == "stop")]
        usage = self._usage()
        return Spoken([*merge(said), Finished(reason, usage)], self._take_unsaid(), usage)

    def _take_unsaid(self) -> tuple[int, ...]:
        tokens = tuple(self.tokens[len(self.tokens) - self._unsaid :])
        self._unsaid = 0
        return tokens

    def _usage(self) -> Usage:
        return Usage(
            input_tokens=self._prompt_tokens,
            output_tokens=self._decoder.seen,
            cached_tokens=max(0, min(self._cached_tokens or 0, self._prompt_tokens)),
            reasoning_tokens=self._decoder.reasoning_tokens,
        )


def _check_bias(tokens: Iterable[str]) -> None:
    for token in tokens:
        if not _TOKEN.match(token) or int(token) >= SIZE:
            raise InvalidRequest(f"A key of logit_bias is a token id: 0 to {SIZE - 1}.", param="logit_bias")


def dump_prompt(tokens: Sequence[int], *, max_tokens: int, held: str | None) -> bytes:
    """The stored form of a prompt."""
    packed = struct.pack(f"<{len(tokens)}I", *tokens)
    return _FORMAT + msgspec.msgpack.encode(Prompt(packed, max_tokens, held))


def load_prompt(data: bytes) -> tuple[list[int], Prompt]:
    """Read the stored form: its token ids, and the rest."""
    if data[:1] != _FORMAT:
        raise VerbatimError("This prompt was stored by a version of the server that this one does not understand.")
    stored = msgspec.msgpack.decode(data[1:], type=Prompt)
    return list(struct.unpack(f"<{len(stored.tokens) // 4}I", stored.tokens)), stored


def sampling_of(request: Request, prompt: Prompt, *, used: int = 0) -> Sampling:
    """How to draw: the request's own values, harmony's stop tokens, and what the engine must hold.

    `used` tokens of the turn are there already.
    """
    return Sampling(
        max_tokens=prompt.max_tokens - used,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        min_p=request.min_p,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        repetition_penalty=request.repetition_penalty,
        seed=request.seed,
        logit_bias=request.logit_bias,
        logprobs=(request.top_logprobs or 0) if request.wants_logprobs else None,
        stop_token_ids=tuple(STOPS),
        structured_outputs={"structural_tag": prompt.held} if prompt.held else None,
        priority=request.priority,
    )
