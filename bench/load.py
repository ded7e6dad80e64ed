"""Load: what the clients are to do, and what they saw. The clients are a process of their own (`bench.client`)."""

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from bench.processes import ROOT, Process

_READY_SECONDS: Final = 1.5  # from now until the clients' process is surely up
_SETTLE_SECONDS: Final = 2.0  # from the end of the ramp to the window


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """`streams` requests with this body, `at_once` of them at a time, their starts spread over `ramp_seconds`.

    Latencies are taken between `begin` and `end` (seconds of the monotonic clock).
    """

    port: int
    body: dict[str, Any]
    streams: int
    at_once: int
    ramp_seconds: float = 0.0
    at_most_seconds: float = 300.0
    start: float = 0.0
    begin: float = 0.0
    end: float | None = None


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What the clients saw. Latencies are sorted, in milliseconds, one per token whose text told its time."""

    completed: int
    failed: int
    events: int
    deltas: int
    events_in_window: int
    seconds: float
    cpu_seconds: float
    first_failure: str = ""
    latencies_ms: list[float] = []

    def check(self) -> None:
        """Raise when a stream did not come to its good end: then no figure is worth anything."""
        if self.failed:
            raise RuntimeError(f"{self.failed} streams failed, {self.completed} completed: {self.first_failure}")


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """A load and what it cost the server."""

    seen: Seen
    cpu_seconds: float

    @property
    def cpu_ms_per_stream(self) -> float:
        """CPU milliseconds of the server per stream."""
        return self.cpu_seconds * 1000 / self.seen.completed


def request(**fields: Any) -> dict[str, Any]:
    """The body of a stored, streamed response."""
    return {"input": "Tell me about the sea.", "stream": True, "store": True, "stream_options": _PLAIN, **fields}


_PLAIN: Final = {"include_obfuscation": False}


def run(server: Process, load: Load) -> Watched:
    """Run all of a load, and measure the server from before its first to after its last request."""
    before = server.cpu_seconds
    seen = clients(load)
    return Watched(seen=seen, cpu_seconds=server.cpu_seconds - before)


def run_window(server: Process, load: Load, *, window: float, meanwhile: Callable[[], None] = lambda: None) -> Watched:
    """Run a load whose streams are all there after the ramp; measure in a window of seconds after that."""
    start = time.monotonic() + _READY_SECONDS
    begin = start + load.ramp_seconds + _SETTLE_SECONDS
    timed = msgspec.structs.replace(load, start=start, begin=begin, end=begin + window)
    child = started_clients(timed)
    _sleep_until(begin)
    before = server.cpu_seconds
    meanwhile()
    _sleep_until(begin + window)
    spent = server.cpu_seconds - before
    return Watched(seen=_result(child), cpu_seconds=spent)


def clients(load: Load) -> Seen:
    """Run the clients to their end."""
    return _result(started_clients(load))


def started_clients(load: Load) -> subprocess.Popen[bytes]:
    """The clients' process, at work."""
    command = [sys.executable, "-m", "bench.client"]
    child = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    child.stdin.write(msgspec.json.encode(load))
    child.stdin.close()
    child.stdin = None
    return child


def _result(child: subprocess.Popen[bytes]) -> Seen:
    output, _ = child.communicate()
    if child.returncode:
        raise RuntimeError("the clients' process broke")
    try:
        seen = msgspec.json.decode(output, type=Seen)
    except msgspec.DecodeError as error:
        raise RuntimeError(f"the clients' process told {len(output)} bytes that are no figures") from error
    seen.check()
    return seen


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))
