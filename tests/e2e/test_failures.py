"""Rows of docs/failures.md that no other test shows."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from app.log.schema import migrate
from tests.e2e.client import CHAT, Api, text_of
from tests.e2e.judge import Judge, frames
from tests.e2e.serving import Fleet, Server, eventually, get, verify
from tests.fakes.running import FakeVllm, fake_vllm
from tests.servers import Postgres

AT_ONCE: Final = {"load": {"tokens": 900}}
SLOW: Final = AT_ONCE | {"pace_ms": 5}
HELD: Final = SLOW | {"fault": {"kind": "hold", "after": 450}}
CAN_NOT: Final = (
    "The process that ran this response ended in the middle of it, and this kind of model can't go on from there."
)


@pytest.fixture
def engine(running_fake: FakeVllm) -> dict[str, object]:
    return {"engine": "vllm", "engine_url": running_fake.url, "lease_seconds": 4}


def test_a_chat_response_whose_process_dies_fails_after_what_was_said(
    sqlite_url: str, tmp_path: Path, engine: dict[str, object], judge: Judge, fake: FakeVllm
) -> None:
    fake.script(HELD)
    with Fleet(tmp_path / "fleet", sqlite_url, **engine) as fleet:
        owner, other = fleet.launch(), fleet.launch(worker=False)
        here = Api(owner.await_health().url, judge, model=CHAT)
        there = Api(other.await_health().url, judge, model=CHAT)
        with here.stream(background=True) as stream, there.follow(stream.response_id) as reader:
            reader.until("response.output_text.delta", times=5)
            heir = fleet.launch()
            owner.kill()
            heir.await_health()
            stream.read_until_cut()
            events = reader.read()

    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    failed = events[-1]["response"]
    assert (failed["error"]["message"], failed["output"][-1]["status"]) == (CAN_NOT, "incomplete")
    assert frames(reader.body)[: len(frames(stream.body))] == frames(stream.body)


def test_a_harmony_stream_whose_engine_dies_goes_on_at_another_one(
    sqlite_url: str, tmp_path: Path, judge: Judge
) -> None:
    with ExitStack() as first, ExitStack() as second:
        engines = {end.enter_context(fake_vllm()): end for end in (first, second)}
        for engine in engines:
            engine.script(HELD)
        urls = ",".join(engine.url for engine in engines)
        with Fleet(tmp_path / "fleet", sqlite_url, engine="vllm", engine_url=urls) as fleet:
            api = Api(fleet.start().url, judge)
            with api.stream() as stream:
                stream.until("response.output_text.delta", times=5)
                shown = "".join(event["delta"] for event in stream.events if event["type"].endswith("text.delta"))
                lost = next(engine for engine in engines if engine.active())
                ending = engines.pop(lost)
                [other] = engines
                other.script({"text": " The end.<|return|>"})
                ending.close()
                events = stream.read()
        asked = [request["prompt_text"] for request in other.log()]

    assert events[-1]["type"] == "response.completed"
    assert [event["type"] for event in events].count("response.output_item.added") == 1
    assert len(asked) == 1
    assert shown in asked[0], "the other engine was not told what had been said"
    said = text_of(events[-1]["response"])
    assert said.startswith(shown)
    assert said.endswith(" The end.")


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[Postgres]:
    """A migrated server of the test's own, to be stopped."""
    with Postgres(tmp_path) as server:
        asyncio.run(migrate(server.url))
        yield server


@pytest.fixture
def server(postgres: Postgres, tmp_path: Path, engine: dict[str, object]) -> Iterator[Server]:
    started = Server(tmp_path / "server", engine | {"port": 0, "database_url": postgres.url}).await_health()
    try:
        yield started
        assert started.stop() == 0
    finally:
        started.kill()
    verify(postgres.url)


def test_while_the_database_is_away_streams_stand_still_and_nothing_is_taken(
    postgres: Postgres, server: Server, judge: Judge, fake: FakeVllm
) -> None:
    fake.script(SLOW | {"repeat": 2}, AT_ONCE)
    api = Api(server.url, judge)
    with api.stream() as foreground, api.stream(background=True) as background:
        foreground.until("response.output_text.delta", times=3)
        background.until("response.output_text.delta", times=3)

        postgres.stop(signal.SIGQUIT)
        refused = [api.post(background=True), api.get(background.response_id), get(f"{server.url}/health")]
        alive = get(f"{server.url}/livez").status_code
        postgres.start()

        ends = [foreground.read()[-1], background.read()[-1]]
    eventually(lambda: get(f"{server.url}/health").status_code == 200)

    assert [answer.status_code for answer in refused] == [503] * 3
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    assert alive == 200
    assert [end["type"] for end in ends] == ["response.completed"] * 2
    assert {text_of(end["response"]) for end in ends} == {text_of(api.create())}
