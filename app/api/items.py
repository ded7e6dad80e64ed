"""Input items: choose by `type`, validate, and give every item its one normal form (app.responses.request)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from app.api.checks import check, list_at, missing, object_at, one_of, path, quoted, wrong
from app.api.parts import message_parts, reasoning_parts, tool_output
from app.api.schemas_items import (
    FunctionCallBody,
    FunctionCallOutputBody,
    ItemReferenceBody,
    MessageBody,
    ReasoningItemBody,
)
from app.errors import UnsupportedValue

Normalise = Callable[[dict[str, Any], str], dict[str, Any]]

# types that exist in the API, whose tools or features are not served here
ELSEWHERE: Final = frozenset({
    "additional_tools", "apply_patch_call", "apply_patch_call_output", "code_interpreter_call", "compaction",
    "compaction_trigger", "computer_call", "computer_call_output", "configuration_update", "custom_tool_call",
    "custom_tool_call_output", "file_search_call", "image_generation_call", "local_shell_call",
    "local_shell_call_output", "mcp_approval_request", "mcp_approval_response", "mcp_call", "mcp_list_tools", "program",
    "program_output", "shell_call", "shell_call_output", "tool_search_call", "tool_search_output", "web_search_call",
})  # fmt: skip


MAX_ITEMS: Final = 10_000  # each is parsed, stored and rendered: a list without a bound would stop everybody else


def parse_input(value: Any) -> list[dict[str, Any]]:
    """`input` as items in normal form. A string is one user message. Items without an id stay without one."""
    if value is None:
        raise missing("input", "It is a string or a list of items.")
    if isinstance(value, str):
        return [_message({"role": "user", "content": value}, "input")]
    if not isinstance(value, list):
        raise wrong("input", "must be a string or a list of items")
    if len(value) > MAX_ITEMS:
        raise wrong("input", f"has more than {MAX_ITEMS} items")
    return [_item(item, path("input", i)) for i, item in enumerate(value)]


def _item(value: Any, at: str) -> dict[str, Any]:
    item = object_at(value, at)
    kind = _type_of(item, at)
    normalise = _NORMALISE.get(kind)
    if normalise is not None:
        return normalise(item, at)
    supported = f"Supported here: {one_of(_NORMALISE)}."
    if kind in ELSEWHERE:
        raise UnsupportedValue(f"Items of type '{kind}' are not supported here. {supported}", param=path(at, "type"))
    raise wrong(path(at, "type"), f"unknown item type {quoted(kind)}. {supported}")


def _type_of(item: Mapping[str, Any], at: str) -> str:
    kind = item.get("type")
    if isinstance(kind, str):
        return kind
    if kind is not None:
        raise wrong(path(at, "type"), "must be a string")
    if "role" in item:
        return "message"
    if "id" in item:
        return "item_reference"
    raise missing(path(at, "type"))


def _message(item: dict[str, Any], at: str) -> dict[str, Any]:
    body = check(MessageBody, item, at)
    content = message_parts(body.content, body.role, path(at, "content"))
    return _without_none(type="message", id=body.id, status=body.status, role=body.role, content=content,
                         phase=body.phase)


def _function_call(item: dict[str, Any], at: str) -> dict[str, Any]:
    body = check(FunctionCallBody, item, at)
    return _without_none(type="function_call", id=body.id, status=body.status, call_id=body.call_id, name=body.name,
                         arguments=body.arguments)


def _function_call_output(item: dict[str, Any], at: str) -> dict[str, Any]:
    body = check(FunctionCallOutputBody, item, at)
    output = tool_output(body.output, path(at, "output"))
    return _without_none(type="function_call_output", id=body.id, status=body.status, call_id=body.call_id,
                         output=output)


def _reasoning(item: dict[str, Any], at: str) -> dict[str, Any]:
    body = check(ReasoningItemBody, item, at)
    summary = reasoning_parts(_list_or_empty(body.summary, path(at, "summary")), "summary_text", path(at, "summary"))
    content = reasoning_parts(_list_or_empty(body.content, path(at, "content")), "reasoning_text", path(at, "content"))
    return _without_none(type="reasoning", id=body.id, status=body.status, summary=summary, content=content)


def _item_reference(item: dict[str, Any], at: str) -> dict[str, Any]:
    return {"type": "item_reference", "id": check(ItemReferenceBody, item, at).id}


def _list_or_empty(value: Any, at: str) -> Sequence[Any]:
    return [] if value is None else list_at(value, at)


def _without_none(**fields: Any) -> dict[str, Any]:
    return {name: field for name, field in fields.items() if field is not None}


_NORMALISE: Final[Mapping[str, Normalise]] = {
    "message": _message,
    "function_call": _function_call,
    "function_call_output": _function_call_output,
    "reasoning": _reasoning,
    "item_reference": _item_reference,
}
