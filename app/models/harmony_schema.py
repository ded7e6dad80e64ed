"""Tools' JSON schemas, rewritten so that gpt-oss gets to see them.

openai_harmony shows `anyOf`, `$ref`, `const`, an enum without a type and an object without a type as `any`, and loses
enums of numbers and what a map holds.
"""

from collections.abc import Mapping
from typing import Any, Final

_MAX_DEPTH: Final = 64
_MAX_NODES: Final = 5_000  # inlining `$ref` can grow without bound
_MAX_INLINED: Final = 1_000_000  # letters that `$ref` may put in: more than a context holds
_SCALARS: Final = frozenset({"string", "number", "integer", "boolean"})


def for_prompt(schema: Any) -> dict[str, Any] | None:
    """A tool's parameters as openai_harmony shows them best; None when the tool takes none. Never raises."""
    if not isinstance(schema, Mapping) or _depth_exceeds(schema, _MAX_DEPTH * 2):
        return None
    shown = _Rewriting(schema).rewrite(schema, ())
    return shown if shown.get("properties") or shown.get("oneOf") else None


def _depth_exceeds(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [
            inner
            for one in level
            for inner in (one.values() if isinstance(one, Mapping) else one if isinstance(one, list) else ())
            if isinstance(inner, Mapping | list)
        ]
        if not level:
            return False
    return True


def _resolve(ref: Any, root: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The schema that a local reference (`#`, `#/$defs/x`) means; None when there is none."""
    if not isinstance(ref, str) or not ref.startswith("#"):
        return None
    node: Any = root
    for step in ref.removeprefix("#").split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping):
            node = node.get(key)
        elif isinstance(node, list) and key.isdigit() and int(key) < len(node):
            node = node[int(key)]
        else:
            return None
    return node if isinstance(node, Mapping) else None


class _Rewriting:
    """One schema under rewriting; `trail` is the way of references to here: a recursive schema ends as `any`."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._nodes = 0
        self._inlined = 0

    def rewrite(self, node: Any, trail: tuple[str, ...]) -> dict[str, Any]:
        self._nodes += 1
        if not isinstance(node, Mapping) or self._nodes > _MAX_NODES or len(trail) > _MAX_DEPTH:
            return {}
        if "$ref" in node:
            return self._resolved(node, trail)
        shown = _typed(_merged(node))
        deeper = (*trail, "")
        if isinstance(shown.get("properties"), Mapping):
            shown["properties"] = {name: self.rewrite(one, deeper) for name, one in shown["properties"].items()}
        elif isinstance(variants := shown.pop("anyOf", None) or shown.get("oneOf"), list):
            shown.pop("type", None)
            return _variants(shown, [self.rewrite(one, deeper) for one in variants])
        if "items" in shown:
            shown["items"] = self.rewrite(shown["items"], deeper)
        return shown

    def _resolved(self, node: Mapping[str, Any], trail: tuple[str, ...]) -> dict[str, Any]:
        ref = node["$ref"]
        target = _resolve(ref, self._root)
        beside = {key: value for key, value in node.items() if key != "$ref"}
        self._inlined += len(str(target)) if self._inlined <= _MAX_INLINED else 0
        if target is None or ref in trail or self._inlined > _MAX_INLINED:
            return {key: value for key, value in beside.items() if key == "description"}
        return self.rewrite({**target, **beside}, (*trail, ref))


def _merged(node: Mapping[str, Any]) -> dict[str, Any]:
    """A copy with the branches of `allOf` taken in."""
    shown = {key: value for key, value in node.items() if key != "allOf"}
    branches = node.get("allOf")
    for branch in branches if isinstance(branches, list) else ():
        if isinstance(branch, Mapping):
            properties = {**branch.get("properties", {}), **shown.get("properties", {})}
            required = [*branch.get("required", ()), *shown.get("required", ())]
            shown = {**branch, **shown}
            shown |= {"properties": properties} if properties else {}
            shown |= {"required": required} if required else {}
    return shown


def _typed(shown: dict[str, Any]) -> dict[str, Any]:
    """Say the type where it is only implied, and in words what the prompt's type language cannot say."""
    if "const" in shown:
        shown["enum"] = [shown.pop("const")]
    values = shown.get("enum")
    if isinstance(values, list) and values:
        return _enumerated(shown, values)
    if "type" not in shown and "properties" in shown:
        shown["type"] = "object"
    elif "type" not in shown and "items" in shown:
        shown["type"] = "array"
    held = shown.get("additionalProperties")
    if isinstance(held, Mapping) and isinstance(held.get("type"), str) and not shown.get("properties"):
        return _with_words(shown, f"A map; each value is of type {held['type']}.")
    return shown


def _enumerated(shown: dict[str, Any], values: list[Any]) -> dict[str, Any]:
    words = [value for value in values if isinstance(value, str)]
    if len(words) == len(values):
        return {**shown, "type": "string"}
    rest = {key: value for key, value in shown.items() if key not in {"enum", "type"}}
    if words and len(words) == sum(value is not None for value in values):
        return {**rest, "oneOf": [{"type": "string", "enum": words}, {"type": ["null"]}]}
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    kind = {"type": shown.get("type", "number")} if "type" in shown or numbers else {}
    return _with_words({**rest, **kind}, f"One of: {', '.join(map(str, values))}.")


def _with_words(shown: dict[str, Any], words: str) -> dict[str, Any]:
    return {**shown, "description": f"{shown.get('description') or ''} {words}".strip()}


def _variants(shown: dict[str, Any], variants: list[dict[str, Any]]) -> dict[str, Any]:
    shown.pop("oneOf", None)
    real = [one for one in variants if one.get("type") not in ("null", ["null"])]
    nullable = len(real) < len(variants)
    if len(real) == 1:
        only = {**real[0], **shown}
        if not nullable:
            return only
        if only.get("type") in _SCALARS and "enum" not in only:
            return {**only, "type": [only["type"], "null"]}
    return {**shown, "oneOf": [*real, *([{"type": ["null"]}] if nullable else [])]}
