"""How big things may be. A reason in the code, `# budget: reason`, lifts a budget for what it stands at."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.house.source import ROOT, Function, functions, modules, names, where, words

MODULE_LINES: Final = 300
FUNCTION_LINES: Final = 40
PARAMETERS: Final = 5
COMPLEXITY: Final = 8
NO_NAMES: Final = {"util", "utils", "common", "helper", "helpers", "manager"}

_REASON: Final = re.compile(r"# budget: \S")


def lifted(path: Path, line: int) -> bool:
    """Whether a reason stands there, or on the line above."""
    lines = path.read_text().splitlines()
    return any(_REASON.search(text) for text in lines[max(0, line - 2) : line])


def parameters(function: Function) -> int:
    """How many parameters a caller sees."""
    given = function.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    return len([one for one in every if one.arg not in ("self", "cls")])


def too_complex() -> Iterator[tuple[Path, int, str]]:
    """What ruff finds, whatever `noqa` says."""
    config = f"lint.mccabe.max-complexity={COMPLEXITY}"
    command = [Path(sys.executable).with_name("ruff"), "check", "--no-cache", "--ignore-noqa", "--select=C901"]
    options = ["--output-format=json", "--config", config, "app", "migrations"]
    found = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode in (0, 1), found.stderr
    for one in json.loads(found.stdout):
        yield Path(one["filename"]), one["location"]["row"], one["message"]


def test_modules_are_short():
    lengths = {path: len(path.read_text().splitlines()) for path in modules("app", "migrations")}
    long = [f"{where(path, 1)} has {n}" for path, n in lengths.items() if n > MODULE_LINES and not lifted(path, 1)]
    assert long == []


def test_functions_are_short():
    long = [
        f"{where(path, function.lineno)} {function.name} has {lines} lines"
        for path in modules("app")
        for function in functions(path)
        if (lines := (function.end_lineno or 0) - function.lineno + 1) > FUNCTION_LINES
        if not lifted(path, function.lineno)
    ]
    assert long == []


def test_functions_take_few_parameters():
    greedy = [
        f"{where(path, function.lineno)} {function.name} takes {parameters(function)}"
        for path in modules("app", "migrations")
        for function in functions(path)
        if parameters(function) > PARAMETERS and not lifted(path, function.lineno)
    ]
    assert greedy == []


def test_functions_are_simple():
    assert [f"{where(path, row)} {why}" for path, row, why in too_complex() if not lifted(path, row)] == []


def test_modules_are_named_for_what_they_hold():
    assert [path for path in modules("app", "tests") if words(path.stem) & {*NO_NAMES, "base"}] == []


def test_no_name_says_nothing():
    empty = [f"{where(path, line)} {name}" for path in modules("app") for line, name in names(path)
             if words(name) & NO_NAMES]  # fmt: skip
    assert empty == []
