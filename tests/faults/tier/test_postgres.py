"""PostgreSQL that restarts, cuts connections, stands still or keeps everybody waiting: streams go on.

Whoever asks for something new meanwhile is told so in time, and leaves nothing behind.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import asyncpg
import httpx
import psutil
import pytest

from tests.conftest import DISCONNECT
from tests.e2e.client import text_of
from tests.e2e.serving import Fleet
from tests.faults.tier.conftest import PATIENT
from tests.faults.tier.laws import assert_laws
from tests.faults.tier.readers import Reader, Readers, reading, start, told_more, until
from tests.faults.tier.turn import said_script
from tests.oracle import assert_keeps_invariants
from tests.servers import Postgres

STREAMS: Final = 10
SAID: Final = "and on " * 500
STANDSTILL_SECONDS: Final = 15.0
LOCKED_SECONDS: Final = 10.0
CUTS: Final = 60
WAIT_SECONDS: Final = 5.0
LEASE_SECONDS: Final = 10.0
"""Nobody dies here, however busy the machine is."""
SHORT_LEASE_SECONDS: Final = 2.0
"""Where everybody is held up for some leases: looks are as frequent as beats, else a wrong verdict would be rare."""
ROUNDS: Final = 2
ASKING: Final = 30
"""More than there are connections."""


@pytest.fixture
def script(tmp_path: Path, gate: Path) -> Path:
    return said_script(tmp_path / "script.json", SAID, pace_ms=6, gate=gate)


@pytest.fixture
def settings(script: Path) -> dict[str, Any]:
    return {"engine": "scripted", "script": script, "model": "gpt-oss", "lease_seconds": LEASE_SECONDS} | PATIENT


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[Postgres]:
    """A server of the test's own."""
    with Postgres(tmp_path) as server:
        yield server


@pytest.fixture
def fleet(postgres: Postgres, tmp_path: Path, settings: dict[str, Any]) -> Iterator[Fleet]:
    with Fleet(tmp_path / "fleet", postgres.url, **settings) as fleet:
        yield fleet
        assert_laws(postgres.url)


@asynccontextmanager
async def load(fleet: Fleet, gate: Path, **settings: Any) -> AsyncIterator[tuple[Readers, list[Reader]]]:
    """Background and foreground streams, all in mid-speech, on three processes; they come to an end afterwards."""
    kinds = ({"worker": False}, {"command": "worker"}, {"command": "worker"})
    front, *_ = await start(fleet, *(kind | settings for kind in kinds))
    async with reading() as readers:
        background = [readers.create(front.url, "Go on.") for _ in range(STREAMS)]
        foreground = [readers.create(front.url, "Go on.", background=False) for _ in range(STREAMS // 2)]
        streams = background + foreground
        await told_more(streams)
        gate.touch()
        await told_more(streams)
        yield readers, streams


def assert_told_whole(streams: list[Reader]) -> None:
    for reader in streams:
        assert reader.response["status"] == "completed"
        assert text_of(reader.response) == SAID
        assert_keeps_invariants(bytes(reader.body))


async def test_a_database_that_restarts_under_load_is_waited_for(fleet: Fleet, postgres: Postgres, gate: Path) -> None:
    async with load(fleet, gate) as (_, streams):
        for how in (signal.SIGQUIT, signal.SIGINT):
            await asyncio.to_thread(postgres.stop, how)
            await asyncio.to_thread(postgres.start)
            at = [reader.position for reader in streams]
            await until(
                lambda: all(r.ended or r.position > n for r, n in zip(streams, at, strict=True)),  # noqa: B023
                what="going on",
            )

    assert_told_whole(streams)


async def test_connections_that_are_cut_again_and_again_cost_nothing(
    fleet: Fleet, postgres: Postgres, gate: Path
) -> None:
    async with load(fleet, gate) as (_, streams):
        connection = await asyncpg.connect(postgres.url)
        cut = rounds = 0
        while rounds < CUTS or cut <= CUTS:
            rounds += 1
            cut += len(await connection.fetch(DISCONNECT))
            await asyncio.sleep(0.05)  # a cut falls somewhere, also into a COMMIT
        await connection.close()

    assert_told_whole(streams)


async def test_a_database_that_stands_still_fences_nobody(fleet: Fleet, postgres: Postgres, gate: Path) -> None:
    async with load(fleet, gate, lease_seconds=SHORT_LEASE_SECONDS) as (_, streams), suspended(postgres):
        await asyncio.sleep(STANDSTILL_SECONDS / 2)  # the standstill is the test
        at = [reader.position for reader in streams]
        await asyncio.sleep(STANDSTILL_SECONDS / 2)
        assert at == [reader.position for reader in streams]
        assert not all(reader.ended for reader in streams)

    assert_told_whole(streams)
    assert [server.stderr.count("fenced") for server in fleet._servers] == [0, 0, 0]


async def test_a_table_that_is_locked_exhausts_the_pool_and_fences_nobody(
    fleet: Fleet, postgres: Postgres, gate: Path
) -> None:
    async with load(fleet, gate, lease_seconds=SHORT_LEASE_SECONDS) as (
        readers,
        streams,
    ):
        (front, *_) = fleet._servers
        connection = await asyncpg.connect(postgres.url)
        async with connection.transaction():
            await connection.execute("LOCK TABLE responses IN ACCESS EXCLUSIVE MODE")
            asked = [asyncio.ensure_future(readers.retrieve(front.url, streams[0].response_id)) for _ in range(40)]
            late = [readers.create(front.url, "Go on.", background=kind) for kind in (True, False)]
            await asyncio.sleep(LOCKED_SECONDS)  # the lock is the test
        await connection.close()
        assert {found["id"] for found in await asyncio.gather(*asked)} == {streams[0].response_id}

    assert_told_whole(streams + late)
    assert [server.stderr.count("fenced") for server in fleet._servers] == [0, 0, 0]


@asynccontextmanager
async def locked(postgres: Postgres) -> AsyncIterator[None]:
    """Every connection that asks for a header waits, until the pool is empty."""
    connection = await asyncpg.connect(postgres.url)
    async with connection.transaction():
        await connection.execute("LOCK TABLE responses IN ACCESS EXCLUSIVE MODE")
        yield
    await connection.close()


@asynccontextmanager
async def suspended(postgres: Postgres) -> AsyncIterator[None]:
    """Nothing is answered at all, not even a new connection."""
    postmaster = psutil.Process(int((postgres._data / "postmaster.pid").read_text().split()[0]))
    postmaster.suspend()  # first, so that it has no more children
    children = postmaster.children(recursive=True)
    for child in children:
        child.suspend()
    try:
        yield
    finally:
        for process in (*children, postmaster):
            process.resume()


@asynccontextmanager
async def away(postgres: Postgres) -> AsyncIterator[None]:
    """Nobody is there."""
    await asyncio.to_thread(postgres.stop, signal.SIGQUIT)
    yield
    await asyncio.to_thread(postgres.start)


async def ask_for_everything(http: httpx.AsyncClient, url: str, response_id: str) -> list[httpx.Response]:
    """All that needs the database, by more clients than there are connections."""
    every, one = f"{url}/v1/responses", f"{url}/v1/responses/{response_id}"
    asked = {"model": "gpt-oss", "input": "Go on."}
    kinds: list[dict[str, Any]] = [{}, {"stream": True}, {"background": True}, {"background": True, "stream": True}]
    return await asyncio.gather(
        *(http.post(every, json=asked | kind) for kind in kinds * 2),
        http.post(every, json=asked | {"previous_response_id": response_id}),
        *(http.get(one) for _ in range(ASKING)),
        http.get(one, params={"stream": "true"}),
        http.get(f"{one}/input_items"),
        http.post(f"{one}/cancel"),
        http.delete(one),
        http.get(f"{url}/health"),
    )


async def stored(postgres: Postgres) -> int:
    """How many responses there are."""
    connection = await asyncpg.connect(postgres.url)
    count = int(await connection.fetchval("SELECT count(*) FROM responses"))
    await connection.close()
    return count


@pytest.mark.parametrize("silent", [locked, suspended, away])
async def test_whoever_asks_a_silent_database_for_something_new_is_told_and_leaves_nothing(
    fleet: Fleet, postgres: Postgres, gate: Path, silent: Callable[[Postgres], AbstractAsyncContextManager[None]]
) -> None:
    async with load(fleet, gate, database_wait_seconds=WAIT_SECONDS) as (readers, streams):
        (front, *_) = fleet._servers
        known = streams[0].response_id
        async with silent(postgres):  # and it stays so until all have their answers
            answers = [await ask_for_everything(readers.http, front.url, known) for _ in range(ROUNDS)]
            assert (await readers.http.get(f"{front.url}/livez")).status_code == 200
        told = [answer for answers_of_a_round in answers for answer in answers_of_a_round]
        assert {answer.status_code for answer in told} == {503}, [answer.text for answer in told]
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in told)
        while await stored(postgres) != len(streams):  # what was being committed is removed
            await asyncio.sleep(0.1)

    assert_told_whole(streams)
