"""Check one whole stream against the 40 ranked invariants (tests/oracle/INVARIANTS.md)."""

from collections.abc import Sequence

from tests.oracle.ending import check_ending, check_request, check_retrieved
from tests.oracle.findings import Findings, JsonObject, Violation
from tests.oracle.framing import parse
from tests.oracle.items import check_items
from tests.oracle.lifecycle import (
    TERMINAL,
    check_errors,
    check_fields,
    check_order,
    check_positions,
    check_responses,
)


def check(
    raw: bytes,
    *,
    request: JsonObject | None = None,
    retrieved: JsonObject | None = None,
    content_type: str | None = None,
    dialect: str = "openai",
) -> list[Violation]:
    """What is wrong with a stream, worst first. `dialect` is `openai` or `openresponses`."""
    findings = Findings()
    events = parse(raw, findings)
    if content_type is not None and content_type.split(";")[0].strip().lower() != "text/event-stream":
        findings.add("I05", None, f"content-type {content_type!r}")
    if not events:
        findings.add("I03", None, "no events")
        return findings.ranked()
    check_order(events, findings)
    check_positions(events, findings)
    for event in events:
        check_fields(event, dialect, findings)
    check_responses(events, dialect, findings)
    items = check_items(events, findings)
    check_errors(events, findings)
    _check_obfuscation(events, request, findings)
    ends = [event for event in events if event["type"] in TERMINAL and isinstance(event.get("response"), dict)]
    if ends:
        check_ending(ends[-1], items, findings)
        if request is not None:
            check_request(ends[-1], request, findings)
        if retrieved is not None:
            check_retrieved(ends[-1], retrieved, findings)
    return findings.ranked()


def check_replay(raw: bytes, replay: bytes, *, after: int = -1) -> list[Violation]:
    """A replay is exactly the events after a position, `obfuscation` apart (I25)."""
    findings = Findings()
    original, again = _plain(parse(raw, Findings())), _plain(parse(replay, findings))
    expected = [event for event in original if event["sequence_number"] > after]
    if again != expected:
        message = f"replay (starting_after={after}) returned {len(again)} events, expected the same {len(expected)}"
        findings.add("I25", None, message)
    return findings.ranked()


def _plain(events: Sequence[JsonObject]) -> list[JsonObject]:
    return [{key: value for key, value in event.items() if key != "obfuscation"} for event in events]


def _check_obfuscation(events: Sequence[JsonObject], request: JsonObject | None, findings: Findings) -> None:
    options = (request or {}).get("stream_options") or {}
    if options.get("include_obfuscation") is False:
        for event in events:
            if "obfuscation" in event:
                findings.add("I40", event, "obfuscation sent though include_obfuscation=false")
