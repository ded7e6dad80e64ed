"""What a worker process answers over HTTP: whether it lives, and whether it is ready. Nothing else."""

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.routing import BaseRoute

from app.api.options import EdgeOptions
from app.api.routes import Routes
from app.runtime.interface import ResponsesService

_PROBES = frozenset({"/health", "/livez"})


def build_probes(service: ResponsesService, routes: Sequence[BaseRoute] = ()) -> Starlette:
    """The application of a worker; `routes` are served beside the probes."""
    table = Routes(service, EdgeOptions()).table()
    return Starlette(routes=[*(route for route in table if route.path in _PROBES), *routes])
