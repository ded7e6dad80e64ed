"""Whoever asked the database may go at any moment: a request that is cut, a duty at the end of its process."""

import asyncio
from random import Random

from sqlalchemy import insert, text, update

from app.log.database import Database, parse_url
from app.log.tables import writers
from tests.contracts.logs import DEADLINE_SECONDS

TIMES = 400
LONGEST_SECONDS = 0.003  # a question takes less


async def test_a_question_that_is_broken_off_leaves_no_lock(sqlite_url: str) -> None:
    asked, other = Database(parse_url(sqlite_url)), Database(parse_url(sqlite_url))
    dice = Random(5)
    await asked.rows(insert(writers).values(token=1).returning(writers.c.id))
    counting = update(writers).values(beat=writers.c.beat + 1).returning(writers.c.id)

    for _ in range(TIMES):
        single = asyncio.ensure_future(asked.rows(counting))
        several = asyncio.ensure_future(asked.transaction(lambda connection: connection.execute(counting)))
        await asyncio.sleep(dice.uniform(0, LONGEST_SECONDS))
        for question in (single, several):
            question.cancel()
        await asyncio.wait({single, several})
        async with asyncio.timeout(DEADLINE_SECONDS):
            await other.rows(counting)

    assert (await other.rows(text("SELECT beat FROM writers")))[0].beat >= TIMES
    await asked.close()
    await other.close()
