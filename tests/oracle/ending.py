"""Rules about the terminal event: its response is the items before it, adds up, keeps to the request (I06, I16 …)."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.oracle.findings import Findings, JsonObject
from tests.oracle.items import Items
from tests.oracle.lifecycle import TERMINAL

_ECHOED: Final = [
    "metadata",
    "instructions",
    "temperature",
    "top_p",
    "max_output_tokens",
    "max_tool_calls",
    "previous_response_id",
    "truncation",
    "prompt_cache_key",
    "safety_identifier",
    "background",
    "store",
    "parallel_tool_calls",
]
_CALLS: Final = {"function_call", "custom_tool_call"}
_NO_JSON: Final = object()
_DETAILS: Final = {
    "input_tokens": ("input_tokens_details", "cached_tokens"),
    "output_tokens": ("output_tokens_details", "reasoning_tokens"),
}


def check_ending(event: JsonObject, items: Items, findings: Findings) -> None:
    """The response inside the terminal event, by itself and against the items before it."""
    response, kind = event["response"], TERMINAL[event["type"]]
    _check_outcome(event, response, kind, findings)
    _check_output(event, items, findings)
    output = output_of(response)
    cut = [index for index, item in enumerate(output) if item.get("status") == "incomplete"]
    if cut and (cut != [len(output) - 1] or kind == "completed"):
        findings.add("I35", event, f"incomplete item(s) at {cut} of {len(output)} with response {kind}")
    if isinstance(response.get("usage"), dict):
        _check_usage(event, response["usage"], findings)
    elif kind == "completed":
        findings.add("I29", event, "completed without usage")


def check_retrieved(event: JsonObject, retrieved: JsonObject, findings: Findings) -> None:
    """What GET gives after the end is the response inside the terminal event (I24)."""
    response = event["response"]
    keys = sorted(key for key in response.keys() | retrieved.keys() if response.get(key) != retrieved.get(key))
    if retrieved != response:
        findings.add("I24", event, "GET /responses/{id} body differs from terminal event: " + ", ".join(keys))


def check_request(event: JsonObject, request: JsonObject, findings: Findings) -> None:
    """Settings are echoed, and only what was asked for was done (I37, I38)."""
    response = event["response"]
    for key in _ECHOED:
        if request.get(key) is not None and key in response and response[key] != request[key]:
            findings.add("I37", event, f"response.{key} {response[key]!r} does not echo request {request[key]!r}")
    called = [item for item in output_of(response) if item.get("type") in _CALLS]
    for call in called:
        _check_call(event, call, request, findings)
    _check_choice(event, called, request, findings)
    kind = ((request.get("text") or {}).get("format") or {}).get("type")
    if kind in {"json_schema", "json_object"} and event["type"] == "response.completed" and not called:
        _check_json_text(event, kind, findings)


def output_of(response: JsonObject) -> list[Any]:
    """The items of a response, or none when they are no list."""
    output = response.get("output")
    return output if isinstance(output, list) else []


def _check_outcome(event: JsonObject, response: JsonObject, kind: str, findings: Findings) -> None:
    if kind == "completed":
        for key in ("error", "incomplete_details"):
            if response.get(key) is not None:
                findings.add("I16", event, f"completed with {key}")
        if response.get("completed_at", 0) is None:
            findings.add("I16", event, "completed without completed_at")
    elif response.get("completed_at") is not None:
        findings.add("I16", event, f"{kind} with completed_at")
    error = response.get("error")
    if kind == "failed" and not (isinstance(error, dict) and error.get("code") and error.get("message")):
        findings.add("I16", event, "failed without error{code,message}")
    is_cut = kind == "incomplete" and response.get("status") != "cancelled"
    if is_cut and not (response.get("incomplete_details") or {}).get("reason"):
        findings.add("I16", event, "incomplete without incomplete_details.reason")


def _check_output(event: JsonObject, items: Items, findings: Findings) -> None:
    output = output_of(event["response"])
    done = [item.done for _, item in sorted(items.items()) if item.done is not None]
    opened = [index for index, item in items.items() if item.done is None]
    if opened:
        findings.add("I02", event, f"output_index {opened} never got output_item.done")
    told, streamed = [item.get("id") for item in output], [item.get("id") for item in done]
    if told != streamed:
        findings.add("I06", event, f"terminal output ids {told} != done ids {streamed}")
        return
    for item, before in zip(output, done, strict=True):
        keys = {key for key in item.keys() | before.keys() if item.get(key) != before.get(key)}
        keys.discard("encrypted_content")  # opaque: OpenAI encrypts again for each serialisation
        if keys:
            rule = "I11" if "call_id" in keys else "I06"
            message = f"terminal output item {item.get('id')} differs from output_item.done in {sorted(keys)}"
            findings.add(rule, event, message)


def _check_usage(event: JsonObject, usage: JsonObject, findings: Findings) -> None:
    counts: list[Any] = [usage.get(key) for key in ("input_tokens", "output_tokens", "total_tokens")]
    if not all(isinstance(count, int) for count in counts):
        findings.add("I29", event, f"usage counts are not integers: {counts}")
    elif counts[0] + counts[1] != counts[2]:
        findings.add("I29", event, "usage does not add up")
    for total, (details, name) in _DETAILS.items():
        detail = (usage.get(details) or {}).get(name)
        if not isinstance(detail, int):
            findings.add("I29", event, f"usage.{details}.{name} missing")
        elif detail > (usage.get(total) or 0):
            findings.add("I29", event, "usage detail larger than its total")


def _check_call(event: JsonObject, call: JsonObject, request: JsonObject, findings: Findings) -> None:
    declared = _names(tool for tool in request.get("tools") or [] if tool.get("type") in {"function", "custom"})
    if declared and not call.get("namespace") and call.get("name") not in declared:
        findings.add("I38", event, f"call to undeclared tool {call.get('name')}")
    if call.get("type") == "function_call" and call.get("status") == "completed":
        arguments = _parsed(call.get("arguments") or "{}")
        if not isinstance(arguments, Mapping):
            findings.add("I38", event, f"arguments of {call.get('name')} are not a JSON object")


def _check_choice(event: JsonObject, called: Sequence[Any], request: JsonObject, findings: Findings) -> None:
    choice = request.get("tool_choice")
    if choice == "none" and called:
        findings.add("I38", event, "tool call though tool_choice=none")
    is_any_call = any(str(item.get("type", "")).endswith("_call") for item in output_of(event["response"]))
    if choice == "required" and event["type"] == "response.completed" and not is_any_call:
        findings.add("I38", event, "no tool call though tool_choice=required")
    if (
        isinstance(choice, dict)
        and choice.get("type") == "allowed_tools"
        and not _names(called) <= _names(choice["tools"])
    ):
        findings.add("I38", event, "call outside allowed_tools")
    if request.get("parallel_tool_calls") is False and len(called) > 1:
        findings.add("I38", event, "several calls though parallel_tool_calls=false")


def _check_json_text(event: JsonObject, kind: str, findings: Findings) -> None:
    answers = [
        item
        for item in output_of(event["response"])
        if item.get("type") == "message" and item.get("phase") != "commentary"
    ]
    for part in (part for item in answers for part in item.get("content") or []):
        if part.get("type") == "output_text" and _parsed(part.get("text") or "") is _NO_JSON:
            findings.add("I38", event, f"text.format={kind} but the text is not JSON")


def _names(things: Any) -> set[Any]:
    return {thing.get("name") for thing in things}


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return _NO_JSON
