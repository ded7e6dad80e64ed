"""Builds the ASGI application of the edge from a service."""

from collections.abc import Sequence
from typing import Any, Final

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute

from app import __version__
from app.api.authentication import Authentication
from app.api.errors import answer_http_exception
from app.api.middleware import PROCESSING_MS, REQUEST_ID, Errors, RequestId
from app.api.openapi import document
from app.api.options import EdgeOptions
from app.api.routes import IGNORED_FIELDS, Routes
from app.meters import Meters
from app.runtime.interface import ResponsesService

EXPOSED: Final = (REQUEST_ID, PROCESSING_MS, IGNORED_FIELDS, "retry-after")  # headers that a web page may read
DEFAULTS: Final = EdgeOptions()


class _Application(FastAPI):
    """FastAPI whose OpenAPI document is given, not made from its routes."""

    def __init__(self, described: dict[str, Any], **options: Any) -> None:
        self._described = described
        super().__init__(**options)

    def openapi(self) -> dict[str, Any]:
        return self._described


def build_app(service: ResponsesService, *, api_keys: frozenset[str] = frozenset(), options: EdgeOptions = DEFAULTS,
              meters: Meters | None = None, routes: Sequence[BaseRoute] = ()) -> FastAPI:
    """The application. With `api_keys` every `/v1` request needs one. `routes` are served beside the API's own.

    The routes are plain Starlette ones: bodies are parsed once, by us, and answers are stored bytes, so the
    framework's models would have nothing to do; the OpenAPI document is our own for the same reason.
    """
    app = _Application(
        document(with_keys=bool(api_keys)),
        title="Verbatim",
        version=__version__,
        middleware=_middleware(api_keys, options, meters or Meters()),
        exception_handlers={HTTPException: answer_http_exception},
        redirect_slashes=False,
        docs_url=None,  # its page loads a script from elsewhere; the document is at /openapi.json
        redoc_url=None,
    )
    app.router.routes += [*Routes(service, options).table(), *routes]
    return app


def _middleware(api_keys: frozenset[str], options: EdgeOptions, meters: Meters) -> list[Middleware]:
    """From the outside in. CORS stands before the keys: a preflight carries none, an error needs its headers."""
    cors = Middleware(
        CORSMiddleware, allow_origins=[*options.cors_origins], allow_methods=["*"], allow_headers=["*"],
        expose_headers=EXPOSED,
    )
    return [
        Middleware(RequestId, meters=meters),
        *([cors] if options.cors_origins else []),
        Middleware(Errors),
        Middleware(Authentication, api_keys=api_keys),
    ]
