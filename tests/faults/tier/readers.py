"""Many readers at once, in the background of a test: what each got, and when."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import httpx

from tests.e2e.judge import DONE
from tests.e2e.serving import Fleet, Server

WITHIN_SECONDS: Final = 120.0
LOOK_SECONDS: Final = 0.02
MORE: Final = 50
"""Characters."""

T = TypeVar("T")


async def until(look: Callable[[], T], *, within: float = WITHIN_SECONDS, what: str = "it") -> T:
    """Look again and again until there is something to see, while the readers go on reading."""
    deadline = time.monotonic() + within
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what} did not happen within {within} s"
        await asyncio.sleep(LOOK_SECONDS)
    return found


async def until_answered(ask: Callable[[], Awaitable[T]], *, within: float = WITHIN_SECONDS, what: str = "it") -> T:
    """The same for what has to be asked for."""
    deadline = time.monotonic() + within
    while not (found := await ask()):
        assert time.monotonic() < deadline, f"{what} did not happen within {within} s"
        await asyncio.sleep(LOOK_SECONDS)
    return found


class Reader:
    """One client of one stream. `ended`: it came to a proper end; `cut`: the connection broke."""

    def __init__(self, http: httpx.AsyncClient, request: httpx.Request, *, pause: asyncio.Event | None = None) -> None:
        self.body = bytearray()
        self.frames: list[bytes] = []
        self.events: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.told = 0  # characters of deltas: how many events they make is a matter of speed
        self.ended = self.cut = False
        self._http, self._request, self._pause = http, request, pause
        self._parsed = 0

    @property
    def response_id(self) -> str:
        """Whose events these are; the first one must have come."""
        return str(self.events[0]["response"]["id"])

    @property
    def position(self) -> int:
        """The position of the last event; -1: none."""
        return int(self.events[-1]["sequence_number"]) if self.events else -1

    @property
    def response(self) -> dict[str, Any]:
        """The response inside the terminal event."""
        assert self.ended, f"not at its end: {bytes(self.body[-300:])!r}"
        response: dict[str, Any] = self.events[-1]["response"]
        return response

    async def read(self) -> None:
        """Read to the end, or until the connection breaks."""
        try:
            answer = await self._http.send(self._request, stream=True)
            try:
                if answer.status_code != 200:
                    raise AssertionError(f"{answer.status_code}: {await answer.aread()!r}")
                if self._pause is not None:
                    await self._pause.wait()
                async for chunk in answer.aiter_raw():
                    self._take(chunk)
            finally:
                await answer.aclose()
        except httpx.TransportError:
            self.cut = True
        self.ended = self.body.endswith(DONE)
        self.cut = self.cut or not self.ended

    def _take(self, chunk: bytes) -> None:
        self.body += chunk
        while (end := self.body.find(b"\n\n", self._parsed)) >= 0:
            block, self._parsed = bytes(self.body[self._parsed : end]), end + 2
            if block.startswith(b"event:"):
                self.frames.append(block)
                self.events.append(json.loads(block.partition(b"data: ")[2]))
                self.times.append(time.monotonic())
                self.told += len(self.events[-1].get("delta", ""))


class Readers:
    """Starts readers and plain requests; leaving the block waits for all that were not stopped."""

    def __init__(self, http: httpx.AsyncClient, tasks: asyncio.TaskGroup) -> None:
        self.http = http
        self.all: list[Reader] = []
        self._group = tasks
        self._tasks: dict[Reader, asyncio.Task[None]] = {}

    def create(self, url: str, say: str, **body: Any) -> Reader:
        """Create a response and read its stream; a background one unless said otherwise."""
        asked = {"model": "gpt-oss", "input": say, "stream": True, "background": True} | body
        return self._start(self.http.build_request("POST", f"{url}/v1/responses", json=asked))

    def follow(self, url: str, response_id: str, after: int = -1, *, pause: asyncio.Event | None = None) -> Reader:
        """Read the stream of a response; nothing before `pause` is set."""
        query: dict[str, Any] = {"stream": "true"} | ({} if after < 0 else {"starting_after": after})
        return self._start(self.http.build_request("GET", f"{url}/v1/responses/{response_id}", params=query), pause)

    def stop(self, reader: Reader) -> None:
        """The client goes away."""
        self._tasks[reader].cancel()

    async def retrieve(self, url: str, response_id: str) -> dict[str, Any]:
        """A stored response."""
        answer = await self.http.get(f"{url}/v1/responses/{response_id}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def _start(self, request: httpx.Request, pause: asyncio.Event | None = None) -> Reader:
        reader = Reader(self.http, request, pause=pause)
        self.all.append(reader)
        self._tasks[reader] = self._group.create_task(reader.read())
        return reader


async def told_more(streams: Sequence[Reader]) -> None:
    """Wait until each reader was told some more words."""
    at = [reader.told for reader in streams]
    await until(
        lambda: all(reader.told > n + MORE for reader, n in zip(streams, at, strict=True)), what="more words of all"
    )


async def start(fleet: Fleet, *settings: dict[str, Any]) -> list[Server]:
    """So many servers at once, while the readers go on reading."""
    launched = [fleet.launch(**one) for one in settings]
    return await asyncio.gather(*(asyncio.to_thread(server.await_health) for server in launched))


@asynccontextmanager
async def reading(*, within: float = 300.0) -> AsyncIterator[Readers]:
    """Readers, all of which come to an end in time."""
    unlimited = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with (
        asyncio.timeout(within),
        httpx.AsyncClient(timeout=None, limits=unlimited, trust_env=False) as http,
        asyncio.TaskGroup() as tasks,
    ):
        yield Readers(http, tasks)
