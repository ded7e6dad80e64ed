"""Durable events a second with 1, 2 and 4 API processes on PostgreSQL: more streams, until not sustained."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psutil

from bench.load import Load, request, run_window
from bench.processes import DurablePostgres, Process
from bench.prose import prose
from bench.report import Figure
from bench.tail import serving
from tests.contracts.logs import Backend, until
from tests.e2e.serving import Server

PER_SECOND: Final = 20
WINDOW_SECONDS: Final = 10.0
SUSTAINED: Final = 0.95
"""So much of what is offered has to come as events of its own; behind that, tokens wait for each other and merge."""
_STEPS: Final = (100, 200, 300, 400, 600, 800, 1200, 1600, 2000)
_STREAMS_A_SECOND: Final = 50
_MARGIN_SECONDS: Final = 6.0
_SPARE: Final = 1.3  # the script's tokens are a guess from its characters


class Family(Process):
    """A server and its children as one process."""

    def __init__(self, server: Server) -> None:
        self.port = int(server.url.rpartition(":")[2])
        self.pid = server.process.pid

    @property
    def cpu_seconds(self) -> float:
        """CPU time of the whole family. Who died in the meantime is missing."""
        parent = psutil.Process(self.pid)
        times = [one.cpu_times() for one in (parent, *parent.children(recursive=True))]
        return sum(one.user + one.system for one in times)


def measure(
    folder: Path, *, counts: Sequence[int] = (1, 2, 4), steps: Sequence[int] = _STEPS, window: float = WINDOW_SECONDS
) -> list[Figure]:
    """For each count of processes: the most events a second that were sustained, and the most that were seen at all."""
    engine = {"engine": "scripted", "script": _script(folder / "script.json", steps, window), "model": "gpt-oss"}
    figures = []
    for count in counts:
        place = folder / f"processes-{count}"
        place.mkdir()
        with DurablePostgres(place) as postgres:
            settings = {"database_url": postgres.url, "processes": count, **engine}
            with serving(place / "server", settings) as server:
                asyncio.run(_all_up(postgres.url, count))
                figures += _climb(Family(server), count, steps, window)
    return figures


def _script(path: Path, steps: Sequence[int], window: float) -> Path:
    """One answer for each step, as long as its streams have to last."""
    outputs = []
    for streams in steps:
        tokens = round((_ramp(streams) + window + _MARGIN_SECONDS) * PER_SECOND * _SPARE)
        text = f"<|channel|>final<|message|>{prose(tokens)}<|return|>"
        outputs.append({"match": _name(streams), "text": text, "pace_ms": 1000 / PER_SECOND})
    path.write_text(json.dumps(outputs))
    return path


async def _all_up(database_url: str, count: int) -> None:
    """Wait until all processes are writers, so that all of them take connections."""

    async def registered() -> bool:
        return len(await Backend(database_url).query("SELECT id FROM writers WHERE NOT fenced")) >= count

    await until(registered)


def _climb(server: Family, count: int, steps: Sequence[int], window: float) -> list[Figure]:
    name = f"{count} process{'es' if count > 1 else ''}"
    most = sustained = 0.0
    figures = []
    for streams in steps:
        offered = streams * PER_SECOND
        events, cpu = _step(server, streams, window)
        most = max(most, events)
        figures.append(Figure(f"{name}, {streams:,} streams, events per second", events, "", f"{offered:,} offered"))
        figures.append(Figure(f"{name}, {streams:,} streams, CPU of the servers", cpu, "%"))
        if events < SUSTAINED * offered:
            break
        sustained = events
    return [
        Figure(f"{name}, sustained events per second", sustained),
        Figure(f"{name}, most events per second", most),
        *figures,
    ]


def _step(server: Family, streams: int, window: float) -> tuple[float, float]:
    """Events a second in the window, and the CPU of all server processes in per cent of one core."""
    body = request(model="gpt-oss") | {"input": _name(streams)}
    load = Load(port=server.port, body=body, streams=streams, at_once=streams, ramp_seconds=_ramp(streams))
    result = run_window(server, load, window=window)
    return result.seen.events_in_window / window, 100 * result.cpu_seconds / window


def _ramp(streams: int) -> float:
    return max(1.0, streams / _STREAMS_A_SECOND)


def _name(streams: int) -> str:
    return f"climb-{streams:04}"
