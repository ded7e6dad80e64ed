"""The processes of a bench: the server under measure, its upstreams, its databases. What they cost comes from /proc."""

import http.client
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

from tests.ports import free_port
from tests.servers import Postgres

ROOT: Final = Path(__file__).parents[1]
START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 60.0
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_TICK: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_USER, _SYSTEM = 11, 12  # fields of /proc/<pid>/stat behind the name


class Process:
    """A running process of ours, on a port."""

    def __init__(self, child: subprocess.Popen[bytes], port: int) -> None:
        self.port = port
        self.pid = child.pid

    @property
    def url(self) -> str:
        """The base URL for an engine, ending in `/v1`."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def cpu_seconds(self) -> float:
        """CPU time of all its threads so far, in steps of 10 ms."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICK

    @property
    def rss_bytes(self) -> int:
        """Resident memory."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * _PAGE


@contextmanager
def verbatim(database_url: str, *, clockwork_pace_ms: float | None = None, **settings: object) -> Iterator[Process]:
    """The server under measure; settings by their names. With a pace, a clockwork replaces the scripted engine."""
    given = {"durability": "strict", "max_concurrent_runs": 8192, "log_level": "error", **settings}
    variables = {f"VERBATIM_{key.upper()}": str(value) for key, value in given.items()}
    variables |= {"VERBATIM_DATABASE_URL": database_url, "VERBATIM_CONFIG": os.devnull}
    arguments = [] if clockwork_pace_ms is None else [f"--clockwork={clockwork_pace_ms}"]
    with started("bench.serving", *arguments, variables=variables) as server:
        yield server


@contextmanager
def started(module: str, *arguments: str, variables: Mapping[str, str] = _NOTHING) -> Iterator[Process]:
    """Run a module that takes a `--port` and answers `GET /health` there, as long as the block lasts."""
    port = free_port()
    command = [sys.executable, "-m", module, f"--port={port}", *arguments]
    child = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **variables}, stdout=subprocess.DEVNULL)
    try:
        _await_health(child, port)
        yield Process(child, port)
    finally:
        child.terminate()
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def sqlite(folder: Path) -> str:
    """The URL of a fresh SQLite file."""
    return f"sqlite:///{database_file(folder)}"


def database_file(folder: Path) -> Path:
    """Where `sqlite` puts it."""
    return folder / "bench.db"


class DurablePostgres(Postgres):
    """The tests' PostgreSQL, but its commits reach the disk."""

    def _command(self, program: str, *words: str) -> Sequence[str]:
        durable = {"fsync=off": "fsync=on", "full_page_writes=off": "full_page_writes=on"}
        return super()._command(program, *(durable.get(word, word) for word in words))


def _await_health(child: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if child.poll() is not None:
            raise RuntimeError(f"{child.args!r} ended with {child.returncode}")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.05)
        finally:
            connection.close()
    raise RuntimeError(f"{child.args!r} did not come up")
