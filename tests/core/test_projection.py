"""The fold, event by event: what each type does to a response."""

from typing import Any

import pytest

from app.responses.events import Draft, Event
from app.responses.projection import Projection, evolve, fork, open_item, project, snapshot, text_at

MESSAGE = {"id": "msg_1", "type": "message", "status": "in_progress", "role": "assistant", "content": []}
TEXT = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
AT = {"item_id": "msg_1", "output_index": 0, "content_index": 0}


def folded(*events: tuple[str, dict[str, Any]]) -> Projection:
    """The projection after these events; `response.` is added to their types."""
    projection = Projection()
    evolve(projection, Draft("response.created", {"response": {"id": "resp_1", "status": "queued", "output": []}}))
    for kind, payload in events:
        evolve(projection, Draft(f"response.{kind}", payload))
    return projection


def added(item: dict[str, Any], index: int = 0) -> tuple[str, dict[str, Any]]:
    return "output_item.added", {"output_index": index, "item": item}


def test_an_empty_stream_is_an_empty_projection():
    assert project([]) == Projection()
    assert project([]).version == -1


def test_the_version_is_the_position_of_the_last_event():
    events = [Event(0, "response.created", {"response": {"id": "resp_1"}}), Event(1, "response.whatever", {})]
    assert project(events).version == 1


@pytest.mark.parametrize("positions", [[1], [0, 2], [0, 0], [0, 1, 1]])
def test_a_hole_or_a_repeat_is_refused(positions: list[int]):
    with pytest.raises(ValueError, match="follows"):
        project(Event(position, "response.whatever", {}) for position in positions)


def test_an_event_of_unknown_type_moves_the_version_and_nothing_else():
    before = folded(added(MESSAGE))
    after = evolve(fork(before), Draft("response.web_search_call.searching", {"output_index": 0}))
    assert after.version == before.version + 1
    assert snapshot(after) == snapshot(before)


def test_created_gives_the_response_and_its_output():
    projection = Projection()
    evolve(projection, Draft("response.created", {"response": {"id": "resp_1", "output": [MESSAGE]}}))
    assert snapshot(projection) == {"id": "resp_1", "output": [MESSAGE]}
    evolve(projection, Draft("response.created", {"response": {"id": "resp_2", "output": None}}))
    assert snapshot(projection) == {"id": "resp_2", "output": []}


@pytest.mark.parametrize("kind", ["queued", "in_progress"])
def test_a_step_of_the_lifecycle_changes_the_response_and_never_the_output(kind: str):
    moved = folded(added(MESSAGE), (kind, {"response": {"id": "resp_1", "status": kind, "step": 1, "output": []}}))
    assert snapshot(moved) == {"id": "resp_1", "status": kind, "step": 1, "output": [MESSAGE]}


@pytest.mark.parametrize("kind", ["completed", "incomplete", "failed"])
def test_the_terminal_event_adds_only_how_it_ended(kind: str):
    ending = {
        "status": kind,
        "usage": {"total_tokens": 1},
        "error": None,
        "incomplete_details": None,
        "completed_at": 5,
    }
    ended = folded(added(MESSAGE), (kind, {"response": {**ending, "id": "other", "model": "x", "output": []}}))
    assert snapshot(ended) == {"id": "resp_1", "output": [MESSAGE], **ending}


def test_a_terminal_event_that_leaves_a_field_out_keeps_it():
    assert snapshot(folded(("failed", {"response": {"status": "failed"}})))["status"] == "failed"
    assert "usage" not in snapshot(folded(("failed", {"response": {"status": "failed"}})))


@pytest.mark.parametrize("index", [0, 2])
def test_an_item_at_the_wrong_index_is_refused(index: int):
    with pytest.raises(ValueError, match=f"output index {index} follows 0"):
        folded(added(MESSAGE), added(MESSAGE, index))


def test_item_done_replaces_the_item():
    done = {**MESSAGE, "status": "completed", "content": [{**TEXT, "text": "Hi"}]}
    assert folded(added(MESSAGE), ("output_item.done", {"output_index": 0, "item": done})).output == [done]


def test_a_delta_shows_only_when_its_text_is_done():
    opened = folded(added(MESSAGE), ("content_part.added", {**AT, "part": TEXT}))
    for delta in ("Hel", "lo"):
        evolve(opened, Draft("response.output_text.delta", {**AT, "delta": delta, "logprobs": [{"token": delta}]}))
    assert opened.output[0]["content"] == [TEXT]
    assert text_at(opened, (0, "content", 0)) == "Hello"
    logprobs = [{"token": "Hel"}, {"token": "lo"}]
    evolve(opened, Draft("response.output_text.done", {**AT, "text": "Hello", "logprobs": logprobs}))
    assert opened.output[0]["content"] == [{**TEXT, "text": "Hello", "logprobs": logprobs}]
    assert (opened.pieces, opened.logprobs) == ({}, {})


def test_logprobs_go_only_into_a_part_that_has_them():
    part = {"type": "output_text", "text": "", "annotations": []}
    done = ("output_text.done", {**AT, "text": "Hi", "logprobs": []})
    assert folded(added(MESSAGE), ("content_part.added", {**AT, "part": part}), done).output[0]["content"] == [
        {**part, "text": "Hi"}
    ]
    without = ("output_text.done", {**AT, "text": "Hi"})
    assert folded(added(MESSAGE), ("content_part.added", {**AT, "part": TEXT}), without).output[0]["content"] == [
        {**TEXT, "text": "Hi"}
    ]


@pytest.mark.parametrize(
    ("family", "part_event", "parts", "index_name", "field"),
    [
        ("output_text", "content_part", "content", "content_index", "text"),
        ("refusal", "content_part", "content", "content_index", "refusal"),
        ("reasoning_text", "content_part", "content", "content_index", "text"),
        ("reasoning_summary_text", "reasoning_summary_part", "summary", "summary_index", "text"),
    ],
)
def test_every_kind_of_text_is_kept_by_its_place_and_put_into_its_part(
    family: str, part_event: str, parts: str, index_name: str, field: str
):
    at = {"output_index": 0, index_name: 0}
    told = folded(added({"id": "x_1", "type": "x"}), (f"{part_event}.added", {**at, "part": {field: ""}}))
    for _ in range(2):
        evolve(told, Draft(f"response.{family}.delta", {**at, "delta": "ha"}))
    assert text_at(told, (0, parts, 0)) == "haha"
    evolve(told, Draft(f"response.{family}.done", {**at, field: "haha"}))
    assert (told.output[0][parts], text_at(told, (0, parts, 0))) == ([{field: "haha"}], "")
    evolve(told, Draft(f"response.{part_event}.done", {**at, "part": {field: "haha", "more": 1}}))
    assert told.output[0][parts] == [{field: "haha", "more": 1}]


def test_parts_keep_their_places():
    two = folded(
        added(MESSAGE),
        ("content_part.added", {**AT, "part": TEXT}),
        ("content_part.added", {**AT, "content_index": 1, "part": {"type": "refusal", "refusal": ""}}),
        ("refusal.delta", {**AT, "content_index": 1, "delta": "No"}),
        ("refusal.done", {**AT, "content_index": 1, "refusal": "No"}),
        ("content_part.done", {**AT, "part": {**TEXT, "text": "Hi"}}),
    )
    assert two.output[0]["content"] == [{**TEXT, "text": "Hi"}, {"type": "refusal", "refusal": "No"}]


def test_annotations_are_collected_in_their_part():
    opened = folded(added(MESSAGE), ("content_part.added", {**AT, "part": TEXT}))
    for number in (1, 2):
        evolve(opened, Draft("response.output_text.annotation.added", {**AT, "annotation": {"number": number}}))
    assert opened.output[0]["content"][0]["annotations"] == [{"number": 1}, {"number": 2}]


def test_summaries_are_parts_of_their_own():
    reasoning = {"id": "rs_1", "type": "reasoning", "summary": [], "content": None}
    at = {"output_index": 0, "summary_index": 0}
    told = folded(
        added(reasoning),
        ("reasoning_summary_part.added", {**at, "part": {"type": "summary_text", "text": ""}}),
        ("reasoning_summary_text.delta", {**at, "delta": "Hm"}),
        ("reasoning_summary_text.done", {**at, "text": "Hm"}),
    )
    assert told.output[0]["summary"] == [{"type": "summary_text", "text": "Hm"}]
    opened = evolve(told, Draft("response.content_part.added", {**AT, "part": {"type": "reasoning_text", "text": ""}}))
    assert opened.output[0]["content"] == [{"type": "reasoning_text", "text": ""}]


@pytest.mark.parametrize(
    ("family", "field"),
    [
        ("function_call_arguments", "arguments"),
        ("mcp_call_arguments", "arguments"),
        ("custom_tool_call_input", "input"),
        ("code_interpreter_call_code", "code"),
    ],
)
def test_the_text_of_a_call_is_a_field_of_its_item(family: str, field: str):
    called = folded(
        added({"id": "x_1", "type": "x", field: ""}), (f"{family}.delta", {"output_index": 0, "delta": "{}"})
    )
    assert (called.output[0][field], text_at(called, (0, field, -1))) == ("", "{}")
    evolve(called, Draft(f"response.{family}.done", {"output_index": 0, field: "{}"}))
    assert (called.output[0][field], text_at(called, (0, field, -1))) == ("{}", "")


def test_the_open_item_is_the_last_one_while_it_is_in_progress():
    assert open_item(folded()) is None
    assert open_item(folded(added(MESSAGE))) == MESSAGE
    assert open_item(folded(added({**MESSAGE, "status": "completed"}))) is None
    assert open_item(folded(added({"id": "rs_1", "type": "reasoning"}))) is None


def test_a_snapshot_stays_what_it_was():
    projection = folded(added(MESSAGE))
    before = snapshot(projection)
    evolve(projection, Draft("response.content_part.added", {**AT, "part": TEXT}))
    evolve(projection, Draft("response.completed", {"response": {"status": "completed"}}))
    assert before == {"id": "resp_1", "status": "queued", "output": [MESSAGE]}


def test_a_fork_folds_further_without_touching_the_original():
    original = folded(
        added(MESSAGE),
        ("content_part.added", {**AT, "part": TEXT}),
        ("output_text.delta", {**AT, "delta": "Hel", "logprobs": [{"token": "Hel"}]}),
    )
    copy = fork(original)
    evolve(copy, Draft("response.output_text.delta", {**AT, "delta": "lo", "logprobs": [{"token": "lo"}]}))
    assert (text_at(original, (0, "content", 0)), text_at(copy, (0, "content", 0))) == ("Hel", "Hello")
    assert original.logprobs == {(0, "content", 0): [{"token": "Hel"}]}
    assert original.version == copy.version - 1


def test_folding_leaves_the_payloads_as_they_were():
    payload = {"output_index": 0, "item": dict(MESSAGE)}
    folded(("output_item.added", payload), ("content_part.added", {**AT, "part": TEXT}))
    assert payload == {"output_index": 0, "item": MESSAGE}
