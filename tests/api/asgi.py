"""A raw ASGI client: sees every send as it is made, can stay silent, go away, or fail to be written to."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Self

import httpx
import orjson
from starlette.types import ASGIApp, Message

DEADLINE = 60.0  # seconds until a condition that should hold has failed


async def error_of(answer: httpx.Response) -> dict[str, Any]:
    """The error of an answer, which holds nothing else."""
    body = answer.json()
    assert list(body) == ["error"]
    assert list(body["error"]) == ["message", "type", "param", "code"]
    assert body["error"]["message"]
    return dict(body["error"])


class Call:
    """One request against an application; `async with` runs it and makes sure that it ends."""

    def __init__(
        self, app: ASGIApp, method: str, path: str, *, body: Any = None, query: str = "",
        chunks: Sequence[bytes] | None = None,
    ) -> None:  # fmt: skip
        """`chunks`: pieces of a body that is never finished, in place of `body`."""
        self._app = app
        self._scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "", "headers": [],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
        }  # fmt: skip
        self._incoming: asyncio.Queue[Message] = asyncio.Queue()
        data = b"" if body is None else orjson.dumps(body)
        for piece in [data] if chunks is None else chunks:
            self._incoming.put_nowait({"type": "http.request", "body": piece, "more_body": chunks is not None})
        self._changed = asyncio.Event()
        self.sent: list[Message] = []
        self.send_error: Exception | None = None
        self.held = False
        self._holds: Callable[[bytes], bool] = lambda body: False
        self._free = asyncio.Event()
        self.task: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        self.task = asyncio.get_running_loop().create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    def disconnect(self) -> None:
        self._incoming.put_nowait({"type": "http.disconnect"})

    async def end(self) -> None:
        """Wait for the application to return; raises what it raises."""
        async with asyncio.timeout(DEADLINE):
            await self.task

    async def ended(self) -> None:
        """Wait for the application to end in any way."""
        await asyncio.wait([self.task], timeout=DEADLINE)
        assert self.task.done()

    def hold(self, condition: Callable[[bytes], bool]) -> None:
        """A body like this is not taken until `let_go`, as by a client that reads slowly."""
        self._holds = condition

    def let_go(self) -> None:
        self._free.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something that was sent makes the condition true."""
        async with asyncio.timeout(DEADLINE):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.sent if message["type"] == "http.response.body"]

    @property
    def body(self) -> bytes:
        return b"".join(self.bodies)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def complete(self) -> bool:
        return bool(self.sent) and self.sent[-1].get("more_body") is False

    async def _run(self) -> None:
        await self._app(self._scope, self._incoming.get, self._send)

    async def _send(self, message: Message) -> None:
        if self.send_error is not None and message["type"] == "http.response.body":
            raise self.send_error
        if self._holds(message.get("body", b"")) and not self._free.is_set():
            self.held = True
            self._changed.set()
            await self._free.wait()
        self.sent.append(message)
        self._changed.set()
