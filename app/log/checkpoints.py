"""Checkpoints of the SQLite WAL: in the background, and a small one in the writer right after.

SQLite's own automatic ones stall commits by 20 ms; background ones alone let the WAL grow without bound (measured).
"""

import asyncio
import logging
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from app.log.database import Database
from app.log.pauses import event_within
from app.log.sqlite import SqliteDriver

PAUSE_SECONDS: Final = 0.5

logger: Final = logging.getLogger(__name__)


class Checkpoints:
    """A task that checkpoints while there are commits."""

    def __init__(self, database: Database, driver: SqliteDriver) -> None:
        self._database = database
        self._driver = driver
        self._stopped = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="checkpoints")

    async def close(self) -> None:
        """End the task, after the checkpoint that is under way."""
        self._stopped.set()
        await self._task

    async def _run(self) -> None:
        done = 0
        while not await event_within(self._stopped, PAUSE_SECONDS):
            commits = self._driver.commits
            if commits == done:
                continue
            done = commits
            try:
                await self._database.raw("PRAGMA wal_checkpoint(PASSIVE)")
            except SQLAlchemyError as error:
                logger.warning("checkpoint failed: %s", error)
            self._driver.checkpoint_soon()
