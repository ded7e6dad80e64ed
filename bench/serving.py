"""Starts the server under measure as its command line does; a clockwork may take the place of its scripted engine."""

import argparse
from unittest.mock import patch

from app import assembly, cli
from bench.clockwork import ClockworkEngine


def main() -> None:
    """Serve until a signal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--clockwork", type=float, metavar="MS")
    given = parser.parse_args()
    if given.clockwork is None:
        cli.serve(port=given.port)
        return
    pace = given.clockwork / 1000
    with patch.object(assembly, "ScriptedChat", lambda _, models: ClockworkEngine(pace, models)):
        cli.serve(port=given.port)


if __name__ == "__main__":
    main()
