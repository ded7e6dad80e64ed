"""The tail in Redis or Valkey: a stream for each writer's journal, one for wake-ups; two connections for a process."""

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args

from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.exceptions import RedisError, ResponseError

from app.errors import SettingsError
from app.ports import Hearer, Wake

KEPT_SECONDS: Final = 60
"""Rows stay in a stream for so long; the stream of a writer that tells nothing more vanishes after it."""
TRIM_SECONDS: Final = 1.0
BLOCK_SECONDS: Final = 0.2
PATIENCE_SECONDS: Final = 0.5
"""Redis is away when it takes so long to answer, apart from the time it was asked to wait for news."""
RETRY_SECONDS: Final = 0.2
CLOSE_SECONDS: Final = 0.5
ROWS_PER_READ: Final = 256
WAKES_KEPT: Final = 1_000
SENT_BYTES: Final = 1_000_000
HELD_BYTES: Final = 16_000_000
"""What waits to be told; beyond it the oldest is dropped, and whoever misses it asks the record."""

_WAKES: Final = {wake.encode(): wake for wake in get_args(Wake)}
_OVERHEAD_BYTES: Final = 200

Command = tuple[Any, ...]

logger: Final = logging.getLogger(__name__)


class _Link:
    """A connection that comes back by itself."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._is_away = False

    async def keep(self, talk: Callable[[AbstractConnection], Awaitable[None]]) -> None:
        """Connect and talk, again and again."""
        while True:
            connection = self._pool.make_connection()  # type: ignore[no-untyped-call]
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await connection.connect()
                if self._is_away:
                    self._is_away = False
                    logger.info("Redis is there again")
                await talk(connection)
            except (RedisError, OSError, ValueError, IndexError) as error:  # the last two: what is there is not ours
                if not self._is_away:
                    self._is_away = True
                    logger.warning("Redis is away, readers ask the database: %s", error or type(error).__name__)
            finally:
                await connection.disconnect(nowait=True)
            await asyncio.sleep(RETRY_SECONDS)


class _Ages:
    """Which row of a stream is `KEPT_SECONDS` old. Ids are no times, so now and then a row's time is noted."""

    def __init__(self) -> None:
        self._noted: deque[tuple[float, int]] = deque()

    def note(self, n: int, now: float) -> int | None:
        """Row `n` is told now; gives the oldest row to keep, when it is time to trim."""
        if self._noted and now - self._noted[-1][0] < TRIM_SECONDS:
            return None
        self._noted.append((now, n))
        oldest = None
        while self._noted[0][0] <= now - KEPT_SECONDS:
            oldest = self._noted.popleft()[1]
        return oldest


class _Mouth:
    """Tells Redis, in order, everything that waits at once."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Command, int]] = deque()
        self._bytes = 0
        self._something = asyncio.Event()
        self.silent = asyncio.Event()
        self.silent.set()

    def say(self, command: Command, size: int) -> None:
        """Say a command about a stream, which it names first."""
        size += _OVERHEAD_BYTES
        self._waiting.append((command, size))
        self._bytes += size
        while self._bytes > HELD_BYTES:
            self._bytes -= self._waiting.popleft()[1]
        self.silent.clear()
        self._something.set()

    async def talk(self, connection: AbstractConnection) -> None:
        """Say what waits, then what comes. What was under way when the connection broke is not said again."""
        while True:
            while commands := self._next():
                await self._send(connection, commands)
            self.silent.set()
            self._something.clear()
            await self._something.wait()

    def _next(self) -> list[Command]:
        commands: list[Command] = []
        size = 0
        while self._waiting and size < SENT_BYTES:
            command, bytes_ = self._waiting.popleft()
            commands.append(command)
            size += bytes_
        self._bytes -= size
        return commands

    async def _send(self, connection: AbstractConnection, commands: Sequence[Command]) -> None:
        refused: list[Command] = []
        for command, answer in await _ask(connection, [*commands, *_keeping(commands)]):
            if isinstance(answer, ResponseError):
                if "equal or smaller" not in str(answer):
                    raise answer
                refused.append(command)
        if refused:  # what we have written is older; so somebody else has written there, too
            emptied = [("DEL", key) for key in {command[1] for command in refused}]
            await _answers(connection, [*emptied, *refused, *_keeping(refused)])


@dataclass(slots=True)
class _Heard:
    """A followed journal: rows up to `after` were heard, or are not wanted."""

    hearer: Hearer
    after: int = 0
    live: bool = False


class _Ear:
    """Hears all followed journals and the wake-ups on one connection."""

    def __init__(self, wakes: str, me: bytes) -> None:
        self.heard: dict[str, _Heard] = {}
        self.on_wake: Callable[[Wake, str], None] = lambda *_: None
        self.on_lag: Callable[[float], None] = lambda _: None
        self._wakes = wakes
        self._me = me

    async def talk(self, connection: AbstractConnection) -> None:
        """Ask for what comes after what was heard, again and again."""
        (newest,) = await _answers(connection, [("XREVRANGE", self._wakes, "+", "-", "COUNT", 1)])
        wakes_after = newest[0][0] if newest else b"0-0"
        try:
            while True:
                self._tune()
                after = {key: f"{heard.after}-0" for key, heard in self.heard.items()}
                words = ("COUNT", ROWS_PER_READ, "BLOCK", int(BLOCK_SECONDS * 1000), "STREAMS")
                question = ("XREAD", *words, self._wakes, *after, wakes_after, *after.values())
                (answer,) = await _answers(connection, [question], waiting=BLOCK_SECONDS)
                for key, entries in answer or ():
                    if key.decode() == self._wakes:
                        wakes_after = entries[-1][0]
                        self._wake(entries)
                    else:
                        self._tell(key.decode(), entries)
        finally:
            for heard in self.heard.values():
                if heard.live:
                    heard.live = False
                    heard.hearer.tuned(False)

    def _tune(self) -> None:
        for heard in self.heard.values():
            seen = heard.hearer.seen
            if heard.live:
                heard.after = max(heard.after, seen)
            else:
                heard.after, heard.live = seen, True
                heard.hearer.tuned(True)

    def _tell(self, key: str, entries: Sequence[tuple[bytes, Sequence[bytes]]]) -> None:
        heard = self.heard.get(key)
        if heard is not None and heard.live:
            for id_, words in entries:
                heard.after = int(id_.partition(b"-")[0])
                heard.hearer.hear(heard.after, words[1])
            self.on_lag(max(0.0, time.time() - float(entries[-1][1][3])))

    def _wake(self, entries: Sequence[tuple[bytes, Sequence[bytes]]]) -> None:
        for _, (word, response, _, sender) in entries:
            wake = _WAKES.get(word)  # a newer version may say what we do not know
            if wake is not None and sender != self._me:
                self.on_wake(wake, response.decode())


class RedisTail:
    """The `Tail` in Redis. Row `n` of a journal is entry `n-0` of its stream. All keys begin with the prefix."""

    def __init__(self, url: str, *, prefix: str = "verbatim") -> None:
        try:
            self._pool = ConnectionPool.from_url(url, protocol=2, socket_timeout=None, socket_connect_timeout=None)
        except ValueError as error:
            raise SettingsError("The Redis URL is not valid: write redis://host:6379/0.") from error
        self._journals = f"{prefix}:journal:"
        self._wakes = f"{prefix}:wakes"
        self._me = secrets.token_bytes(8)
        self._mouth = _Mouth()
        self._ear = _Ear(self._wakes, self._me)
        self._ages: dict[str, _Ages] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, on_wake: Callable[[Wake, str], None], on_lag: Callable[[float], None]) -> None:
        """See `Tail.start`."""
        self._ear.on_wake, self._ear.on_lag = on_wake, on_lag
        loop = asyncio.get_running_loop()
        for talk in (self._mouth.talk, self._ear.talk):
            task = loop.create_task(_Link(self._pool).keep(talk), name="redis")
            task.add_done_callback(_ended)
            self._tasks.append(task)

    def tell(self, journal: str, n: int, batch: bytes) -> None:
        """See `Tail.tell`."""
        key = f"{self._journals}{journal}"
        if key not in self._ages:
            self._ages = {key: _Ages()}  # a writer that registers anew has a new journal
        oldest = self._ages[key].note(n, time.monotonic())
        self._mouth.say(("XADD", key, f"{n}-0", "batch", batch, "at", time.time()), len(batch))
        if oldest is not None:
            self._mouth.say(("XTRIM", key, "MINID", oldest), 0)

    def wake(self, wake: Wake, response_id: str = "") -> None:
        """See `Tail.wake`."""
        words = (wake, response_id, "by", self._me)
        self._mouth.say(("XADD", self._wakes, "MAXLEN", "~", WAKES_KEPT, "*", *words), len(response_id))

    def follow(self, journal: str, hearer: Hearer) -> None:
        """See `Tail.follow`."""
        self._ear.heard[f"{self._journals}{journal}"] = _Heard(hearer)

    def leave(self, journal: str) -> None:
        """See `Tail.leave`."""
        self._ear.heard.pop(f"{self._journals}{journal}", None)

    async def close(self) -> None:
        """See `Tail.close`."""
        waiting = asyncio.ensure_future(self._mouth.silent.wait())
        await asyncio.wait([waiting], timeout=CLOSE_SECONDS)
        for task in (waiting, *self._tasks):
            task.cancel()
        await asyncio.gather(waiting, *self._tasks, return_exceptions=True)


def _keeping(commands: Sequence[Command]) -> Iterator[Command]:
    """Every stream outlives its last entry for a while."""
    return (("EXPIRE", key, KEPT_SECONDS) for key in dict.fromkeys(command[1] for command in commands))


async def _ask(
    connection: AbstractConnection, commands: Sequence[Command], *, waiting: float = 0.0
) -> list[tuple[Command, Any]]:
    """Send all at once; gives each with its answer, which may be a ResponseError.

    Raises TimeoutError when it takes longer than Redis was asked to wait and some more.
    """
    answers: list[Any] = []
    async with asyncio.timeout(waiting + PATIENCE_SECONDS):
        await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
        for _ in commands:
            try:
                answers.append(await connection.read_response(disconnect_on_error=False))
            except ResponseError as error:
                answers.append(error)
    return list(zip(commands, answers, strict=True))


async def _answers(connection: AbstractConnection, commands: Sequence[Command], *, waiting: float = 0.0) -> list[Any]:
    """The answers alone. Raises what is an error."""
    answers = [answer for _, answer in await _ask(connection, commands, waiting=waiting)]
    for answer in answers:
        if isinstance(answer, ResponseError):
            raise answer
    return answers


def _ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.critical("the tail broke: readers ask the database from now on", exc_info=error)
