"""Pauses that can be cut short, so that tasks end between two queries: cancelling one would break its connection."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from app.errors import LogUnavailable

T = TypeVar("T")


async def event_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, or for that long; tells which."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def answered_within(question: Awaitable[T], seconds: float) -> T:
    """What the database answers in time. Raises LogUnavailable; then the connection of the question is given up."""
    try:
        async with asyncio.timeout(seconds):
            return await question
    except TimeoutError as error:
        raise LogUnavailable from error
