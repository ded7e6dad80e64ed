"""How many durable events a second one process gives: more and more streams with 20 tokens a second each."""

from pathlib import Path
from typing import Final

from bench.latency import paced, ticking
from bench.processes import sqlite
from bench.report import Figure

_WINDOW_SECONDS: Final = 20.0


def measure(folder: Path, *, streams: int = 2000, window: float = _WINDOW_SECONDS) -> list[Figure]:
    """2,000 streams; tokens per second against what was offered say whether they are sustained."""
    with ticking(sqlite(folder), inside=True) as server:
        return paced(server, folder, streams, window, name=f"{streams:,} streams, SQLite")
