"""Can an engine be given this JSON schema? Decided here, because a bad one can kill an engine.

vLLM has done so: https://github.com/vllm-project/vllm/issues/57725, https://github.com/vllm-project/vllm/issues/45346.
"""

import math
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from hashlib import blake2b
from itertools import chain
from threading import Lock
from typing import Any, Final
from urllib.parse import unquote

import orjson
from jsonschema_rs import (
    Draft4Validator,
    Draft6Validator,
    Draft7Validator,
    Draft201909Validator,
    Draft202012Validator,
    ValidationError,
    Validator,
)

from app.api.checks import quoted, wrong

parse_pattern = re._parser.parse  # type: ignore[attr-defined]  # noqa: SLF001 - the first half of `re.compile`

Node = dict[str, Any]

MAX_SUBSCHEMAS: Final = 5_000  # OpenAI's own limit on properties
MAX_ENUM: Final = 10_000  # values; all of them are put into a prompt
MAX_PATTERN: Final = 4_096  # characters of a regular expression
MESSAGE_LIMIT: Final = 300
_TOO_MANY: Final = f"it has more than {MAX_SUBSCHEMAS} parts"

_IN_PLACE_LISTS: Final = ("allOf", "anyOf", "oneOf")
_IN_PLACE: Final = ("not", "if", "then", "else")
_INSIDE: Final = ("additionalProperties", "additionalItems", "contains", "items", "propertyNames", "unevaluatedItems",
                  "unevaluatedProperties")  # fmt: skip
_MAPS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")

_COUNTS: Final = (("minItems", "maxItems"), ("minLength", "maxLength"), ("minProperties", "maxProperties"),
                  ("minContains", "maxContains"))  # fmt: skip

_ANYTHING: Final[Node] = {}

_NEWEST: Final = "https://json-schema.org/draft/2020-12/schema"
_DRAFTS: Final = {
    "http://json-schema.org/draft-04/schema": Draft4Validator,
    "http://json-schema.org/draft-06/schema": Draft6Validator,
    "http://json-schema.org/draft-07/schema": Draft7Validator,
    "https://json-schema.org/draft/2019-09/schema": Draft201909Validator,
    _NEWEST: Draft202012Validator,
}
_LANGUAGES: Final[Mapping[str, Validator]] = {uri: draft({"$ref": uri}) for uri, draft in _DRAFTS.items()}

# what JavaScript's regular expressions have and Python's spell otherwise or lack: only the shape is checked here
_JAVASCRIPT: Final = (
    (re.compile(r"\\[pP]\{[^}]*\}|\\u\{[0-9a-fA-F]+\}|\\c[A-Za-z]"), "a"),
    (re.compile(r"\(\?<(?=[A-Za-z_$])"), "(?P<"),
)


class SchemaChecker:
    """Checks schemas, and remembers the last good ones: clients send the same tools with every turn."""

    def __init__(self, *, remembered: int = 1024) -> None:
        self._good: OrderedDict[bytes, None] = OrderedDict()
        self._remembered = remembered
        self._lock = Lock()  # large requests are parsed in threads

    def check(self, schema: Any, at: str) -> Node:
        """The schema at path `at`. Raises InvalidRequest if it is no JSON schema, or none that can be compiled."""
        if not isinstance(schema, dict):
            raise wrong(at, "must be a JSON schema object")
        key = blake2b(orjson.dumps(schema), digest_size=16).digest()
        with self._lock:
            if key in self._good:
                self._good.move_to_end(key)
                return schema
        reason = _fault(schema)
        if reason is not None:
            raise wrong(at, reason)
        with self._lock:
            self._good[key] = None
            if len(self._good) > self._remembered:
                self._good.popitem(last=False)
        return schema


def _fault(schema: Node) -> str | None:
    """What is wrong with a schema; None for a good one."""
    dialect = schema.get("$schema", _NEWEST)
    if not isinstance(dialect, str):
        return "$schema must be a string"
    if len(_subschemas(schema)) > MAX_SUBSCHEMAS:
        return _TOO_MANY
    language = _LANGUAGES.get(dialect.removesuffix("#"), _LANGUAGES[_NEWEST])
    return _language_fault(schema, language) or _structural_fault(schema, language)


def _language_fault(schema: Node, language: Validator) -> str | None:
    error = next(iter(language.iter_errors(schema)), None)
    return None if error is None else f"not a JSON schema: at {_place(error)}: {error.message[:MESSAGE_LIMIT]}"


def _place(error: ValidationError) -> str:
    return "$" + "".join(
        f".{step}" if isinstance(step, str) and step.isidentifier() else f"[{step!r}]" for step in error.instance_path
    )


def _structural_fault(root: Node, language: Validator) -> str | None:
    """Dangling references, references that only lead back to themselves, empty enums and ranges, broken patterns.

    References may lead where the language knows no schema (`#/components/x`): such targets are checked too.
    """
    in_place: TopologicalSorter[int] = TopologicalSorter()
    waiting, seen, judged, work = [root], set[int](), {id(root)}, 0
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        here = [*_in_place(node)]
        reason = _own_fault(node)
        if "$ref" in node:
            target = _resolve(node["$ref"], root)
            if target is None:
                return f"$ref {node['$ref']!r} does not lead to a schema inside this one"
            if id(target) not in judged:  # once each: a check of the whole for every `#` would never end
                judged.add(id(target))
                work += len(_subschemas(target))
                reason = reason or (_TOO_MANY if work > MAX_SUBSCHEMAS else _language_fault(target, language))
            here.append(target)
        if reason is not None:
            return reason
        in_place.add(id(node), *map(id, here))
        waiting += chain(here, _inside(node))
    try:
        in_place.prepare()
    except CycleError:
        return "a $ref leads back to itself without going into a property or an item"
    return None


def _subschemas(node: Node) -> set[int]:
    """The identities of a schema and of all schemas in it."""
    found, waiting = set[int](), [node]
    while waiting:
        inner = waiting.pop()
        if id(inner) not in found:
            found.add(id(inner))
            waiting += chain(_in_place(inner), _inside(inner))
    return found


def _own_fault(node: Node) -> str | None:
    if node.get("enum") == []:
        return "an enum is empty: nothing could ever match"
    if len(_listing(node, "enum")) > MAX_ENUM:
        return f"an enum has more than {MAX_ENUM} values"
    if (bounds := _crossed_bounds(node)) is not None:
        return f"{bounds}: nothing could ever match"
    patterns = [*_mapping(node, "patternProperties")]
    if isinstance(node.get("pattern"), str):
        patterns.append(node["pattern"])
    if any(len(pattern) > MAX_PATTERN for pattern in patterns):
        return f"a regular expression is longer than {MAX_PATTERN} characters"
    broken = next((pattern for pattern in patterns if not _reads(pattern)), None)
    return None if broken is None else f"{quoted(broken)} is not a regular expression"


def _crossed_bounds(node: Node) -> str | None:
    """A range with nothing in it: llama.cpp never comes back from one, and vLLM's grammars break on it."""
    for low, high in _COUNTS:
        if _number(node, low, -math.inf) > _number(node, high, math.inf):
            return f"{low} is above {high}"
    lowest = max(_number(node, "minimum", -math.inf), above := _number(node, "exclusiveMinimum", -math.inf))
    highest = min(_number(node, "maximum", math.inf), below := _number(node, "exclusiveMaximum", math.inf))
    if lowest > highest or (lowest == highest and lowest in (above, below)):
        return "the minimum is above the maximum"
    if node.get("type") == "integer" and math.isfinite(lowest) and math.isfinite(highest):
        first = math.floor(lowest) + 1 if lowest == above else math.ceil(lowest)
        last = math.ceil(highest) - 1 if highest == below else math.floor(highest)
        return "there is no integer between minimum and maximum" if first > last else None
    return None


def _number(node: Node, word: str, missing: float) -> float:
    value = node.get(word)  # draft 4 has booleans in exclusiveMinimum
    return value if isinstance(value, int | float) and not isinstance(value, bool) else missing


def _reads(pattern: str) -> bool:
    """Whether the pattern can be read. It is not compiled: a character class may cost 5 ms there."""
    for javascript, python in _JAVASCRIPT:
        pattern = javascript.sub(python, pattern)
    try:
        parse_pattern(pattern)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


def _in_place(node: Node) -> Iterator[Node]:
    """Subschemas about the very same value."""
    values = chain((node.get(word) for word in _IN_PLACE), *(_listing(node, word) for word in _IN_PLACE_LISTS))
    return (value for value in values if isinstance(value, dict))


def _inside(node: Node) -> Iterator[Node]:
    """Subschemas about parts of the value, and definitions."""
    single = (node.get(word) for word in _INSIDE)
    mapped = chain.from_iterable(_mapping(node, word).values() for word in _MAPS)
    listed = chain.from_iterable(_listing(node, word) for word in ("prefixItems", "items"))
    return (value for value in chain(single, mapped, listed) if isinstance(value, dict))


def _mapping(node: Node, word: str) -> Node:
    value = node.get(word)  # anything, if this dialect does not know the word
    return value if isinstance(value, dict) else {}


def _listing(node: Node, word: str) -> list[Any]:
    value = node.get(word)
    return value if isinstance(value, list) else []


def _resolve(reference: Any, root: Node) -> Node | None:
    """The schema a local reference leads to. Nothing is ever fetched. A boolean schema is an empty one here."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    found: Any = root
    for step in unquote(reference[2:]).split("/") if reference != "#" else ():
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            return None
    if isinstance(found, bool):
        return _ANYTHING
    return found if isinstance(found, dict) else None
