"""The contract of the live tail: rows in their order, from where one stands, and wake-ups; the record behind it all."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from secrets import token_hex

import pytest

from app.errors import SettingsError
from app.log import redis
from app.log.redis import RedisTail
from app.log.sql import SqlLog
from app.ports import Wake
from app.settings import load_settings
from tests.contracts.logs import DEADLINE_SECONDS, Backend, Run, collect, start, until
from tests.contracts.sharing import STAYS
from tests.servers import Valkey


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Redis that is slow is not away: what is under way then is lost, as it may be."""
    monkeypatch.setattr(redis, "PATIENCE_SECONDS", DEADLINE_SECONDS)


class Listener:
    """A hearer that writes down what it hears."""

    def __init__(self, seen: int = 0) -> None:
        self.seen = seen
        self.rows: list[tuple[int, bytes]] = []
        self.live: list[bool] = []

    def hear(self, n: int, batch: bytes) -> None:
        self.rows.append((n, batch))
        self.seen = max(self.seen, n)

    def tuned(self, live: bool) -> None:
        self.live.append(live)

    async def is_live(self) -> bool:
        return self.live[-1:] == [True]

    async def has_heard(self, n: int) -> bool:
        return self.seen >= n


class Tails:
    """Tails of several processes; `woken` is what each was woken with."""

    def __init__(self, url: str, prefix: str) -> None:
        self.url = url
        self.prefix = prefix
        self.started: list[RedisTail] = []
        self.woken: list[list[tuple[str, str]]] = []

    def start(self) -> RedisTail:
        tail = RedisTail(self.url, prefix=self.prefix)
        woken: list[tuple[str, str]] = []
        tail.start(lambda wake, response: woken.append((wake, response)), lambda seconds: None)
        self.started.append(tail)
        self.woken.append(woken)
        return tail

    async def stop(self) -> None:
        for tail in self.started:
            await tail.close()


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    """A server whose keys may be looked at and spoilt."""
    with Valkey() as server:
        yield server


@pytest.fixture
async def tails(valkey: Valkey) -> AsyncIterator[Tails]:
    """Tails with keys of the test's own."""
    made = Tails(valkey.url, f"test-{token_hex(8)}")
    yield made
    await made.stop()


def rows(first: int, last: int) -> list[tuple[int, bytes]]:
    """Rows with bytes of every kind."""
    return [(n, b"\x00\r\n\xff row %d" % n) for n in range(first, last + 1)]


def tell(tail: RedisTail, journal: str, first: int, last: int) -> None:
    """Tell some rows."""
    for n, batch in rows(first, last):
        tail.tell(journal, n, batch)


async def followed(tail: RedisTail, journal: str, seen: int = 0) -> Listener:
    """Somebody who is tuned in."""
    listener = Listener(seen)
    tail.follow(journal, listener)
    await until(listener.is_live)
    return listener


async def test_rows_are_heard_as_they_were_told(tails: Tails) -> None:
    here, there = tails.start(), tails.start()
    listener = await followed(there, "1:a")
    tell(here, "1:a", 1, 2000)
    await until(partial(listener.has_heard, 2000))
    assert rows(1, 2000) == listener.rows


async def test_who_comes_later_hears_what_comes_after_its_place(tails: Tails) -> None:
    here, there = tails.start(), tails.start()
    first = await followed(there, "1:a")
    tell(here, "1:a", 1, 50)
    await until(partial(first.has_heard, 50))
    later = await followed(tails.start(), "1:a", seen=20)
    await until(partial(later.has_heard, 50))
    assert rows(21, 50) == later.rows


async def test_journals_are_told_apart(tails: Tails) -> None:
    here, other, there = tails.start(), tails.start(), tails.start()
    one, two = await followed(there, "1:a"), await followed(there, "2:b")
    for n in range(1, 100):
        here.tell("1:a", n, b"one")
        other.tell("2:b", n, b"two")
    for listener, batch in ((one, b"one"), (two, b"two")):
        await until(partial(listener.has_heard, 99))
        assert [(n, batch) for n in range(1, 100)] == listener.rows


async def test_who_left_hears_nothing_more(tails: Tails) -> None:
    here, there = tails.start(), tails.start()
    gone, stays = await followed(there, "1:a"), await followed(there, "2:b")
    there.leave("1:a")
    tell(here, "1:a", 1, 5)
    tell(here, "2:b", 1, 5)
    await until(partial(stays.has_heard, 5))
    assert gone.rows == []


async def test_following_again_begins_again(tails: Tails) -> None:
    here, there = tails.start(), tails.start()
    listener = await followed(there, "1:a")
    tell(here, "1:a", 1, 9)
    await until(partial(listener.has_heard, 9))
    listener.seen = 4
    there.follow("1:a", listener)
    await until(partial(listener.has_heard, 9))
    assert rows(1, 9) + rows(5, 9) == listener.rows


async def test_wake_ups_reach_all_others(tails: Tails) -> None:
    here, _, _ = tails.start(), tails.start(), tails.start()
    listeners = [await followed(tail, "1:a") for tail in tails.started]
    here.wake("queued")
    here.wake("cancel", "resp_1")
    here.wake("claimed", "resp_2")
    tell(here, "1:a", 1, 1)
    for listener in listeners:
        await until(partial(listener.has_heard, 1))
    expected = [("queued", ""), ("cancel", "resp_1"), ("claimed", "resp_2")]
    await until(partial(_are, tails.woken[1:], [expected, expected]))
    assert tails.woken[0] == []


async def _are(these: object, those: object) -> bool:
    return these == those


async def test_a_journal_that_somebody_else_has_spoilt_is_begun_anew(tails: Tails, valkey: Valkey) -> None:
    here, there = tails.start(), tails.start()
    valkey.command("XADD", f"{tails.prefix}:journal:1:a", "1000-0", "b", "foreign")
    tell(here, "1:a", 1, 10)
    await until(partial(_heard_by_a_newcomer, there, 10))
    listener = Listener(2)
    there.follow("1:a", listener)
    await until(partial(listener.has_heard, 10))
    assert rows(3, 10) == listener.rows


async def _heard_by_a_newcomer(tail: RedisTail, n: int) -> bool:
    listener = await followed(tail, "1:a")
    await until(partial(listener.has_heard, n))
    return listener.rows == rows(1, n)


async def test_keys_vanish_by_themselves(tails: Tails, valkey: Valkey) -> None:
    here, there = tails.start(), tails.start()
    listener = await followed(there, "1:a")
    here.wake("queued")
    tell(here, "1:a", 1, 10)
    await until(partial(listener.has_heard, 10))
    for key in (f"{tails.prefix}:journal:1:a", f"{tails.prefix}:wakes"):
        assert 1 <= int(valkey.command("TTL", key)[1:]) <= redis.KEPT_SECONDS


async def test_old_rows_are_trimmed(tails: Tails, valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis, "TRIM_SECONDS", 0.0)
    monkeypatch.setattr(redis, "KEPT_SECONDS", 1)
    here = tails.start()
    tell(here, "1:a", 1, 50)
    n = iter(range(51, 10_000))

    async def is_short() -> bool:
        tell(here, "1:a", number := next(n), number)
        await asyncio.sleep(0.02)
        length = int(valkey.command("XLEN", f"{tails.prefix}:journal:1:a")[1:])
        return number > 130 and length < number - 50

    await until(is_short)


def test_ages_know_which_row_is_old() -> None:
    ages = redis._Ages()
    trims = {n: oldest for n in range(10_000) if (oldest := ages.note(n, now=n / 16)) is not None}
    step, kept = int(16 * redis.TRIM_SECONDS), 16 * redis.KEPT_SECONDS
    assert {n: n - kept for n in range(kept, 10_000, step)} == trims


async def test_a_redis_that_comes_later_is_used_then(caplog: pytest.LogCaptureFixture) -> None:
    server = Valkey()
    tails = Tails(server.url, "test")
    here, there = tails.start(), tails.start()
    tell(here, "1:a", 1, 3)
    listener = Listener()
    there.follow("1:a", listener)
    await until(partial(_says, caplog, "Redis is away"))
    with server:
        await until(partial(listener.has_heard, 3))
        assert rows(1, 3) == listener.rows
        await tails.stop()


async def _says(caplog: pytest.LogCaptureFixture, words: str) -> bool:
    return words in caplog.text


async def test_what_nobody_takes_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis, "HELD_BYTES", 10_000)
    server = Valkey()
    tails = Tails(server.url, "test")
    here, there = tails.start(), tails.start()
    for n in range(1, 1001):
        here.tell("1:a", n, bytes(1000))
    with server:
        listener = await followed(there, "1:a")
        await until(partial(listener.has_heard, 1000))
        held = redis.HELD_BYTES // (1000 + redis._OVERHEAD_BYTES)
        assert list(range(1001 - held, 1001)) == [n for n, _ in listener.rows]
        await tails.stop()


async def test_closing_tells_what_waits(tails: Tails, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis, "CLOSE_SECONDS", DEADLINE_SECONDS)
    here, there = tails.start(), tails.start()
    listener = await followed(there, "1:a")
    tell(here, "1:a", 1, 500)
    await here.close()
    await until(partial(listener.has_heard, 500))


@pytest.mark.parametrize("url", ["http://127.0.0.1:6379", "redis://127.0.0.1:port/0", "redis://", "nonsense"])
def test_a_malformed_url_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERBATIM_DATABASE_URL", "postgresql://127.0.0.1/verbatim")
    monkeypatch.setenv("VERBATIM_REDIS_URL", url)
    with pytest.raises(SettingsError, match="VERBATIM_REDIS_URL is wrong"):
        load_settings()


@pytest.mark.parametrize("url", ["http://127.0.0.1:6379", "redis://127.0.0.1:port/0"])
def test_the_tail_refuses_what_is_no_url_of_a_redis(url: str) -> None:
    with pytest.raises(SettingsError):
        RedisTail(url)


def test_redis_goes_with_postgres_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERBATIM_REDIS_URL", "redis://127.0.0.1:6379/0")
    with pytest.raises(SettingsError, match="PostgreSQL only"):
        load_settings(database_url="sqlite:///verbatim.db")
    assert load_settings(database_url="postgresql://127.0.0.1/verbatim").redis_url == "redis://127.0.0.1:6379/0"


class Woken:
    """What a log tells its process."""

    def __init__(self, log: SqlLog) -> None:
        self.queued = asyncio.Event()
        self.cancelled: list[str] = []
        log.on_queued, log.on_cancel = self.queued.set, self.cancelled.append


@pytest.fixture
async def place(postgres_url: str, redis_url: str) -> AsyncIterator[Backend]:
    """PostgreSQL and Redis."""
    made = Backend(postgres_url, redis_url)
    yield made
    await made.stop()


async def hears_wake_ups(log: SqlLog, other: SqlLog) -> None:
    """Wait until what one process says reaches the other one, and all that it has said so far is heard."""
    heard: list[str] = []
    ear = other._tail._ear
    on_wake = ear.on_wake

    def hear(wake: Wake, response: str) -> None:
        heard.append(response)
        on_wake(wake, response)

    ear.on_wake = hear

    async def woke() -> bool:
        log._tail.wake("queued")
        return bool(heard)

    async def last_is_heard() -> bool:
        return "resp_last" in heard

    await until(woke)
    log._tail.wake("claimed", "resp_last")
    await until(last_is_heard)
    ear.on_wake = on_wake


async def test_while_the_tail_tells_news_the_record_is_not_asked(
    place: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in ("scanner", "following"):
        monkeypatch.setattr(f"app.log.{part}.QUIET_SECONDS", 3600)
    began, lags = time.time(), list[float]()
    writer, *others = [await place.start() for _ in range(3)]
    others[0].on_lag = lags.append
    run = await Run(writer).open()
    readers = [start(collect(other)) for other in others]
    scanners = [await until(partial(_scanner_of, other)) for other in others]
    looks = [await _last_look(scanner) for scanner in scanners]
    for _ in range(300):
        await run.append()
    await run.end()
    for reader in readers:
        assert run.events == await reader
    assert [scanner.looks for scanner in scanners] == looks
    assert lags and all(0 <= lag <= time.time() - began for lag in lags)


async def _scanner_of(log: SqlLog) -> object:
    return next(iter(log._following._scanners.values()), None)


async def _last_look(scanner: object) -> int:
    """Wait until it trusts the tail, and has looked once more: from then on it rests."""
    await until(partial(_trusts, scanner))
    last = scanner.looks + 1
    scanner._called.set()
    await until(partial(_has_looked, scanner, last))
    return last


async def _has_looked(scanner: object, looks: int) -> bool:
    return scanner.looks == looks and scanner._held is None


async def _trusts(scanner: object) -> bool:
    return bool(scanner.trusts_the_tail)


async def test_a_quiet_tail_is_compared_with_the_record(place: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.log.following.QUIET_SECONDS", 3600)
    writer, other = await place.start(), await place.start()
    monkeypatch.setattr(writer._tail, "tell", lambda *_: None)
    run = await Run(writer).open()
    reader = start(collect(other))
    await until(partial(_trusts, await until(partial(_scanner_of, other))))
    for _ in range(10):
        await run.append()
    await run.end()
    assert run.events == await reader


async def test_rows_that_are_told_while_somebody_joins_are_not_missed(
    place: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, other = await place.start(pace=STAYS), await place.start()
    run, late = await Run(writer).open(), await Run(writer, "resp_late").open()
    readers = [start(collect(other))]
    scanner = await until(partial(_scanner_of, other))
    await until(partial(_trusts, scanner))
    places, looks = other._record.places, []

    async def slow_places(ids: Sequence[str]) -> object:
        found = await places(ids)
        if list(ids) == ["resp_late"] and "resp_late" in other._following._followed:  # the watch asks, too: for others
            looks.append(ids)
            for one in (late, run, late):
                await one.append()
            await until(partial(_has_told, scanner, writer._committer._book.newest))
        return found

    monkeypatch.setattr(other._record, "places", slow_places)
    buffer = await other._source.join("resp_late")
    monkeypatch.undo()
    assert (len(looks), buffer.left, buffer.version, late.version) == (1, False, 3, 3)
    other._source.leave(buffer)
    await run.end()
    assert run.events == await readers[0]


async def _has_told(scanner: object, n: int) -> bool:
    return scanner._told >= n


async def test_a_queued_response_wakes_all_processes(place: Backend) -> None:
    front, worker = await place.start(), await place.start()
    await hears_wake_ups(front, worker)
    woken = Woken(worker)
    async with asyncio.timeout(DEADLINE_SECONDS):
        await Run(front).open(queued=True)
        await woken.queued.wait()
    assert [one.id for one in await worker.claim(["model"], limit=1)] == ["resp_1"]


async def test_a_released_response_wakes_all_processes(place: Backend) -> None:
    owner, heir = await place.start(), await place.start()
    await hears_wake_ups(owner, heir)
    run = await Run(owner).open()
    woken = Woken(heir)
    await owner.release(run.id)
    async with asyncio.timeout(DEADLINE_SECONDS):
        await woken.queued.wait()
    assert [one.id for one in await heir.claim(["model"], limit=1)] == ["resp_1"]


async def test_a_cancel_reaches_the_owner_at_once(place: Backend) -> None:
    owner, other, third = [await place.start() for _ in range(3)]
    await hears_wake_ups(other, owner)
    await hears_wake_ups(other, third)
    await Run(owner).open()
    woken, not_meant = Woken(owner), Woken(third)
    await other.request_cancel("resp_1")
    await until(partial(_are, woken.cancelled, ["resp_1"]))
    await hears_wake_ups(other, third)
    assert not_meant.cancelled == []
    assert list(await until(owner.beat)) == ["resp_1"]


async def test_a_claim_sends_readers_to_the_new_owner_at_once(
    place: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    front, worker = await place.start(), await place.start()
    await hears_wake_ups(worker, front)
    monkeypatch.setattr("app.log.following.WATCH_SECONDS", 3600)
    run = await Run(front).open(queued=True)
    reader = start(collect(front))
    await until(partial(_follows, front))
    await worker.claim(["model"], limit=1)
    run.log = worker
    await run.end()
    assert run.events == await reader


async def _follows(log: SqlLog) -> bool:
    return bool(log._following._followed)
