"""Who is alive: registering, beats, and fencing writers that stand still. No clock is compared with another one."""

import asyncio
import secrets
import time
from dataclasses import dataclass
from typing import Final

from sqlalchemy import ColumnElement, insert, select, update

from app.errors import Fenced
from app.log.commit import Identity
from app.log.database import Database
from app.log.tables import responses, writers

TOKEN_BITS: Final = 62
CLOSE_SECONDS: Final = 2.0
STEPS: Final = 4
"""A lease time is seen to pass in at least so many looks: one long pause (ours or the database's) buries nobody."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """What we last saw of a writer: its beat, and for how many seconds we have seen it stand still."""

    beat: int
    still: float


def observe(before: Sighting | None, beat: int, *, elapsed: float, lease_seconds: float) -> Sighting:
    """Look again after some seconds."""
    if before is None or before.beat != beat:
        return Sighting(beat, 0.0)
    return Sighting(beat, before.still + min(elapsed, lease_seconds / STEPS))


class Observer:
    """Watches the other writers' beats on our own monotonic clock."""

    def __init__(self, lease_seconds: float) -> None:
        self._lease_seconds = lease_seconds
        self._sightings: dict[int, Sighting] = {}
        self._looked_at = time.monotonic()

    def look(self, beats: dict[int, int]) -> list[int]:
        """Take the current beats of the others; gives those who stood still for the lease time."""
        now = time.monotonic()
        elapsed, self._looked_at = now - self._looked_at, now
        self._sightings = {
            writer: observe(
                self._sightings.get(writer), beat, elapsed=elapsed, lease_seconds=self._lease_seconds
            )
            for writer, beat in beats.items()
        }
        return [writer for writer, seen in self._sightings.items() if seen.still >= self._lease_seconds]


class Writers:
    """The rows of all writing processes."""

    def __init__(self, database: Database, *, lease_seconds: float) -> None:
        self._database = database
        self._pulse = database.apart()  # a pool that is exhausted must not look like death
        self._patience = lease_seconds / STEPS / 2
        self._question: asyncio.Task[list[str]] | None = None
        self._observer = Observer(lease_seconds)

    async def register(self) -> Identity:
        """A new writer."""
        token = secrets.randbits(TOKEN_BITS)
        added = await self._database.rows(insert(writers).values(token=token).returning(writers.c.id))
        return Identity(int(added[0].id), token)

    async def beat(self, identity: Identity) -> list[str]:
        """Count the beat up; gives the open responses of this writer that are to be cancelled. Raises Fenced."""
        await self._count_up(identity)
        return await self._to_cancel(identity)

    async def _count_up(self, identity: Identity) -> None:
        counted = update(writers).where(is_unfenced(identity)).values(beat=writers.c.beat + 1).returning(writers.c.id)
        if not await self._pulse.rows(counted):
            raise Fenced

    async def _to_cancel(self, identity: Identity) -> list[str]:
        """A question that is not answered soon (its table is locked) keeps no beat waiting: a later one hears of it."""
        question = self._question
        if question is None:
            question = self._question = asyncio.get_running_loop().create_task(self._ask(identity.writer))
        if not (await asyncio.wait({question}, timeout=self._patience))[0]:
            return []
        if self._question is question:
            self._question = None
        return question.result()

    async def _ask(self, writer: int) -> list[str]:
        wanted = select(responses.c.id).where(responses.c.owner == writer, responses.c.cancel_requested)
        return [row.id for row in await self._database.rows(wanted)]

    async def close(self) -> None:
        """Finish or give up what is under way."""
        if (question := self._question) is not None and not (await asyncio.wait({question}, timeout=CLOSE_SECONDS))[0]:
            question.cancel()  # that breaks its connection
            await asyncio.wait({question})
        await self._pulse.close()

    async def retire(self, identity: Identity) -> None:
        """Stop being a writer, by our own will; what is left will be settled like a dead writer's."""
        fenced = update(writers).where(is_unfenced(identity)).values(fenced=True).returning(writers.c.id)
        await self._database.rows(fenced)

    async def dead(self, me: Identity | None) -> list[int]:
        """Fence the others who stood still for the lease time; gives all fenced writers that are not settled.

        A look begins with a beat of our own: while nobody can write, everybody stands still. Raises Fenced.
        """
        if me is not None:
            await self._count_up(me)
        rows = await self._database.rows(select(writers.c.id, writers.c.beat, writers.c.fenced))
        others = [row for row in rows if me is None or row.id != me.writer]
        still = self._observer.look({row.id: row.beat for row in others if not row.fenced})
        beats = {row.id: row.beat for row in others}
        fenced = [row.id for row in others if row.fenced]
        return fenced + [writer for writer in still if await self._fence(writer, beats[writer])]

    async def _fence(self, writer: int, beat: int) -> bool:
        """One statement by itself: what is read after it holds the writer's last commit.

        It names the beat that was seen, so a writer that has just moved again stays alive.
        """
        fencing = (
            update(writers)
            .where(writers.c.id == writer, writers.c.beat == beat, ~writers.c.fenced)
            .values(fenced=True)
            .returning(writers.c.id)
        )
        return bool(await self._database.rows(fencing))


def is_unfenced(identity: Identity) -> ColumnElement[bool]:
    """Whether this writer may still write."""
    return (writers.c.id == identity.writer) & (writers.c.token == identity.token) & ~writers.c.fenced
