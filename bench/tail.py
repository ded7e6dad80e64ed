"""From a commit to a reader in another process: with the Redis tail, and with PostgreSQL alone."""

import asyncio
import gc
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import orjson
import uvloop

from bench import clockwork
from bench.client import Stream
from bench.load import request
from bench.processes import DurablePostgres, started
from bench.report import Figure, percentile
from tests.e2e.serving import Server
from tests.servers import Valkey

STREAMS: Final = 100
PER_SECOND: Final = 20
WINDOW_SECONDS: Final = 15.0
_STREAMS_A_SECOND: Final = 25
_SETTLE_SECONDS: Final = 2.0
_MARGIN_SECONDS: Final = 4.0
_AT_MOST_SECONDS: Final = 300.0
_SAID: Final = re.compile(rb'"delta":"([0-9 ]+)"')
_ID: Final = re.compile(rb'"response":\{"id":"(\w+)"')
_POST: Final = (
    b"POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
)
_GET: Final = b"GET /v1/responses/%b?stream=true HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


class Ear:
    """All readers of one server: when each token was heard there first. A token is the time at which it was said."""

    def __init__(self) -> None:
        self.heard: dict[int, int] = {}
        self.completed = self.failed = 0
        self.first_failure = ""

    def hear(self, frames: bytes) -> None:
        """Some whole frames."""
        now = time.monotonic_ns()
        for delta in _SAID.findall(frames):
            for said in delta.split():
                self.heard.setdefault(int(said), now)


class NamedStream(Stream):
    """A stream that tells its response's id when it begins."""

    def __init__(self, asked: bytes, ear: Ear) -> None:
        super().__init__(asked, ear)
        self.response_id: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        if not self.response_id.done() and (found := _ID.search(data)):
            self.response_id.set_result(found[1])
        super().data_received(data)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.response_id.done():
            self.response_id.set_exception(RuntimeError("a stream ended before it began"))
        super().connection_lost(error)


def measure(folder: Path, *, streams: int = STREAMS, window: float = WINDOW_SECONDS) -> list[Figure]:
    """The same load twice; the reader's server never runs anything itself."""
    figures = []
    for name, redis in (("Redis tail", True), ("PostgreSQL alone", False)):
        place = folder / name.partition(" ")[0]
        place.mkdir()
        with ExitStack() as stack:
            postgres = stack.enter_context(DurablePostgres(place))
            tail = {"redis_url": stack.enter_context(Valkey()).url} if redis else {}
            upstream = stack.enter_context(started("bench.clockwork", f"--pace-ms={1000 / PER_SECOND}"))
            engine = {"engine": "chat", "engine_url": upstream.url, "dialect": "chat", "model": clockwork.NAME}
            settings = {"database_url": postgres.url, **engine, **tail}
            here = stack.enter_context(serving(place / "here", settings))
            there = stack.enter_context(serving(place / "there", settings | {"worker": False}))
            figures += _figures(name, *_heard(here.url, there.url, streams, window), streams * PER_SECOND * window)
    return figures


@contextmanager
def serving(folder: Path, settings: Mapping[str, Any]) -> Iterator[Server]:
    """A `verbatim serve` with these settings, up to the end of the block."""
    server = Server(folder, {"port": 0, "max_concurrent_runs": 8192, "log_level": "error", **settings})
    try:
        yield server.await_health()
        server.stop()
    finally:
        server.kill()


def _heard(here: str, there: str, streams: int, window: float) -> tuple[dict[int, int], dict[int, int]]:
    gc.freeze()
    gc.disable()  # a pause of the clients is no latency of the server
    try:
        return uvloop.run(asyncio.wait_for(_clients(_port(here), _port(there), streams, window), _AT_MOST_SECONDS))
    finally:
        gc.enable()
        gc.unfreeze()


async def _clients(here: int, there: int, streams: int, window: float) -> tuple[dict[int, int], dict[int, int]]:
    """Create streams in one process and read each in both; gives what was said in the window, and when it was heard."""
    ramp = streams / _STREAMS_A_SECOND
    tokens = round((ramp + _SETTLE_SECONDS + window + _MARGIN_SECONDS) * PER_SECOND)
    body = orjson.dumps(request(model=clockwork.NAME, max_output_tokens=tokens, background=True))
    ears, loop = (Ear(), Ear()), asyncio.get_running_loop()
    begin = time.monotonic() + ramp + _SETTLE_SECONDS

    async def one(number: int) -> None:
        await asyncio.sleep(number / _STREAMS_A_SECOND)
        _, first = await loop.create_connection(lambda: NamedStream(_POST % (len(body), body), ears[0]), _HOST, here)
        asked = _GET % await first.response_id
        _, second = await loop.create_connection(lambda: Stream(asked, ears[1]), _HOST, there)
        await asyncio.gather(first.ended, second.ended)

    async with asyncio.TaskGroup() as tasks:
        for number in range(streams):
            tasks.create_task(one(number))
    if failed := [ear.first_failure for ear in ears if ear.failed]:
        raise RuntimeError(f"streams failed: {failed[0]}")
    first, second = (
        {said: at for said, at in ear.heard.items() if begin <= said / 1e9 < begin + window} for ear in ears
    )
    if first.keys() != second.keys():
        raise RuntimeError(f"{len(first.keys() ^ second.keys())} tokens were heard by one of two readers only")
    return first, second


_HOST: Final = "127.0.0.1"


def _figures(name: str, here: Mapping[int, int], there: Mapping[int, int], offered: float) -> list[Figure]:
    added = sorted((there[said] - at) / 1e6 for said, at in here.items())
    readers = {"in the process that commits": here, "in another process": there}
    whole = {where: sorted((at - said) / 1e6 for said, at in heard.items()) for where, heard in readers.items()}
    return [
        Figure(f"{name}, added for another process, p50", percentile(added, 0.5), "ms"),
        Figure(f"{name}, added for another process, p99", percentile(added, 0.99), "ms"),
        *(
            Figure(f"{name}, from token to reader {where}, p{round(share * 100)}", percentile(taken, share), "ms")
            for where, taken in whole.items()
            for share in (0.5, 0.99)
        ),
        Figure(f"{name}, tokens heard in the window", len(added), "", f"{offered:,.0f} offered"),
    ]


def _port(url: str) -> int:
    return int(url.rpartition(":")[2])
