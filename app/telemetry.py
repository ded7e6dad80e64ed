"""Structured logs: one event a line on stderr, JSON unless a person is watching. Prompts and keys are never logged."""

import logging
import sys
from contextlib import suppress
from typing import Final

import structlog

_OWN: Final = "app"  # the loggers of our own modules


def configure(level: str) -> None:
    """Set up the logs of this process. The standard library's loggers go the same way.

    Those of libraries speak from `warning` on: below that, some of them tell the values of SQL statements.
    """
    least = logging.getLevelNamesMapping()[level.upper()]
    shared = _shared()
    structlog.configure(
        processors=[*shared, *_rendering()],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=lambda *_: _Lines(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_rendering()],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(least, logging.WARNING))
    logging.getLogger(_OWN).setLevel(least)


class _Lines:
    """What structlog prints with. A line that can't be written is lost: a full disk must not stop the server."""

    def msg(self, line: str) -> None:
        """Write a line."""
        with suppress(OSError):
            print(line, file=sys.stderr, flush=True)  # noqa: T201 - the log itself

    debug = info = warning = error = critical = msg


def _shared() -> list[structlog.typing.Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]


def _rendering() -> list[structlog.typing.Processor]:
    if sys.stderr.isatty():
        return [structlog.dev.ConsoleRenderer()]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
