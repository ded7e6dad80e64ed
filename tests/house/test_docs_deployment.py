"""The documents for those who run Verbatim: the tests, metrics, endpoints and commands that they name exist."""

import re
from functools import cache
from pathlib import Path
from typing import Final

import pytest
import yaml

from app.cli import cli
from app.meters import Meters
from app.settings import PREFIX, Settings
from tests.house.markdown import DOCUMENTS, ROOT, blocks, code, prose, table, tables
from tests.house.source import functions

FAILURES: Final = ROOT / "docs" / "failures.md"
DEPLOYMENT: Final = ROOT / "docs" / "deployment.md"
SERVICES: Final = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
COLUMNS: Final = ("what fails", "foreground", "background", "reader", "kept", "shown by")

each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


@cache
def known_tests(path: Path) -> set[str]:
    """The names of all tests of a module."""
    return {function.name for function in functions(path) if function.name.startswith("test_")}


def missing(named: str) -> bool:
    """Whether `file::test` names no test."""
    file, _, test = named.partition("::")
    return not (ROOT / file).is_file() or test not in known_tests(ROOT / file)


def test_every_failure_names_a_test_that_exists():
    rows = tables(FAILURES, *COLUMNS)
    assert len(rows) > 40
    assert [row[0] for row in rows if not code(row[-1])] == []
    assert [named for row in rows for named in code(row[-1]) if missing(named)] == []


def test_every_failure_is_told_once_in_a_table_with_the_same_columns():
    rows = [row for row in tables(FAILURES, *COLUMNS) if row[0]]
    assert len({row[0] for row in rows}) == len(rows)
    assert {len(row) for row in rows} == {len(COLUMNS)}
    assert prose(FAILURES).count("\n| what fails |") == prose(FAILURES).count("\n|---|")


@each_document
def test_tests_that_are_named_exist(document: Path):
    named = [one for one in code(prose(document)) if "::" in one]
    assert [one for one in named if missing(one)] == []


def test_the_metrics_to_watch_are_measured():
    measured = set(re.findall(rb"^# TYPE (\w+) ", Meters().exposition(), re.MULTILINE))
    told = [code(row[0])[0].encode() for row in table(DEPLOYMENT, "metric", "look at it when")]
    assert set(told) <= measured, set(told) - measured


def test_the_processes_are_commands():
    commands = {command.callback.__name__ for command in cli.registered_commands if command.callback is not None}
    told = [code(row[0])[0].split() for row in table(DEPLOYMENT, "process", "runs", "needs")]
    assert {words[0] for words in told} == {"verbatim"}
    assert {words[1] for words in told} <= commands
    composed = {tuple(service["command"]) for service in SERVICES.values() if "build" in service}
    assert {words[:2] for words in composed} <= {tuple(words[:2]) for words in told}


@each_document
def test_variables_that_are_named_are_settings(document: Path):
    named = set(re.findall(rf"{PREFIX}([A-Z_]+)\b", document.read_text()))
    others = {"CONFIG", "KEY", "TEST_FAULTS", "TEST_VLLM"}
    assert {name for name in named if name.lower() not in Settings.model_fields} <= others


def test_the_proxy_takes_bodies_as_large_as_the_server():
    nginx = next(block.text for block in blocks(DEPLOYMENT) if block.info == "nginx")
    largest = re.search(r"client_max_body_size (\d+)m;", nginx)
    assert largest is not None
    assert int(largest[1]) * 1024 * 1024 == Settings.model_fields["max_body_bytes"].default
