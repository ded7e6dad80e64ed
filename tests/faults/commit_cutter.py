"""A way to PostgreSQL that is cut exactly at a commit: just before it would happen, or just after it has."""

import asyncio
import socket
import threading
from collections.abc import Awaitable
from contextlib import suppress
from math import inf
from typing import Final, Literal, Self
from urllib.parse import urlsplit

Cut = Literal["before", "after"]

_PROTOCOL_3: Final = 196_608
_SSL_REQUEST: Final = 80_877_103
_IDLE: Final = b"I"
_WRITING: Final = (b"INSERT", b"UPDATE", b"DELETE")
_LINGER_SECONDS: Final = 0.2
_FAREWELL: Final = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection due to administrator command\0\0"


class CommitCutter:
    """Passes on what clients and the server say; from `cut` on, one in so many commits loses its connection.

    `before`: the server never hears of the commit. `after`: it has committed, and its answer is lost. A commit is a
    `COMMIT`, or a statement outside of a transaction that writes. Use as a context manager; `url` leads through it.
    """

    def __init__(self, url: str) -> None:
        target = urlsplit(url)
        assert target.hostname is not None and target.port is not None
        self._end = (target.hostname, target.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = url.replace(f":{target.port}/", f":{self._listener.getsockname()[1]}/")
        self.cuts = 0
        self.farewells = 0
        self._answers_left = 0
        self._when: Cut | None = None
        self._every, self._times, self._commits = 1, inf, 0
        self._loop = asyncio.new_event_loop()
        self._closed = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=[self._serve()])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._closed.set)
        self._thread.join()
        self._loop.close()

    def cut(self, when: Cut | None, *, every: int = 1, times: float = inf) -> None:
        """Cut one commit in so many from now on, so many times; None: no more."""
        self._every, self._times = every, times
        self._when = when  # the last: a commit of just now, on the thread of the lines, would be cut once too often

    def say_farewell(self, *, behind: int) -> None:
        """Behind so many answers the server ends a line, while its client asks nothing; soon after, it is gone."""
        self._answers_left = behind

    def leaves(self) -> bool:
        """Whether the server ends a line behind this answer."""
        self._answers_left -= 1
        self.farewells += self._answers_left == 0
        return self._answers_left == 0

    def next(self) -> Cut | None:
        """Where to cut the commit that is under way."""
        self._commits += 1
        if self._when is None or self._times <= 0 or self._commits % self._every:
            return None
        self.cuts += 1
        self._times -= 1
        return self._when

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as lines:
            server = await asyncio.start_server(
                lambda near, back: lines.create_task(self._connect(near, back)), sock=self._listener
            )
            await self._closed.wait()
            server.close()
            for line in lines._tasks:
                line.cancel()

    async def _connect(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            far, forth = await asyncio.open_connection(*self._end)
            try:
                await _Line(self, near, back, far, forth).run()
            finally:
                forth.transport.abort()
        back.transport.abort()


class _Line:
    """One connection: `near` and `back` are the client's ends, `far` and `forth` the server's."""

    def __init__(
        self, cutter: CommitCutter, near: asyncio.StreamReader, back: asyncio.StreamWriter, far: asyncio.StreamReader,
        forth: asyncio.StreamWriter,
    ) -> None:  # fmt: skip
        self._cutter = cutter
        self._near, self._back, self._far, self._forth = near, back, far, forth
        self._statements: dict[bytes, bytes] = {}
        self._bound = b""
        self._state = b""
        self._answer_is_lost = False

    async def run(self) -> None:
        """Until one side has gone, or the line is cut."""
        ways = {asyncio.ensure_future(_until_gone(way)) for way in (self._questions(), self._answers())}
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()

    async def _questions(self) -> None:
        await self._greet()
        while True:
            kind, message = await _message(self._near)
            cut = self._cutter.next() if self._is_commit(kind, message[5:]) else None
            if cut == "before":
                return
            self._answer_is_lost = self._answer_is_lost or cut == "after"
            await _say(self._forth, message)

    async def _answers(self) -> None:
        while True:
            kind, message = await _message(self._far)
            if kind == b"Z":  # the server is ready for the next question
                self._state = message[5:]
                if self._answer_is_lost:
                    return
                if self._cutter.leaves():
                    await _say(self._back, message + b"E" + (len(_FAREWELL) + 4).to_bytes(4) + _FAREWELL)
                    await asyncio.sleep(_LINGER_SECONDS)
                    return
            if not self._answer_is_lost:
                await _say(self._back, message)

    async def _greet(self) -> None:
        """What comes first has no kind. Encryption is declined."""
        code = 0
        while code != _PROTOCOL_3:
            size = await self._near.readexactly(4)
            rest = await self._near.readexactly(int.from_bytes(size) - 4)
            code = int.from_bytes(rest[:4])
            if code == _SSL_REQUEST:
                await _say(self._back, b"N")
            else:
                await _say(self._forth, size + rest)

    def _is_commit(self, kind: bytes, body: bytes) -> bool:
        match kind:
            case b"Q":
                return body.startswith(b"COMMIT")
            case b"P":
                name, query, _ = body.split(b"\0", 2)
                self._statements[name] = query
            case b"B":
                self._bound = self._statements[body.split(b"\0", 2)[1]]
            case b"E":
                return self._state == _IDLE and any(word in self._bound for word in _WRITING)
        return False


async def _message(source: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Its kind, and all of it."""
    head = await source.readexactly(5)
    return head[:1], head + await source.readexactly(int.from_bytes(head[1:]) - 4)


async def _say(target: asyncio.StreamWriter, message: bytes) -> None:
    target.write(message)
    await target.drain()


async def _until_gone(way: Awaitable[None]) -> None:
    with suppress(OSError, asyncio.IncompleteReadError):
        await way
