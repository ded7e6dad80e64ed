"""A model behind any chat-completions engine: the upstream applies the template, reasoning and calls come parsed."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from types import MappingProxyType
from typing import Any

import orjson

from app.errors import CanNotContinue
from app.models.chat_listening import Listener
from app.models.chat_options import allowed_names
from app.models.chat_rendering import dump_body, render_body
from app.ports import ChatEngine
from app.responses.request import Item, Request
from app.responses.said import Spoken


class ChatModel:
    """The model port over a ChatEngine. `engine_model` is its name there; `images`: whether it takes pictures.

    It counts no tokens, so an input that is too long is refused by the upstream. It can't continue a broken answer.
    """

    defaults: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, name: str, engine: ChatEngine, *, engine_model: str | None = None, images: bool = True) -> None:
        self.name = name
        self._engine, self._engine_model, self._images = engine, engine_model or name, images

    async def render(self, request: Request, items: Sequence[Item]) -> bytes:
        """The chat-completions body as JSON."""
        return dump_body(render_body(request, items, model=self._engine_model, images=self._images))

    async def respond(
        self, request: Request, prompt: bytes, *, logged: Sequence[int] = ()
    ) -> AsyncGenerator[Spoken, None]:
        """Generate. There are never logged tokens: a chat upstream gives none."""
        if logged:
            raise CanNotContinue
        body: Mapping[str, Any] = orjson.loads(prompt)
        listener = Listener(
            tools="tools" in body and body["tool_choice"] != "none",
            allowed=allowed_names(request),
            parallel=request.parallel_tool_calls,
            prompt_bytes=len(prompt),
        )
        async with aclosing(self._engine.complete(body)) as chunks:
            async for chunk in chunks:
                if not chunk:
                    yield Spoken()
                elif said := listener.hear(chunk):
                    yield Spoken(said, usage=listener.usage)
        yield Spoken(listener.end(), usage=listener.usage)
