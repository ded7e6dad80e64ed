"""Questions and orders about headers: cancel flags, deletion, retention."""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import delete, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.log.database import Database
from app.log.tables import responses, segments

TREES_PER_BATCH: Final = 50


class Archive:
    """Changes to headers by others than their owner."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def request_cancel(self, response: str) -> None:
        """Set the durable cancel flag of an open response."""
        is_open = (responses.c.id == response) & responses.c.ended_at.is_(None)
        flag = update(responses).where(is_open).values(cancel_requested=True).returning(responses.c.id)
        await self._database.rows(flag)

    async def delete(self, response: str) -> bool:
        """Remove header and segments; False when there was no such response."""
        found = False

        async def remove(connection: AsyncConnection) -> None:
            nonlocal found  # an attempt whose answer was lost may have removed it
            found = bool(await _remove(connection, [response])) or found

        await self._database.transaction(remove)
        return found

    async def expire(self, before: float) -> int:
        """Remove whole trees whose newest member ended before a time; gives how many responses."""
        newer = responses.alias("newer")
        alive = select(newer.c.id).where(
            newer.c.root == responses.c.root, or_(newer.c.ended_at.is_(None), newer.c.ended_at >= before)
        )
        trees = select(responses.c.root).where(responses.c.ended_at < before, ~alive.exists())
        batch = trees.distinct().limit(TREES_PER_BATCH)

        async def remove(connection: AsyncConnection) -> int:
            roots = (await connection.execute(batch)).scalars().all()
            members = select(responses.c.id).where(responses.c.root.in_(roots))
            return len(await _remove(connection, (await connection.execute(members)).scalars().all()))

        removed = 0
        while count := await self._database.transaction(remove):
            removed += count
        return removed


async def _remove(connection: AsyncConnection, ids: Sequence[str]) -> Sequence[str]:
    """Header first: its lock keeps a writer from moving events into segments that nobody would remove."""
    gone = (
        (await connection.execute(delete(responses).where(responses.c.id.in_(ids)).returning(responses.c.id)))
        .scalars()
        .all()
    )
    await connection.execute(delete(segments).where(segments.c.response.in_(ids)))
    return gone
