"""API keys: who may come in, and that nobody sees the responses of others."""

import pytest

from tests.e2e.client import Api
from tests.e2e.judge import Judge
from tests.e2e.serving import Fleet, Server, get
from tests.fakes.running import FakeVllm


@pytest.fixture(scope="module")
def server(fleet: Fleet) -> Server:
    """A server for Alice and Bob."""
    return fleet.start(api_keys="key-of-alice, key-of-bob")


@pytest.fixture
def alice(server: Server, judge: Judge, fake: FakeVllm) -> Api:
    return Api(server.url, judge, key="key-of-alice")


@pytest.fixture
def bob(server: Server, judge: Judge, fake: FakeVllm) -> Api:
    return Api(server.url, judge, key="key-of-bob")


@pytest.mark.parametrize("key", [None, "key-of-mallory", "key-of-alice, key-of-bob", "KEY-OF-ALICE"])
def test_without_a_known_key_nothing_is_answered(server: Server, judge: Judge, key: str | None) -> None:
    answer = Api(server.url, judge, key=key).post()

    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"


def test_the_health_check_needs_no_key(server: Server) -> None:
    assert get(f"{server.url}/health").status_code == 200


def test_the_first_curl_line_says_that_a_key_is_needed(server: Server) -> None:
    assert "Authorization: Bearer YOUR_KEY" in server.stdout
    assert "key-of" not in server.stdout + server.stderr


def test_to_others_a_response_does_not_exist(alice: Api, bob: Api) -> None:
    with alice.stream(background=True) as stream:
        stream.read()
    hers = stream.response_id

    answers = [
        bob.get(hers),
        bob.get(hers, stream="true"),
        bob.get(hers, stream="true", starting_after=3),
        bob.cancel(hers),
        bob.input_items(hers),
        bob.delete(hers),
    ]

    unknown = bob.get("resp_00000000000000000000000000000000").json()["error"]
    for answer in answers:
        assert answer.status_code == 404
        error = answer.json()["error"]
        assert error == unknown | {"message": f"Response with id '{hers}' not found."}
    assert alice.retrieve(hers)["status"] == "completed"


def test_others_cannot_stop_a_running_response(alice: Api, bob: Api, fake: FakeVllm) -> None:
    fake.script({"load": {"tokens": 40}, "fault": {"kind": "hold", "after": 20}})
    with alice.stream(background=True) as stream:
        stream.until("response.output_text.delta")
        assert bob.cancel(stream.response_id).status_code == 404
        assert bob.delete(stream.response_id).status_code == 404
        fake.release()
        assert stream.read()[-1]["type"] == "response.completed"


def test_others_cannot_build_on_a_response(alice: Api, bob: Api) -> None:
    hers = alice.create(input="A secret.")

    status, error = bob.refused(previous_response_id=hers["id"])
    assert (status, error["code"]) == (400, "previous_response_not_found")

    status, error = bob.refused(input=[{"type": "item_reference", "id": hers["output"][-1]["id"]}])
    assert status == 400
    assert alice.create(previous_response_id=hers["id"])["status"] == "completed"
