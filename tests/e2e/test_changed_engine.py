"""An engine that comes later than its server, or comes back with another model."""

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.client import CHAT, HARMONY, Api
from tests.e2e.judge import Judge
from tests.e2e.serving import Fleet, eventually
from tests.fakes.running import fake_vllm
from tests.ports import free_port


@pytest.mark.parametrize("model", [HARMONY, CHAT])
def test_an_engine_that_comes_back_with_another_model(tmp_path: Path, judge: Judge, model: str) -> None:
    with ExitStack() as old, ExitStack() as new:
        port = str(free_port())  # none of those that the system gives to others while nobody listens
        engine = old.enter_context(fake_vllm("--port", port))
        fleet = new.enter_context(
            Fleet(tmp_path / "fleet", f"sqlite:///{tmp_path / 'log.db'}", engine="vllm", engine_url=engine.url)
        )
        api = Api(fleet.start().url, judge, model=model)
        api.create(input="You are here.")
        old.close()
        new.enter_context(fake_vllm("--port", port, "--model", "another", "--model", "gpt-oss-other"))

        # the engine says so to the first one, and then this server knows it
        told = [api.refused(input="Are you there?", background=background) for background in (False, False, True)]

        assert {(status, error["code"]) for status, error in told} == {(404, "model_not_found")}
        assert api.create(model="another", input="Who are you?")["status"] == "completed"


@pytest.mark.parametrize("settings", [{}, {"model": CHAT}, {"model": CHAT, "engine": "chat"}])
def test_an_engine_that_is_not_there_is_one_warning_at_the_start(
    tmp_path: Path, judge: Judge, settings: dict[str, str]
) -> None:
    port = free_port()
    url = f"http://user:secret@127.0.0.1:{port}/v1"
    with Fleet(tmp_path / "fleet", f"sqlite:///{tmp_path / 'log.db'}", engine="vllm", engine_url=url) as fleet:
        server = fleet.start(**settings)

        def warnings() -> list[str]:
            whole, _, _ = server.stderr.rpartition("\n")
            lines = [json.loads(line) for line in whole.splitlines()]
            return [line["event"] for line in lines if line["level"] == "warning"]

        eventually(warnings, what="the warning")
        [told] = warnings()
        assert told == f"engine at http://127.0.0.1:{port}/v1/models lists no models: EngineUnreachable, status 502"
        with fake_vllm("--port", str(port)):
            answer = eventually(lambda: Api(server.url, judge, model=CHAT).post(input="Hi?").status_code == 200)
            assert answer
