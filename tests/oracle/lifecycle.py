"""Rules about the stream as a whole: its lifecycle, positions, event types and the responses inside (I01, I03, …)."""

import re
from collections.abc import Sequence
from typing import Any, Final

from tests.oracle.contract import event_fields
from tests.oracle.findings import Findings, JsonObject

TERMINAL: Final = {
    "response.completed": "completed",
    "response.failed": "failed",
    "response.incomplete": "incomplete",
}
STATUSES: Final[dict[str, set[str]]] = {
    "response.created": {"queued", "in_progress"},
    "response.queued": {"queued"},
    "response.in_progress": {"in_progress"},
    "response.completed": {"completed"},
    "response.failed": {"failed"},
    "response.incomplete": {"incomplete", "cancelled"},  # no client knows a `response.cancelled`
}
NEVER_BEGUN: Final = {"failed", "cancelled"}  # a stream with this end may have no `response.in_progress`
_OPENAI_KEYS: Final = [
    "id",
    "object",
    "created_at",
    "status",
    "model",
    "output",
    "parallel_tool_calls",
    "tools",
    "tool_choice",
    "error",
    "incomplete_details",
    "instructions",
    "metadata",
    "temperature",
    "top_p",
]
_OPEN_RESPONSES_KEYS: Final = [
    "completed_at",
    "previous_response_id",
    "truncation",
    "text",
    "presence_penalty",
    "frequency_penalty",
    "top_logprobs",
    "reasoning",
    "usage",
    "max_output_tokens",
    "max_tool_calls",
    "store",
    "background",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
]
_CONSTANT: Final = [
    "model",
    "instructions",
    "metadata",
    "temperature",
    "top_p",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "text",
    "truncation",
    "previous_response_id",
    "max_output_tokens",
    "max_tool_calls",
    "store",
    "background",
    "reasoning",
    "prompt_cache_key",
    "safety_identifier",
    "conversation",
]
_OPEN_RESPONSES_NAMES: Final = {"response.reasoning.delta", "response.reasoning.done"}
_ORDER: Final = re.compile(r"created(,queued)?(,in_progress)?(,(completed|failed|incomplete))?")


def check_order(events: Sequence[JsonObject], findings: Findings) -> None:
    """One beginning, one end, nothing after it, everything in order (I01, I03, I28)."""
    first, last = events[0], events[-1]
    if first["type"] != "response.created":
        findings.add("I03", first, f"first event is {first['type']}")
    if sum(event["type"] == "response.created" for event in events) != 1:
        findings.add("I03", first, "response.created must appear exactly once")
    ends = [event for event in events if event["type"] in TERMINAL]
    if len(ends) != 1:
        findings.add("I01", last, f"{len(ends)} terminal events")
    if ends and ends[-1] is not last:
        findings.add("I01", last, f"events after the terminal event: {last['type']}")
    order = [event["type"].split(".")[1] for event in events if event["type"] in STATUSES]
    if not _ORDER.fullmatch(",".join(order)):
        findings.add("I28", first, f"lifecycle order {order}")
    if "in_progress" not in order and not (ends and status_of(ends[0]) in NEVER_BEGUN):
        findings.add("I28", first, "no response.in_progress before output")


def check_positions(events: Sequence[JsonObject], findings: Findings) -> None:
    """sequence_number is the position (I23)."""
    for position, event in enumerate(events):
        told = event.get("sequence_number")
        if isinstance(told, bool) or told != position:
            findings.add("I23", event, f"sequence_number {told!r} at position {position} (want contiguous from 0)")
            return


def check_fields(event: JsonObject, dialect: str, findings: Findings) -> None:
    """A known type with its required fields (I17, I18, I36)."""
    kind = event["type"]
    if kind == "keepalive":  # a heartbeat of OpenAI's; every client set-up tolerates it
        return
    if kind in _OPEN_RESPONSES_NAMES:
        if dialect != "openresponses":
            findings.add("I17", event, f"{kind}: Open Responses name; OpenAI name is response.reasoning_text.*")
        return
    if kind not in event_fields():
        findings.add("I17", event, f"unknown event type {kind}")
        return
    if dialect == "openresponses" and kind.startswith("response.reasoning_text."):
        findings.add("I17", event, f"{kind} is not in the Open Responses union (use response.reasoning.*)")
    for name, field in event_fields()[kind].items():
        if name not in event:
            if field["required"]:
                rule = "I36" if name == "logprobs" else "I18"
                findings.add(rule, event, f"{kind} misses required field {name}")
        elif field["type"] == "integer" and not isinstance(event[name], int):
            findings.add("I18", event, f"{kind}.{name} is not an integer")
        elif field["type"] == "string" and not isinstance(event[name], str):
            findings.add("I18", event, f"{kind}.{name} is not a string")


def check_responses(events: Sequence[JsonObject], dialect: str, findings: Findings) -> None:
    """The response inside every lifecycle event (I14, I16, I20, I21, I29, I37)."""
    first: dict[str, Any] | None = None
    for event in events:
        if event["type"] not in STATUSES:
            continue
        response = event.get("response")
        if not isinstance(response, dict):
            findings.add("I20", event, "lifecycle event without response object")
            continue
        _check_keys(event, response, dialect, findings)
        first = response if first is None else first
        _check_constant(event, response, first, findings)
        if str(response.get("status")) not in STATUSES[event["type"]]:
            findings.add("I16", event, f"status {response.get('status')!r} in {event['type']}")
        if event["type"] not in TERMINAL:
            _check_early(event, response, findings)


def check_errors(events: Sequence[JsonObject], findings: Findings) -> None:
    """An error is nested, and response.failed follows it (I15)."""
    for index, event in enumerate(events):
        if event["type"] != "error":
            continue
        error = event.get("error")
        if not isinstance(error, dict) or not isinstance(error.get("message"), str):
            findings.add("I15", event, "error event without nested error{type,code,message,param}")
        after = [one["type"] for one in events[index + 1 :]]
        if after != ["response.failed"]:
            message = f"error event must be followed by exactly response.failed, got {after[:3]}"
            findings.add("I15", event, message)


def status_of(event: JsonObject) -> str:
    """The status of the response inside."""
    response = event.get("response")
    return str(response.get("status")) if isinstance(response, dict) else ""


def _check_keys(event: JsonObject, response: JsonObject, dialect: str, findings: Findings) -> None:
    for key in _OPENAI_KEYS + (_OPEN_RESPONSES_KEYS if dialect == "openresponses" else []):
        if key not in response:
            findings.add("I20", event, f"{event['type']}.response misses {key}")
    if response.get("object") != "response":
        findings.add("I20", event, f"response.object is {response.get('object')!r}")
    if not isinstance(response.get("output"), list):
        findings.add("I20", event, "response.output is not a list")
    if "created_at" in response and not isinstance(response["created_at"], int):
        findings.add("I20", event, "created_at is not an integer")


def _check_constant(event: JsonObject, response: JsonObject, first: JsonObject, findings: Findings) -> None:
    if response.get("id") != first.get("id"):
        findings.add("I14", event, f"response id changed {first.get('id')} -> {response.get('id')}")
    if response.get("created_at") != first.get("created_at"):
        findings.add("I14", event, "created_at changed")
    for key in _CONSTANT:
        if response.get(key) != first.get(key):
            findings.add("I37", event, f"response.{key} changed between lifecycle events")


def _check_early(event: JsonObject, response: JsonObject, findings: Findings) -> None:
    if response.get("output"):
        findings.add("I21", event, f"{event['type']} snapshot already carries {len(response['output'])} output items")
    if response.get("usage") is not None:
        findings.add("I29", event, "usage set before the terminal event")
    if response.get("completed_at") is not None:
        findings.add("I16", event, "completed_at set before the terminal event")
