"""What a turn starts from: ids for own items, references resolved, repeats once, calls and outputs in pairs."""

from typing import Any

import pytest

from app.errors import InvalidRequest
from app.responses.history import Turn, check_calls, history, resolve, with_ids

OURS = "msg_" + "0" * 40


def message(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}], **fields}


def call(call_id: str, arguments: str = "{}", **fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "look", "arguments": arguments, **fields}


def output(call_id: str, text: str = "seen", **fields: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text, **fields}


def test_own_items_without_an_id_get_one_of_their_kind():
    given = [message("Hi"), call("c"), output("c"), {"type": "reasoning", "summary": []}]
    minted = with_ids(given, lambda kind: f"new {kind}")
    assert [item["id"] for item in minted] == [
        "new message",
        "new function_call",
        "new function_call_output",
        "new reasoning",
    ]
    assert all("id" not in item for item in given)


def test_a_client_label_stays_and_nothing_is_minted_for_it():
    minted: list[str] = []
    (item,) = with_ids([message("Hi", id="mine")], lambda kind: minted.append(kind) or "new")
    assert (item["id"], minted) == ("mine", [])


def test_a_label_that_another_item_has_already_is_replaced():
    """The SDKs page a list by its ids: one that comes twice makes them go round for ever."""
    given = [message("b", id="m"), message("c", id="m"), call("x", id="m"), message("b", id="m", status="completed")]

    own = with_ids(given, lambda kind: f"new {kind}", earlier=[message("a", id="m")])
    alone = with_ids(given, lambda kind: f"new {kind}")

    assert [item["id"] for item in own] == ["new message", "new message", "new function_call", "new message"]
    assert [item["id"] for item in alone] == ["m", "new message", "new function_call", "m"]
    assert given[1]["id"] == "m"


def test_an_item_of_the_chain_that_is_sent_again_keeps_its_id():
    streamed = message("Good.", id=OURS)
    again = [message("edited", id=OURS), message("a", id="m")]

    own = with_ids(again, lambda kind: "new", earlier=[streamed, message("a", id="m", status="completed")])

    assert [item["id"] for item in own] == [OURS, "m"]


def test_an_item_of_a_kind_without_ids_stays_as_it_is():
    reference = {"type": "item_reference", "id": "msg_1"}
    assert with_ids([reference, {"type": "compaction"}], lambda kind: "new") == [reference, {"type": "compaction"}]


def test_a_reference_becomes_the_item_in_its_place():
    stored = message("stored", id="msg_1")
    own = message("own", id="msg_2")
    assert resolve([own, {"type": "item_reference", "id": "msg_1"}], {"msg_1": stored}) == [own, stored]


def test_an_unknown_reference_is_named():
    with pytest.raises(InvalidRequest, match="Item with id 'msg_9' not found") as caught:
        resolve([message("Hi"), {"type": "item_reference", "id": "msg_9"}], {})
    assert caught.value.param == "input[1].id"


def test_history_is_input_and_output_of_every_turn_and_then_the_own_input():
    one, two, three, four, five = (message(str(n), id=f"m{n}") for n in range(5))
    assert history([Turn([one], [two]), Turn([three], [four])], [five]) == [one, two, three, four, five]


def test_an_item_of_ours_that_is_sent_again_counts_once_whatever_it_says_now():
    stored = message("as streamed", id=OURS)
    assert history([Turn([], [stored])], [message("edited", id=OURS), message("next")]) == [stored, message("next")]


def test_a_label_of_the_client_may_be_used_twice_for_different_things():
    one, other = message("one", id="mine"), message("other", id="mine")
    assert history([Turn([one], [])], [other]) == [one, other]
    assert history([Turn([one], [])], [message("one", id="mine", status="completed")]) == [one]


def test_equal_items_without_ids_are_two_items():
    assert history([Turn([message("again")], [])], [message("again")]) == [message("again")] * 2


def test_a_call_that_is_sent_again_counts_once_under_any_id():
    streamed = call("c", id="fc_" + "0" * 40, status="completed")
    assert history([Turn([], [streamed])], [call("c", id="fc_mine"), output("c")]) == [streamed, output("c")]
    assert history([Turn([], [streamed])], [call("c"), output("c"), output("c")]) == [streamed, output("c")]


def test_two_different_calls_with_one_call_id_are_refused():
    with pytest.raises(InvalidRequest, match="Two different items of type function_call have call_id c") as caught:
        history([], [call("c"), call("c", '{"a":1}')])
    assert caught.value.param == "input"


@pytest.mark.parametrize("turns", [[], [Turn([output("c")], [message("Good.")])]])
def test_one_call_has_one_output(turns: list[Turn]):
    other = {**output("c"), "id": "fco_other", "output": "something else"}
    with pytest.raises(InvalidRequest, match="Two different items of type function_call_output") as caught:
        history([Turn([], [call("c")]), *turns], [output("c"), other])
    assert caught.value.param == "input"


def test_calls_with_their_outputs_pass_in_order():
    items = [message("Hi"), call("a"), call("b"), output("b"), output("a")]
    assert check_calls(items) == items


def test_an_output_without_its_call_is_refused():
    with pytest.raises(InvalidRequest, match="No tool call found for function call output with call_id a") as caught:
        check_calls([output("a")])
    assert caught.value.param == "input"


def test_an_output_before_its_call_is_refused():
    with pytest.raises(InvalidRequest, match="No tool call found for function call output with call_id a"):
        check_calls([output("a"), call("a")])


def test_a_call_without_its_output_is_refused():
    with pytest.raises(InvalidRequest, match="No tool output found for function call a") as caught:
        check_calls([call("a", status="completed"), message("next")])
    assert caught.value.param == "input"


def test_a_call_that_was_cut_off_is_left_out():
    assert check_calls([call("a", '{"x', status="incomplete"), message("next")]) == [message("next")]


def test_an_empty_id_is_no_id():
    items = [{"type": "message", "id": None, "role": "user", "content": []}]
    assert with_ids(items, lambda kind: f"{kind}_new")[0]["id"] == "message_new"
