"""The judge is judged: a clean stream has no finding, and each breach of a rule is found under its number."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from app.responses.said import ArgumentsSaid, CallStarted, Finished, MessageSaid, ReasoningSaid, Usage
from tests.core.turn import running
from tests.oracle import assert_keeps_invariants, framed
from tests.oracle.check_transcript import check, check_replay
from tests.oracle.fields import misfits

Events = list[dict[str, Any]]

RECORDINGS: Final = Path(__file__).parents[1] / "recordings"
LOGPROB: Final = {"token": "Hi", "bytes": [72, 105], "logprob": -0.5, "top_logprobs": []}
CLEAN: Final = running(
    ReasoningSaid("Hm"),
    CallStarted("look", "call_1"),
    ArgumentsSaid("{}"),
    MessageSaid("Hi", None, [LOGPROB]),
    Finished("stop", Usage(3, 2)),
).events
REASONING, CALL, MESSAGE = 0, 1, 2  # output indexes


def rules(events: Events, **context: Any) -> set[str]:
    return {violation.rule for violation in check(framed(events), **context)}


def find(events: Events, kind: str, index: int | None = None) -> dict[str, Any]:
    """The first event of a type, in an item."""
    return next(
        event for event in events if event["type"] == f"response.{kind}" and index in (None, event.get("output_index"))
    )


def renumbered(events: Events) -> Events:
    return [{**event, "sequence_number": position} for position, event in enumerate(events)]


def without(kind: str, index: int | None = None) -> Callable[[Events], Events]:
    return lambda events: [event for event in events if event is not find(events, kind, index)]


def twice(kind: str, index: int | None = None) -> Callable[[Events], Events]:
    def change(events: Events) -> Events:
        at = events.index(find(events, kind, index))
        return [*events[: at + 1], copy.deepcopy(events[at]), *events[at + 1 :]]

    return change


def put(path: str, value: Any, kind: str, index: int | None = None) -> Callable[[Events], Events]:
    """Another value at a dotted path inside an event."""

    def change(events: Events) -> Events:
        *way, last = path.split(".")
        target: Any = find(events, kind, index)
        for step in way:
            target = target[int(step) if step.isdigit() else step]
        target[last] = value
        return events

    return change


BREACHES: Final[list[tuple[str, Callable[[Events], Events]]]] = [
    ("I01", without("completed")),
    ("I01", twice("completed")),
    ("I01", lambda events: [*events, events[-2]]),
    ("I02", without("output_item.done", MESSAGE)),
    ("I02", twice("output_item.done", CALL)),
    ("I02", put("item.id", "other", "output_item.done", CALL)),
    ("I03", without("created")),
    ("I03", twice("created")),
    ("I04", twice("output_item.added", MESSAGE)),
    ("I04", put("output_index", 7, "output_item.added", MESSAGE)),
    ("I06", put("response.output", [], "completed")),
    ("I06", put("response.output.0.status", "incomplete", "completed")),
    ("I07", without("content_part.added", MESSAGE)),
    ("I07", twice("content_part.added", MESSAGE)),
    ("I08", without("output_item.added", MESSAGE)),
    ("I09", put("delta", "Ho", "output_text.delta", MESSAGE)),
    ("I09", put("item.content.0.text", "Ho", "output_item.done", MESSAGE)),
    ("I10", put("delta", "{ }", "function_call_arguments.delta", CALL)),
    ("I10", without("function_call_arguments.done", CALL)),
    ("I11", put("item.call_id", "call_2", "output_item.done", CALL)),
    ("I12", put("item.id", None, "output_item.added", MESSAGE)),
    ("I13", put("item_id", "other", "output_text.delta", MESSAGE)),
    ("I14", put("response.id", "other", "completed")),
    ("I14", put("response.created_at", 1, "completed")),
    ("I16", put("response.status", "failed", "completed")),
    ("I16", put("response.completed_at", None, "completed")),
    ("I16", put("response.error", {"code": "x", "message": "y"}, "completed")),
    ("I17", put("type", "response.cancelled", "in_progress")),
    ("I18", lambda events: [{k: v for k, v in event.items() if k != "item_id"} for event in events]),
    ("I19", put("item.arguments", "{}", "output_item.added", CALL)),
    ("I19", put("item.name", "", "output_item.added", CALL)),
    ("I20", put("response.object", "thing", "created")),
    ("I20", put("response.output", None, "completed")),
    ("I21", put("response.output", [{}], "in_progress")),
    ("I21", put("item.content", [{}], "output_item.added", MESSAGE)),
    ("I21", put("part.text", "Hi", "content_part.added", MESSAGE)),
    ("I26", without("content_part.done", MESSAGE)),
    ("I26", put("part.type", "refusal", "content_part.done", MESSAGE)),
    ("I27", without("output_text.done", MESSAGE)),
    ("I28", twice("in_progress")),
    ("I28", without("in_progress")),
    ("I29", put("response.usage", None, "completed")),
    ("I29", put("response.usage.total_tokens", 6, "completed")),
    ("I29", put("response.usage.input_tokens_details.cached_tokens", 4, "completed")),
    ("I29", put("response.usage", {}, "created")),
    ("I30", put("item.type", "acme:thing", "output_item.added", MESSAGE)),
    ("I31", put("item.status", "completed", "output_item.added", MESSAGE)),
    ("I31", put("item.status", None, "output_item.done", CALL)),
    ("I33", put("delta", "Hum", "reasoning_text.delta", REASONING)),
    ("I34", put("part.annotations", None, "content_part.added", MESSAGE)),
    ("I34", put("item.content.0.annotations", [{"type": "x"}], "output_item.done", MESSAGE)),
    ("I35", put("response.output.2.status", "incomplete", "completed")),
    ("I36", put("logprobs", None, "output_text.delta", MESSAGE)),
    ("I36", put("logprobs", [{**LOGPROB, "token": "H"}], "output_text.delta", MESSAGE)),
    ("I37", put("response.temperature", 0.1, "completed")),
    ("I40", put("delta", "", "output_text.delta", MESSAGE)),
    ("I40", put("obfuscation", "x", "output_text.done", MESSAGE)),
]


def test_a_clean_stream_has_no_finding():
    assert_keeps_invariants(CLEAN)


@pytest.mark.parametrize(("rule", "change"), BREACHES, ids=[f"{rule}-{n}" for n, (rule, _) in enumerate(BREACHES)])
def test_a_breach_is_found_under_its_rule(rule: str, change: Callable[[Events], Events]):
    broken = renumbered(change(copy.deepcopy(CLEAN)))
    assert rule in rules(broken)
    with pytest.raises(AssertionError, match=rule):
        assert_keeps_invariants(broken)


def test_a_hole_in_the_positions_is_found():
    assert rules(CLEAN[:4] + CLEAN[5:]) >= {"I23"}


def test_an_error_needs_its_nested_form_and_the_failure_after_it():
    failed = running(MessageSaid("Hi"))
    events = failed.events
    error = {"type": "error", "sequence_number": len(events), "code": None, "message": "no", "param": None}
    assert "I15" in rules([*events, error])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda body: body.replace(b"\n", b"\r\n"),
        lambda body: b"\xef\xbb\xbf" + body,
        lambda body: body.replace(b"event: response.created\n", b"event: response.created\nid: 0\n"),
        lambda body: body.replace(b"event: response.created\n", b"event: response.created\nretry: 9\n"),
        lambda body: body.replace(b"event: response.created\n", b"event: response.created\n: alive\n"),
        lambda body: body.replace(b"data: [DONE]\n\n", b""),
        lambda body: body + b"data: [DONE]\n\n",
        lambda body: body.removesuffix(b"\n"),
        lambda body: body.replace(b"data: [DONE]", b"data: [DONE]\ndata: x"),
        lambda body: body.replace(b"Hm", b"\xff"),
        lambda body: b"event: ping\n\n" + body,
    ],
)
def test_wrong_framing_is_found(spoil: Callable[[bytes], bytes]):
    assert "I05" in {violation.rule for violation in check(spoil(framed(CLEAN)))}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda body: body.replace(b"event: response.created", b"event: created"),
        lambda body: b"event: ping\ndata: {}\n\n" + body,
        lambda body: b"event: ping\ndata: {\n\n" + body,
    ],
)
def test_data_that_is_not_the_named_event_is_found(spoil: Callable[[bytes], bytes]):
    assert "I22" in {violation.rule for violation in check(spoil(framed(CLEAN)))}


def test_comments_between_events_are_fine():
    assert check(framed(CLEAN).replace(b"\n\nevent:", b"\n\n: alive\n\nevent:")) == []


def test_another_content_type_and_an_empty_body_are_found():
    assert [one.rule for one in check(framed(CLEAN), content_type="application/json")] == ["I05"]
    assert check(framed(CLEAN), content_type="text/event-stream; charset=utf-8") == []
    assert "I03" in {one.rule for one in check(b"")}


def test_another_answer_to_get_is_found():
    response = CLEAN[-1]["response"]
    assert rules(CLEAN, retrieved={**response, "metadata": {"a": "b"}}) == {"I24"}
    assert rules(CLEAN, retrieved=response) == set()


def test_another_replay_is_found():
    body = framed(CLEAN)
    assert check_replay(body, framed(CLEAN[4:]), after=3) == []
    assert [one.rule for one in check_replay(body, framed(CLEAN[5:]), after=3)] == ["I25"]
    with pytest.raises(AssertionError, match="I25"):
        assert_keeps_invariants(CLEAN, replay=CLEAN[1:])


@pytest.mark.parametrize(
    ("request_", "rule"),
    [
        ({"temperature": 0.5}, "I37"),
        ({"tools": [{"type": "function", "name": "find"}]}, "I38"),
        ({"tool_choice": "none"}, "I38"),
        ({"tool_choice": {"type": "allowed_tools", "tools": [{"name": "find"}]}}, "I38"),
        ({"stream_options": {"include_obfuscation": False}}, "I40"),
    ],
)
def test_what_was_not_asked_for_is_found(request_: dict[str, Any], rule: str):
    events = [{**event, "obfuscation": "x"} if event["type"].endswith(".delta") else event for event in CLEAN]
    assert rules(events, request=request_) == {rule}


def test_text_that_is_not_the_json_that_was_asked_for_is_found():
    events = running(MessageSaid("Hi"), Finished("stop", Usage(1, 1))).events
    assert rules(events, request={"text": {"format": {"type": "json_object"}}}) == {"I38"}
    assert rules(events, request={"tool_choice": "required"}) == {"I38"}


def test_arguments_that_are_no_object_and_a_second_call_are_found():
    calls = [CallStarted("look"), ArgumentsSaid("[1]"), CallStarted("look")]
    events = running(*calls, Finished("stop", Usage(1, 1))).events
    found = check(framed(events), request={"parallel_tool_calls": False})
    assert [one.message for one in found if one.rule == "I38"] == [
        "arguments of look are not a JSON object",
        "several calls though parallel_tool_calls=false",
    ]


def test_each_dialect_has_its_own_name_for_reasoning():
    other = [{**event, "type": event["type"].replace("reasoning_text.d", "reasoning.d")} for event in CLEAN]
    assert rules(other) == {"I17"}
    assert rules(CLEAN, dialect="openresponses") >= {"I17"}


def test_most_recorded_streams_keep_all_rules():
    """The calibration: 61 of 82, given the `[DONE]` that OpenAI does not send."""
    bodies = [path.read_bytes() for path in RECORDINGS.glob("*.sse")]
    assert sum(not check(body + b"data: [DONE]\n\n") for body in bodies) == 61


def test_an_event_fits_its_field_list_strictly():
    delta = find(CLEAN, "output_text.delta")
    assert misfits(delta) == []
    assert misfits({**delta, "obfuscation": "x"}) == []
    assert misfits({**delta, "phase": "x"}) == ["response.output_text.delta.phase is unknown"]
    assert misfits({**delta, "output_index": "0"}) == ["response.output_text.delta.output_index is '0', not integer"]
    assert misfits({k: v for k, v in delta.items() if k != "logprobs"}) == [
        "response.output_text.delta.logprobs is missing"
    ]
    assert misfits({"type": "response.cancelled"}) == ["response.cancelled: no such event"]


def test_unknown_fields_deep_inside_are_found():
    done = copy.deepcopy(find(CLEAN, "output_item.done", MESSAGE))
    done["item"]["content"][0]["logprobs"][0]["token_id"] = 7
    assert misfits(done) == ["response.output_item.done.item.content[0].logprobs[0].token_id is unknown"]
