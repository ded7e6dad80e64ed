"""The trace that a request belongs to (W3C trace context): taken in at the edge, passed on to engines.

It lives in a context variable: what the request's own task starts inherits it; a worker's background runs have none.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

_PARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]{0,200})?")
_STATE: Final = re.compile(r"[ -~]{1,512}")


@dataclass(frozen=True, slots=True)
class Trace:
    """The request that is served, by our id, and the headers of its trace that were in order."""

    request_id: str
    headers: Mapping[str, str]


_CURRENT: Final = ContextVar[Trace | None]("trace", default=None)


@contextmanager
def traced(request_id: str, incoming: Mapping[str, str]) -> Iterator[None]:
    """Serve a request. What its headers say that is no trace context is dropped."""
    headers = {}
    if _PARENT.fullmatch(parent := incoming.get(TRACEPARENT, "")):
        headers[TRACEPARENT] = parent
        if _STATE.fullmatch(state := incoming.get(TRACESTATE, "")):
            headers[TRACESTATE] = state
    before = _CURRENT.set(Trace(request_id, headers))
    try:
        yield
    finally:
        _CURRENT.reset(before)


def current() -> Trace | None:
    """The trace of the request that is being served; None outside of one."""
    return _CURRENT.get()
