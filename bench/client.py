"""The clients, as a process: a load as JSON on stdin, what was seen as JSON on stdout. Raw sockets, no HTTP library."""

import asyncio
import gc
import os
import re
import sys
import time
from typing import Final, cast

import msgspec
import orjson
import uvloop

from bench.load import Load, Seen

_DELTA: Final = re.compile(rb'"delta":"([0-9 ]+)"')
_DONE: Final = b"data: [DONE]\n\n"
_COMPLETED: Final = b"event: response.completed\n"
_HEAD: Final = (
    b"POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
)


class Tally:
    """What all clients of this process saw."""

    def __init__(self, load: Load) -> None:
        self._begin, self._end = load.begin * 1e9, (load.end or 0.0) * 1e9
        self.completed = self.failed = self.events = self.deltas = self.events_in_window = 0
        self.first_failure = ""
        self.latencies: list[int] = []

    def hear(self, frames: bytes) -> None:
        """Some whole frames."""
        now = time.monotonic_ns()
        events = frames.count(b"\ndata: {")
        self.events += events
        self.deltas += frames.count(b".delta\ndata: ")
        if self._begin <= now < self._end:
            self.events_in_window += events
            for delta in _DELTA.findall(frames):
                self.latencies += [now - int(said) for said in delta.split()]


class Stream(asyncio.Protocol):
    """One request and its frames. `ended` is done at the end, good or bad."""

    def __init__(self, request: bytes, tally: Tally) -> None:
        self._request, self._tally, self._rest = request, tally, b""
        self._completed = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        cut = data.rfind(b"\n\n") + 2
        if cut < 2:
            self._rest = data
            return
        frames, self._rest = data[:cut], data[cut:]
        self._tally.hear(frames)
        self._completed = self._completed or _COMPLETED in frames
        if frames.endswith(_DONE):
            self._end()

    def connection_lost(self, _: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        if self.ended.done():
            return
        if self._completed:
            self._tally.completed += 1
        else:
            self._tally.failed += 1
            self._tally.first_failure = self._tally.first_failure or self._rest[-600:].decode("utf-8", "replace")
        self._transport.close()
        self.ended.set_result(None)


async def _clients(load: Load) -> Tally:
    tally, loop = Tally(load), asyncio.get_running_loop()
    body = orjson.dumps(load.body)
    request = _HEAD % len(body) + body
    places = asyncio.Semaphore(load.at_once)

    async def one(number: int) -> None:
        start = load.start + load.ramp_seconds * number / load.streams
        await asyncio.sleep(max(0.0, start - time.monotonic()))
        async with places:
            _, stream = await loop.create_connection(lambda: Stream(request, tally), "127.0.0.1", load.port)
            await stream.ended

    async with asyncio.TaskGroup() as tasks:
        for number in range(load.streams):
            tasks.create_task(one(number))
    return tally


def main() -> None:
    """Read the load, run it, write what was seen."""
    load = msgspec.json.decode(sys.stdin.buffer.read(), type=Load)
    gc.freeze()
    gc.disable()  # a pause of the clients is no latency of the server
    began = time.monotonic()
    tally = uvloop.run(asyncio.wait_for(_clients(load), load.at_most_seconds))
    seen = Seen(
        completed=tally.completed,
        failed=tally.failed,
        events=tally.events,
        deltas=tally.deltas,
        events_in_window=tally.events_in_window,
        seconds=time.monotonic() - began,
        cpu_seconds=time.process_time(),
        first_failure=tally.first_failure,
        latencies_ms=sorted(one / 1e6 for one in tally.latencies),
    )
    # With PYTHONUNBUFFERED the stream of stdout is a raw one, which may write a part and leave it at that.
    with os.fdopen(sys.stdout.fileno(), "wb", closefd=False) as output:
        output.write(msgspec.json.encode(seen))


if __name__ == "__main__":
    main()
