"""Rules about output items: opened once, in order, closed once, with what was said in them (I02, I04, I08, I10 …)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tests.oracle import texts
from tests.oracle.contract import item_fields
from tests.oracle.findings import Findings, JsonObject
from tests.oracle.lifecycle import STATUSES
from tests.oracle.state import FAMILIES, SUMMARY, Item

Items = dict[Any, Item]  # by output index

_INDEXES: Final = ("output_index", "content_index", "summary_index")
_WITH_STATUS: Final = {"message", "function_call", "custom_tool_call", "reasoning"}
_WITH_CALL_ID: Final = {"function_call", "custom_tool_call"}
_EMPTY_AT_FIRST: Final = {"function_call": "arguments", "mcp_call": "arguments", "custom_tool_call": "input"}
_LATER: Final = {"action", "outputs"}  # required fields that are known only at the end
_PROGRESS: Final[Mapping[str, set[str]]] = {
    "web_search_call": {"searching"},
    "file_search_call": {"searching"},
    "code_interpreter_call": {"interpreting"},
    "image_generation_call": {"generating", "partial_image"},
    "mcp_call": set(),
    "mcp_list_tools": set(),
}
_ENDS: Final = {"completed", "failed"}
_IN_PARTS: Final[Mapping[str, Callable[[Item, JsonObject, Findings], None]]] = {
    "response.content_part.added": texts.check_part_added,
    "response.content_part.done": texts.check_part_done,
    "response.reasoning_summary_part.added": texts.check_summary_added,
    "response.reasoning_summary_part.done": texts.check_summary_done,
    "response.output_text.annotation.added": texts.check_annotation,
    **{f"{family}.{kind}": texts.check_text for family in FAMILIES for kind in ("delta", "done")},
}


def check_items(events: Sequence[JsonObject], findings: Findings) -> Items:
    """Read all items of a stream; gives what is known of them."""
    items: Items = {}
    for event in events:
        if not all(isinstance(event.get(index), int | None) for index in _INDEXES):
            continue  # told as I18
        if event["type"] == "response.output_item.added":
            _check_added(items, event, findings)
        elif event["type"] not in STATUSES and event["type"] != "error" and event.get("output_index") is not None:
            _check_inside(items, event, findings)
    return items


def _check_added(items: Items, event: JsonObject, findings: Findings) -> None:
    index, added = event.get("output_index"), event.get("item") or {}
    if index in items:
        findings.add("I04", event, f"output_index {index} added twice")
        return
    if index != len(items):
        findings.add("I04", event, f"output_index {index} added, expected {len(items)}")
    _check_identity(items, event, added, findings)
    items[index] = Item(added)
    kind = items[index].type
    if kind not in item_fields():
        findings.add("I30", event, f"unknown output item type {kind!r}")
    for name, field in item_fields().get(kind, {}).items():
        if field["required"] and name not in added and name not in _LATER:
            findings.add("I18", event, f"added {kind} misses {name}")
    if kind in _WITH_STATUS and added.get("status", "in_progress") != "in_progress":
        findings.add("I31", event, f"added {kind} has status {added['status']!r}")
    text = _EMPTY_AT_FIRST.get(kind)
    if text and added.get(text) not in ("", None):
        findings.add("I19", event, f"{text} pre-filled in output_item.added")
    if kind == "message" and added.get("content") != []:
        findings.add("I21", event, "added message content is not []")


def _check_identity(items: Items, event: JsonObject, added: JsonObject, findings: Findings) -> None:
    kind, item_id = str(added.get("type")), added.get("id")
    if not isinstance(item_id, str) or not item_id:
        findings.add("I12", event, f"{kind} item without id")
    if item_id in [item.added.get("id") for item in items.values()]:
        findings.add("I12", event, f"item id {item_id} used twice")
    if kind not in _WITH_CALL_ID:
        return
    for name in ("name", "call_id"):
        if not added.get(name):
            findings.add("I19", event, f"added {kind} without {name}")
    calls = [item.added.get("call_id") for item in items.values() if item.type in _WITH_CALL_ID]
    if added.get("call_id") in calls:
        findings.add("I12", event, f"call_id {added.get('call_id')} used twice")


def _check_inside(items: Items, event: JsonObject, findings: Findings) -> None:
    kind, index = event["type"], event["output_index"]
    item = items.get(index)
    if item is None:
        findings.add("I08", event, f"{kind} for output_index {index} before output_item.added")
        return
    if item.done is not None:
        rule = "I02" if kind == "response.output_item.done" else "I08"
        findings.add(rule, event, f"{kind} after output_item.done of index {index}")
        return
    if "item_id" in event and event["item_id"] != item.added.get("id"):
        findings.add("I13", event, f"{kind}.item_id {event['item_id']} != {item.added.get('id')}")
    if kind == "response.output_item.done":
        _check_done(item, event, findings)
    elif kind in _IN_PARTS:
        _IN_PARTS[kind](item, event, findings)
    else:
        _check_progress(item, event, findings)


def _check_progress(item: Item, event: JsonObject, findings: Findings) -> None:
    _, hosted, step = event["type"].rsplit(".", 2) if event["type"].count(".") >= 2 else ("", "", "")
    if hosted in _PROGRESS:
        if hosted != item.type:
            findings.add("I39", event, f"{event['type']} on a {item.type} item")
        item.progress.append(step)


def _check_done(item: Item, event: JsonObject, findings: Findings) -> None:
    done = event.get("item") or {}
    kind = item.type
    for names, rule in ((("id", "type"), "I02"), (("call_id", "name", "namespace", "server_label"), "I11")):
        for name in names:
            if done.get(name) != item.added.get(name):
                findings.add(rule, event, f"item {name} {item.added.get(name)!r} -> {done.get(name)!r}")
    for index, part in item.parts.items():
        if part.done is None:
            findings.add("I26", event, f"output_item.done but content part {index} was not closed")
    item.done = done
    unsaid = "completed" if kind in {"reasoning", "custom_tool_call"} else None
    if kind in _WITH_STATUS and done.get("status", unsaid) not in ("completed", "incomplete"):
        findings.add("I31", event, f"done {kind} has status {done.get('status')!r}")
    for name, field in item_fields().get(kind, {}).items():
        if field["required"] and name not in done:
            findings.add("I18", event, f"done {kind} misses {name}")
    if kind == "message":
        _check_message(item, done, event, findings)
    if kind == "reasoning":
        _check_reasoning(item, done, event, findings)
    _check_field(item, done, event, findings)
    if kind in _PROGRESS and item.progress:
        _check_steps(item, done, event, findings)


def _check_message(item: Item, done: JsonObject, event: JsonObject, findings: Findings) -> None:
    content = done.get("content") or []
    if len(content) != len(item.parts):
        findings.add("I09", event, f"{len(content)} content parts in item, {len(item.parts)} streamed")
    for index, part in enumerate(content):
        streamed = item.parts.get(index)
        if streamed is not None and streamed.done is not None and part != streamed.done:
            findings.add("I09", event, f"item content[{index}] differs from content_part.done")
        if part.get("type") == "output_text":
            texts.check_annotated(part, event, findings, "of the item")
            if item.annotations.get(index, []) != (part.get("annotations") or []):
                findings.add("I34", event, "annotations differ from annotation.added events")


def _check_reasoning(item: Item, done: JsonObject, event: JsonObject, findings: Findings) -> None:
    for index, part in enumerate(done.get("content") or []):
        if item.reasoning_at(index) not in (None, part.get("text")):
            findings.add("I33", event, "reasoning deltas != item.content text")
    for index, part in enumerate(done.get("summary") or []):
        was_said = (SUMMARY, index) in item.said or item.summaries
        if was_said and item.said.get((SUMMARY, index), "") != part.get("text"):
            findings.add("I33", event, "summary deltas != item.summary text")


def _check_field(item: Item, done: JsonObject, event: JsonObject, findings: Findings) -> None:
    """The text of a call is the sum of its deltas."""
    for name, family in FAMILIES.items():
        if family.counter is None and family.item == item.type:
            if (name, None) not in item.whole and done.get("status") != "incomplete":
                findings.add(family.rule, event, f"no {name}.done before output_item.done")
            if item.said.get((name, None), "") != done.get(family.text):
                findings.add(family.rule, event, f"deltas != item.{family.text}")


def _check_steps(item: Item, done: JsonObject, event: JsonObject, findings: Findings) -> None:
    steps, last = item.progress, item.progress[-1]
    known = {"in_progress", *_PROGRESS[item.type], *_ENDS}
    if steps[0] != "in_progress" or last not in _ENDS or steps.count(last) != 1 or not known.issuperset(steps):
        findings.add("I39", event, f"{item.type} progress events {steps}")
    if done.get("status") not in (None, last):
        findings.add("I39", event, f"{item.type} item status {done.get('status')!r} but last progress event {last}")
