"""`kill -9`, on SQLite and on PostgreSQL: every stream gets its end, nothing that was shown is lost (laws L3, L9)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.client import ENDLESS, Api, text_of
from tests.e2e.judge import Judge, frames
from tests.e2e.serving import Fleet
from tests.fakes.running import FakeVllm

LEASE_SECONDS = 3
AT_ONCE = {"load": {"tokens": 900}}
HELD = AT_ONCE | {"pace_ms": 5, "fault": {"kind": "hold", "after": 450}}  # what continues it is not held
DIED = "The process that ran this response died before the response was complete."


@pytest.fixture(params=("sqlite", "postgres"))
def fleet(request: pytest.FixtureRequest, tmp_path: Path, running_fake: FakeVllm) -> Iterator[Fleet]:
    """Servers of the test's own, which soon hold each other dead."""
    url = request.getfixturevalue(f"{request.param}_url")
    settings = {"engine": "vllm", "engine_url": running_fake.url, "lease_seconds": LEASE_SECONDS}
    with Fleet(tmp_path / "fleet", url, **settings) as fleet:
        yield fleet


def assert_died(response: dict[str, Any]) -> None:
    assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
    assert response["error"]["message"] == DIED
    assert [item["status"] for item in response["output"]] == ["incomplete"]


def test_a_restarted_server_runs_what_waited_and_goes_on_with_what_had_begun(
    fleet: Fleet, judge: Judge, fake: FakeVllm
) -> None:
    at_last = {"text": "<|channel|>final<|message|>At last.<|return|>", "match": "Wait."}
    fake.script(at_last, HELD | {"repeat": 2}, AT_ONCE)
    first = fleet.start(max_concurrent_runs=2)
    api = Api(first.url, judge)
    with api.stream(background=True) as begun, api.stream(store=True) as foreground:
        begun.until("response.output_text.delta")
        foreground.until("response.output_text.delta")
        waiting = api.create(background=True, input="Wait.")
        first.kill()
        shown = begun.read_until_cut()
        foreground.read_until_cut()

    heir = fleet.start()
    after = Api(heir.url, judge)

    ended = after.ended(foreground.response_id)
    assert_died(ended)
    assert text_of(ended).startswith(said_in(foreground.events))
    continued = after.ended(begun.response_id)
    assert continued["status"] == "completed"
    (told,) = [line for line in heir.stderr.splitlines() if '"run_continues"' in line]
    assert begun.response_id in told
    assert text_of(after.ended(waiting["id"])) == "At last."
    replayed = after.replay(begun.response_id)
    assert frames(replayed)[: len(shown)] == frames(begun.body)
    undisturbed = after.create()
    assert text_of(continued) == text_of(undisturbed)
    assert continued["usage"]["output_tokens"] == undisturbed["usage"]["output_tokens"]


def test_readers_elsewhere_see_one_stream_when_its_process_is_killed(
    fleet: Fleet, judge: Judge, fake: FakeVllm
) -> None:
    fake.script(ENDLESS | {"match": "For ever."}, HELD)
    owner = fleet.start()
    here = Api(owner.url, judge)
    with here.stream(background=True) as dying, here.stream(background=True, input="For ever.") as unwanted:
        unwanted.until("response.output_text.delta", times=3)
        dying.until("response.output_text.delta")
        there = Api(fleet.start().url, judge)
        with there.follow(dying.response_id) as reader, there.follow(unwanted.response_id, 2) as other_reader:
            reader.until("response.output_text.delta")
            owner.kill()
            dying.read_until_cut()
            unwanted.read_until_cut()

            cancelled = there.cancel(unwanted.response_id)
            events = reader.read()
            last = other_reader.read()[-1]

    assert cancelled.status_code == 200
    assert (cancelled.json()["status"], cancelled.json()) == ("cancelled", last["response"])
    assert events[-1]["type"] == "response.completed"
    assert [event["type"] for event in events].count("response.output_item.added") == 1
    assert frames(reader.body)[: len(frames(dying.body))] == frames(dying.body)


def said_in(events: list[dict[str, Any]]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
