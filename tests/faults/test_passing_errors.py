"""PostgreSQL says no for reasons that have nothing to do with the data: everybody waits, nobody fails."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import pytest
from sqlalchemy import literal, select

from app.log.database import Database, parse_url
from tests.contracts.logs import Backend, Run, collect
from tests.faults.commit_cutter import CommitCutter

CODES: Final = {
    "a plan made before a migration": "0A000",
    "a server that only reads": "25006",
    "a transaction that stood still": "25P03",
    "serialization": "40001",
    "full disk": "53100",
    "out of memory": "53200",
    "too many connections": "53300",
    "lock": "55P03",
    "shutdown": "57P01",
    "starting up": "57P03",
    "disk": "58030",
}
LEASE_SECONDS: Final = 30.0
REFUSALS: Final = 2
QUESTIONS: Final = 3
ANSWERS: Final = 8
"""So many are given at least: most while the connection is being made."""

_REFUSE: Final = (
    "CREATE SEQUENCE tries_{table}",
    (
        "CREATE FUNCTION refuse_{table}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF nextval('tries_{table}') <= {times} THEN RAISE EXCEPTION 'not now' USING ERRCODE = '{code}'; END IF;"
        " RETURN NEW; END $$"
    ),
    "CREATE TRIGGER refuse BEFORE {what} ON {table} FOR EACH ROW EXECUTE FUNCTION refuse_{table}()",
)
_FORGIVE: Final = ("DROP FUNCTION refuse_{table} CASCADE", "DROP SEQUENCE tries_{table}")
_WRITES: Final = {"journal": "INSERT", "writers": "UPDATE", "responses": "UPDATE"}


@pytest.fixture
async def backend(postgres_url: str) -> AsyncIterator[Backend]:
    backend = Backend(postgres_url)
    yield backend
    await backend.stop()


@asynccontextmanager
async def refusing(backend: Backend, code: str) -> AsyncIterator[None]:
    """The first writes to each table are refused with this code."""
    tables = [{"table": table, "what": what, "code": code, "times": REFUSALS} for table, what in _WRITES.items()]
    for table in tables:
        for statement in _REFUSE:
            await backend.execute(statement.format(**table))
    try:
        yield
        tries = [await backend.query("SELECT last_value FROM tries_{table}".format(**table)) for table in tables]
        assert [row.last_value > REFUSALS for (row,) in tries] == [True] * len(tables)
    finally:
        for table in tables:
            for statement in _FORGIVE:
                await backend.execute(statement.format(**table))


@pytest.mark.parametrize("code", CODES.values(), ids=CODES.keys())
async def test_a_database_that_can_not_just_now_is_asked_again(backend: Backend, code: str) -> None:
    log = await backend.start(lease_seconds=LEASE_SECONDS)
    queued, run = await Run(log, "resp_queued").open(queued=True), Run(log, "resp_run")
    async with refusing(backend, code):
        assert await log.beat() == []
        assert [header.id for header in await log.claim(["model"], limit=1)] == ["resp_queued"]
        await queued.end()
        await run.open()
        await run.end()
    for one in (queued, run):
        assert await collect(log, one.id) == one.events


@pytest.mark.parametrize("behind", range(1, ANSWERS + 1))
async def test_a_connection_that_is_ended_between_two_questions_is_not_missed(postgres_url: str, behind: int) -> None:
    with CommitCutter(postgres_url) as line:
        database = Database(parse_url(line.url), connections=1)
        line.say_farewell(behind=behind)
        for number in range(QUESTIONS):
            assert await database.rows(select(literal(number))) == [(number,)]
        assert line.farewells == 1
        await database.close()
