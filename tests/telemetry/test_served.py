"""A real server: its lines say what happened and hold no prompt, no answer and no key; its numbers add up."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.client import CHAT, Api
from tests.e2e.judge import Judge
from tests.e2e.serving import Fleet, Server, eventually, get
from tests.fakes.running import FakeVllm, fake_vllm
from tests.telemetry.numbers import label_values, number

pytestmark = pytest.mark.xdist_group("telemetry")

KEY, ENGINE_KEY = "sk-of-a-client-1234", "sk-of-the-engine-5678"
PROMPT, ANSWER = "The zebra's secret is a xylophone.", "Never tell the quokka."  # words that no id can hold by chance
SAYS = {"text": f"<|channel|>final<|message|>{ANSWER}<|return|>", "cached_tokens": 3}
TALKS_FOR_EVER = {"load": {"tokens": 2000}, "fault": {"kind": "hold", "after": 100}}


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeVllm]:
    with fake_vllm() as running:
        yield running


@pytest.fixture(scope="module")
def server(fake: FakeVllm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("telemetry")
    settings: dict[str, Any] = {"engine": "vllm", "engine_url": fake.url, "engine_api_key": ENGINE_KEY}
    with Fleet(folder, f"sqlite:///{folder / 'log.db'}", api_keys=KEY, log_level="debug", **settings) as fleet:
        yield fleet.start()


@pytest.fixture
def judge() -> Iterator[Judge]:
    judge = Judge()
    yield judge
    judge.verdict()


@pytest.fixture
def api(server: Server, judge: Judge, fake: FakeVllm) -> Api:
    fake.script(SAYS)
    return Api(server.url, judge, key=KEY)


def numbers(server: Server) -> str:
    return get(f"{server.url}/metrics").text


def is_quiet(server: Server) -> bool:
    """Nobody runs or reads: what was asked before is counted."""
    told = numbers(server)
    return number(told, "verbatim_running") + number(told, "verbatim_readers") == 0


def lines(server: Server, event: str, **fields: Any) -> list[dict[str, Any]]:
    """The log lines of this kind so far. Every line of the log must be one."""
    whole, _, _ = server.stderr.rpartition("\n")
    found = [json.loads(line) for line in whole.splitlines()]
    return [line for line in found if line["event"] == event and fields.items() <= line.items()]


def test_a_request_and_its_run_are_tied_together(api: Api, server: Server, fake: FakeVllm) -> None:
    answer = api.post(input=PROMPT)
    response, request_id = answer.json(), answer.headers["x-request-id"]
    (request,) = eventually(lambda: lines(server, "request", request_id=request_id))
    (run,) = eventually(lambda: lines(server, "run", request_id=request_id))

    assert (request["method"], request["path"], request["status"]) == ("POST", "/v1/responses", 200)
    assert request["response_id"] == run["response_id"] == response["id"]
    assert len(request["tenant"]) == 16
    usage = response["usage"]
    assert (run["tokens_in"], run["tokens_out"]) == (usage["input_tokens"], usage["output_tokens"])
    assert (run["model"], run["status"], run["reason"], run["tokens_cached"]) == ("gpt-oss", "completed", None, 3)
    assert 0 < run["first_token_ms"] <= run["duration_ms"]
    assert fake.last()["x_request_id"].startswith(request_id + "-")


def test_a_background_run_has_a_line_of_its_own_and_no_request(api: Api, server: Server, fake: FakeVllm) -> None:
    response = api.ended(api.create(input=PROMPT, background=True)["id"])
    (run,) = eventually(lambda: lines(server, "run", response_id=response["id"]))

    assert (run["background"], "request_id" in run) == (True, False)
    assert fake.last()["x_request_id"] is None


def test_the_log_holds_no_prompts_answers_or_keys(api: Api, server: Server, fake: FakeVllm, judge: Judge) -> None:
    first = api.create(input=PROMPT, instructions=PROMPT, metadata={"secret": PROMPT})
    for body in ({}, {"background": True}, {"model": CHAT}, {"store": False}, {"previous_response_id": first["id"]}):
        with api.stream(input=PROMPT, stream=True, **body) as stream:
            assert ANSWER in str(stream.read())
    for status in (400, 500, 503):
        said = {"status": status, "message": f"I choke on {PROMPT}"}
        fake.script({"text": "", "fault": {"kind": "http", "status": status, "error": said}})
        assert api.post(input=PROMPT).status_code == status
    fake.script({"load": {"tokens": 50}, "fault": {"kind": "error_chunk", "after": 9, "error": {"message": PROMPT}}})
    assert api.post(input=PROMPT).status_code == 502
    assert api.post(input=PROMPT, tools=[{"type": PROMPT}]).status_code == 400
    stranger = Api(server.url, judge, key=KEY + "-wrong").refused(input=PROMPT)
    assert stranger[0] == 401
    eventually(lambda: lines(server, "request", status=401))
    eventually(lambda: lines(server, "run", status="failed"))

    told = server.stderr + server.stdout + numbers(server)
    for secret in ("zebra", "xylophone", "quokka", KEY, ENGINE_KEY):
        assert secret not in told


def test_the_numbers_add_up(api: Api, server: Server, fake: FakeVllm) -> None:
    eventually(lambda: is_quiet(server))
    before = numbers(server)
    fake.script(TALKS_FOR_EVER)
    with api.stream(input=PROMPT) as stream:
        stream.until("response.output_text.delta")
        during = numbers(server)
    eventually(lambda: is_quiet(server))
    fake.script(SAYS)
    response = api.create(input=PROMPT)
    posted = {"method": "POST", "route": "/v1/responses", "status": "200"}
    eventually(lambda: grown(before, numbers(server), "verbatim_runs_total") == 2)
    eventually(lambda: grown(before, numbers(server), "verbatim_requests_total", **posted) == 2)
    eventually(lambda: is_quiet(server))
    after = numbers(server)

    assert [number(during, f"verbatim_{name}") for name in ("running", "readers", "queued")] == [1, 1, 0]
    assert [number(after, f"verbatim_{name}") for name in ("running", "readers", "queued")] == [0, 0, 0]
    assert grown(before, after, "verbatim_runs_total", outcome="completed") == 1
    assert grown(before, after, "verbatim_runs_total", outcome="cancelled") == 1
    assert grown(before, after, "verbatim_tokens_total", kind="generated") >= response["usage"]["output_tokens"]
    assert grown(before, after, "verbatim_commit_seconds_count") >= 2
    assert grown(before, after, "verbatim_commit_events_sum") >= len(stream.events) + 5


def grown(before: str, after: str, name: str, **labels: str) -> float:
    return number(after, name, **labels) - number(before, name, **labels)


def test_labels_hold_only_what_is_configured(api: Api, server: Server) -> None:
    for name in ("no-such-model", "another"):
        assert api.post(model=name).status_code == 404
    told = numbers(server)

    assert label_values(told, "model") <= {"gpt-oss", "qwen-parser"}
    assert label_values(told, "outcome") <= {"completed", "incomplete", "failed", "cancelled", "released", "lost"}
