"""Chains by `previous_response_id`: what a turn starts from, and which parents it may have."""

from typing import Any

import pytest

from tests.e2e.client import CHAT, ENDLESS, HARMONY, Api
from tests.e2e.judge import Judge
from tests.e2e.serving import Server, eventually
from tests.fakes.running import FakeVllm


@pytest.fixture(params=(HARMONY, CHAT))
def api(request: pytest.FixtureRequest, server: Server, judge: Judge, fake: FakeVllm) -> Api:
    """A user of each kind of model."""
    return Api(server.url, judge, model=request.param)


def saying(text: str, **more: Any) -> dict[str, Any]:
    return {"text": f"<|channel|>final<|message|>{text}<|return|>", **more}


def refusal(api: Api, response_id: str) -> tuple[int, str | None, str, str | None]:
    status, error = api.refused(previous_response_id=response_id)
    return status, error["code"], error["message"], error["param"]


def not_found(response_id: str, why: str = "") -> tuple[int, str, str, str]:
    message = f"Previous response with id '{response_id}' not found{why}."
    return 400, "previous_response_not_found", message, "previous_response_id"


def test_a_turn_sees_all_turns_before_it(api: Api, fake: FakeVllm) -> None:
    fake.script(saying("Answer one."), saying("Answer two."), saying("Answer three."))
    one = api.create(input="Question one.")
    two = api.create(input="Question two.", previous_response_id=one["id"])

    three = api.create(input="Question three.", previous_response_id=two["id"])

    prompt = fake.last()["prompt_text"]
    said = ["Question one.", "Answer one.", "Question two.", "Answer two.", "Question three."]
    places = [prompt.index(text) for text in said]
    assert places == sorted(places)
    assert three["previous_response_id"] == two["id"]


def test_branches_of_one_parent_do_not_see_each_other(api: Api, fake: FakeVllm) -> None:
    fake.script(saying("Root."), saying("Left."), saying("Right."), saying("Leaf."))
    root = api.create(input="Begin.")
    left = api.create(input="Go left.", previous_response_id=root["id"])
    right = api.create(input="Go right.", previous_response_id=root["id"])

    api.create(input="On.", previous_response_id=left["id"])

    last = fake.last()["prompt_text"]
    assert "Go left." in last
    assert "Left." in last
    assert "Right." not in last
    assert "Go right." not in last
    assert api.retrieve(root["id"]) == root
    assert api.retrieve(right["id"]) == right


def test_instructions_are_those_of_the_turn_alone(api: Api, fake: FakeVllm) -> None:
    one = api.create(instructions="Speak like a pirate.")

    two = api.create(previous_response_id=one["id"])
    assert "pirate" not in fake.last()["prompt_text"]
    assert two["instructions"] is None

    api.create(previous_response_id=one["id"], instructions="Speak like a judge.")
    assert "judge" in fake.last()["prompt_text"]
    assert "pirate" not in fake.last()["prompt_text"]


def test_input_items_are_the_history_and_the_own_input(api: Api, fake: FakeVllm) -> None:
    fake.script(saying("Answer."))
    one = api.create(input="First.")
    two = api.create(input="Second.", previous_response_id=one["id"])

    page = api.input_items(two["id"], order="asc").json()

    assert [item["content"][0]["text"] for item in page["data"]] == ["First.", "Answer.", "Second."]
    assert page["data"][1] == one["output"][0]
    assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][2]["id"])
    assert page["has_more"] is False


def test_a_chain_of_streamed_and_background_turns_holds_together(api: Api, fake: FakeVllm) -> None:
    fake.script(saying("Streamed."), saying("Backgrounded."), saying("Whole."))
    one = api.streamed(input="One.")[-1]["response"]
    two = api.ended(api.create(input="Two.", background=True, previous_response_id=one["id"])["id"])

    api.create(input="Three.", previous_response_id=two["id"])

    prompt = fake.last()["prompt_text"]
    assert all(text in prompt for text in ("One.", "Streamed.", "Two.", "Backgrounded.", "Three."))


@pytest.mark.parametrize(
    "unknown", ["resp_00000000000000000000000000000000", "nonsense", "resp_'; DROP TABLE responses"]
)
def test_an_unknown_parent_is_refused(api: Api, unknown: str) -> None:
    status, code, _, param = refusal(api, unknown)

    assert (status, code, param) == (400, "previous_response_not_found", "previous_response_id")


def test_a_deleted_parent_is_refused_by_name(api: Api) -> None:
    one = api.create()
    two = api.create(previous_response_id=one["id"])
    three = api.create(previous_response_id=two["id"])
    assert api.delete(one["id"]).json() == {"id": one["id"], "object": "response", "deleted": True}

    assert refusal(api, one["id"]) == not_found(one["id"])
    assert refusal(api, three["id"]) == not_found(one["id"], ": it was deleted")
    assert api.retrieve(three["id"]) == three


def test_an_unstored_parent_is_unknown(api: Api) -> None:
    one = api.create(store=False)

    assert refusal(api, one["id"]) == not_found(one["id"])


def test_a_failed_parent_is_refused(api: Api, fake: FakeVllm) -> None:
    fake.script({"load": {"tokens": 50}, "fault": {"kind": "error_chunk", "after": 20}})
    born = api.create(background=True)
    assert api.ended(born["id"])["status"] == "failed"

    status, code, message, param = refusal(api, born["id"])

    assert (status, code, param) == (400, None, "previous_response_id")
    assert message == f"Previous response with id '{born['id']}' failed; continue from the one before it."


def test_an_unfinished_parent_is_refused_until_it_has_ended(api: Api, fake: FakeVllm) -> None:
    fake.script(ENDLESS, saying("Fine."))
    with api.stream(background=True) as stream:
        stream.until("response.output_text.delta")
        status, code, message, param = refusal(api, stream.response_id)
        assert api.cancel(stream.response_id).status_code == 200
        stream.read()

    assert (status, code, param) == (400, None, "previous_response_id")
    assert message.startswith(f"Previous response with id '{stream.response_id}' is still in_progress")
    assert api.create(previous_response_id=stream.response_id)["status"] == "completed"


def test_an_incomplete_parent_may_be_continued(api: Api, fake: FakeVllm) -> None:
    fake.script({"load": {"tokens": 100}}, saying("And so on."))
    one = api.create(max_output_tokens=30)
    assert (one["status"], one["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})

    two = api.create(input="Go on.", previous_response_id=one["id"])

    assert two["status"] == "completed"
    assert "the old keeper wrote" in fake.last()["prompt_text"]


def test_a_refused_turn_reaches_no_engine(api: Api, fake: FakeVllm) -> None:
    refusal(api, "resp_00000000000000000000000000000000")

    assert eventually(lambda: fake.active() == 0)
    assert fake.log() == []
