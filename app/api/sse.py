"""Server-sent events: stored event bytes framed and sent, with keep-alives in between, until the end or a disconnect.

The framing is that of PROTOCOL.md, "Streams". Never `id:` lines; comments only between frames.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from typing import Final

import structlog
from starlette.types import Receive, Scope, Send

from app.api.disconnect import first_of, until_disconnect
from app.errors import ResponseNotFound
from app.ports import Span
from app.responses.events import type_of

HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
DONE: Final = b"data: [DONE]\n\n"
KEEP_ALIVE: Final = b": keep-alive\n\n"
FRAMES_PER_SEND: Final = 512  # a long replay is framed and sent by turns: its reader need not wait for all of it
OBFUSCATION_LIMIT: Final = 16  # characters

logger = structlog.get_logger(__name__)


def frames(events: Sequence[bytes]) -> bytes:
    """All frames of some events, as one piece of bytes. (Remembering the `event:` line of each type is no faster.)"""
    return b"".join([b"event: %b\ndata: %b\n\n" % (type_of(data), data) for data in events])


def obfuscated(data: bytes) -> bytes:
    """A delta event with a random string in it, so that its length on the wire tells nothing; others as they are."""
    if not type_of(data).endswith(b".delta"):
        return data
    noise = secrets.token_urlsafe(OBFUSCATION_LIMIT)[: 1 + secrets.randbelow(OBFUSCATION_LIMIT)]
    return b'%b,"obfuscation":"%b"}' % (data[:-1], noise.encode())


class EventStream:
    """An ASGI answer that sends the spans of a stream as they come, a long one by turns.

    Whatever ends it before the stream's end (a disconnect, a failing send, a cancelled task, an error of the reader)
    closes the reader and calls `on_abandon`.
    """

    def __init__(self, spans: AsyncIterator[Span], *, keep_alive_seconds: float, obfuscate: bool = False,
                 on_abandon: Callable[[], None] | None = None, headers: Mapping[str, str] | None = None) -> None:
        self._spans = spans
        self._keep_alive_seconds = keep_alive_seconds
        self._obfuscate = obfuscate
        self._on_abandon = on_abandon
        self._headers = headers or {}
        self._loop = asyncio.get_running_loop()
        self._sending = False
        self._sent_at = 0.0  # loop time
        self._complete = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the whole answer; only its head to whoever asks for no more."""
        try:
            await self._start(send)
            if scope["method"] == "HEAD":
                await self._send(send, b"", more=False)
                return
            await first_of(self._pump(send), until_disconnect(receive), self._keep_alive(send))
        finally:
            await self._close()

    async def _start(self, send: Send) -> None:
        extra = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self._headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": [*HEADERS, *extra]})
        self._sent_at = self._loop.time()

    async def _pump(self, send: Send) -> None:
        try:
            async for span in self._spans:
                for start in range(0, len(span.events), FRAMES_PER_SEND):
                    events = span.events[start : start + FRAMES_PER_SEND]
                    if self._obfuscate:
                        events = [obfuscated(data) for data in events]
                    await self._send(send, frames(events), more=True)
            await self._send(send, DONE, more=False)
            self._complete = True
        except ResponseNotFound:
            logger.info("sse_response_deleted")  # under its reader; the connection is cut
        except OSError as gone:
            logger.info("sse_client_gone", reason=repr(gone))
        except Exception:
            # the status line is out: returning without the last body message makes the server cut the connection,
            # which no client takes for a complete answer
            logger.exception("sse_reader_failed")

    async def _send(self, send: Send, body: bytes, *, more: bool) -> None:
        self._sending = True
        await send({"type": "http.response.body", "body": body, "more_body": more})
        self._sending = False
        self._sent_at = self._loop.time()

    async def _keep_alive(self, send: Send) -> None:
        """Comments in silence. While a send waits for a slow client, nothing may come between."""
        while True:
            silent_for = 0.0 if self._sending else self._loop.time() - self._sent_at
            if silent_for >= self._keep_alive_seconds:
                await self._send(send, KEEP_ALIVE, more=True)
                silent_for = 0.0
            await asyncio.sleep(self._keep_alive_seconds - silent_for)

    async def _close(self) -> None:
        if not self._complete and self._on_abandon is not None:
            self._on_abandon()
        if isinstance(self._spans, AsyncGenerator):
            await self._spans.aclose()
