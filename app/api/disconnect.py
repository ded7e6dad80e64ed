"""Noticing that a client has gone, and working only as long as it is there."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

T = TypeVar("T")


async def until_disconnect(receive: Receive) -> None:
    """Wait for the client to go. The request's body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def first_of(*works: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    """Run several at once until one ends, then cancel the others and wait for them; gives all as ended tasks."""
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return tasks


async def while_connected(work: Coroutine[Any, Any, T], receive: Receive) -> T | None:
    """The result of `work`, or None when the client went first: then `work` is cancelled."""
    worker, _ = await first_of(work, until_disconnect(receive))
    return None if worker.cancelled() else worker.result()
