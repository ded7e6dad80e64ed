"""What this process measures, for Prometheus: counted once per request, run or commit, never per delta.

Several processes behind one address tell the sum of all: their parent names a folder, where each keeps its numbers in
files that it maps, and whoever is asked adds them up. What a process that died has counted stays counted.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST

_FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"  # the variable that the library looks for when it is imported
_IN_MEMORY: Final = Path("/dev/shm")  # a process that writes to a mapped file on a full disk is killed

_ANSWER_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120)
_RUN_SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
_COMMIT_SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5)
_COMMIT_EVENTS: Final = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000)


class SharedMeters:
    """What the processes of one parent measure together."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    @property
    def variables(self) -> Mapping[str, str]:
        """What a child must find in its environment."""
        return {_FOLDER: self._folder}

    def died(self, pid: int) -> None:
        """Forget what this child was doing."""
        mark_process_dead(pid, self._folder)  # type: ignore[no-untyped-call]


@contextmanager
def shared_meters() -> Iterator[SharedMeters]:
    """For a parent, as long as it has children."""
    place = _IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None
    with TemporaryDirectory(prefix="verbatim-", dir=place) as folder:
        yield SharedMeters(folder)


class Meters:
    """All meters, on a registry of their own. Labels hold only what is configured or written in the code."""

    def __init__(self) -> None:
        self._registry = self._told = CollectorRegistry()
        if folder := os.environ.get(_FOLDER):
            self._told = CollectorRegistry()
            MultiProcessCollector(self._told, folder)  # type: ignore[no-untyped-call]
        else:
            ProcessCollector(registry=self._registry)
        self._requests = self._counter("requests", "Requests answered.", "method", "route", "status")
        self._answers = self._histogram(
            "request_seconds", "Time until the answer began.", _ANSWER_SECONDS, "method", "route"
        )
        self._readers = self._gauge("readers", "Event streams that are open.")
        self._running = self._gauge("running", "Responses that are being generated here.")
        self._queued = self._gauge("queued", "Background responses that wait, of all processes.", "mostrecent")
        self._runs = self._counter("runs", "Runs that ended here.", "model", "outcome")
        self._run_time = self._histogram("run_seconds", "Time from taking up a run to its end.", _RUN_SECONDS, "model")
        self._first_words = self._histogram("first_token_seconds", "Time to the first words.", _RUN_SECONDS, "model")
        self._tokens = self._counter("tokens", "Tokens of runs that ended here.", "model", "kind")
        self._commit_time = self._histogram("commit_seconds", "Time of one group commit.", _COMMIT_SECONDS)
        self._commit_size = self._histogram("commit_events", "Events of one group commit.", _COMMIT_EVENTS)
        self._continuations = self._counter("continuations", "Runs taken up where another process left them.", "model")
        self._fences = self._counter("fences", "How often this process was declared dead.")
        self._tail_lag = self._histogram(
            "tail_lag_seconds", "From a commit elsewhere to its readers here.", _COMMIT_SECONDS
        )

    # requests

    def request_answered(self, method: str, route: str, status: int) -> None:
        """The answer is over. `route` is the template of its path."""
        self._requests.labels(method, route, str(status)).inc()

    def answer_began(self, method: str, route: str, seconds: float) -> None:
        """The status line goes out."""
        self._answers.labels(method, route).observe(seconds)

    def reader_came(self) -> None:
        """An event stream was opened."""
        self._readers.inc()

    def reader_went(self) -> None:
        """It was closed."""
        self._readers.dec()

    # runs

    def run_began(self) -> None:
        """A run was taken up."""
        self._running.inc()

    def run_ended(self, model: str, outcome: str, seconds: float) -> None:
        """It is over, whatever came of it."""
        self._running.dec()
        self._runs.labels(model, outcome).inc()
        self._run_time.labels(model).observe(seconds)

    def first_words(self, model: str, seconds: float) -> None:
        """How long a run was silent."""
        self._first_words.labels(model).observe(seconds)

    def tokens_used(self, model: str, *, prompt: int, cached: int, generated: int) -> None:
        """The usage of a run; `cached` ones are also in `prompt`."""
        for kind, count in (("prompt", prompt), ("cached", cached), ("generated", generated)):
            self._tokens.labels(model, kind).inc(count)

    def run_continued(self, model: str) -> None:
        """A run goes on where another process left it."""
        self._continuations.labels(model).inc()

    def queue_sampled(self, length: float) -> None:
        """How many responses wait; not a number when that can't be known."""
        self._queued.set(length)

    # the log

    def committed(self, events: int, seconds: float) -> None:
        """A group commit is on disk."""
        self._commit_size.observe(events)
        self._commit_time.observe(seconds)

    def fenced(self) -> None:
        """This process was declared dead."""
        self._fences.inc()

    def tail_lagged(self, seconds: float) -> None:
        """A commit of another process reached its readers here after so long."""
        self._tail_lag.observe(seconds)

    def exposition(self) -> bytes:
        """All of them, as Prometheus reads them (`CONTENT_TYPE`)."""
        return generate_latest(self._told)

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(f"verbatim_{name}", meaning, labels, registry=self._registry)

    def _gauge(self, name: str, meaning: str, of_all: Literal["livesum", "mostrecent"] = "livesum") -> Gauge:
        return Gauge(f"verbatim_{name}", meaning, registry=self._registry, multiprocess_mode=of_all)

    def _histogram(self, name: str, meaning: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"verbatim_{name}", meaning, labels, buckets=buckets, registry=self._registry)
