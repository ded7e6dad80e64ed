"""Readers that do not read: they cost the server no memory and the others no time."""

import asyncio
import hashlib
import json
import socket
import time
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import psutil
import pytest

from tests.e2e.serving import Fleet
from tests.faults.tier.readers import reading, start, until
from tests.faults.tier.turn import seen

READERS: Final = 500
WITHIN_SECONDS: Final = 500.0
SLOW: Final = 50
SLOW_SECONDS: Final = 10.0
DELTAS: Final = 800
LINE: Final = "=" * 64 + "\n"  # two tokens
LINES: Final = 60
HEADER_TOKENS: Final = 3
DELTA_TOKENS: Final = 2 * LINES
GROWTH: Final = 150_000_000
"""Bytes. What the slow ones have not read is more than 3 MB each: kept for them it would be more than that."""


@pytest.fixture
def script(tmp_path: Path, gate: Path) -> Path:
    path = tmp_path / "script.json"
    output = {
        "text": f"<|channel|>final<|message|>{LINE * LINES * (DELTAS + 1)}",
        "tokens_per_chunk": DELTA_TOKENS,
        "pace_ms": 15.0 / DELTA_TOKENS,
        "hold": {"until": str(gate), "after": HEADER_TOKENS + DELTA_TOKENS * DELTAS},
    }
    path.write_text(json.dumps([output]))
    return path


class Tap:
    """A client that counts the bytes of a chunked body."""

    def __init__(self) -> None:
        self.body = hashlib.sha256()
        self.size = 0

    async def read(self, url: str, response_id: str, *, go: asyncio.Event | None = None) -> None:
        """Read as fast as it comes, from when it may on."""
        address = urlsplit(url)
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (address.hostname, address.port))
        reader, writer = await asyncio.open_connection(sock=sock, limit=65536)
        try:
            writer.write(f"GET /v1/responses/{response_id}?stream=true HTTP/1.1\r\nhost: test\r\n\r\n".encode())
            if go is not None:
                await go.wait()
            await reader.readuntil(b"\r\n\r\n")
            while length := int(await reader.readuntil(b"\r\n"), 16):
                data = (await reader.readexactly(length + 2))[:length]
                self.body.update(data)
                self.size += length
        finally:
            writer.close()


async def test_readers_that_do_not_read_cost_nothing(fleet: Fleet) -> None:
    (server,) = await start(fleet, {"keep_alive_seconds": 600})
    process = psutil.Process(server.process.pid)
    async with reading(within=WITHIN_SECONDS) as readers:
        stream = readers.create(server.url, "Go on.")
        await until(lambda: bool(stream.events), what="its first event")
        before = process.memory_info().rss
        go = asyncio.Event()
        fast, slow = [Tap() for _ in range(READERS - SLOW)], [Tap() for _ in range(SLOW)]
        tasks = [asyncio.ensure_future(tap.read(server.url, stream.response_id)) for tap in fast]
        tasks += [asyncio.ensure_future(tap.read(server.url, stream.response_id, go=go)) for tap in slow]
        began = time.monotonic()
        await until(
            lambda: seen(stream.events)[0] == len(LINE) * LINES * DELTAS, within=WITHIN_SECONDS, what="the hold"
        )
        told = len(stream.body)
        await until(lambda: {tap.size for tap in fast} == {told}, within=WITHIN_SECONDS, what="all being there")
        took = time.monotonic() - began
        while time.monotonic() < began + SLOW_SECONDS:
            await asyncio.sleep(0.1)
        grown = process.memory_info().rss - before
        assert {tap.size for tap in slow} == {0}

        go.set()
        await until(lambda: {tap.size for tap in slow} == {told}, within=WITHIN_SECONDS, what="catching up")
        assert len({tap.body.digest() for tap in fast + slow}) == 1
        for task in tasks:
            task.cancel()
        answer = await readers.http.post(f"{server.url}/v1/responses/{stream.response_id}/cancel")
        assert answer.json()["status"] == "cancelled"

    print(f"\n{READERS} readers: {told * len(fast) / 1e6:.0f} MB in {took:.1f} s, {grown / 1e6:.0f} MB grown")
    assert grown < GROWTH
