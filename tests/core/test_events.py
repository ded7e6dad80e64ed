"""The one encoded form of events."""

import json

import pytest

from app.responses.events import Draft, Event, decode, encode, number, response_inside, type_of


def test_drafts_get_the_positions_that_follow():
    drafts = [Draft("response.created", {}), Draft("response.queued", {})]
    assert number(drafts, after=-1) == [Event(0, "response.created", {}), Event(1, "response.queued", {})]
    assert [event.position for event in number(drafts, after=41)] == [42, 43]


def test_type_and_position_come_first_then_the_payload_in_its_order():
    (data,) = encode([Draft("response.output_text.delta", {"item_id": "msg_1", "delta": "é\n"})], after=6)
    expected = '{"type":"response.output_text.delta","sequence_number":7,"item_id":"msg_1","delta":"é\\n"}'
    assert data.decode() == expected


def test_nothing_encodes_to_nothing():
    assert encode([], after=3) == []


@pytest.mark.parametrize("text", ["\x00", "\u2028", "\U0001f600", '"\\', "data: x\n\nevent: y", "\x7f\x85"])
def test_any_text_is_one_line_and_comes_back(text: str):
    (data,) = encode([Draft("x", {"delta": text})], after=-1)
    assert b"\n" not in data
    assert b"\r" not in data
    assert decode(data) == Event(0, "x", {"delta": text})


def test_decoding_does_not_depend_on_order_or_spaces():
    data = b'{ "delta" : "Hi", "sequence_number" : 4, "type" : "x" }'
    assert decode(data) == Event(4, "x", {"delta": "Hi"})


def test_type_and_response_are_cut_out_without_parsing():
    tricky = {"id": "resp_1", "instructions": 'say "response":{} and ,"response":', "output": [{"type": "message"}]}
    (data,) = encode([Draft("response.completed", {"response": tricky})], after=9)
    assert type_of(data) == b"response.completed"
    assert json.loads(response_inside(data)) == tricky


def test_an_event_of_another_kind_has_no_response_inside():
    (data,) = encode([Draft("error", {"message": "no"})], after=0)
    with pytest.raises(ValueError, match="not found"):
        response_inside(data)
