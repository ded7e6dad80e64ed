"""The event log against a list: whatever order of orders, both agree (L1, L2, L3, L5, L7)."""

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from app.errors import LogError, ResponseNotFound
from app.log.claims import LIVES
from app.log.memory import MemoryLog
from app.log.sql import SqlLog, open_log
from tests.contracts.logs import DEADLINE_SECONDS, Log, collect, delta, header
from tests.contracts.sharing import HASTY

T = TypeVar("T")
NAMES = st.sampled_from(["resp_a", "resp_b", "resp_c"])


class Stream:
    """What the log must hold of one response."""

    def __init__(self, *, owner: int | None) -> None:
        self.events: list[bytes] = []
        self.owner = owner
        self.closed = False
        self.tokens: list[int] = []
        self.lives = 0  # claims without getting further
        self.claimed_at = 0

    @property
    def got_further(self) -> bool:
        return len(self.events) > self.claimed_at

    @property
    def is_suspect(self) -> bool:
        return self.lives >= LIVES and not self.got_further


class LogMachine(RuleBasedStateMachine):
    """Two writers (one in memory) and up to three responses, opened, written, released, claimed, read, deleted."""

    make_logs: Callable[[Path], Coroutine[Any, Any, list[Log]]]

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.runner = asyncio.Runner()
        self.logs = self.do(type(self).make_logs(Path(self.folder.name)))
        self.streams: dict[str, Stream] = {}
        self.stamp = 0

    def do(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run to the end."""
        return self.runner.run(coroutine)

    def attempt(self, order: Callable[[], Any], *, legal: bool) -> bool:
        """The log must take exactly what is legal."""

        async def run() -> None:
            await order()

        try:
            self.do(run())
        except (LogError, ResponseNotFound):
            assert not legal, "the log refused what was right"
            return False
        assert legal, "the log took what it had to refuse"
        return True

    def new_events(self, first: int, count: int) -> list[bytes]:
        """Events that were never written before, so that a mix-up shows."""
        self.stamp += 1
        return [delta(first + i, f"stamp {self.stamp}") for i in range(count)]

    @rule(name=NAMES, writer=st.integers(0, 1), count=st.integers(1, 3), queued=st.booleans())
    def open(self, name: str, writer: int, count: int, queued: bool) -> None:
        writer %= len(self.logs)
        events = self.new_events(0, count)
        made = header(name, status="queued" if queued else "in_progress")
        if self.attempt(lambda: self.logs[writer].open(made, events, queued=queued), legal=name not in self.streams):
            stream = self.streams[name] = Stream(owner=None if queued else writer)
            stream.events = events

    @rule(
        name=NAMES,
        writer=st.integers(0, 1),
        error=st.sampled_from([0, 0, 0, -1, 1]),
        count=st.integers(1, 9),
        ends=st.sampled_from([False, False, False, True]),
    )
    def append(self, name: str, writer: int, error: int, count: int, ends: bool) -> None:
        writer %= len(self.logs)
        stream = self.streams.get(name)
        believed = (len(stream.events) - 1 if stream else -1) + error
        events = self.new_events(believed + 1, count)
        legal = stream is not None and stream.owner == writer and not stream.closed and error == 0
        status = "completed" if ends else None
        order = self.logs[writer].append
        if self.attempt(
            lambda: order(name, events, expected_version=believed, tokens=[self.stamp], status=status), legal=legal
        ):
            assert stream is not None
            stream.events += events
            stream.tokens.append(self.stamp)
            if ends:
                stream.closed, stream.owner, stream.tokens = True, None, []

    @rule(name=NAMES, writer=st.integers(0, 1))
    def release(self, name: str, writer: int) -> None:
        writer %= len(self.logs)
        stream = self.streams.get(name)
        legal = stream is not None and stream.owner == writer
        if self.attempt(lambda: self.logs[writer].release(name), legal=legal):
            assert stream is not None
            stream.owner = None

    def is_tried(self, stream: Stream, writer: int) -> bool:
        """Whether it was claimed once too often, and is at work."""
        return stream.owner == writer and not stream.closed and stream.lives > LIVES and not stream.got_further

    @rule(writer=st.integers(0, 1), limit=st.integers(1, 3))
    def claim(self, writer: int, limit: int) -> None:
        writer %= len(self.logs)
        free = sorted(name for name, stream in self.streams.items() if stream.owner is None and not stream.closed)
        suspects = [name for name in free if self.streams[name].is_suspect]
        tried = suspects[: not any(self.is_tried(stream, writer) for stream in self.streams.values())]
        claimed = self.do(self.logs[writer].claim(["model"], limit=limit))
        assert sorted((tried + [name for name in free if name not in suspects])[:limit]) == [one.id for one in claimed]
        for one in claimed:
            stream = self.streams[one.id]
            stream.lives = 1 if stream.got_further else stream.lives + 1
            stream.claimed_at = len(stream.events)
            assert stream.lives == one.attempts
            assert len(stream.events) - 1 == one.version
            log = self.logs[writer]
            assert isinstance(log, MemoryLog) or stream.tokens == self.do(log.tokens(one.id))
            stream.owner = writer

    @rule(name=NAMES, reader=st.integers(0, 1), after=st.integers(-1, 40))
    def read(self, name: str, reader: int, after: int) -> None:
        log, stream = self.logs[reader % len(self.logs)], self.streams.get(name)
        if stream is None:
            assert not self.attempt(lambda: log.read(name, after=after), legal=False)
            return
        span = self.do(log.read(name, after=after))
        assert (after + 1, stream.events[after + 1 :]) == (span.first, list(span.events))

    @rule(name=NAMES, reader=st.integers(0, 1), after=st.integers(-1, 40))
    def replay(self, name: str, reader: int, after: int) -> None:
        stream = self.streams.get(name)
        if stream is not None and stream.closed:
            assert stream.events[after + 1 :] == self.do(collect(self.logs[reader % len(self.logs)], name, after=after))

    @rule(name=NAMES, writer=st.integers(0, 1))
    def delete(self, name: str, writer: int) -> None:
        writer %= len(self.logs)
        stream = self.streams.get(name)
        if stream is not None and stream.owner not in {None, writer}:
            return  # its owner finds out when it moves events: see the sharing contract
        assert self.do(self.logs[writer].delete(name)) == (stream is not None)
        self.streams.pop(name, None)

    @rule()
    def let_time_pass(self) -> None:
        self.do(asyncio.sleep(0.03 if len(self.logs) > 1 else 0))  # one alone in memory does nothing by itself

    @invariant()
    def headers_agree(self) -> None:
        for name, stream in self.streams.items():
            stored = self.do(self.logs[0].header(name))
            assert stored is not None
            assert stream.closed == (stored.terminal is not None)
            assert not stream.closed or stream.events[-1] == stored.terminal
            assert stored.version < len(stream.events)

    def teardown(self) -> None:
        for log in self.logs:
            self.do(log.close())
        self.runner.close()
        self.folder.cleanup()


async def in_memory(folder: Path) -> list[Log]:
    """One process."""
    return [MemoryLog()]


def check(make_logs: Callable[[Path], Coroutine[Any, Any, list[Log]]], examples: int) -> None:
    """Run the machine."""
    machine = type("Machine", (LogMachine,), {"make_logs": staticmethod(make_logs)})
    how = settings(
        max_examples=examples,
        stateful_step_count=25,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=how)


def test_the_log_in_memory_agrees_with_a_list() -> None:
    check(in_memory, examples=60)


def test_two_logs_on_one_record_agree_with_a_list(sqlite_template: Path) -> None:
    async def on_one_file(folder: Path) -> list[Log]:
        path = folder / "log.db"
        shutil.copy(sqlite_template, path)
        logs: list[SqlLog] = [
            await open_log(f"sqlite:///{path}", pace=HASTY, wait_seconds=DEADLINE_SECONDS) for _ in range(2)
        ]
        for log in logs:
            await log.register()
        return list(logs)

    check(on_one_file, examples=25)
