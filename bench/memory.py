"""Resident memory of the server over thousands of finished responses: it has to be flat."""

from pathlib import Path
from typing import Final

from bench.load import Load, request, run
from bench.processes import Process, sqlite, verbatim
from bench.prose import write_script
from bench.report import Figure

_MARKS: Final = (1000, 5000, 10_000)
_AT_ONCE: Final = 32
_TOKENS: Final = 20
_MEGABYTE: Final = 1e6


def measure(folder: Path, *, marks: tuple[int, ...] = _MARKS) -> list[Figure]:
    """After 0, 1,000, 5,000 and 10,000 short streams, and the slope after the first thousand."""
    script = write_script(folder / "script.json", [_TOKENS], pace_ms=0)
    with verbatim(sqlite(folder), engine="scripted", script=script, dialect="harmony") as server:
        sizes, finished = {0: server.rss_bytes}, 0
        for mark in marks:
            _finish(server, mark - finished)
            finished = mark
            sizes[mark] = server.rss_bytes
    figures = [Figure(f"RSS after {mark:,} streams", size / _MEGABYTE, "MB") for mark, size in sizes.items()]
    first, last = marks[0], marks[-1]
    slope = (sizes[last] - sizes[first]) / (last - first)
    others = "vLLM: ~1 kB per token, never freed"
    return [*figures, Figure(f"growth per stream, {first:,} to {last:,}", slope, "bytes", "flat", others)]


def _finish(server: Process, streams: int) -> None:
    body = request(model="scripted")
    run(server, Load(port=server.port, body=body, streams=streams, at_once=_AT_ONCE))
