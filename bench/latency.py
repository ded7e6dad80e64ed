"""From the moment a token is there to the client's read: paced streams, every event durable before it is shown."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from bench import clockwork
from bench.disk import watched
from bench.load import Load, request, run_window
from bench.processes import DurablePostgres, Process, sqlite, started, verbatim
from bench.report import Figure, percentile

PER_SECOND: Final = 20
WINDOW_SECONDS: Final = 15.0
_PACE_MS: Final = 1000 / PER_SECOND
_STREAMS_A_SECOND: Final = 50  # of the ramp: creating is not what is measured here
_MARGIN_SECONDS: Final = 4.0


def measure(folder: Path, *, window: float = WINDOW_SECONDS) -> list[Figure]:
    """200 and 1,000 streams; the engine inside and over HTTP; SQLite and PostgreSQL."""
    figures = []
    for streams in (200, 1000):
        figures += _sqlite(folder, streams, window, inside=True)
        figures += _sqlite(folder, streams, window, inside=False)
    with DurablePostgres(folder) as postgres:
        for streams in (200, 1000):
            with ticking(postgres.url, inside=True) as server:
                figures += paced(server, folder, streams, window, name=f"{streams:,} streams, PostgreSQL")
    return figures


def _sqlite(folder: Path, streams: int, window: float, *, inside: bool) -> list[Figure]:
    name = f"{streams:,} streams, SQLite" + ("" if inside else ", engine over HTTP")
    with ticking(sqlite(folder), inside=inside) as server:
        return paced(server, folder, streams, window, name=name)


@contextmanager
def ticking(database_url: str, *, inside: bool, pace_ms: float = _PACE_MS) -> Iterator[Process]:
    """A server whose model tells the time, inside or behind HTTP."""
    with ExitStack() as stack:
        if inside:
            engine = {"engine": "scripted", "clockwork_pace_ms": pace_ms}
        else:
            upstream = stack.enter_context(started("bench.clockwork", f"--pace-ms={pace_ms}"))
            engine = {"engine": "chat", "engine_url": upstream.url}
        yield stack.enter_context(verbatim(database_url, model=clockwork.NAME, dialect="chat", **engine))


def paced(server: Process, folder: Path, streams: int, window: float, *, name: str) -> list[Figure]:
    """The figures of so many streams with 20 tokens a second each."""
    ramp = max(1.0, streams / _STREAMS_A_SECOND)
    tokens = round((ramp + window + _MARGIN_SECONDS) * PER_SECOND)
    body = request(model=clockwork.NAME, max_output_tokens=tokens)
    load = Load(port=server.port, body=body, streams=streams, at_once=streams, ramp_seconds=ramp)
    with watched(folder) as disk:
        result = run_window(server, load, window=window)
    seen, fsync_p99 = result.seen, percentile(disk.taken_ms, 0.99)
    allowed = f"<= {2 * fsync_p99 + 4:.1f} ms (2 x fsync p99 of this run + 4)"
    return [
        Figure(f"{name}, p50", percentile(seen.latencies_ms, 0.5), "ms"),
        Figure(f"{name}, p99", percentile(seen.latencies_ms, 0.99), "ms", allowed),
        Figure(f"{name}, slowest", seen.latencies_ms[-1], "ms"),
        Figure(f"{name}, fsync p50 of this run", percentile(disk.taken_ms, 0.5), "ms"),
        Figure(f"{name}, fsync p99 of this run", fsync_p99, "ms"),
        Figure(f"{name}, tokens per second", len(seen.latencies_ms) / window, "", f"{streams * PER_SECOND:,} offered"),
        Figure(f"{name}, events per second", seen.events_in_window / window),
        Figure(f"{name}, server CPU", 100 * result.cpu_seconds / window, "%"),
        Figure(f"{name}, clients' CPU (whole run)", 100 * seen.cpu_seconds / seen.seconds, "%"),
    ]
