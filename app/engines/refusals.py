"""What an engine's refusal means to a client: one mapping from its HTTP status and error body to our errors."""

import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

from app.errors import ContextTooLong, EngineError, EngineFailed, EngineLacksModel, EngineRefused, InvalidRequest

_MESSAGE_LIMIT: Final = 2000  # characters of an engine's own sentence that are passed on
_TOO_LONG: Final = re.compile(
    r"context[ _]?(length|window|size)|maximum context|max_model_len.*prompt|(prompt|input) is too long", re.IGNORECASE
)
_NO_ROOM: Final = re.compile(r"max_(completion_)?tokens must be at least 1, got (0|-\d+)\b")
"""vLLM of a prompt that fills the context; no request of ours asks for less than one token."""
_TOO_LONG_CODES: Final = frozenset({"context_length_exceeded", "exceed_context_size_error"})
NOTHING_THERE: Final = frozenset({404, 405})
"""Never the client's fault, unless it is the model that is not there: which path is asked is this server's doing."""
_NOTHING: Final = (
    "The engine has nothing at the place that was asked for (status {}). Perhaps the URL that this server was given "
    "for it is wrong: it ends in /v1."
)
_OF_A_MODEL: Final = re.compile(r"\bmodel\b", re.IGNORECASE)
_PARAMS: Final[Mapping[str, str]] = {
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "model": "model",
}


def refused(status: int, error: Any, *, retry_after: float | None = None) -> EngineError | InvalidRequest:
    """The error for a refusal. `error` is the `error` object, or whatever the engine answered instead."""
    told = error if isinstance(error, Mapping) else {}
    message = _message(error) or f"The engine refused the request with status {status}."
    names = {key: word for key in ("type", "code", "param") if isinstance(word := told.get(key), str)}
    code, param = names.get("code"), names.get("param")
    if status in (401, 403):
        # our own key is wrong, not the client's; the engine's sentence may repeat the key
        return EngineRefused("The engine does not accept this server's API key.", status=502)
    if _is_of_the_model(status, message, {*names.values()}):
        return EngineLacksModel(f"{EngineLacksModel.__doc__} {message}")
    if status in NOTHING_THERE:
        return EngineRefused(_NOTHING.format(status), status=502)
    if status not in range(400, 600):
        return EngineFailed(f"The engine answered with status {status}.")
    if status == 400 and _NO_ROOM.search(message):
        return ContextTooLong()
    if _too_long(status, message, {*names.values()}) and param not in ("max_tokens", "max_completion_tokens"):
        return ContextTooLong(message)
    return EngineRefused(
        message,
        status=status,
        code=None if code is None or code.isdigit() else code,
        param=None if param is None else _PARAMS.get(param),
        retry_after=retry_after,
    )


def refused_body(status: int, body: bytes, *, retry_after: float | None = None) -> EngineError | InvalidRequest:
    """The error for a refusal that came as an HTTP body, in any of the shapes that servers use."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return refused(status, body.decode("utf-8", "replace"), retry_after=retry_after)
    if isinstance(answer, dict):
        answer = answer.get("error") or answer.get("detail") or answer
    return refused(status, answer, retry_after=retry_after)


def broken(error: Any, *, nothing_said: bool) -> EngineError | InvalidRequest:
    """The error for an error object inside a stream that had begun with status 200.

    Some servers send the status line first and find out afterwards that the request is bad: before anything was said,
    a 4xx in the error object is a refusal like any other.
    """
    code = error.get("code") if isinstance(error, Mapping) else None
    if nothing_said and isinstance(code, int) and code in range(400, 500):
        return refused(code, error)
    return EngineFailed(_message(error) or None)


def _is_of_the_model(status: int, message: str, names: set[str]) -> bool:
    if status == 404 and ("model" in names or _OF_A_MODEL.search(message)):
        return True
    return status in range(400, 500) and "model_not_found" in names


def _message(error: Any) -> str:
    match error:
        case str():
            return error.strip()[:_MESSAGE_LIMIT]
        case {"message": str(message)}:
            return message.strip()[:_MESSAGE_LIMIT]
        case list() | dict():
            return orjson.dumps(error).decode()[:_MESSAGE_LIMIT]
        case _:
            return ""


def _too_long(status: int, message: str, names: set[str]) -> bool:
    if status not in (400, 413, 422):
        return False
    return bool(_TOO_LONG.search(message)) or bool(names & _TOO_LONG_CODES)
