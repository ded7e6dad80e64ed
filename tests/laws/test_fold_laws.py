"""The laws of one stream on generated turns: L1, L3, L4, L5, L6, L8, and the 40 invariants on every one of them."""

from collections import defaultdict
from typing import Any, Final

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.responses.events import ENDED, TERMINAL, decode, encode, number, response_inside, type_of
from app.responses.projection import evolve, fork, project, snapshot
from app.responses.said import MessageSaid, merge
from tests.core.turn import Turn
from tests.laws.turns import ends, played, rechunked, said
from tests.oracle import assert_keeps_invariants

law: Final = settings(deadline=None)  # this machine may be busy

turns: Final = st.builds(played, said, ends())


@law
@given(turns)
def test_positions_are_0_1_2_without_a_hole(turn: Turn):
    """L1"""
    assert [decode(data).position for data in turn.stored] == list(range(len(turn.drafts)))


@law
@given(turns)
def test_there_is_exactly_one_terminal_event_and_nothing_after_it(turn: Turn):
    """L3"""
    assert [draft.type in TERMINAL for draft in turn.drafts] == [False] * (len(turn.drafts) - 1) + [True]
    assert turn.response["status"] in ENDED


@law
@given(turns)
def test_the_fold_is_the_response_inside_the_terminal_event(turn: Turn):
    """L4: as the writer folded it, and as a reader folds the stored bytes."""
    assert snapshot(turn.projection) == turn.response
    assert snapshot(project(map(decode, turn.stored))) == turn.response
    assert orjson.loads(response_inside(turn.stored[-1])) == turn.response


@law
@given(turns)
def test_what_is_cut_out_of_the_bytes_is_what_they_say(turn: Turn):
    for draft, data in zip(turn.drafts, turn.stored, strict=True):
        assert type_of(data).decode() == draft.type == decode(data).type
        if "response" in draft.payload:
            assert orjson.loads(response_inside(data)) == decode(data).payload["response"]


@law
@given(turns, st.data())
def test_reading_after_k_is_the_suffix_after_k(turn: Turn, data: st.DataObject):
    """L5, at the level of the core: numbering and encoding a suffix by itself changes no byte."""
    k = data.draw(st.integers(-1, len(turn.drafts) - 1))
    assert encode(turn.drafts[k + 1 :], after=k) == turn.stored[k + 1 :]
    assert [event.position for event in number(turn.drafts[k + 1 :], after=k)] == list(range(k + 1, len(turn.drafts)))


@law
@given(turns, st.data())
def test_a_fold_goes_on_from_any_prefix(turn: Turn, data: st.DataObject):
    """A fork folded further is the whole, and leaves its original where it was."""
    k = data.draw(st.integers(0, len(turn.drafts)))
    prefix = project(number(turn.drafts[:k], after=-1))
    before = orjson.dumps([snapshot(prefix), list(prefix.pieces.values()), list(prefix.logprobs.values())])
    further = fork(prefix)
    for draft in turn.drafts[k:]:
        evolve(further, draft)
    assert snapshot(further) == turn.response
    assert orjson.dumps([snapshot(prefix), list(prefix.pieces.values()), list(prefix.logprobs.values())]) == before


@law
@given(turns)
def test_an_id_is_streamed_first_in_added_and_never_changes(turn: Turn):
    """L6"""
    ids: dict[int, str] = {}
    for event in turn.events:
        index = event.get("output_index")
        if event["type"] == "response.output_item.added":
            assert index == len(ids)
            ids[index] = event["item"]["id"]
        elif index is not None:
            assert ids[index] == event.get("item_id", event.get("item", {}).get("id"))
    assert [item["id"] for item in turn.response["output"]] == list(ids.values())
    assert len(set(ids.values())) == len(ids)
    assert len(set(turn.minted)) == len(turn.minted)


@law
@given(said, ends(), st.data())
def test_chunking_never_changes_the_response(script: list[Any], end: Any, data: st.DataObject):
    """L8: ids come from a counter, so the whole response is equal, ids too."""
    expected = played(script, end).response
    assert played(merge(script), end).response == expected
    assert played(data.draw(rechunked(script)), end).response == expected


@law
@given(said, ends(), st.data())
def test_any_grouping_into_merges_never_changes_the_response(script: list[Any], end: Any, data: st.DataObject):
    """L8: what arrives together is merged; where the groups end does not matter."""
    places = sorted(data.draw(st.lists(st.integers(0, len(script)), max_size=4)))
    groups = [script[start:stop] for start, stop in zip([0, *places], [*places, len(script)], strict=True)]
    grouped = [piece for group in groups for piece in merge(group)]
    assert played(grouped, end).response == played(script, end).response


@law
@given(said)
def test_merging_again_changes_nothing_and_leaves_no_two_pieces_to_join(script: list[Any]):
    merged = merge(script)
    assert merge(merged) == merged
    assert len(merged) <= len(script)


@law
@given(said, ends())
def test_deltas_add_up_to_the_done_text_and_to_the_item(script: list[Any], end: Any):
    turn = played(script, end)
    deltas: dict[int, str] = defaultdict(str)
    for event in turn.events:
        index = event.get("output_index")
        if event["type"].endswith(".delta"):
            deltas[index] += event["delta"]
        elif event["type"].endswith(("text.done", "arguments.done")):
            assert event.get("text", event.get("arguments")) == deltas[index]
    for index, item in enumerate(turn.response["output"]):
        said_in_it = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert said_in_it == deltas[index]


@law
@given(said, ends())
def test_no_logprob_is_lost(script: list[Any], end: Any):
    turn = played(script, end)
    given_ = [one for piece in script if isinstance(piece, MessageSaid) for one in piece.logprobs]
    messages = [item for item in turn.response["output"] if item["type"] == "message"]
    assert [one for item in messages for one in item["content"][0]["logprobs"]] == given_


@law
@given(turns)
def test_every_generated_stream_keeps_the_invariants(turn: Turn):
    assert_keeps_invariants(turn.events, retrieved=turn.response, replay=turn.events)


@law
@given(turns)
def test_closed_items_are_complete_unless_the_last_was_cut(turn: Turn):
    statuses = [item["status"] for item in turn.response["output"]]
    assert all(status == "completed" for status in statuses[:-1])
    if turn.response["status"] == "completed":
        assert statuses[-1:] in ([], ["completed"])


def test_a_hole_in_the_positions_is_refused():
    events = number(Turn().drafts * 2, after=-1)
    with pytest.raises(ValueError, match="position 1 follows -1"):
        project(events[1:])
