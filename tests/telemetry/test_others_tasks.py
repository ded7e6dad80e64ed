"""A line is about the request that it names: what one request starts and all others use names none."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.contextvars import bound_contextvars, get_contextvars

from app.log.record import Record
from tests.contracts.logs import Backend, Run, collect, start, until

SHARED = {"app.log.following", "app.log.scanner"}


@pytest.fixture
async def backend(sqlite_url: str) -> AsyncIterator[Backend]:
    backend = Backend(sqlite_url)
    yield backend
    await backend.stop()


class Lines(logging.Handler):
    """What the log says, and whom it names."""

    def __init__(self) -> None:
        super().__init__()
        self.named: dict[str, dict[str, Any]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self.named[record.name] = get_contextvars()


async def test_following_others_is_the_work_of_no_request(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, other = await backend.start(), await backend.start()
    run, lines, seen = await Run(writer).open(), Lines(), asyncio.Event()

    async def read() -> list[bytes]:
        async for _ in other.subscribe(run.id, after=-1):
            seen.set()
            break
        return await collect(other)

    with bound_contextvars(request_id="req_1"):
        reader = start(read())
    await seen.wait()

    def away(*_: Any, **__: Any) -> None:
        raise OSError("away")

    with monkeypatch.context() as broken:
        for method in ("places", "rows"):
            broken.setattr(Record, method, away)
        logging.getLogger("app.log").addHandler(lines)

        async def both_have_spoken() -> bool:
            return lines.named.keys() >= SHARED

        await until(both_have_spoken)
        logging.getLogger("app.log").removeHandler(lines)
    await run.end()

    assert await reader == run.events
    assert {name: lines.named[name] for name in SHARED} == {name: {} for name in SHARED}
