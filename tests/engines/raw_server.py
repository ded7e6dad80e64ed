"""An HTTP server that answers every request with exactly these bytes: for what no well-behaved fake says."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

EVENTS = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


@asynccontextmanager
async def answering(
    *answer: str | bytes | asyncio.Event, heard: Callable[[str], object] = lambda head: None
) -> AsyncIterator[str]:
    """The base URL, ending in `/v1`. Each part of the answer is one write; an event among them is waited for.

    The answer ends with the connection. `heard` is told the head of each request.
    """

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = re.search(r"(?i)\r\ncontent-length: *(\d+)", head)
        await reader.readexactly(int(length[1]) if length else 0)  # closing over unread bytes would be a reset
        heard(head)
        for part in answer:
            if isinstance(part, asyncio.Event):
                await part.wait()
            else:
                writer.write(part.encode() if isinstance(part, str) else part)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(reply, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


def refusal(status: int, body: str, *headers: str) -> str:
    """An error answer."""
    lines = [f"HTTP/1.1 {status} No", "connection: close", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines) + "\r\n\r\n" + body
