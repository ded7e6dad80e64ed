"""Rules about content parts and the text that is said in them (I07, I09, I26, I27, I33, I34, I36)."""

from typing import Any, Final

from tests.oracle.findings import Findings, JsonObject
from tests.oracle.state import FAMILIES, SUMMARY, Item, Part

_FAMILY_OF_PART: Final = {"output_text": "response.output_text", "refusal": "response.refusal"}


def check_part_added(item: Item, event: JsonObject, findings: Findings) -> None:
    index, part = event.get("content_index"), event.get("part") or {}
    if index in item.parts:
        findings.add("I07", event, f"content part {index} added twice")
    if index != len(item.parts):
        findings.add("I07", event, f"content_index {index}, expected {len(item.parts)}")
    item.parts[index] = Part(str(part.get("type")))
    if part.get("type") == "output_text":
        check_annotated(part, event, findings, "part")
        if part.get("text") != "":
            findings.add("I21", event, "content_part.added text is not empty")


def check_part_done(item: Item, event: JsonObject, findings: Findings) -> None:
    index, part = event.get("content_index"), event.get("part") or {}
    opened = item.parts.get(index)
    if opened is None:
        findings.add("I26", event, f"content_part.done for part {index} never added")
        return
    if opened.done is not None:
        findings.add("I26", event, f"content part {index} done twice")
    opened.done = part
    kind = str(part.get("type"))
    if kind != opened.type:
        findings.add("I26", event, f"part type {opened.type} -> {kind}")
    if kind == "output_text":
        check_annotated(part, event, findings, "part")
    if family := _FAMILY_OF_PART.get(kind):
        if item.said.get((family, index), "") != part.get(FAMILIES[family].text):
            findings.add("I09", event, "concatenated deltas != content_part.done text")
        if (family, index) not in item.whole:
            findings.add("I27", event, f"content_part.done before {family}.done")
    if kind == "reasoning_text" and (item.reasoning_at(index) or "") != part.get("text"):
        findings.add("I33", event, "concatenated reasoning deltas != content_part.done text")


def check_summary_added(item: Item, event: JsonObject, findings: Findings) -> None:
    index = event.get("summary_index")
    if index != len(item.summaries):
        findings.add("I33", event, f"summary_index {index}, expected {len(item.summaries)}")
    item.summaries.add(index)


def check_summary_done(item: Item, event: JsonObject, findings: Findings) -> None:
    index = event.get("summary_index")
    if index not in item.summaries:
        findings.add("I33", event, "summary part done but never added")
    item.summaries.add(index)
    if item.said.get((SUMMARY, index), "") != (event.get("part") or {}).get("text"):
        findings.add("I33", event, "summary deltas != summary part text")


def check_annotation(item: Item, event: JsonObject, findings: Findings) -> None:
    known = item.annotations.setdefault(event.get("content_index"), [])
    if event.get("annotation_index") != len(known):
        findings.add("I34", event, f"annotation_index {event.get('annotation_index')}, expected {len(known)}")
    known.append(event.get("annotation"))


def check_text(item: Item, event: JsonObject, findings: Findings) -> None:
    """A delta or a done event of one of the families."""
    name, _, kind = event["type"].rpartition(".")
    _check_where(item, event, name, findings)
    if kind == "delta":
        _check_delta(item, event, name, findings)
    else:
        _check_whole(item, event, name, findings)
        if "obfuscation" in event:
            findings.add("I40", event, "obfuscation on a non-delta event")


def check_annotated(part: JsonObject, event: JsonObject, findings: Findings, where: str) -> None:
    """An output_text part has a list of annotations."""
    if not isinstance(part.get("annotations"), list):
        findings.add("I34", event, f"output_text {where} without annotations list")


def _check_where(item: Item, event: JsonObject, name: str, findings: Findings) -> None:
    family = FAMILIES[name]
    if item.type != family.item:
        findings.add("I08", event, f"{event['type']} on a {item.type} item")
    if family.counter == "content_index":
        part = item.parts.get(event.get("content_index"))
        if part is None:
            findings.add("I07", event, f"{event['type']} before content_part.added ({event.get('content_index')})")
            return
        if part.done is not None:
            findings.add("I07", event, f"{event['type']} after content_part.done")
        if part.type != family.part:
            findings.add("I07", event, f"{event['type']} inside a {part.type} part")
    if family.counter == "summary_index" and event.get("summary_index") not in item.summaries:
        findings.add("I33", event, "summary delta before reasoning_summary_part.added")


def _check_delta(item: Item, event: JsonObject, name: str, findings: Findings) -> None:
    place, delta = (name, _index(event, name)), event.get("delta")
    if place in item.whole:
        findings.add("I27", event, f"{event['type']} after its .done")
    if not isinstance(delta, str):
        findings.add("I18", event, "delta is not a string")
        return
    item.said[place] = item.said.get(place, "") + delta
    if delta == "":
        findings.add("I40", event, f"empty delta in {event['type']}")
    if name == "response.output_text" and "logprobs" in event:
        logprobs = event["logprobs"]
        if not isinstance(logprobs, list):
            findings.add("I36", event, f"logprobs is {type(logprobs).__name__}, not a list")
        elif logprobs and "".join(one.get("token", "") for one in logprobs) != delta:
            findings.add("I36", event, "logprobs tokens != delta")


def _check_whole(item: Item, event: JsonObject, name: str, findings: Findings) -> None:
    family, place = FAMILIES[name], (name, _index(event, name))
    if place in item.whole:
        findings.add("I27", event, f"second {event['type']}")
    item.whole.add(place)
    if item.said.get(place, "") != event.get(family.text):
        findings.add(family.rule, event, f"concatenated {name} deltas != .done {family.text}")
    if name == "response.output_text" and not isinstance(event.get("logprobs", []), list):
        findings.add("I36", event, "logprobs is not a list")


def _index(event: JsonObject, name: str) -> Any:
    counter = FAMILIES[name].counter
    return event.get(counter) if counter else None
