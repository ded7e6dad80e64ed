"""Errors on the way out: the one mapping from an error to an HTTP answer."""

import math

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from app.errors import InvalidRequest, MethodNotAllowed, NotFound, VerbatimError
from app.responses.ids import RESPONSE_PREFIX

UNAUTHORIZED, CONFLICT = 401, 409


class WrongRequest(InvalidRequest):
    """HTTP itself was used in a way that makes no sense here."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class InternalError(VerbatimError):
    """The server had an error while processing your request."""

    code = "server_error"


def error_answer(error: VerbatimError) -> Response:
    """The HTTP answer for an error.

    SDKs repeat 408, 409, 429 and 5xx by themselves, without an idempotency key: a conflict would only be repeated.
    """
    headers = {}
    if error.retry_after is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after)))
    if error.status == CONFLICT:
        headers["x-should-retry"] = "false"
    if error.status == UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    return Response(orjson.dumps({"error": error.body()}), error.status, headers, "application/json")


async def answer_http_exception(request: Request, exception: Exception) -> Response:
    """The framework's own refusals (no such path, wrong method) in our shape, with their headers (`Allow`)."""
    assert isinstance(exception, HTTPException)
    error = _translated(request, exception)
    answer = error_answer(error)
    if error.status == exception.status_code:
        answer.headers.update(exception.headers or {})
    return answer


def _nothing_there(request: Request) -> NotFound:
    return NotFound(f"This server does not have {request.method} {request.url.path}.")


def _translated(request: Request, exception: HTTPException) -> VerbatimError:
    match exception.status_code:
        case 404:
            return _nothing_there(request)
        case 405 if not request.path_params.get("response_id", RESPONSE_PREFIX).startswith(RESPONSE_PREFIX):
            return _nothing_there(request)  # `POST /v1/responses/compact`: a place of its own elsewhere, no id
        case 405:
            return MethodNotAllowed(f"{request.method} is not allowed for {request.url.path}.")
        case status if status < 500:
            return WrongRequest(exception.detail, status=status)
        case _:
            return InternalError()
