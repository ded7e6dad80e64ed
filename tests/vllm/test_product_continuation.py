"""What dies in the middle of a turn: a real vLLM goes on token for token, or the turn fails in order (law L9)."""

from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.client import Api, text_of
from tests.e2e.judge import Judge, frames
from tests.e2e.serving import Fleet
from tests.vllm.cable import BYTES_FOR_EACH_TOKEN, SOME_BYTES, cable_to
from tests.vllm.models.scenarios import STORY, WEATHER
from tests.vllm.prompts import Prompts
from tests.vllm.server import Vllm

LEASE_SECONDS: Final = 2
PATIENCE_SECONDS: Final = 180.0
FEW_BYTES: Final = 5_000
"""Of vLLM's answers: the model's card and a thought."""
ASKED: Final[dict[str, Any]] = {"input": STORY.user, "temperature": 0, **BYTES_FOR_EACH_TOKEN}


@pytest.fixture
def fleet(sqlite_url: str, tmp_path: Path, gpt_oss_server: Vllm) -> Iterator[Fleet]:
    """Servers of the test's own. Only who is to inherit has a short lease."""
    settings = {"engine": "vllm", "engine_url": f"{gpt_oss_server.url}/v1", "lease_seconds": 60}
    with Fleet(tmp_path / "fleet", sqlite_url, **settings) as fleet:
        yield fleet


def assert_told_whole(response: dict[str, Any], prompts: Prompts) -> None:
    """As if nothing had happened."""
    assert (response["status"], response["error"]) == ("completed", None)
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
    assert text_of(response) == STORY.final
    thought = f"<|channel|>analysis<|message|>{STORY.first.analysis}<|end|><|start|>assistant"
    said = prompts.ids(f"{thought}<|channel|>final<|message|>{STORY.final}<|return|>")
    assert response["usage"]["output_tokens"] == len(said)


def assert_failed(events: list[dict[str, Any]]) -> None:
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    failed = events[-1]["response"]
    assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
    assert failed["output"][-1]["status"] == "incomplete"


def test_a_turn_whose_engine_breaks_off_again_and_again_is_told_whole(
    fleet: Fleet, judge: Judge, gpt_oss_server: Vllm, prompts: Prompts
) -> None:
    with cable_to(gpt_oss_server.url) as cable:
        api = Api(fleet.start(engine_url=f"{cable.url}/v1").url, judge)
        cable.ration(FEW_BYTES)
        with api.stream(**ASKED) as stream:
            for shown, ration in ("response.reasoning_text.delta", SOME_BYTES), ("response.output_text.delta", inf):
                stream.until(shown)
                cable.cut()
                cable.ration(ration)
            events = stream.read()

    assert cable.connections > 1
    assert_told_whole(events[-1]["response"], prompts)


def test_a_held_turn_whose_engine_breaks_off_fails(fleet: Fleet, judge: Judge, gpt_oss_server: Vllm) -> None:
    """What the grammar has seen cannot be told to the engine again."""
    # no free text: in one the lost model writes markers, which end the call wherever they come
    cities = {"type": "array", "items": {"type": "string", "enum": ["Oslo"]}, "minItems": 1000}
    many = {"type": "object", "properties": {"cities": cities}, "required": ["cities"], "additionalProperties": False}
    tool = {"type": "function", "name": "get_weather", "parameters": many, "strict": False}
    with cable_to(gpt_oss_server.url) as cable:
        api = Api(fleet.start(engine_url=f"{cable.url}/v1").url, judge)
        cable.ration(2 * SOME_BYTES)
        # what is taught to end in this call: after other words the lost model thinks for as long as it likes
        with api.stream(tools=[tool], tool_choice="required", **ASKED | {"input": WEATHER.user}) as stream:
            stream.until("response.function_call_arguments.delta")
            cable.cut()
            events = stream.read()

    assert_failed(events)


def test_a_chat_whose_engine_breaks_off_fails(fleet: Fleet, judge: Judge, smollm2_server: Vllm) -> None:
    asked = ASKED | {"input": "Count to a thousand.", "logit_bias": {"0": -100, "2": -100}}
    with cable_to(smollm2_server.url) as cable:
        api = Api(fleet.start(engine_url=f"{cable.url}/v1").url, judge, model=smollm2_server.model)
        cable.ration(SOME_BYTES)
        with api.stream(**asked) as stream:
            stream.until("response.output_text.delta")
            cable.cut()
            events = stream.read()

    assert_failed(events)


def test_a_run_whose_server_is_killed_is_told_whole_by_another(
    fleet: Fleet, judge: Judge, gpt_oss_server: Vllm, prompts: Prompts
) -> None:
    with cable_to(gpt_oss_server.url) as cable:
        owner = fleet.start(engine_url=f"{cable.url}/v1")
        cable.ration(SOME_BYTES)
        with Api(owner.url, judge).stream(background=True, **ASKED) as begun:
            begun.until("response.output_text.delta")
            owner.kill()
            begun.read_until_cut()

    after = Api(fleet.start(lease_seconds=LEASE_SECONDS).url, judge)

    ended = after.ended(begun.response_id, within=PATIENCE_SECONDS)
    assert_told_whole(ended, prompts)
    shown = frames(begun.body)
    assert frames(after.replay(begun.response_id))[: len(shown)] == shown
