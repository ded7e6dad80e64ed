"""One server over two engines of the same model: conversations keep to one, and an engine that dies is not missed."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.client import CHAT, HARMONY, Api
from tests.e2e.judge import Judge
from tests.e2e.serving import Fleet
from tests.fakes.running import FakeVllm, fake_vllm


class Pair:
    """Two engines, and a user of the server over both."""

    def __init__(self, engines: list[FakeVllm], ends: list[ExitStack], api: Api) -> None:
        self.engines, self._ends, self.api = engines, ends, api

    def kill(self, engine: FakeVllm) -> None:
        """End an engine's process."""
        self._ends[self.engines.index(engine)].close()

    def asked(self) -> list[int]:
        """How many requests each engine has seen."""
        return [len(engine.log()) for engine in self.engines]


@pytest.fixture(params=(HARMONY, CHAT))
def pair(request: pytest.FixtureRequest, tmp_path: Path, judge: Judge) -> Iterator[Pair]:
    with ExitStack() as first, ExitStack() as second:
        engines = [first.enter_context(fake_vllm()), second.enter_context(fake_vllm())]
        urls = ",".join(engine.url for engine in engines)
        with Fleet(tmp_path / "fleet", f"sqlite:///{tmp_path / 'log.db'}", engine="vllm", engine_url=urls) as fleet:
            api = Api(fleet.start().url, judge, model=request.param)
            yield Pair(engines, [first, second], api)


def test_conversations_are_spread_and_each_keeps_to_its_engine(pair: Pair) -> None:
    number = 0
    while number < 12 or not all(pair.asked()):
        number += 1
        assert number < 60, "one engine gets all conversations"
        before = pair.asked()
        # longer than what chooses the engine: a beginning that a second turn would still change does not count
        opening = pair.api.create(input=f"Number {number}. " + "Tell me about the sea. " * 120)
        once = pair.asked()
        pair.api.create(input="And then?", previous_response_id=opening["id"])
        twice = pair.asked()
        assert [new - old for old, new in zip(once, twice, strict=True)] == [
            new - old for old, new in zip(before, once, strict=True)
        ]


def test_an_engine_that_dies_is_not_missed(pair: Pair) -> None:
    answers = [pair.api.create(input=f"Number {number}") for number in range(4)]
    pair.kill(pair.engines[0])

    answers += [pair.api.create(input=f"Number {number}") for number in range(12)]
    with pair.api.stream(input="And in the background", background=True) as stream:
        stream.read()

    assert {answer["status"] for answer in answers} == {"completed"}
    assert pair.api.retrieve(stream.response_id)["status"] == "completed"


@pytest.mark.parametrize("pair", [CHAT], indirect=True)  # a harmony stream goes on elsewhere: test_failures.py
def test_a_stream_whose_engine_dies_fails_and_the_next_one_does_not(pair: Pair) -> None:
    for engine in pair.engines:
        engine.script({"load": {"tokens": 4000}, "pace_ms": 5})
    with pair.api.stream() as stream:
        stream.until("response.output_text.delta")
        pair.kill(next(engine for engine in pair.engines if engine.active()))
        events = stream.read()

    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["code"] == "server_error"
    with pair.api.stream() as stream:
        stream.until("response.output_text.delta")


def test_when_all_engines_are_gone_the_error_says_so_and_no_more(pair: Pair) -> None:
    assert pair.api.create()["status"] == "completed"
    for engine in pair.engines:
        pair.kill(engine)

    for _ in range(2):  # before and after they were set aside
        status, error = pair.api.refused()
        assert (status, error["message"]) == (502, "The engine could not be reached.")
