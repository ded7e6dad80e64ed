"""Query parameters: strings from the URL into typed values, or an InvalidRequest naming the parameter."""

import re
from collections.abc import Sequence
from typing import Final

from starlette.datastructures import QueryParams

from app.api.checks import one_of, quoted, wrong
from app.api.parsing import parse_include

_BOOLEANS: Final = {"true": True, "false": False, "1": True, "0": False, "": False}
_INTEGER: Final = re.compile(r"[0-9]{1,18}\Z")


def flag(query: QueryParams, name: str) -> bool:
    """A boolean, false by default."""
    text = query.get(name, "")
    value = _BOOLEANS.get(text.lower())
    if value is None:
        raise wrong(name, f"{quoted(text)} is neither 'true' nor 'false'")
    return value


def natural(query: QueryParams, name: str) -> int | None:
    """An integer from 0 on; None when it is not given."""
    text = query.get(name)
    if text is None:
        return None
    if not _INTEGER.match(text):
        raise wrong(name, f"{quoted(text)} is not an integer from 0 on")
    return int(text)


def bounded(query: QueryParams, name: str, *, default: int, limit: int) -> int:
    """An integer from 1 to `limit`."""
    value = natural(query, name)
    if value is None:
        return default
    if not 1 <= value <= limit:
        raise wrong(name, f"{value} is not between 1 and {limit}")
    return value


def choice(query: QueryParams, name: str, options: Sequence[str]) -> str:
    """One of some words; the first one by default."""
    value = query.get(name, options[0])
    if value not in options:
        raise wrong(name, f"{quoted(value)} is none of {one_of(options)}")
    return value


def check_include(query: QueryParams) -> None:
    """`include=…&include=…`, also with brackets as the SDKs write it. It changes nothing in what was stored."""
    parse_include([value for name, value in query.multi_items() if name.partition("[")[0] == "include"])
