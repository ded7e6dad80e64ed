"""Where the server's CPU time goes, by function and line, while it serves the streams of `bench.cpu`.

`python -m bench.profile http|http-paced|scripted|background|many [--raw FILE]` needs py-spy. Only threads that hold
the GIL are counted: time inside SQLite, zstd and system calls that release it is missing. `many` are 300 clockwork
streams, measured after their ramp.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench import clockwork
from bench.cpu import TOKENS, over_http
from bench.latency import PER_SECOND, ticking
from bench.load import Load, request, run, started_clients
from bench.processes import Process, sqlite, verbatim
from bench.prose import write_script

_SECONDS: Final = 12
_SHOWN: Final = 45
_FOREVER: Final = 100_000
_MANY: Final = 300
_RAMP: Final = 6.0


def main() -> None:
    """Profile one case and print its ranking."""
    parser = argparse.ArgumentParser(prog="python -m bench.profile", description=__doc__)
    parser.add_argument("case", choices=["http", "http-paced", "scripted", "background", "many"])
    parser.add_argument("--raw", type=Path, help="keep the collapsed stacks here")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="verbatim-bench-") as name:
        folder = Path(name)
        raw = given.raw or folder / "stacks.txt"
        with _server(given.case, folder) as server:
            child = _loading(given.case, server)
            try:
                time.sleep(_RAMP + 3 if given.case == "many" else 3)
                _record(server, raw)
            finally:
                child.terminate()
                child.wait()
        _rank(raw.read_text())


@contextmanager
def _server(case: str, folder: Path) -> Iterator[Process]:
    if case.startswith("http"):
        with over_http(folder, pace_ms=5.0 if case == "http-paced" else 0.0) as server:
            yield server
    elif case == "many":
        with ticking(sqlite(folder), inside=True) as server:
            yield server
    else:
        script = write_script(folder / "script.json", [TOKENS], pace_ms=5.0)
        with verbatim(sqlite(folder), engine="scripted", script=script, dialect="harmony") as server:
            yield server


def _loading(case: str, server: Process) -> subprocess.Popen[bytes]:
    if case == "many":
        body = request(model=clockwork.NAME, max_output_tokens=round((_RAMP + 2 * _SECONDS) * PER_SECOND))
        load = Load(port=server.port, body=body, streams=_MANY, at_once=_MANY, ramp_seconds=_RAMP)
    else:
        body = request(model="gpt-oss" if case.startswith("http") else "scripted", background=case == "background")
        run(server, Load(port=server.port, body=body, streams=8, at_once=8))
        load = Load(port=server.port, body=body, streams=_FOREVER, at_once=16)
    return started_clients(load)


def _record(server: Process, raw: Path) -> None:
    program = Path(sys.executable).parent / "py-spy"
    what = ["record", "--gil", "--format", "raw", "--rate", "500", "--duration", str(_SECONDS)]
    command = [program, *what, "--output", raw, "--pid", str(server.pid)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _rank(stacks: str) -> None:
    own, inside, total = Counter[str](), Counter[str](), 0
    for line in stacks.splitlines():
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        total += int(count)
        own[frames[-1]] += int(count)
        for frame in {frame.rpartition(":")[0] for frame in frames}:
            inside[frame] += int(count)
    for title, counter in (("own lines", own), ("functions with what they call", inside)):
        sys.stdout.write(f"\n{title} ({total} samples)\n")
        for frame, count in counter.most_common(_SHOWN):
            sys.stdout.write(f"  {100 * count / total:5.1f} %  {frame}\n")


if __name__ == "__main__":
    main()
