"""Engines whose every token is the time at which it was said, in nanoseconds of the machine's monotonic clock.

Whoever reads the text knows how long it took to him. One is a process that speaks chat completions over HTTP, the other
takes the place of the scripted engine inside the server. Both say `max_tokens` tokens, evenly paced.
"""

import argparse
import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final, cast

import orjson
import uvloop

from app.ports import ModelCard

NAME: Final = "clockwork"
CARDS: Final = orjson.dumps({"object": "list", "data": [{"id": NAME, "max_model_len": 131072}]})
USAGE: Final = b'{"prompt_tokens":9,"completion_tokens":9,"total_tokens":18}'
_CHUNK: Final = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"clockwork",'
    b'"choices":[{"index":0,"delta":{"content":"%d "},"logprobs":null,"finish_reason":null}]}\n\n'
)
_LAST: Final = (
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":' + USAGE + b"}\n\ndata: [DONE]\n\n"
)


class ClockworkEngine:
    """A ChatEngine inside the server."""

    def __init__(self, pace: float, models: Sequence[str]) -> None:
        self._pace, self._models = pace, models

    async def cards(self) -> Sequence[ModelCard]:
        """One model."""
        return [ModelCard(name, 131072) for name in self._models]

    async def complete(self, body: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        """Tell the time."""
        yield {}
        loop = asyncio.get_running_loop()
        due = loop.time()
        for _ in range(body["max_tokens"]):
            due += self._pace
            await asyncio.sleep(max(0.0, due - loop.time()))
            yield {"choices": [{"index": 0, "delta": {"content": f"{time.monotonic_ns()} "}, "finish_reason": None}]}
        yield {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        yield {"choices": [], "usage": orjson.loads(USAGE)}

    async def close(self) -> None:
        """Nothing to close."""


class _Connection(asyncio.Protocol):
    """One HTTP connection: each request is answered as soon as its body is there."""

    def __init__(self, pace: float) -> None:
        self._pace = pace
        self._loop = asyncio.get_running_loop()
        self._received = b""
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def connection_lost(self, _: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found or len(body) < _length(head):
            return
        self._received = b""
        if head.startswith(b"GET"):
            self._transport.write(_head("application/json", len(CARDS)) + CARDS)
            return
        self._transport.write(_head("text/event-stream", None))
        self._due, self._left = self._loop.time(), orjson.loads(body)["max_tokens"]
        self._next()

    def _next(self) -> None:
        self._due += self._pace
        self._timer = self._loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        self._left -= 1
        if self._left < 0:
            self._transport.write(_chunked(_LAST) + b"0\r\n\r\n")
            return
        self._transport.write(_chunked(_CHUNK % time.monotonic_ns()))
        self._next()


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0


def _head(kind: str, length: int | None) -> bytes:
    size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{size}\r\n\r\n".encode()


def _chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def _serve(port: int, pace: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(pace), "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--pace-ms", type=float, required=True)
    given = parser.parse_args()
    uvloop.run(_serve(given.port, given.pace_ms / 1000))


if __name__ == "__main__":
    main()
