"""Given events, when something is said, then these drafts: every kind of said thing and every ending."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import pytest

from app.responses.decider import Failure, close, decide
from app.responses.events import Draft
from app.responses.projection import Projection
from app.responses.said import (
    ArgumentsSaid,
    CallStarted,
    Finished,
    ItemEnded,
    MessageSaid,
    ReasoningSaid,
    Usage,
)
from tests.core.turn import CREATED_AT, NOW, REQUEST, RESPONSE_ID, Turn, running, types
from tests.oracle import assert_keeps_invariants

USAGE: Final = Usage(input_tokens=11, output_tokens=7, cached_tokens=3, reasoning_tokens=2)
STOP: Final = Finished("stop", USAGE)
LENGTH: Final = Finished("length", USAGE)
FAILURE: Final = Failure("The engine broke off.")


def logprob(token: str) -> dict[str, Any]:
    return {"token": token, "bytes": list(token.encode()), "logprob": -0.5, "top_logprobs": []}


def last(drafts: list[Draft]) -> Mapping[str, Any]:
    """The response inside the last of them."""
    response: Mapping[str, Any] = drafts[-1].payload["response"]
    return response


def test_a_foreground_stream_starts_with_created_alone():
    turn = Turn()
    assert types(turn.drafts) == ["created"]
    assert turn.drafts[0].payload["response"]["status"] == "in_progress"


def test_a_queued_stream_says_so_in_both_of_its_first_events():
    turn = Turn(queued=True)
    assert types(turn.drafts) == ["created", "queued"]
    assert [draft.payload["response"]["status"] for draft in turn.drafts] == ["queued", "queued"]


def test_a_worker_that_takes_a_queued_response_up_says_in_progress_with_no_output():
    turn = Turn(queued=True)
    (draft,) = turn.begin()
    assert draft.type == "response.in_progress"
    assert draft.payload["response"] == {**turn.drafts[0].payload["response"], "status": "in_progress"}


def test_the_first_piece_of_reasoning_opens_an_item_with_one_empty_part():
    turn = running()
    added, part, delta = turn.say(ReasoningSaid("Hm"))
    (minted,) = turn.minted
    assert added == Draft(
        "response.output_item.added",
        {
            "output_index": 0,
            "item": {"id": minted, "type": "reasoning", "status": "in_progress", "summary": [], "content": []},
        },
    )
    place = {"item_id": minted, "output_index": 0, "content_index": 0}
    assert part == Draft("response.content_part.added", {**place, "part": {"type": "reasoning_text", "text": ""}})
    assert delta == Draft("response.reasoning_text.delta", {**place, "delta": "Hm"})


def test_the_first_piece_of_a_message_opens_an_item_with_one_empty_part():
    turn = running()
    added, part, delta = turn.say(MessageSaid("Hi", "final_answer", [logprob("Hi")]))
    (minted,) = turn.minted
    assert added.payload == {
        "output_index": 0,
        "item": {
            "id": minted,
            "type": "message",
            "status": "in_progress",
            "role": "assistant",
            "content": [],
            "phase": "final_answer",
        },
    }
    place = {"item_id": minted, "output_index": 0, "content_index": 0}
    empty = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    assert part == Draft("response.content_part.added", {**place, "part": empty})
    assert delta == Draft("response.output_text.delta", {**place, "delta": "Hi", "logprobs": [logprob("Hi")]})


def test_a_message_without_phase_does_not_name_one():
    (added, *_) = running().say(MessageSaid("Hi"))
    assert "phase" not in added.payload["item"]


@pytest.mark.parametrize(
    ("piece", "family"), [(ReasoningSaid("more"), "reasoning_text"), (MessageSaid("more"), "output_text")]
)
def test_a_further_piece_of_the_same_text_is_one_delta_in_the_same_item(piece, family):
    turn = running(piece)
    (delta,) = turn.say(piece)
    assert delta.type == f"response.{family}.delta"
    assert delta.payload["item_id"] == turn.minted[0]
    assert len(turn.minted) == 1


@pytest.mark.parametrize("piece", [ReasoningSaid(""), MessageSaid("")])
def test_an_empty_piece_opens_its_item_without_a_delta_and_says_nothing_in_an_open_one(piece):
    turn = running()
    assert types(turn.say(piece)) == ["output_item.added", "content_part.added"]
    assert turn.say(piece) == []


def test_a_call_opens_with_its_name_and_call_id_and_no_arguments():
    turn = running()
    (added,) = turn.say(CallStarted("look", "call_of_the_model"))
    assert added.payload["item"] == {
        "id": turn.minted[0],
        "type": "function_call",
        "status": "in_progress",
        "arguments": "",
        "call_id": "call_of_the_model",
        "name": "look",
    }


def test_a_call_without_call_id_gets_one_once():
    turn = running(CallStarted("look"), ArgumentsSaid("{}"), STOP)
    call_id, item_id = turn.minted
    assert (call_id[:5], item_id[:3]) == ("call_", "fc_")
    (item,) = turn.response["output"]
    assert (item["call_id"], item["id"]) == (call_id, item_id)


def test_argument_text_is_a_delta_of_the_open_call_and_empty_text_is_nothing():
    turn = running(CallStarted("look", "c"))
    place = {"item_id": turn.minted[0], "output_index": 0}
    assert turn.say(ArgumentsSaid('{"a":')) == [
        Draft("response.function_call_arguments.delta", {**place, "delta": '{"a":'})
    ]
    assert turn.say(ArgumentsSaid("")) == []


@pytest.mark.parametrize("before", [[], [MessageSaid("Hi")], [CallStarted("look"), ItemEnded()]])
def test_arguments_outside_of_a_call_are_a_mistake_of_the_model_adapter(before):
    turn = running(*before)
    with pytest.raises(ValueError, match="no call is open"):
        turn.say(ArgumentsSaid("{}"))


def test_a_word_outside_of_the_vocabulary_is_refused():
    with pytest.raises(AssertionError):
        running().say("Hi")  # type: ignore[arg-type]


def test_an_ended_item_is_closed_with_everything_that_was_said_in_it():
    turn = running(MessageSaid("Hel", None, [logprob("Hel")]), MessageSaid("lo", None, [logprob("lo")]))
    text_done, part_done, item_done = turn.say(ItemEnded())
    place = {"item_id": turn.minted[0], "output_index": 0, "content_index": 0}
    said = {"text": "Hello", "logprobs": [logprob("Hel"), logprob("lo")]}
    part = {"type": "output_text", "annotations": [], **said}
    assert text_done == Draft("response.output_text.done", {**place, **said})
    assert part_done == Draft("response.content_part.done", {**place, "part": part})
    assert item_done.payload["item"] == {
        "id": turn.minted[0],
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": [part],
    }


def test_ended_reasoning_has_its_text_and_no_logprobs():
    turn = running(ReasoningSaid("Hm"), ReasoningSaid("m"))
    text_done, part_done, item_done = turn.say(ItemEnded())
    place = {"item_id": turn.minted[0], "output_index": 0, "content_index": 0}
    assert text_done == Draft("response.reasoning_text.done", {**place, "text": "Hmm"})
    assert part_done.payload["part"] == {"type": "reasoning_text", "text": "Hmm"}
    assert item_done.payload["item"]["content"] == [part_done.payload["part"]]


def test_an_ended_call_has_its_arguments():
    turn = running(CallStarted("look", "c"), ArgumentsSaid('{"a"'), ArgumentsSaid(":1}"))
    arguments_done, item_done = turn.say(ItemEnded())
    assert arguments_done.payload == {"item_id": turn.minted[0], "output_index": 0, "arguments": '{"a":1}'}
    assert (item_done.payload["item"]["arguments"], item_done.payload["item"]["status"]) == ('{"a":1}', "completed")


def test_a_call_without_arguments_is_a_call_with_none():
    turn = running(CallStarted("look", "c"))
    delta, done, item_done = turn.say(ItemEnded())
    assert [delta.payload["delta"], done.payload["arguments"], item_done.payload["item"]["arguments"]] == ["{}"] * 3


def test_an_end_where_nothing_is_open_says_nothing():
    assert running().say(ItemEnded()) == []
    assert running(MessageSaid("Hi"), ItemEnded()).say(ItemEnded()) == []
    assert close(Projection()) == []


def test_text_after_an_ended_item_opens_the_next_index():
    turn = running(MessageSaid("one"), ItemEnded())
    (added, *_) = turn.say(MessageSaid("two"))
    assert added.payload["output_index"] == 1
    assert turn.minted[0] != turn.minted[1]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (ReasoningSaid("Hm"), MessageSaid("Hi")),
        (MessageSaid("Hi"), ReasoningSaid("Hm")),
        (MessageSaid("Hi"), CallStarted("look")),
        (CallStarted("look"), CallStarted("look")),
        (CallStarted("look"), MessageSaid("Hi")),
    ],
)
def test_another_kind_of_thing_closes_what_is_open_first(first, second):
    turn = running(first)
    drafts = turn.say(second)
    assert types(drafts).index("output_item.done") < types(drafts).index("output_item.added")
    assert [item["status"] for item in turn.projection.output] == ["completed", "in_progress"]


def test_another_phase_is_another_message():
    turn = running(MessageSaid("I will look.", "commentary"), MessageSaid("Found.", "final_answer"), STOP)
    assert [(item["phase"], item["content"][0]["text"]) for item in turn.response["output"]] == [
        ("commentary", "I will look."),
        ("final_answer", "Found."),
    ]
    assert_keeps_invariants(turn.events)


def test_preamble_call_and_answer_are_three_items_in_order():
    turn = running(
        ReasoningSaid("Hm"),
        MessageSaid("I will look.", "commentary"),
        CallStarted("look", "c"),
        ArgumentsSaid('{"at":"it"}'),
        MessageSaid("Found.", "final_answer"),
        STOP,
    )
    assert [item["type"] for item in turn.response["output"]] == ["reasoning", "message", "function_call", "message"]
    assert_keeps_invariants(turn.events)


def test_a_stop_closes_the_open_item_and_completes():
    turn = running(MessageSaid("Hi"))
    drafts = turn.say(STOP)
    assert types(drafts) == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    response = last(drafts)
    assert (response["status"], response["completed_at"], response["created_at"]) == ("completed", NOW, CREATED_AT)
    assert (response["error"], response["incomplete_details"]) == (None, None)
    assert [item["status"] for item in response["output"]] == ["completed"]
    assert_keeps_invariants(turn.events)


def test_a_stop_with_nothing_said_is_an_empty_output():
    turn = running(STOP)
    assert types(turn.drafts) == ["created", "in_progress", "completed"]
    assert turn.response["output"] == []
    assert_keeps_invariants(turn.events)


@pytest.mark.parametrize(
    "said",
    [
        [ReasoningSaid("Hm")],
        [MessageSaid("Hel")],
        [MessageSaid("")],
        [CallStarted("look"), ArgumentsSaid('{"a":')],
        [CallStarted("look")],
    ],
    ids=["reasoning", "message", "empty message", "arguments", "call"],
)
@pytest.mark.parametrize(("reason", "told"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
def test_a_cut_leaves_the_open_item_incomplete_with_what_was_said(said, reason, told):
    turn = running(MessageSaid("whole"), ItemEnded(), *said)
    drafts = turn.say(Finished(reason, USAGE))
    response = last(drafts)
    assert drafts[-1].type == "response.incomplete"
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": told})
    assert (response["completed_at"], response["error"]) == (None, None)
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]
    assert_keeps_invariants(turn.events)


def test_a_call_that_was_cut_before_its_arguments_has_none():
    turn = running(CallStarted("look", "c"))
    done, item_done, _ = turn.say(LENGTH)
    assert (done.payload["arguments"], item_done.payload["item"]["arguments"]) == ("", "")


def test_a_cut_between_items_leaves_the_closed_ones_complete():
    turn = running(MessageSaid("whole"), ItemEnded(), LENGTH)
    assert [item["status"] for item in turn.response["output"]] == ["completed"]
    assert turn.response["status"] == "incomplete"
    assert_keeps_invariants(turn.events)


def test_a_cancel_is_incomplete_with_the_status_cancelled():
    turn = running(MessageSaid("Hel"))
    drafts = turn.cancel(USAGE)
    assert types(drafts) == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    response = last(drafts)
    assert response["status"] == "cancelled"
    assert (response["error"], response["incomplete_details"], response["completed_at"]) == (None, None, None)
    assert [item["status"] for item in response["output"]] == ["incomplete"]
    assert response["usage"]["total_tokens"] == 18
    assert_keeps_invariants(turn.events)


def test_a_cancel_while_queued_needs_no_usage():
    turn = Turn(queued=True)
    turn.cancel()
    assert types(turn.drafts) == ["created", "queued", "incomplete"]
    assert (turn.response["status"], turn.response["usage"]) == ("cancelled", None)
    assert_keeps_invariants(turn.events)


def test_a_failure_closes_what_is_open_then_tells_the_error_twice_over_then_fails():
    turn = running(MessageSaid("Hel"))
    failure = Failure("Too long.", code="context_length_exceeded", type="invalid_request_error", param="input")
    drafts = turn.fail(failure, USAGE)
    assert types(drafts) == ["output_text.done", "content_part.done", "output_item.done", "error", "failed"]
    flat = {"code": "context_length_exceeded", "message": "Too long.", "param": "input"}
    assert drafts[-2].payload == {**flat, "error": {**flat, "type": "invalid_request_error"}}
    response = last(drafts)
    assert (response["status"], response["completed_at"], response["incomplete_details"]) == ("failed", None, None)
    assert response["error"] == {"code": "context_length_exceeded", "message": "Too long."}
    assert [item["status"] for item in response["output"]] == ["incomplete"]
    assert response["usage"]["total_tokens"] == 18
    assert_keeps_invariants(turn.events)


def test_a_failure_before_anything_was_said_is_an_error_and_an_end():
    turn = Turn()
    turn.fail(FAILURE)
    assert types(turn.drafts) == ["created", "error", "failed"]
    assert turn.response["usage"] is None
    assert turn.response["error"] == {"code": "server_error", "message": "The engine broke off."}
    assert_keeps_invariants(turn.events)


def test_usage_adds_up():
    assert running(STOP).response["usage"] == {
        "input_tokens": 11,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 18,
    }


def test_usage_details_are_never_more_than_their_totals():
    usage = running(Finished("stop", Usage(5, 4, cached_tokens=9, reasoning_tokens=8))).response["usage"]
    assert usage["input_tokens_details"]["cached_tokens"] == 5
    assert usage["output_tokens_details"]["reasoning_tokens"] == 4


def test_logprobs_are_carried_to_the_text_the_part_and_the_item():
    one, two = logprob("Hel"), logprob("lo")
    turn = running(MessageSaid("Hel", None, [one]), MessageSaid("lo", None, [two]), STOP)
    done = {event["type"]: event for event in turn.events}
    assert done["response.output_text.done"]["logprobs"] == [one, two]
    assert done["response.content_part.done"]["part"]["logprobs"] == [one, two]
    assert turn.response["output"][0]["content"][0]["logprobs"] == [one, two]
    assert_keeps_invariants(turn.events)


def test_deciding_changes_neither_the_projection_nor_earlier_drafts():
    turn = running(MessageSaid("Hel", None, [logprob("Hel")]))
    before = turn.stored
    first = decide(turn.projection, STOP, new_id=turn.new_id, now=NOW)
    assert decide(turn.projection, STOP, new_id=turn.new_id, now=NOW) == first
    assert turn.stored == before
    assert turn.projection.version == len(before) - 1


def test_settings_are_told_alike_in_every_lifecycle_event():
    request = msgspec.structs.replace(
        REQUEST, temperature=0.2, instructions="Be short.", metadata={"a": "b"}, max_output_tokens=9
    )
    turn = Turn(request)
    turn.begin()
    turn.say(MessageSaid("Hi"), STOP)
    sent = {"temperature": 0.2, "instructions": "Be short.", "metadata": {"a": "b"}, "max_output_tokens": 9}
    assert_keeps_invariants(turn.events, request=sent, retrieved=turn.response)
    assert turn.response["id"] == RESPONSE_ID
