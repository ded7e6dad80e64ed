"""The contract's field lists, strictly: SDK models accept unknown fields in silence, so passing them is no proof."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

from tests.oracle.contract import Fields, event_fields, model_fields

# On the wire, but not in the SDK's models.
ALSO: Final[Mapping[str, Mapping[str, str]]] = {
    "Response": {"presence_penalty": "float", "frequency_penalty": "float", "store": "boolean"},
    "Reasoning": {"summary": "string | null", "context": "string | null", "mode": "string | null"},
    "delta": {"obfuscation": "string"},
    "error": {"error": "ErrorTold"},
    "ErrorTold": {
        "type": "string",
        "code": "string | null",
        "message": "string",
        "param": "string | null",
    },
    "ResponseError": {"code": "string"},  # the SDK lists some; others are sent, `context_length_exceeded` first
}
STRICTLY_NEEDED: Final = frozenset({"ErrorTold", "error"})
CONDITIONS: Final[Mapping[str, Any]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "float": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "any": lambda value: True,
}


def misfits(event: Mapping[str, Any]) -> list[str]:
    """How an event fails its field list: a missing field, an unknown one, a value of another type."""
    known = _event(event["type"])
    if known is None:
        return [f"{event['type']}: no such event"]
    return list(_object(event, known, event["type"]))


@cache
def _event(kind: str) -> Fields | None:
    listed = event_fields().get(kind.replace("response.reasoning.", "response.reasoning_text."))
    if listed is None:
        return None
    return {**listed, **_also(kind), **(_also("delta") if kind.endswith(".delta") else {})}


@cache
def _model(name: str) -> Fields:
    fields = {**model_fields(name), **_also(name)}
    if not fields:
        raise KeyError(f"the contract has no model {name}")
    return fields


def _also(name: str) -> Fields:
    return {
        key: {"name": key, "type": kind, "required": name in STRICTLY_NEEDED}
        for key, kind in ALSO.get(name, {}).items()
    }


def _object(value: Mapping[str, Any], fields: Fields, path: str) -> Iterator[str]:
    yield from (
        f"{path}.{name} is missing" for name, field in fields.items() if field["required"] and name not in value
    )
    for name, inner in value.items():
        if name not in fields:
            yield f"{path}.{name} is unknown"
        else:
            yield from _value(inner, fields[name]["type"], f"{path}.{name}")


def _value(value: Any, kind: str, path: str) -> Iterator[str]:
    """Nothing when the value is of one of the types in `A | "b"|"c" | [D] | {string: E}`."""
    tried = [list(_one(value, alternative, path)) for alternative in _alternatives(kind)]
    if all(tried):
        yield from min(tried, key=len)


def _one(value: Any, kind: str, path: str) -> Iterator[str]:
    wrong = f"{path} is {value!r:.60}, not {kind}"
    if kind in CONDITIONS:
        if not CONDITIONS[kind](value):
            yield wrong
    elif kind.startswith('"'):
        if value != json.loads(kind):
            yield wrong
    elif kind.startswith("["):
        if not isinstance(value, list):
            yield wrong
            return
        for index, inner in enumerate(value):
            yield from _value(inner, kind[1:-1], f"{path}[{index}]")
    elif kind.startswith("{"):
        if not isinstance(value, dict):
            yield wrong
            return
        for key, inner in value.items():
            yield from _value(inner, kind[1:-1].removeprefix("string: "), f"{path}.{key}")
    elif isinstance(value, dict):
        yield from _object(value, _model(kind), path)
    else:
        yield wrong


@cache
def _alternatives(kind: str) -> list[str]:
    """The types of a union, split at the bars that are outside of brackets."""
    parts, depth, start = [], 0, 0
    for found in re.finditer(r"[\[{(\]})|]", kind):
        mark = found.group()
        if mark in "[{(":
            depth += 1
        elif mark in "]})":
            depth -= 1
        elif depth == 0:
            parts.append(kind[start : found.start()].strip())
            start = found.end()
    return [*parts, kind[start:].strip()]
