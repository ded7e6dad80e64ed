"""`GET /metrics`: what this process measures, for Prometheus."""

from collections.abc import Awaitable, Callable
from typing import Final

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.meters import CONTENT_TYPE, Meters

METRICS: Final = "/metrics"

logger = structlog.get_logger(__name__)


def metrics_route(meters: Meters, waiting: Callable[[], Awaitable[int]]) -> Route:
    """The route. The length of the queue is looked up when somebody asks; without an answer it is not a number."""

    async def show(request: Request) -> Response:  # noqa: ARG001 (endpoints take a request)
        try:
            meters.queue_sampled(await waiting())
        except Exception as error:  # noqa: BLE001 - whatever keeps the database away, the other numbers are wanted now
            logger.warning("queue_not_sampled", reason=type(error).__name__)
            meters.queue_sampled(float("nan"))
        return Response(meters.exposition(), headers={"content-type": CONTENT_TYPE})

    return Route(METRICS, show, methods=["GET"], name=METRICS)
