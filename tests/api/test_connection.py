"""A connection of its own: what is wrong below the API's level is told in the API's own shape, and nobody holds one."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from itertools import pairwise
from typing import Any, Final

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.application import build_app
from app.api.connection import HEAD_LIMIT, Connection
from app.errors import ResponseNotFound
from app.ports import Span
from app.serving import Server, configuration
from tests.api.fake_service import CREATED, FakeService, Feed

Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Awaitable[Client]]

SOON: Final = 0.2  # seconds that a request may take that is to take too long
DEADLINE: Final = 60.0
WHOLE: Final = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"
SIZED: Final = b"content-length: 26\r\n\r\n%s"
CHUNKED: Final = b"transfer-encoding: chunked\r\n\r\n1a\r\n%s\r\n0\r\n\r\n"
HEAD: Final = b"POST /v1/responses HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n"


@asynccontextmanager
async def served(app: ASGIApp, *, receive_seconds: float = DEADLINE) -> AsyncIterator[Connect]:
    listening = socket.create_server(("127.0.0.1", 0))
    server = Server(configuration(app, receive_seconds=receive_seconds))
    clients: list[Client] = []

    async def connect() -> Client:
        clients.append(await asyncio.open_connection(*listening.getsockname()))
        return clients[-1]

    async with asyncio.timeout(DEADLINE), asyncio.TaskGroup() as tasks:
        tasks.create_task(server.serve([listening]))
        yield connect
        for _, writer in clients:
            writer.close()
        server.should_exit = True


@pytest.fixture
async def connect(service: FakeService) -> AsyncIterator[Connect]:
    async with served(build_app(service)) as connect:
        yield connect


@pytest.fixture
async def hurried(service: FakeService) -> AsyncIterator[Connect]:
    """To a server that waits only for so long."""
    async with served(build_app(service), receive_seconds=SOON) as connect:
        yield connect


async def said_after(client: Client, *pieces: bytes) -> bytes:
    """All that the server says until it closes the connection."""
    reader, writer = client
    for piece in pieces:
        writer.write(piece)
    return await reader.read()


async def heard(hurried: Connect, *pieces: bytes, status: int) -> bytes:
    """All that a hurried server says to this; once more as long as a stall has eaten the time there is to ask."""
    while True:
        with suppress(ConnectionError):  # it closes over what it has not read
            said = await said_after(await hurried(), *pieces)
            if said.startswith(b"HTTP/1.1 %d" % status):
                return said


async def answered(hurried: Connect, asked: bytes, until: bytes) -> Client:
    """A connection on which an answer was read so far; another one as long as a stall has eaten the time to ask."""
    while True:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            reader, writer = await hurried()
            writer.write(asked)
            await reader.readuntil(until)
            return reader, writer


def parsed(said: bytes) -> httpx.Response:
    """One answer, which says that it is the last one and how long it is."""
    head, _, body = said.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert headers["connection"] == "close"
    assert int(headers["content-length"]) == len(body)
    return httpx.Response(int(status.split()[1]), headers=headers, content=body)


def error_of(said: bytes, status: int) -> dict[str, Any]:
    answer = parsed(said)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"].startswith("req_")
    error: dict[str, Any] = answer.json()["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert error["type"] == "invalid_request_error"
    return error


@pytest.mark.parametrize("broken", [b"BREW /pot\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"\x16\x03\x01\x02"])
async def test_what_is_no_http_is_told_so_in_the_shape_of_all_errors(connect: Connect, broken: bytes) -> None:
    assert "HTTP" in error_of(await said_after(await connect(), broken), 400)["message"]


@pytest.mark.parametrize("sent", [b"G", b"GET /livez HTTP/1.1\r\nhost:", HEAD, HEAD + b"{", b"\r\n"])
async def test_a_request_that_never_becomes_whole_is_given_up(hurried: Connect, sent: bytes) -> None:
    assert error_of(await heard(hurried, sent, status=408), 408)["code"] == "request_timeout"


async def test_a_connection_on_which_nothing_is_asked_is_closed_without_a_word(hurried: Connect) -> None:
    assert await said_after(await hurried()) == b""


async def test_a_byte_now_and_then_buys_no_time(hurried: Connect) -> None:
    reader, writer = await hurried()
    writer.write(HEAD)

    async def trickle() -> None:
        while True:
            writer.write(b"x")
            await asyncio.sleep(SOON / 20)

    trickling = asyncio.get_running_loop().create_task(trickle())
    try:
        said = await reader.read()
    except ConnectionResetError:  # a byte that is sent to a closed connection can cost the answer
        said = b""
    trickling.cancel()
    assert not said or error_of(said, 408)["code"] == "request_timeout"


async def test_a_later_request_on_the_same_connection_has_no_more_time(hurried: Connect) -> None:
    client = await answered(hurried, WHOLE, b'{"status":"ok"}')
    assert error_of(await said_after(client, b"GET /livez"), 408)["code"] == "request_timeout"


@pytest.mark.parametrize("cuts", [(), (60,), (180,), (40, 90, 150, 250), tuple(range(1, 270, 7))])
@pytest.mark.parametrize("framing", [SIZED, CHUNKED])
async def test_an_offer_of_another_protocol_is_declined_and_the_request_served(
    connect: Connect, service: FakeService, framing: bytes, cuts: tuple[int, ...]
) -> None:
    offer = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"
    request = b"POST /v1/responses HTTP/1.1\r\nhost: x\r\n" + offer + framing % b'{"model":"m","input":"hi"}'
    reader, writer = await connect()
    for first, last in pairwise((0, *cuts, len(request))):
        writer.write(request[first:last])
        await asyncio.sleep(0)
    writer.write(WHOLE)
    await reader.readuntil(b'{"id":"resp_1","status":"completed"}')
    await reader.readuntil(b'{"status":"ok"}')
    assert service.requests[0].items[0]["content"][0]["text"] == "hi"


@pytest.mark.parametrize("begun", [b"GET /", b"GET /livez HTTP/1.1\r\nhost: x\r\nname: "])
async def test_a_head_has_a_limit(connect: Connect, begun: bytes) -> None:
    said = await said_after(await connect(), begun, b"a" * HEAD_LIMIT)
    assert str(HEAD_LIMIT) in error_of(said, 431)["message"]


async def test_what_comes_behind_a_body_has_the_same_limit(connect: Connect) -> None:
    reader, writer = await connect()
    head = b"POST /v1/responses HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n"
    writer.write(head + (CHUNKED % b'{"model":"m","input":"hi"}')[:-2] + b"name: ")
    await reader.readuntil(b"100 Continue\r\n\r\n")  # all of that was read
    error_of(await said_after((reader, writer), b"a" * (HEAD_LIMIT + 1)), 431)


async def test_a_large_body_and_the_head_behind_it_are_within_the_limit(connect: Connect) -> None:
    body = b'{"model":"m","input":"%s"}' % (b"x" * 10 * HEAD_LIMIT)
    reader, writer = await connect()
    for name in (b"a", b"b"):
        head = b"POST /v1/responses HTTP/1.1\r\nhost: x\r\n%b: %b\r\n" % (name, b"y" * (HEAD_LIMIT - 500))
        writer.write(head + b"content-length: %d\r\n\r\n%b" % (len(body), body))
    for _ in range(2):
        await reader.readuntil(b'{"id":"resp_1","status":"completed"}')


async def test_a_proxy_is_not_what_this_is(connect: Connect) -> None:
    assert "proxy" in error_of(await said_after(await connect(), b"CONNECT x:443 HTTP/1.1\r\n\r\n"), 400)["message"]


async def test_a_body_that_nobody_asked_for_does_not_hold_a_connection(hurried: Connect) -> None:
    said = await heard(hurried, HEAD.replace(b"POST /v1/responses", b"GET /livez"), b"{", status=200)
    assert said.endswith(b'{"status":"ok"}')  # one answer, and no second one behind it


async def test_a_request_that_was_sent_ahead_inherits_nothing() -> None:
    whose = ContextVar("whose", default="nobody's")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        told = whose.get().encode().ljust(10)
        whose.set("the first's")
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"10")]})
        await send({"type": "http.response.body", "body": told})

    async with served(app) as connect:
        reader, writer = await connect()
        writer.write(WHOLE * 3)
        for _ in range(3):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            assert await reader.readexactly(10) == b"nobody's  "


@asynccontextmanager
async def slow_answers(receive_seconds: float) -> AsyncIterator[tuple[Connect, asyncio.Event]]:
    """An application that begins its answers at once and ends them when it is told to."""
    end = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
        await send({"type": "http.response.body", "body": b"be", "more_body": True})
        await end.wait()
        await send({"type": "http.response.body", "body": b"gun"})

    async with served(app, receive_seconds=receive_seconds) as connect:
        yield connect, end
        end.set()


async def test_an_answer_may_take_as_long_as_it_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    give_up, in_vain = Connection._give_up, asyncio.Event()

    def given_up(connection: Connection) -> None:
        give_up(connection)
        in_vain.set()

    monkeypatch.setattr(Connection, "_give_up", given_up)
    async with slow_answers(SOON) as (connect, end):
        reader, writer = await answered(connect, WHOLE, b"be")
        in_vain.clear()  # of a connection that was too slow
        writer.write(b"GET /half")  # its time runs out before it can be read
        async with asyncio.timeout(DEADLINE):
            await in_vain.wait()
        end.set()
        await reader.readuntil(b"gun")


async def test_nothing_is_put_into_an_answer_that_is_under_way() -> None:
    async with slow_answers(DEADLINE) as (connect, _):
        reader, writer = await connect()
        writer.write(WHOLE)
        head = await reader.readuntil(b"be")
        assert head.startswith(b"HTTP/1.1 200")
        assert await said_after((reader, writer), b"no http at all\r\n\r\n") == b""


async def test_a_reader_whose_response_is_deleted_is_cut_and_that_is_no_error_of_the_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    service = FakeService(feed=Feed(Span(0, [CREATED]), ResponseNotFound("resp_1")))
    async with served(build_app(service)) as connect:
        reading = b"GET /v1/responses/resp_1?stream=true HTTP/1.1\r\nhost: x\r\n\r\n"
        said = await said_after(await connect(), reading)
    assert CREATED in said
    assert not said.endswith(b"0\r\n\r\n")
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
