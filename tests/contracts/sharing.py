"""The contract of logs that share one record: what one process does, all others see."""

import asyncio
from contextlib import suppress

import pytest

from app.errors import AppendRejected, Fenced, LogError, NotOwned, ResponseNotFound
from app.log.commit import CrashPoints
from app.log.journal import Pace
from tests.contracts.logs import (
    DEADLINE_SECONDS,
    LEASE_SECONDS,
    Backend,
    Log,
    Run,
    collect,
    deltas,
    header,
    start,
    until,
)

HASTY = Pace(moved_after_events=5, moved_after_seconds=0.01, kept_seconds=0.03, sweep_seconds=0.005)
STAYS = Pace(moved_after_seconds=3600)  # what is in the journal is only there, however long anything takes


class Once:
    """A crash point that raises the first time."""

    def __init__(self, error: Exception) -> None:
        self.error: Exception | None = error

    def __call__(self) -> None:
        error, self.error = self.error, None
        if error is not None:
            raise error


async def buried(observer: Log) -> int:
    """Look at the others until one is buried."""

    async def look() -> int:
        return await observer.bury()

    return int(await until(look))


class SharingContract:
    """Two processes, one record."""

    async def test_another_process_follows_from_every_position(self, shared: Backend) -> None:
        writer, other = await shared.start(), await shared.start()
        run = await Run(writer).open()
        await run.append(3)
        readers = [start(collect(other, after=after)) for after in range(-1, 8)]
        for _ in range(10):
            await run.append()
            await asyncio.sleep(0.005)
        await run.end(count=2)
        for after, reader in zip(range(-1, 8), readers, strict=True):
            assert run.events[after + 1 :] == await reader

    async def test_another_process_reads_up_to_now(self, shared: Backend) -> None:
        writer, other = await shared.start(pace=HASTY), await shared.start()
        run = await Run(writer).open()
        for _ in range(30):
            await run.append()
            for after in (-1, run.version - 1, run.version):
                assert run.events[after + 1 :] == list((await other.read("resp_1", after=after)).events)

    async def test_nothing_is_lost_while_events_move_and_rows_are_trimmed(self, shared: Backend) -> None:
        writer, other = await shared.start(pace=HASTY), await shared.start()
        runs = [await Run(writer, f"resp_{number}").open() for number in range(5)]
        readers = {run.id: [start(collect(log, run.id)) for log in (writer, other)] for run in runs}

        async def write(run: Run) -> None:
            for step in range(60):
                await run.append(1 + step % 3)
                if step % 10 == 0:
                    readers[run.id].append(start(collect(other, run.id)))
                await asyncio.sleep(0.004)
            await run.end()

        await asyncio.gather(*map(write, runs))
        for run in runs:
            for reader in readers[run.id]:
                assert run.events == await reader

    async def test_a_slow_reader_elsewhere_gets_everything(self, shared: Backend) -> None:
        writer, other = await shared.start(pace=HASTY), await shared.start()
        run = await Run(writer).open()
        slow = aiter(other.subscribe("resp_1", after=-1))
        got = list((await anext(slow)).events)
        for _ in range(40):
            await run.append(100)
        await run.end()
        async for span in slow:
            got.extend(span.events)
            await asyncio.sleep(0.002)
        assert run.events == got

    async def test_a_queued_response_is_followed_wherever_it_is_claimed(self, shared: Backend) -> None:
        front, worker = await shared.start(), await shared.start()
        run = await Run(front).open(queued=True)
        readers = [start(collect(log)) for log in (front, worker)]
        run.log = worker
        assert [one.id for one in await worker.claim(["model"], limit=1)] == ["resp_1"]
        await run.append(5, status="in_progress")
        await run.end()
        for reader in readers:
            assert run.events == await reader

    async def test_a_response_wanders_from_process_to_process(self, shared: Backend) -> None:
        logs = [await shared.start(pace=HASTY) for _ in range(3)]
        run = await Run(logs[0]).open()
        readers = [start(collect(log)) for log in logs]
        for number in range(12):
            await run.append(7, tokens=[number])
            await run.log.release("resp_1")
            run.log = logs[(number + 1) % 3]
            (claimed,) = await run.log.claim(["model"], limit=1)
            assert (run.version, 1) == (claimed.version, claimed.attempts)
            assert list(range(number + 1)) == await run.log.tokens("resp_1")
        await run.end()
        for reader in readers:
            assert run.events == await reader

    async def test_a_claim_is_for_one_process(self, shared: Backend) -> None:
        front, *workers = [await shared.start() for _ in range(4)]
        for number in range(30):
            await Run(front, f"resp_{number}").open(queued=True)
        claims = await asyncio.gather(*(worker.claim(["model"], limit=4) for worker in workers * 3))
        ids = [one.id for claim in claims for one in claim]
        assert ids and len(ids) == len(set(ids))

    async def test_a_flag_from_another_process_reaches_the_owner(self, shared: Backend) -> None:
        writer, other = await shared.start(), await shared.start()
        await Run(writer).open()
        await other.request_cancel("resp_1")
        assert list(await other.beat()) == []
        assert list(await until(writer.beat)) == ["resp_1"]

    async def test_deletion_by_another_process_ends_everything(self, shared: Backend) -> None:
        writer, other = await shared.start(pace=HASTY), await shared.start()
        run = await Run(writer).open()
        readers = [start(collect(log)) for log in (writer, other)]
        await run.append()
        assert await other.delete("resp_1")
        with pytest.raises(LogError):
            async with asyncio.timeout(DEADLINE_SECONDS):
                while True:
                    await run.append()
        for reader in readers:
            with pytest.raises(ResponseNotFound):
                await reader
        assert await writer.header("resp_1") is None
        with pytest.raises(ResponseNotFound):
            await other.read("resp_1", after=-1)

    async def test_a_closed_log_leaves_its_responses_to_others(self, shared: Backend) -> None:
        writer, other = await shared.start(), await shared.start()
        run = await Run(writer).open()
        reader = start(collect(other))
        await run.append(3, tokens=[1, 2])
        await writer.close()
        shared.started.remove(writer)
        (claimed,) = await other.claim(["model"], limit=1)
        assert (claimed.version, await other.tokens("resp_1")) == (4, [1, 2])
        run.log = other
        await run.end()
        assert run.events == await reader


class DeathContract:
    """Writers that stand still are fenced, and what they left is settled."""

    async def test_a_dead_writer_is_buried_and_its_responses_go_on(self, shared: Backend) -> None:
        dead, heir = await shared.start(), await shared.start()
        run = await Run(dead).open()
        await run.append(5, tokens=[7, 8])
        closed = await Run(dead, "resp_closed").open()
        await closed.end()
        readers = [start(collect(log)) for log in (dead, heir)]
        assert await buried(heir) == 1
        (claimed,) = await heir.claim(["model"], limit=9)
        assert (claimed.id, claimed.version, claimed.status) == ("resp_1", 6, "in_progress")
        assert await heir.tokens("resp_1") == [7, 8]
        run.log = heir
        await run.append(2)
        with pytest.raises(Fenced):
            await dead.beat()
        await run.end()
        for reader in readers:
            assert run.events == await reader
        assert closed.events == await collect(heir, "resp_closed")

    async def test_a_fenced_writer_commits_nothing(self, shared: Backend) -> None:
        fenced, heir = await shared.start(), await shared.start()
        told: list[bool] = []
        fenced.on_fenced = lambda: told.append(True)
        runs = [await Run(fenced, f"resp_{number}").open() for number in range(3)]
        await buried(heir)
        appends = [fenced.append(run.id, deltas(2, 1), expected_version=1) for run in runs]
        outcomes = await asyncio.gather(*appends, return_exceptions=True)
        assert [Fenced] * 3 == [type(one) for one in outcomes]
        assert told == [True]
        fenced._openings._seconds = 0.1
        with pytest.raises(Fenced):
            await fenced.open(header("resp_new"), [b"0"], queued=False)
        for run in runs:
            assert run.events == list((await heir.read(run.id, after=-1)).events)
            assert run.events == list((await fenced.read(run.id, after=-1)).events)

    @pytest.mark.parametrize("happens", ["fenced = true", "token = token + 1"])
    @pytest.mark.parametrize("commit", ["append", "end", "open"])
    async def test_a_writer_commits_nothing_from_its_fence_on_or_when_its_number_is_anothers(
        self, shared: Backend, commit: str, happens: str
    ) -> None:
        fenced, heir = await shared.start(), await shared.start()
        run = await Run(fenced).open()
        await shared.execute(f"UPDATE writers SET {happens} WHERE id = {fenced._committer.identity.writer}")
        with pytest.raises(Fenced):
            await getattr(Run(fenced, "resp_new") if commit == "open" else run, commit)()
        assert run.events == list((await heir.read(run.id, after=-1)).events)
        assert await heir.header("resp_new") is None

    @pytest.mark.parametrize("step", ["move", "release", "end"])
    async def test_a_writer_changes_no_header_that_names_another_owner(self, shared: Backend, step: str) -> None:
        pace = Pace(moved_after_events=5, moved_after_seconds=3600)
        writer, heir = await shared.start(pace=pace), await shared.start()
        run = await Run(writer).open()
        number = heir._committer.identity.writer
        await shared.execute(f"UPDATE responses SET owner = {number}")

        async def is_another_ones() -> bool:
            with suppress(NotOwned):
                await (run.append() if step == "move" else run.end() if step == "end" else writer.release(run.id))
                return False
            return True

        await until(is_another_ones)
        assert list(await shared.query("SELECT owner, version, ended_at FROM responses")) == [(number, -1, None)]
        assert list(await shared.query("SELECT first FROM segments")) == []

    async def test_readers_of_a_response_that_a_fenced_writer_releases_follow_the_heir(self, shared: Backend) -> None:
        fenced, heir = await shared.start(), await shared.start()
        run = await Run(fenced).open()
        reader = start(collect(fenced))
        await buried(heir)
        with pytest.raises(Fenced):
            await fenced.release("resp_1")
        assert [one.id for one in await heir.claim(["model"], limit=1)] == ["resp_1"]
        run.log = heir
        await run.end()
        assert run.events == await reader

    async def test_a_fenced_process_registers_anew(self, shared: Backend) -> None:
        fenced, heir = await shared.start(), await shared.start()
        run = await Run(fenced).open()
        await buried(heir)
        with pytest.raises(Fenced):
            await fenced.beat()
        await fenced.register()
        with pytest.raises(LogError):
            await run.append()
        (claimed,) = await fenced.claim(["model"], limit=1)
        assert run.version == claimed.version
        await run.append()
        await run.end()
        assert run.events == await collect(heir)

    async def test_what_is_opened_while_a_process_is_no_writer_waits_until_it_is_one_again(
        self, shared: Backend
    ) -> None:
        fenced, heir = await shared.start(wait_seconds=DEADLINE_SECONDS), await shared.start()
        await buried(heir)
        with pytest.raises(Fenced):
            await fenced.beat()
        opening = start(Run(fenced).open())
        await heir.beat()  # a refusal would have come by now
        assert not opening.done()
        await fenced.register()
        run = await opening
        await run.end()
        assert run.events == await collect(heir)

    async def test_a_writer_that_beats_is_not_buried(self, shared: Backend) -> None:
        writer, other = await shared.start(), await shared.start()
        loop = asyncio.get_running_loop()
        end = loop.time() + 3 * LEASE_SECONDS
        while loop.time() < end:
            await writer.beat()
            assert await other.bury() == 0
            await asyncio.sleep(LEASE_SECONDS / 8)
        await Run(writer).open()

    async def test_a_writer_that_moves_again_between_look_and_fence_is_not_fenced(self, shared: Backend) -> None:
        writer, other = await shared.start(), await shared.start()
        number = writer._committer.identity.writer
        (seen,) = await shared.query(f"SELECT beat FROM writers WHERE id = {number}")
        await writer.beat()
        assert not await other._writers._fence(number, seen.beat)
        await Run(writer).open()
        assert await other._writers._fence(number, seen.beat + 1)

    async def test_two_processes_may_bury_the_same_writer(self, shared: Backend) -> None:
        dead, *heirs = [await shared.start() for _ in range(3)]
        runs = [await Run(dead, f"resp_{number}").open(5) for number in range(20)]

        async def bury(heir: Log) -> int:
            async with asyncio.timeout(DEADLINE_SECONDS):
                while not (count := await heir.bury()):
                    await asyncio.gather(*(one.beat() for one in heirs))
                    if not await other_writers(shared):
                        return 0
                    await asyncio.sleep(0.01)
                return count

        assert sum(await asyncio.gather(*map(bury, heirs))) == 1
        claims = [await heir.claim(["model"], limit=99) for heir in heirs]
        assert sorted(run.id for run in runs) == sorted(one.id for claim in claims for one in claim)
        for run in runs:
            assert run.events == list((await heirs[0].read(run.id, after=-1)).events)


class FaultContract:
    """Commits whose outcome is unknown, and data that the database refuses."""

    @pytest.mark.parametrize("point", ["before_commit", "after_commit"])
    async def test_a_commit_with_unknown_outcome_happens_once(self, shared: Backend, point: str) -> None:
        crash = Once(ConnectionResetError("gone"))
        crash.error = None
        writer, other = await shared.start(crash_points=CrashPoints(**{point: crash})), await shared.start()
        run = Run(writer)
        crash.error = ConnectionResetError("gone")
        await run.open()
        crash.error = ConnectionResetError("gone")
        await run.append(3, status="in_progress")
        crash.error = ConnectionResetError("gone")
        await run.append(2)
        crash.error = ConnectionResetError("gone")
        await run.end()
        assert run.events == await collect(other)

    async def test_only_the_guilty_stream_is_refused(self, shared: Backend) -> None:
        log = await shared.start()
        runs = [await Run(log, f"resp_{number}").open() for number in range(9)]
        appends = [
            log.append(run.id, deltas(2, 1), expected_version=1, tokens=[2**80] if run.id == "resp_4" else [1])
            for run in runs
        ]
        outcomes = await asyncio.gather(*appends, return_exceptions=True)
        assert [AppendRejected if run.id == "resp_4" else type(None) for run in runs] == [type(o) for o in outcomes]
        for run in runs:
            run.events += deltas(2, 1) if run.id != "resp_4" else []
            await run.end("failed")
            assert run.events == await collect(log, run.id)

    async def test_a_guilty_ending_may_be_made_again(self, shared: Backend) -> None:
        log = await shared.start()
        run = await Run(log).open()
        with pytest.raises(AppendRejected):
            await log.append("resp_1", [b"end"], expected_version=1, tokens=[2**80], status="completed")
        await run.end("failed")
        assert run.events == await collect(log)

    async def test_a_release_that_is_refused_may_be_made_again(self, shared: Backend) -> None:
        log, other = await shared.start(), await shared.start()
        run = await Run(log).open()
        reader = start(collect(log))
        async with shared.refusing("NEW.owner IS NULL"):
            with pytest.raises(AppendRejected):
                await log.release("resp_1")
            await run.append()
        await log.release("resp_1")
        assert [one.id for one in await other.claim(["model"], limit=1)] == ["resp_1"]
        run.log = other
        await run.end()
        assert run.events == await reader

    async def test_an_opening_that_is_refused_leaves_nothing(self, shared: Backend) -> None:
        log = await shared.start()
        refused = Run(log, "resp_\ud800").open()
        fine = Run(log, "resp_fine").open()
        outcomes = await asyncio.gather(refused, fine, return_exceptions=True)
        assert AppendRejected is type(outcomes[0])
        with pytest.raises(LogError):
            await log.append("resp_\ud800", [b"2"], expected_version=1)
        assert len((await log.read("resp_fine", after=-1)).events) == 2


async def other_writers(shared: Backend) -> int:
    """How many writers there are beside the two heirs."""
    rows = await shared.query("SELECT count(*) FROM writers")
    return int(rows[0][0]) - 2
