"""Any `/v1/chat/completions` server (vLLM, llama.cpp, SGLang, Ollama …) as a ChatEngine."""

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

import orjson

from app.engines.deadlines import Deadlines
from app.engines.http import Upstream
from app.engines.refusals import broken
from app.errors import EngineFailed
from app.ports import ModelCard

_NO_SENSE: Final = "The engine sent something that makes no sense."


class ChatCompletions:
    """Chat-completions bodies in, parsed chunks out, over HTTP. `url` is the base URL, ending in `/v1`."""

    def __init__(self, url: str, *, api_key: str | None = None, deadlines: Deadlines | None = None) -> None:
        self._upstream = Upstream(url, api_key=api_key, deadlines=deadlines)

    async def cards(self) -> Sequence[ModelCard]:
        """The models that this server serves."""
        return await self._upstream.cards()

    async def probe(self) -> None:
        """Is the server well? For those that have a `/health`. Raises EngineError."""
        await self._upstream.probe()

    async def complete(self, body: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        """Stream a completion: an empty mapping when accepted, then the chunks."""
        said, data = False, orjson.dumps({**body, "stream": True})
        with self._upstream.telling("/chat/completions", str(body.get("model"))):
            async with aclosing(self._upstream.stream("/chat/completions", data)) as reads:
                async for payloads in reads:
                    if not payloads and not said:
                        yield {}
                    for payload in payloads:
                        chunk = _chunk(payload)
                        if error := chunk.get("error"):
                            raise broken(error, nothing_said=not said)
                        said = True
                        yield chunk

    async def close(self) -> None:
        """Close all connections."""
        await self._upstream.close()


def _chunk(payload: bytes) -> Mapping[str, Any]:
    try:
        chunk = orjson.loads(payload)
    except orjson.JSONDecodeError:
        chunk = _mended(payload)
    if not isinstance(chunk, dict):
        raise EngineFailed(_NO_SENSE)
    return chunk


def _mended(payload: bytes) -> Any:
    """JSON with bytes or escapes that are no characters: an upstream has cut its text within one, which costs one
    character and not the answer."""
    try:
        read = json.loads(payload.decode("utf-8", "replace"), parse_constant=lambda _: None)
        halves = json.dumps(read, ensure_ascii=False).encode("utf-16-le", "surrogatepass")
        return orjson.loads(halves.decode("utf-16-le", "replace"))
    except (ValueError, RecursionError) as error:
        raise EngineFailed(_NO_SENSE) from error
