"""Background responses: answered at once, run without their client, polled, queued, deleted while they run."""

from tests.e2e.client import CHAT, ENDLESS, HARMONY, Api, text_of
from tests.e2e.judge import Judge
from tests.e2e.serving import Server, eventually
from tests.fakes.running import FakeVllm

HELD = {"load": {"tokens": 40}, "pace_ms": 5, "fault": {"kind": "hold", "after": 20}}
SHORT = {"load": {"tokens": 40}, "pace_ms": 5}


def test_the_answer_does_not_wait_for_the_engine(api: Api, fake: FakeVllm) -> None:
    fake.script({"load": {"tokens": 10}, "fault": {"kind": "hang", "after": 0}})

    born = api.create(background=True, metadata={"who": "me"})

    assert (born["status"], born["output"], born["usage"], born["metadata"]) == ("queued", [], None, {"who": "me"})
    assert api.cancel(born["id"]).status_code == 200


def test_while_it_runs_a_response_shows_no_output(api: Api, fake: FakeVllm) -> None:
    fake.script(ENDLESS)
    with api.stream(background=True) as stream:
        stream.until("response.output_text.delta", times=3)
        running = api.retrieve(stream.response_id)
        api.cancel(stream.response_id)
        stream.read()

    assert (running["status"], running["output"], running["usage"]) == ("in_progress", [], None)


def test_it_runs_on_when_its_client_goes_away(api: Api, fake: FakeVllm) -> None:
    fake.script(HELD)
    with api.stream(background=True) as stream:
        stream.until("response.output_text.delta")
        response_id = stream.response_id
    assert api.retrieve(response_id)["status"] == "in_progress"
    fake.release()

    assert api.ended(response_id)["status"] == "completed"
    assert fake.last()["state"] == "done"
    with api.follow(response_id) as again:
        assert again.read()[-1]["type"] == "response.completed"


def test_it_runs_even_when_its_client_goes_at_the_very_first_event(api: Api, fake: FakeVllm) -> None:
    fake.script(SHORT)
    with api.stream(background=True) as stream:
        response_id = stream.until("response.created")["response"]["id"]

    assert api.ended(response_id)["status"] == "completed"


def test_many_run_side_by_side_and_each_once(server: Server, judge: Judge, fake: FakeVllm) -> None:
    fake.script(SHORT)
    users = [Api(server.url, judge, model=model) for model in (HARMONY, CHAT)]
    born = [(user, user.create(background=True, input=f"Number {n}.")) for n in range(15) for user in users]

    ended = [user.ended(response["id"]) for user, response in born]

    assert {response["status"] for response in ended} == {"completed"}
    assert len({text_of(response) for response in ended}) == 1
    assert len(fake.log()) == len(born)


def test_readers_of_a_running_response_that_is_deleted_get_its_end_first(api: Api, fake: FakeVllm) -> None:
    fake.script(ENDLESS)
    with api.stream(background=True) as stream:
        stream.until("response.output_text.delta")
        with api.follow(stream.response_id) as reader:
            assert api.delete(stream.response_id).status_code == 200
            events = reader.read()
        stream.read()

    assert (events[-1]["type"], events[-1]["response"]["status"]) == ("response.incomplete", "cancelled")
    assert api.get(stream.response_id).status_code == 404
    assert api.get(stream.response_id, stream="true").status_code == 404
    assert api.delete(stream.response_id).status_code == 404
    assert eventually(lambda: fake.active() == 0)


def test_what_is_known_to_be_bad_is_refused_before_anything_is_queued(api: Api, fake: FakeVllm) -> None:
    status, error = api.refused(background=True, input="word " * 132_000)

    assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", "input")
    assert fake.log() == []
