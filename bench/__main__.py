"""`python -m bench [name …]`: measure, print a table per number, and keep all figures as JSON if asked to."""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

from bench import ceiling, cpu, kill, latency, memory, processes_scale, resume, stored, tail
from bench.report import Figure, save, show

Bench = Callable[[Path], Sequence[Figure]]

_BENCHES: Final[Mapping[str, tuple[str, Bench, Bench]]] = {
    "cpu": ("CPU per stored stream of 500 deltas", cpu.measure, partial(cpu.measure, streams=48)),
    "latency": ("From a token to the client", latency.measure, partial(latency.measure, window=4.0)),
    "stored": ("Stored bytes", stored.measure, partial(stored.measure, streams=16)),
    "resume": ("Resume of a finished response", resume.measure, partial(resume.measure, tokens=2000)),
    "memory": ("Memory", memory.measure, partial(memory.measure, marks=(200, 600))),
    "ceiling": ("Durable events a second", ceiling.measure, partial(ceiling.measure, window=5.0)),
    "kill": ("Killed workers", kill.measure, partial(kill.measure, leases=(1.0,), kills=2, in_a_row=5)),
    "tail": ("From a commit to another process", tail.measure, partial(tail.measure, streams=20, window=4.0)),
    "scale": (
        "Durable events a second by processes",
        processes_scale.measure,
        partial(processes_scale.measure, counts=(1, 2), steps=(20,), window=4.0),
    ),
}
"""Name: title, the whole bench, and a quick one that only shows that it works."""
_LOOPS: Final = 5_000_000


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(_BENCHES)}; default: all")
    parser.add_argument("--quick", action="store_true", help="short runs, to see that they work")
    parser.add_argument("--folder", type=Path, help="where databases go: on the disk to be measured")
    parser.add_argument("--json", type=Path, help="write all figures here")
    given = parser.parse_args()
    unknown = set(given.names) - _BENCHES.keys()
    if unknown:
        parser.error(f"no such bench: {', '.join(sorted(unknown))}")
    sys.stdout.write(_surroundings())
    sections = []
    for name in given.names or _BENCHES:
        title, whole, quick = _BENCHES[name]
        with tempfile.TemporaryDirectory(prefix="verbatim-bench-", dir=given.folder) as folder:
            figures = (quick if given.quick else whole)(Path(folder))
        show(title, figures)
        sections.append((title, figures))
    if given.json is not None:
        save(given.json, sections)


def _surroundings() -> str:
    """When, and how busy and fast the machine is: shared cores make the same work cost more CPU time."""
    began = time.process_time()
    for _ in range(_LOOPS):
        pass
    speed = (time.process_time() - began) / _LOOPS * 1e9
    load = Path("/proc/loadavg").read_text().split()[0]
    return f"{datetime.now().astimezone():%Y-%m-%d %H:%M}, load {load}, an empty Python loop takes {speed:.0f} ns\n"


if __name__ == "__main__":
    main()
