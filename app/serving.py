"""The server process: one socket, one loop, and a drain on SIGTERM that lets running responses finish."""

import asyncio
import contextlib
import errno
import ipaddress
import logging
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Final, cast

import structlog
import uvicorn
from starlette.types import ASGIApp

from app.api.connection import Connection
from app.errors import SettingsError

Drain = Callable[[float], Awaitable[None]]

_LINGER_SECONDS: Final = 2  # after the drain, for readers of responses that run elsewhere
_CUT: Final = "ASGI callable returned without completing response."  # of a stream that can't go on, as uvicorn says it
_LOGGER: Final = structlog.get_logger()


def bound_socket(host: str, port: int) -> socket.socket:
    """A listening address, taken before anything is started. Raises SettingsError when it is not to be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    taken = socket.socket(family, socket.SOCK_STREAM)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        taken.bind((host, port))
        taken.listen(2048)
    except (OSError, OverflowError) as error:
        taken.close()
        another = "; choose another with --port" if getattr(error, "errno", None) == errno.EADDRINUSE else ""
        raise SettingsError(f"Can't listen on {host}:{port}: {error}{another}.") from error
    return taken


def address_of(listening: socket.socket) -> str:
    """The address as people type it."""
    host, port = listening.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = "127.0.0.1"
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


class Server(uvicorn.Server):
    """uvicorn without its signal handlers: the signals are ours, because a drain comes first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield

    async def _wait_tasks_to_complete(self) -> None:
        """Linger, then cut who still reads. That is how a drain ends and no error, as uvicorn would have it."""
        try:
            async with asyncio.timeout(_LINGER_SECONDS):
                await super()._wait_tasks_to_complete()
        except TimeoutError:
            _LOGGER.info("readers_cut", count=len(self.server_state.tasks))
            for task in self.server_state.tasks:
                task.cancel()


def configuration(app: ASGIApp, receive_seconds: float) -> uvicorn.Config:
    """How uvicorn serves here. A request must be whole after `receive_seconds`."""
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    connection = cast("type[asyncio.Protocol]", partial(Connection, receive_seconds))
    return uvicorn.Config(
        app,
        http=connection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        reset_contextvars=True,  # a request that was sent ahead is none of its predecessor's doing
    )


def _is_news(record: logging.LogRecord) -> bool:
    """False for a connection that we cut ourselves, and for what clients do wrong: we tell of it better."""
    cut = record.msg == _CUT or (record.exc_info is not None and isinstance(record.exc_info[1], asyncio.CancelledError))
    return not cut and record.levelno != logging.WARNING


async def serve_until_signal(
    config: uvicorn.Config, listening: socket.socket, drain: Drain, drain_seconds: float
) -> None:
    """Serve; at SIGTERM or SIGINT drain while still answering, then stop.

    A second signal is the deadline of the drain; a third one stops at once, whatever still runs.
    """
    server = Server(config)
    signals = asyncio.Queue[None]()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, None)

    async def drain_for(seconds: float) -> None:
        await drain(seconds)
        server.should_exit = True

    async with asyncio.TaskGroup() as tasks:

        async def follow_signals() -> None:
            for seconds, next_signal in ((drain_seconds, "ends the drain at once"), (0.0, "ends the process at once")):
                await signals.get()
                _LOGGER.info("draining", seconds=seconds, another_signal=next_signal)
                started.append(tasks.create_task(drain_for(seconds), name="drain"))
            await signals.get()
            server.should_exit = server.force_exit = True

        started = [tasks.create_task(follow_signals(), name="signals")]
        await server.serve([listening])
        for task in started:
            task.cancel()
