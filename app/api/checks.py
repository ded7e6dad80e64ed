"""Validate one JSON object against one flat pydantic model, and say in one short sentence what is wrong and where.

Unions are never left to pydantic: the callers choose the model by `type`, so an error is about one branch.
Null equals leaving a field out: nulls are taken away before validation.
"""

from collections.abc import Iterable
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from app.errors import InvalidRequest

MESSAGE_LIMIT: Final = 400  # characters of any message about a request
PARAM_LIMIT: Final = 128  # a path may hold a client's own key
WORD_LIMIT: Final = 64


class Checked(BaseModel):
    """One object of a request. Strict: `"1"` is not 1. Unknown fields are dropped, they come from newer clients."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", protected_namespaces=())


M = TypeVar("M", bound=Checked)


def check(model: type[M], value: Any, at: str) -> M:
    """The object at path `at` as a checked model. Raises InvalidRequest; its param is the path of the first mistake."""
    fields = object_at(value, at)
    try:
        return model.model_validate({name: field for name, field in fields.items() if field is not None})
    except ValidationError as error:
        # include_url/context off: cheaper, and the input is never repeated in a message
        raise _refusal(error.errors(include_url=False, include_context=False)[0], at) from None


def object_at(value: Any, at: str) -> dict[str, Any]:
    """A JSON object at a path."""
    if not isinstance(value, dict):
        raise wrong(at, f"must be an object, not {_kind(value)}")
    return value


def list_at(value: Any, at: str) -> list[Any]:
    """A JSON array at a path."""
    if not isinstance(value, list):
        raise wrong(at, f"must be an array, not {_kind(value)}")
    return value


def wrong(param: str, reason: str) -> InvalidRequest:
    """The error for a value that is there and wrong."""
    return InvalidRequest(f"Invalid value for '{param}': {reason.rstrip('.')}."[:MESSAGE_LIMIT], param=param)


def missing(param: str, hint: str = "") -> InvalidRequest:
    """The error for a value that is not there (or null)."""
    return InvalidRequest(f"Missing required parameter: '{param}'. {hint}".rstrip()[:MESSAGE_LIMIT], param=param)


def one_of(names: Iterable[str]) -> str:
    """A list of allowed values for a message."""
    return ", ".join(f"'{name}'" for name in names)


def quoted(value: str) -> str:
    """A client's own word for a message, cut short."""
    return repr(value if len(value) <= WORD_LIMIT else value[: WORD_LIMIT - 3] + "...")


def path(at: str, *steps: str | int) -> str:
    """A path below another one: `input[0]`, `content`, 1 is `input[0].content[1]`."""
    for step in steps:
        if isinstance(step, int):
            at += f"[{step}]"
        else:
            at = f"{at}.{step}" if at else step
    return at


def _refusal(error: ErrorDetails, at: str) -> InvalidRequest:
    where = path(at, *error["loc"])[:PARAM_LIMIT]
    if error["type"] == "missing":
        return missing(where)
    return wrong(where, error["msg"].removeprefix("Value error, ").replace("Input should be", "must be", 1))


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "an object"
