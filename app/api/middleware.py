"""What surrounds every request: an id, the time it took, and an answer whatever happens."""

import asyncio
import secrets
from typing import Final

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.account import Account
from app.api.errors import InternalError, error_answer
from app.errors import ShuttingDown, VerbatimError
from app.meters import Meters
from app.tracing import traced

REQUEST_ID: Final = "x-request-id"
PROCESSING_MS: Final = "openai-processing-ms"
INTERNAL: Final = 500

logger = structlog.get_logger(__name__)


def new_request_id() -> str:
    """What an answer is known by, in its header and in the log."""
    return f"req_{secrets.token_hex(16)}"


class RequestId:
    """Gives every answer an `x-request-id` of our own, and every log line of the request the same id.

    One of these lines, at the end, is about the request itself.
    """

    def __init__(self, app: ASGIApp, *, meters: Meters) -> None:
        self._app = app
        self._meters = meters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, adding headers to the answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id, account = new_request_id(), Account(scope, self._meters)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                seconds = account.begin_answer(message)
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID] = request_id
                headers[PROCESSING_MS] = str(round(seconds * 1000))
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id), traced(request_id, Headers(scope=scope)):
            try:
                await self._app(scope, receive, send_with_id)
            finally:
                account.close()
                structlog.contextvars.unbind_contextvars("response_id")


class Errors:
    """Turns what is raised into answers. Nothing of an unexpected error leaves the server but its request id."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on; answer for the application when it raises before its answer has begun."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def send_and_see(message: Message) -> None:
            nonlocal begun
            begun = begun or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, send_and_see)
        except ClientDisconnect:
            logger.info("client_gone_before_answer", path=scope["path"])
        except asyncio.CancelledError:  # the server ends, and waits no longer
            if not begun:
                await error_answer(ShuttingDown())(scope, receive, send)
            raise
        except Exception as error:
            if begun:
                raise
            await error_answer(_known(error, scope))(scope, receive, send)


def _known(error: Exception, scope: Scope) -> VerbatimError:
    where = {"method": scope["method"], "path": scope["path"]}
    if not isinstance(error, VerbatimError):
        logger.error("request_crashed", **where, exc_info=error)
        return InternalError()
    if error.status >= INTERNAL:
        logger.warning("request_failed", **where, status=error.status, reason=type(error).__name__)
    return error
