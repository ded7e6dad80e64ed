"""All log lines of a process look the same, whoever writes them."""

import json
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.house.source import ROOT


def logged(level: str, code: str) -> list[dict[str, Any]]:
    """What a process logs that does this."""
    script = f"import logging, structlog\nfrom app import telemetry\ntelemetry.configure({level!r})\n{code}"
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout == ""
    return [json.loads(line) for line in ran.stderr.splitlines()]


def test_lines_of_the_standard_library_have_the_same_form() -> None:
    ours, theirs = logged(
        "info",
        "with structlog.contextvars.bound_contextvars(request_id='req_1'):\n"
        "    structlog.get_logger().info('hello', answer=42)\n"
        "    logging.getLogger('app.log.sql').info('a commit took %d ms', 7)\n",
    )

    stamps = [datetime.fromisoformat(line.pop("timestamp")) for line in (ours, theirs)]
    assert {stamp.utcoffset() for stamp in stamps} == {timedelta(0)}
    assert ours == {"event": "hello", "answer": 42, "level": "info", "request_id": "req_1"}
    assert theirs == {
        "event": "a commit took 7 ms", "level": "info", "request_id": "req_1", "logger": "app.log.sql",
    }  # fmt: skip


@pytest.mark.parametrize(("level", "expected"), [("debug", 3), ("info", 2), ("warning", 1), ("error", 0)])
def test_the_level_holds_for_our_own_lines(level: str, expected: int) -> None:
    code = "for log in (structlog.get_logger(), logging.getLogger('app.x')):\n"
    code += "  log.debug('a'); log.info('b'); log.warning('c')"

    assert len(logged(level, code)) == 2 * expected


def test_libraries_speak_only_when_something_is_wrong() -> None:
    code = "for name in ('aiosqlite', 'sqlalchemy.engine', 'asyncio'):\n  log = logging.getLogger(name)\n"
    code += "  log.debug('SQL with values'); log.info('chatter'); log.warning('careful')"

    assert [line["event"] for line in logged("debug", code)] == ["careful"] * 3


def test_an_exception_is_one_line() -> None:
    code = "try:\n  1 / 0\nexcept ZeroDivisionError:\n"
    code += "  structlog.get_logger().exception('ours'); logging.getLogger('x').exception('theirs')"

    assert [line["exception"].splitlines()[-1] for line in logged("info", code)] == [
        "ZeroDivisionError: division by zero"
    ] * 2


def test_a_line_that_cannot_be_written_is_lost_and_nothing_else() -> None:
    code = "import logging, structlog\nfrom app import telemetry\ntelemetry.configure('info')\n"
    code += "structlog.get_logger().error('no room')\nlogging.getLogger('app').error('none')\nprint('on')"
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=full, check=False)
    assert ran.stdout == b"on\n"
