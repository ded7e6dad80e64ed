"""Redis dies, forgets, stands still or lies in mid-stream: readers miss nothing, and go back to it afterwards."""

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial

import pytest

from app.log.scanner import Scanner
from app.log.sql import SqlLog
from tests.contracts.logs import DEADLINE_SECONDS, Backend, Run, collect, start, until
from tests.contracts.sharing import HASTY
from tests.servers import Valkey

STREAMS = 4


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    """A server that a test may do anything to."""
    with Valkey() as server:
        yield server


@pytest.fixture
async def place(postgres_url: str, valkey: Valkey) -> AsyncIterator[Backend]:
    """PostgreSQL and that server."""
    made = Backend(postgres_url, valkey.url)
    yield made
    await made.stop()


class Traffic:
    """One process writes some streams without a pause, two others read them; new readers join all the time."""

    def __init__(self, writer: SqlLog, others: list[SqlLog]) -> None:
        self.writer = writer
        self.others = others
        self.runs = [Run(writer, f"resp_{number}") for number in range(STREAMS)]
        self._ending = asyncio.Event()
        self._readers: list[tuple[Run, int, asyncio.Task[list[bytes]]]] = []
        self._writing: list[asyncio.Task[None]] = []
        self._random = random.Random(7)

    async def begin(self) -> None:
        """Open, write and read."""
        for run in self.runs:
            await run.open()
            for other in self.others:
                self._read(other, run, -1)
        self._writing = [start(self._write(run)) for run in self.runs]

    async def _write(self, run: Run) -> None:
        while not self._ending.is_set():
            await run.append(self._random.choice((1, 1, 2, 7)))
            if self._random.random() < 0.02:
                self._read(self._random.choice(self.others), run, self._random.randint(-1, run.version))
            await asyncio.sleep(0.002)
        await run.end()

    def _read(self, log: SqlLog, run: Run, after: int) -> None:
        self._readers.append((run, after, start(collect(log, run.id, after=after))))

    @property
    def scanners(self) -> list[Scanner]:
        """What reads the writer's journal, in each reading process."""
        return [scanner for log in self.others for scanner in log._following._scanners.values()]

    async def hears(self, events: int) -> None:
        """Wait until all readers have got so many more events of each stream."""
        followed = [one for log in self.others for one in log._following._followed.values()]
        goals = [(one, one.version + events) for one in followed]

        async def heard() -> bool:
            return all(one.version >= goal or one.left for one, goal in goals)

        await until(heard)

    async def lives_from_the_tail(self) -> None:
        """Wait until nobody asks the record any more, though much is read."""

        async def unasked() -> bool:
            before = [scanner.looks for scanner in self.scanners]
            await self.hears(20)
            return [scanner.looks for scanner in self.scanners] == before and len(before) == len(self.others)

        await until(unasked)

    async def end(self) -> None:
        """Write the ends; every reader has got every event, once, in order, byte for byte."""
        for run in self.runs:
            self._read(self._random.choice(self.others), run, self._random.randint(0, run.version))
        self._ending.set()
        await asyncio.gather(*self._writing)
        for run, after, reader in self._readers:
            assert run.events[after + 1 :] == await reader


@pytest.fixture
async def traffic(place: Backend) -> Traffic:
    """Traffic that lives from the tail."""
    writer, *others = [await place.start(pace=HASTY, lease_seconds=30) for _ in range(3)]
    made = Traffic(writer, others)
    await made.begin()
    await made.lives_from_the_tail()
    return made


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody compares a quiet tail with the record: that it is away has to be noticed."""
    monkeypatch.setattr("app.log.scanner.QUIET_SECONDS", 3600)
    monkeypatch.setattr("app.log.following.QUIET_SECONDS", 3600)


@pytest.mark.usefixtures("unhurried")
async def test_a_redis_that_is_killed_is_replaced_by_the_record_and_used_again(
    traffic: Traffic, valkey: Valkey
) -> None:
    for _ in range(2):
        valkey.stop()
        await until(partial(_nobody_trusts_the_tail, traffic))
        await traffic.hears(100)
        assert not any(scanner.trusts_the_tail for scanner in traffic.scanners)
        valkey.start()
        await traffic.lives_from_the_tail()
    await traffic.end()


@pytest.mark.usefixtures("unhurried")
async def test_a_redis_that_restarts_empty_in_between_is_used_again(traffic: Traffic, valkey: Valkey) -> None:
    valkey.stop()
    valkey.start()
    await traffic.lives_from_the_tail()
    await traffic.end()


@pytest.mark.usefixtures("unhurried")
async def test_a_redis_that_comes_back_without_the_writer_is_not_trusted(
    traffic: Traffic, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    valkey.stop()
    monkeypatch.setattr(traffic.writer._tail, "tell", lambda *_: None)
    await traffic.hears(20)
    valkey.start()
    await until(partial(_are_live, traffic))
    await traffic.hears(50)
    monkeypatch.undo()
    await traffic.lives_from_the_tail()
    await traffic.end()


async def _nobody_trusts_the_tail(traffic: Traffic) -> bool:
    return not any(scanner.trusts_the_tail for scanner in traffic.scanners)


async def _are_live(traffic: Traffic) -> bool:
    return all(scanner._live for scanner in traffic.scanners)


@pytest.mark.usefixtures("unhurried")
async def test_a_redis_that_stands_still_is_replaced_by_the_record(traffic: Traffic, valkey: Valkey) -> None:
    valkey.signal(signal.SIGSTOP)
    await until(partial(_nobody_trusts_the_tail, traffic))
    await traffic.hears(300)
    assert not any(scanner.trusts_the_tail for scanner in traffic.scanners)
    valkey.signal(signal.SIGCONT)
    await traffic.lives_from_the_tail()
    await traffic.end()


async def test_a_redis_that_stands_still_delays_no_append(place: Backend, valkey: Valkey) -> None:
    writer = await place.start()
    run = await Run(writer).open()
    valkey.signal(signal.SIGSTOP)
    async with asyncio.timeout(DEADLINE_SECONDS):
        for _ in range(200):
            await run.append()
        await run.end()
    valkey.signal(signal.SIGCONT)
    assert run.events == await collect(writer)


def flush_all(valkey: Valkey, prefix: str, journal: str) -> None:
    """Everything is gone."""
    assert valkey.command("FLUSHALL").startswith(b"+OK")


def trim(valkey: Valkey, prefix: str, journal: str) -> None:
    """The rows are gone, the stream and its newest id are not."""
    assert valkey.command("XTRIM", f"{prefix}:journal:{journal}", "MAXLEN", "0").startswith(b":")


def delete(valkey: Valkey, prefix: str, journal: str) -> None:
    """The stream is gone."""
    assert valkey.command("DEL", f"{prefix}:journal:{journal}").startswith(b":")


def lie(valkey: Valkey, prefix: str, journal: str) -> None:
    """A row that was never committed, with a number that the writer reaches much later; or it still stands there."""
    told = valkey.command("XADD", f"{prefix}:journal:{journal}", "10000000-0", "b", "lie")
    assert told.startswith((b"$", b"-ERR The ID specified in XADD is equal or smaller"))


def disconnect(valkey: Valkey, prefix: str, journal: str) -> None:
    """All connections are cut."""
    assert valkey.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").startswith(b":")


@pytest.mark.parametrize("fault", [flush_all, trim, delete, lie, disconnect])
async def test_a_redis_that_forgets_or_lies_is_used_again(
    traffic: Traffic, valkey: Valkey, place: Backend, fault: Callable[[Valkey, str, str], None]
) -> None:
    journal = traffic.writer._identity().journal
    for _ in range(5):
        fault(valkey, place.prefix, journal)
        await traffic.hears(20)
    await traffic.lives_from_the_tail()
    await traffic.end()


@pytest.mark.usefixtures("unhurried")
async def test_rows_that_were_never_told_are_read_at_once(traffic: Traffic, monkeypatch: pytest.MonkeyPatch) -> None:
    tail = traffic.writer._tail
    tell = tail.tell
    looks = {scanner: scanner.looks for scanner in traffic.scanners}
    with monkeypatch.context() as untold:
        untold.setattr(tail, "tell", lambda journal, n, batch: tell(journal, n, batch) if n % 3 else None)
        await until(partial(_have_looked, looks))
        await traffic.hears(100)
    await traffic.lives_from_the_tail()
    await traffic.end()


async def _have_looked(looks: dict[Scanner, int]) -> bool:
    return all(scanner.looks > before for scanner, before in looks.items())


async def test_a_broken_row_is_read_from_the_record(traffic: Traffic, monkeypatch: pytest.MonkeyPatch) -> None:
    tail = traffic.writer._tail
    tell = tail.tell
    spoils = (b"", b"\x01", b"\x02new format", b"\x01not zstd")
    monkeypatch.setattr(tail, "tell", lambda journal, n, batch: tell(journal, n, spoils[n % 4] if n % 9 < 4 else batch))
    await traffic.hears(100)
    monkeypatch.undo()
    await traffic.lives_from_the_tail()
    await traffic.end()


async def test_readers_follow_to_new_owners_while_redis_dies(place: Backend, valkey: Valkey) -> None:
    logs = [await place.start(pace=HASTY, lease_seconds=30) for _ in range(3)]
    run = await Run(logs[0]).open()
    readers = [start(collect(log)) for log in logs]
    for number in range(24):
        for _ in range(5):
            await run.append(3, tokens=[number])
        await run.log.release("resp_1")
        run.log = logs[(number + 1) % 3]
        (claimed,) = await run.log.claim(["model"], limit=1)
        assert (run.version, 1) == (claimed.version, claimed.attempts)
        readers.append(start(collect(logs[number % 3])))
        if number % 8 == 3:
            valkey.stop()
        if number % 8 == 6:
            valkey.start()
    await run.end()
    for reader in readers:
        assert run.events == await reader


async def test_wake_ups_work_again_after_a_restart(place: Backend, valkey: Valkey) -> None:
    here, there = await place.start(), await place.start()
    woken: list[str] = []
    there.on_queued = partial(woken.append, "queued")

    async def woke() -> bool:
        here._tail.wake("queued")
        return bool(woken)

    for _ in range(3):
        await until(woke)
        valkey.stop()
        valkey.start()
        woken.clear()
    await until(woke)
