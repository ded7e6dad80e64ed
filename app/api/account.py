"""What is told of a request when it is over: one log line, one count."""

from time import perf_counter
from typing import Any, Final

import structlog
from starlette.datastructures import Headers
from starlette.routing import Route
from starlette.types import Message, Scope

from app.api.authentication import TENANT
from app.meters import Meters

CLIENT_CLOSED_REQUEST: Final = 499  # the answer never began
PATH_LIMIT: Final = 256  # characters of a path that are logged
QUIET: Final = frozenset({"/health", "/livez", "/metrics"})  # asked every few seconds, by machines
METHODS: Final = frozenset({"GET", "HEAD", "POST", "DELETE", "OPTIONS"})

logger = structlog.get_logger(__name__)


class Account:
    """One request, from its first byte to the end of its answer."""

    def __init__(self, scope: Scope, meters: Meters) -> None:
        self._scope, self._meters = scope, meters
        self._began = perf_counter()
        self._status = CLIENT_CLOSED_REQUEST
        self._reads = False

    def begin_answer(self, message: Message) -> float:
        """The status line goes out; gives the seconds it took."""
        seconds = perf_counter() - self._began
        self._status = message["status"]
        self._meters.answer_began(self._method, self._route, seconds)
        if Headers(raw=message["headers"]).get("content-type", "").startswith("text/event-stream"):
            self._reads = True
            self._meters.reader_came()
        return seconds

    def close(self) -> None:
        """The answer is over, or will never come."""
        if self._reads:
            self._meters.reader_went()
        self._meters.request_answered(self._method, self._route, self._status)
        tell = logger.debug if self._scope["path"] in QUIET else logger.info
        tell(
            "request",
            method=self._scope["method"],
            path=self._scope["path"][:PATH_LIMIT],
            status=self._status,
            duration_ms=round((perf_counter() - self._began) * 1000, 1),
            **self._who(),
        )

    @property
    def _method(self) -> str:
        method: str = self._scope["method"]
        return method if method in METHODS else "other"

    @property
    def _route(self) -> str:
        """The template of the path: as many as there are routes, whatever clients ask for."""
        endpoint, routes = self._scope.get("endpoint"), self._scope["app"].routes
        return next((one.path for one in routes if isinstance(one, Route) and one.endpoint is endpoint), "none")

    def _who(self) -> dict[str, Any]:
        """The tenant, which is a digest of a key, and the response that the path names."""
        named = self._scope.get("path_params", {}).get("response_id")
        known = {"tenant": self._scope.get(TENANT), "response_id": named}
        return {name: value[:PATH_LIMIT] for name, value in known.items() if value}
