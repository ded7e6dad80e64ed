"""Framing: the bytes of a stream to its events (I05, I22)."""

import json
from collections.abc import Mapping
from typing import Any, Final

from tests.oracle.findings import Findings

DONE: Final = "[DONE]"


def parse(raw: bytes, findings: Findings) -> list[dict[str, Any]]:
    """The events of a whole stream, which `[DONE]` ends."""
    text = _text(raw, findings)
    blocks = [block for block in text.split("\n\n") if block.strip("\n")]
    datas = [parsed for block in blocks if (parsed := _block(block, findings)) is not None]
    if [data for _, data in datas].count(DONE) != 1 or datas[-1][1] != DONE:
        findings.add("I05", None, "[DONE] is not the single last block")
    events = [_event(name, data, findings) for name, data in datas if data != DONE]
    return [event for event in events if event is not None]


def _text(raw: bytes, findings: Findings) -> str:
    if raw.startswith(b"\xef\xbb\xbf"):
        findings.add("I05", None, "stream starts with a BOM")
    if b"\r" in raw:
        findings.add("I05", None, "CR in stream: use LF line ends only")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        findings.add("I05", None, f"not UTF-8: {error}")
        text = raw.decode("utf-8", "replace")
    text = text.lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    if text and not text.endswith("\n\n"):
        findings.add("I05", None, "last event is not closed by a blank line")
    return text


def _block(block: str, findings: Findings) -> tuple[str | None, str] | None:
    """The event name and the data of one block; None for comments and for a block without data."""
    name: str | None = None
    data: list[str] = []
    has_field = False
    for line in block.split("\n"):
        if line.startswith(":"):
            if has_field:
                findings.add("I05", None, "comment inside an event block")
            continue
        if line == "":
            continue
        field, _, value = line.partition(":")
        has_field = True
        if field == "event":
            name = value.removeprefix(" ")
        elif field == "data":
            data.append(value.removeprefix(" "))
        elif field in {"id", "retry"}:
            findings.add("I05", None, f"SSE {field}: field present")
    if len(data) > 1:
        findings.add("I05", None, "event data split over several data: lines")
    if has_field and not any(data):
        findings.add("I05", None, f"event block without data: {block[:60]!r}")
    return (name, "\n".join(data)) if any(data) else None


def _event(name: str | None, data: str, findings: Findings) -> dict[str, Any] | None:
    try:
        event = json.loads(data)
    except ValueError:
        findings.add("I22", None, f"data is not JSON: {data[:80]!r}")
        return None
    if not isinstance(event, Mapping) or not isinstance(event.get("type"), str):
        findings.add("I22", None, f"data has no string 'type': {data[:80]!r}")
        return None
    if name != event["type"]:
        findings.add("I22", event, f"event: line {name!r} != data.type {event['type']!r}")
    return dict(event)
