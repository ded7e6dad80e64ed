"""What somebody asked the database for was done, and the answer was lost; or it was not done. He asks again."""

from collections.abc import AsyncIterator, Iterator
from typing import Final

import pytest

from tests.contracts.logs import Backend, Run, collect, until
from tests.faults.commit_cutter import CommitCutter, Cut

LEASE_SECONDS: Final = 30.0
QUEUED: Final = 5

each_cut = pytest.mark.parametrize("when", ["before", "after"])


@pytest.fixture
def cutter(postgres_url: str) -> Iterator[CommitCutter]:
    with CommitCutter(postgres_url) as cutter:
        yield cutter


@pytest.fixture
async def backend(cutter: CommitCutter) -> AsyncIterator[Backend]:
    backend = Backend(cutter.url)
    yield backend
    await backend.stop()


@each_cut
async def test_what_a_claim_took_is_taken_once_and_by_somebody_who_knows(
    backend: Backend, cutter: CommitCutter, when: Cut
) -> None:
    log = await backend.start(lease_seconds=LEASE_SECONDS)
    runs = [await Run(log, f"resp_{number}").open(queued=True) for number in range(QUEUED)]
    cutter.cut(when, times=1)
    first = await log.claim(["model"], limit=2)
    rest = await log.claim(["model"], limit=QUEUED)
    assert cutter.cuts == 1
    assert [header.id for header in first + rest] == [run.id for run in runs]
    assert {header.attempts for header in first + rest} == {1}
    for run in runs:
        await run.end()
        assert await collect(log, run.id) == run.events


@each_cut
async def test_a_deletion_is_told_as_one(backend: Backend, cutter: CommitCutter, when: Cut) -> None:
    log = await backend.start(lease_seconds=LEASE_SECONDS)
    await (await Run(log).open()).end()
    cutter.cut(when, times=1)
    assert await log.delete("resp_1")
    assert cutter.cuts == 1
    assert not await log.delete("resp_1")


@each_cut
async def test_a_cancel_flag_is_set(backend: Backend, cutter: CommitCutter, when: Cut) -> None:
    log = await backend.start(lease_seconds=LEASE_SECONDS)
    run = await Run(log).open()
    cutter.cut(when, times=1)
    await log.request_cancel("resp_1")
    assert cutter.cuts == 1
    assert await until(log.beat) == ["resp_1"]
    await run.end()


@each_cut
async def test_a_beat_is_a_beat(backend: Backend, cutter: CommitCutter, when: Cut) -> None:
    log = await backend.start(lease_seconds=LEASE_SECONDS)
    cutter.cut(when, times=1)
    assert await log.beat() == []
    assert cutter.cuts == 1
    await (await Run(log).open()).end()
