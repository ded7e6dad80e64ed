"""What only the log in memory does: it forgets."""

import asyncio

import pytest

from app.errors import ResponseNotFound
from app.log.memory import MemoryLog
from tests.contracts.logs import Run, collect, start


async def test_a_finished_stream_is_dropped_when_its_last_subscriber_has_gone() -> None:
    log = MemoryLog(keep_finished=False)
    run = await Run(log).open()
    readers = [start(collect(log)) for _ in range(2)]
    await asyncio.sleep(0)
    early = aiter(log.subscribe("resp_1", after=-1))
    assert run.events == list((await anext(early)).events)
    await run.end()
    for reader in readers:
        assert run.events == await reader
    assert await log.header("resp_1") is not None
    assert [run.events[-1]] == [event async for span in early for event in span.events]
    assert await log.header("resp_1") is None


async def test_an_open_stream_stays_without_subscribers() -> None:
    log = MemoryLog(keep_finished=False)
    run = await Run(log).open()
    leaving = log.subscribe("resp_1", after=-1)
    await anext(aiter(leaving))
    await leaving.aclose()  # type: ignore[attr-defined]
    await run.append()
    assert run.events == list((await log.read("resp_1", after=-1)).events)


async def test_a_stream_that_nobody_read_is_forgotten_on_order() -> None:
    log = MemoryLog(keep_finished=False)
    await (await Run(log).open()).end()
    log.forget("resp_1")
    log.forget("resp_1")
    with pytest.raises(ResponseNotFound):
        await collect(log)
