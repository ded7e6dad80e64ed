"""The contract of `EventLog`, `Archive` and `Ownership` for one process: the specification of these ports."""

import asyncio
import time

import pytest

from app.errors import AppendRejected, LogError, ResponseNotFound, StreamClosed, WrongExpectedVersion
from tests.contracts.logs import Log, Run, collect, delta, deltas, header, start, until

NASTY = ['é漢字🙂', '\\u0000', "\x00", "\\ud800", "\n", '"\\"']


class EventLogContract:
    """Streams."""

    async def test_a_reader_gets_what_was_appended(self, log: Log) -> None:
        run = await Run(log).open()
        await run.append(3)
        span = await log.read("resp_1", after=-1)
        assert (0, run.events) == (span.first, list(span.events))

    async def test_reading_after_a_position_gives_the_rest(self, log: Log) -> None:
        run = await Run(log).open(5)
        for after in range(-1, 8):
            assert run.events[after + 1 :] == list((await log.read("resp_1", after=after)).events)

    async def test_reading_what_does_not_exist_says_so(self, log: Log) -> None:
        with pytest.raises(ResponseNotFound):
            await log.read("resp_none", after=-1)
        with pytest.raises(ResponseNotFound):
            await collect(log, "resp_none")
        assert await log.header("resp_none") is None

    async def test_events_come_back_byte_for_byte(self, log: Log) -> None:
        events = [delta(i, text) for i, text in enumerate(NASTY)] + [bytes(range(256))]
        await log.open(header(), events[:1], queued=False)
        await log.append("resp_1", events[1:], expected_version=0)
        assert events == list((await log.read("resp_1", after=-1)).events)
        await log.append("resp_1", [b"end"], expected_version=len(events) - 1, status="completed")
        assert [*events, b"end"] == await collect(log)

    async def test_a_wrong_expected_version_is_refused(self, log: Log) -> None:
        run = await Run(log).open()
        for believed in (-1, 0, 2):
            with pytest.raises(WrongExpectedVersion):
                await log.append("resp_1", deltas(2, 1), expected_version=believed)
        assert run.events == list((await log.read("resp_1", after=-1)).events)

    async def test_of_two_writers_with_one_belief_one_wins(self, log: Log) -> None:
        await Run(log).open()
        appends = [log.append("resp_1", [b"%d" % i], expected_version=1) for i in range(4)]
        outcomes = await asyncio.gather(*appends, return_exceptions=True)
        assert [None, *[WrongExpectedVersion] * 3] == [one and type(one) for one in outcomes]
        assert len((await log.read("resp_1", after=-1)).events) == 3

    async def test_a_closed_stream_refuses_appends(self, log: Log) -> None:
        run = await Run(log).open()
        await run.end("failed")
        for status in (None, "completed"):
            with pytest.raises(LogError):
                await log.append("resp_1", deltas(3, 1), expected_version=2, status=status)
        assert run.events == await collect(log)

    async def test_a_stream_that_is_closing_refuses_appends(self, log: Log) -> None:
        await Run(log).open()
        ending = log.append("resp_1", [b"end"], expected_version=1, status="completed")
        with pytest.raises(StreamClosed):
            await log.append("resp_1", [b"late"], expected_version=2)
        await ending

    async def test_a_stream_cannot_end_without_a_terminal_event(self, log: Log) -> None:
        run = await Run(log).open()
        with pytest.raises(AppendRejected):
            await log.append("resp_1", [], expected_version=1, status="completed")
        await run.end()

    async def test_nobody_appends_to_what_was_not_opened_here(self, log: Log) -> None:
        with pytest.raises(LogError):
            await log.append("resp_none", [b"0"], expected_version=-1)

    async def test_an_append_starts_before_it_is_awaited(self, log: Log) -> None:
        run = await Run(log).open()
        appended = log.append("resp_1", [b"2"], expected_version=1)

        async def seen() -> bool:
            return bool((await log.read("resp_1", after=1)).events)

        await until(seen)
        await appended
        assert [*run.events, b"2"] == list((await log.read("resp_1", after=-1)).events)

    async def test_an_id_is_opened_once(self, log: Log) -> None:
        run = await Run(log).open()
        with pytest.raises(AppendRejected):
            await log.open(header(), [b"again"], queued=False)
        await run.end()
        with pytest.raises(AppendRejected):
            await log.open(header(), [b"again"], queued=True)
        assert run.events == await collect(log)

    async def test_a_subscriber_follows_until_the_terminal_event(self, log: Log) -> None:
        run = await Run(log).open()
        reader = start(collect(log))
        for _ in range(20):
            await run.append(2)
        assert not reader.done()
        await run.end(count=3)
        assert run.events == await reader

    async def test_a_subscription_may_begin_at_every_position(self, log: Log) -> None:
        run = await Run(log).open()
        early = [start(collect(log, after=after)) for after in range(-1, 12)]
        for _ in range(8):
            await run.append()
        await run.end()
        for after, reader in zip(range(-1, 12), early, strict=True):
            assert run.events[after + 1 :] == await reader
        for after in range(-1, 12):
            assert run.events[after + 1 :] == await collect(log, after=after)

    async def test_many_streams_do_not_mix(self, log: Log) -> None:
        runs = [await Run(log, f"resp_{i}").open() for i in range(50)]

        async def write(run: Run) -> None:
            for count in (1, 3, 2, 5, 1):
                await run.append(count)
            await run.end()

        readers = [start(collect(log, run.id)) for run in runs]
        await asyncio.gather(*map(write, runs))
        for run, reader in zip(runs, readers, strict=True):
            assert run.events == await reader

    async def test_a_long_stream_is_read_whole(self, log: Log) -> None:
        run = await Run(log).open()
        reader = start(collect(log))
        while run.version < 10_000:
            await run.append(377)
        await run.end()
        assert run.events == await reader
        assert run.events == await collect(log)
        assert run.events[9_000:] == list((await log.read("resp_1", after=8_999)).events)

    async def test_a_reader_that_stops_in_the_middle_disturbs_nobody(self, log: Log) -> None:
        run = await Run(log).open()
        leaving = log.subscribe("resp_1", after=-1)
        await anext(aiter(leaving))
        await leaving.aclose()  # type: ignore[attr-defined]
        waiting = start(collect(log, after=1))
        await asyncio.sleep(0)
        waiting.cancel()
        await run.end()
        assert run.events == await collect(log)

    async def test_the_header_tells_what_became_of_the_response(self, log: Log) -> None:
        run = await Run(log).open(prompt=b"rendered")
        await run.append(status="in_progress")
        await run.end("incomplete")
        stored = await log.header("resp_1")
        assert stored is not None and stored.ended_at is not None
        assert ("incomplete", 3, run.events[-1], None, None) == (
            stored.status,
            stored.version,
            stored.terminal,
            stored.owner,
            stored.prompt,
        )

    async def test_the_header_keeps_what_it_was_given(self, log: Log) -> None:
        given = header(tenant="é", request=b"\x00\xff", parent="resp_0", root="resp_0", priority=-3, prompt=b"p")
        await log.open(given, [b"0"], queued=True)
        stored = await log.header("resp_1")
        assert stored is not None
        assert given == type(given)(**{**_fields(stored), "version": -1})


class ArchiveContract:
    """Headers."""

    async def test_a_chain_is_read_oldest_first(self, log: Log) -> None:
        await _chain(log, 200)
        chain = await log.chain("resp_199")
        assert [f"resp_{i}" for i in range(200)] == [one.id for one in chain]
        assert (chain[7].tenant, chain[7].status, chain[7].terminal) == ("tenant", "completed", b"end 7")
        assert [one.id for one in await log.chain("resp_1")] == ["resp_0", "resp_1"]
        assert await log.chain("resp_none") == []

    async def test_a_chain_ends_at_a_missing_ancestor(self, log: Log) -> None:
        await _chain(log, 5)
        assert await log.delete("resp_2")
        assert [one.id for one in await log.chain("resp_4")] == ["resp_3", "resp_4"]

    async def test_ids_come_oldest_first(self, log: Log) -> None:
        for number, created_at in enumerate((30, 10, 20, 10)):
            await log.open(header(f"resp_{number}", created_at=created_at), [b"0"], queued=True)
        assert [one async for one in log.ids()] == ["resp_1", "resp_3", "resp_2", "resp_0"]

    async def test_queued_responses_are_counted(self, log: Log) -> None:
        assert await log.waiting() == 0
        for number in range(3):
            await Run(log, f"resp_{number}").open(queued=True)
        await Run(log, "resp_running").open()
        assert await log.waiting() == 3
        await log.claim(["model"], limit=2)
        assert await log.waiting() == 1

    async def test_a_deleted_response_is_gone(self, log: Log) -> None:
        run = await Run(log).open()
        await run.end()
        assert await log.delete("resp_1")
        assert not await log.delete("resp_1")
        assert await log.header("resp_1") is None
        with pytest.raises(ResponseNotFound):
            await collect(log)

    async def test_deleting_an_open_response_ends_its_readers(self, log: Log) -> None:
        run = await Run(log).open()
        reader = start(collect(log))
        await run.append()
        assert await log.delete("resp_1")
        with pytest.raises(ResponseNotFound):
            await reader
        with pytest.raises(LogError):
            await run.append()

    async def test_deleting_a_queued_response_ends_its_readers(self, log: Log) -> None:
        await Run(log).open(queued=True)
        reader = start(collect(log, after=1))
        await asyncio.sleep(0)
        assert await log.delete("resp_1")
        with pytest.raises(ResponseNotFound):
            await reader
        assert await log.claim(["model"], limit=1) == []

    async def test_a_cancel_flag_reaches_the_owner(self, log: Log) -> None:
        wanted: list[str] = []
        log.on_cancel = wanted.append
        run = await Run(log).open()
        assert list(await log.beat()) == []
        for _ in range(2):
            await log.request_cancel("resp_1")
        assert {"resp_1"} == set(wanted)
        assert list(await until(log.beat)) == ["resp_1"]
        await run.end("cancelled")
        await log.request_cancel("resp_1")
        assert list(await log.beat()) == []
        assert wanted == ["resp_1"] * 2

    async def test_a_cancel_flag_waits_for_the_claimer(self, log: Log) -> None:
        await Run(log).open(queued=True)
        await log.request_cancel("resp_1")
        (claimed,) = await log.claim(["model"], limit=1)
        assert claimed.cancel_requested

    async def test_retention_removes_whole_trees(self, log: Log) -> None:
        await _chain(log, 3)
        await Run(log, "resp_open").open(parent="resp_other", root="resp_other")
        other = await Run(log, "resp_other").open()
        await other.end()
        assert await log.expire(older_than_seconds=60) == 0
        assert await log.expire(older_than_seconds=-60) == 3
        assert {"resp_open", "resp_other"} == {one async for one in log.ids()}
        with pytest.raises(ResponseNotFound):
            await log.read("resp_0", after=-1)


class OwnershipContract:
    """Owners."""

    async def test_a_queued_response_is_claimed_and_continued(self, log: Log) -> None:
        woken: list[bool] = []
        log.on_queued = lambda: woken.append(True)
        run = await Run(log).open(queued=True)
        assert woken
        reader = start(collect(log))
        with pytest.raises(LogError):
            await run.append()
        (claimed,) = await log.claim(["model"], limit=5)
        assert (claimed.id, claimed.status, claimed.version, claimed.attempts) == ("resp_1", "queued", 1, 1)
        await run.append(status="in_progress")
        await run.end()
        assert run.events == await reader
        assert run.events == await collect(log)

    async def test_only_responses_of_served_models_are_claimed(self, log: Log) -> None:
        await Run(log, "resp_other").open(queued=True, model="other", created_at=int(time.time()))
        assert await log.claim(["model"], limit=5) == []
        assert await log.claim([], limit=5) == []
        assert [one.id for one in await log.claim(["model", "other"], limit=5)] == ["resp_other"]

    async def test_claims_go_by_priority_then_age(self, log: Log) -> None:
        ages = [("resp_a", 0, 20), ("resp_b", 0, 10), ("resp_c", -5, 30), ("resp_d", 0, 10), ("resp_e", 1, 1)]
        for name, priority, created_at in ages:
            await Run(log, name).open(queued=True, priority=priority, created_at=created_at)
        first = [one.id for one in await log.claim(["model"], limit=3)]
        assert first == ["resp_c", "resp_b", "resp_d"]
        assert [one.id for one in await log.claim(["model"], limit=9)] == ["resp_a", "resp_e"]

    async def test_what_only_needs_its_end_is_claimed_beyond_the_limit(self, log: Log) -> None:
        await Run(log, "resp_waiting").open(queued=True)
        await Run(log, "resp_cancelled").open(queued=True)
        await log.request_cancel("resp_cancelled")
        await Run(log, "resp_foreground").open(background=False)
        await log.release("resp_foreground")
        claimed = await log.claim(["model"], limit=0)
        assert {one.id for one in claimed} == {"resp_cancelled", "resp_foreground"}
        assert [one.id for one in await log.claim(["model"], limit=5)] == ["resp_waiting"]

    async def test_attempts_count_only_without_progress(self, log: Log) -> None:
        run = await Run(log).open(queued=True)
        attempts = []
        for progress in (0, 0, 3, 0):
            (claimed,) = await log.claim(["model"], limit=1)
            attempts.append(claimed.attempts)
            if progress:
                await run.append(progress)
            await log.release("resp_1")
        assert attempts == [1, 2, 3, 1]

    async def test_suspects_are_claimed_one_at_a_time_so_that_none_dies_with_another(self, log: Log) -> None:
        runs = [await Run(log, f"resp_{number}").open(queued=True) for number in range(3)]

        async def claim() -> list[str]:
            return [one.id for one in await log.claim(["model"], limit=5)]

        for _ in range(2):
            assert await claim() == ["resp_0", "resp_1", "resp_2"]
            for run in runs:
                await log.release(run.id)
        await Run(log, "resp_fresh").open(queued=True)
        assert await claim() == ["resp_0", "resp_fresh"]
        assert await claim() == []
        await runs[0].append()
        assert await claim() == ["resp_1"]
        await log.release("resp_1")
        assert await claim() == ["resp_1"]
        await runs[1].end()
        assert await claim() == ["resp_2"]

    async def test_a_response_is_claimed_once(self, log: Log) -> None:
        for number in range(20):
            await Run(log, f"resp_{number}").open(queued=True)
        claims = await asyncio.gather(*(log.claim(["model"], limit=7) for _ in range(5)))
        assert 20 == len({one.id for claim in claims for one in claim}) == sum(map(len, claims))

    async def test_a_released_response_refuses_appends_and_is_claimed_again(self, log: Log) -> None:
        run = await Run(log).open()
        reader = start(collect(log))
        await run.append(5)
        await log.release("resp_1")
        with pytest.raises(LogError):
            await run.append()
        with pytest.raises(LogError):
            await log.release("resp_1")
        (claimed,) = await log.claim(["model"], limit=1)
        assert (claimed.version, claimed.status, claimed.attempts) == (6, "in_progress", 1)
        await run.append(2)
        await run.end()
        assert run.events == await reader
        assert run.events == await collect(log)

    async def test_an_append_before_a_release_is_kept(self, log: Log) -> None:
        run = await Run(log).open()
        appended = log.append("resp_1", deltas(2, 1), expected_version=1)
        await log.release("resp_1")
        await appended
        (claimed,) = await log.claim(["model"], limit=1)
        assert claimed.version == 2
        assert [*run.events, delta(2)] == list((await log.read("resp_1", after=-1)).events)


async def _chain(log: Log, count: int) -> None:
    for number in range(count):
        parent = f"resp_{number - 1}" if number else None
        response_id = f"resp_{number}"
        await log.open(header(response_id, parent=parent, root="resp_0"), [b"0"], queued=False)
        await log.append(response_id, [b"end %d" % number], expected_version=0, status="completed")


def _fields(stored: object) -> dict[str, object]:
    return {name: getattr(stored, name) for name in type(stored).__slots__}  # type: ignore[attr-defined]
