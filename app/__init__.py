"""Verbatim: an event-sourced Responses API server for people who serve open models themselves."""

from importlib import metadata
from typing import Final

__version__: Final = metadata.version("verbatim")
