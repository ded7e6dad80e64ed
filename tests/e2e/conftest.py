"""Real servers for the end-to-end tests: one per module, over one fake vLLM, with a judge on every stream."""

from collections.abc import Iterator

import pytest

from tests.e2e.client import Api
from tests.e2e.judge import Judge
from tests.e2e.serving import Fleet, Server
from tests.fakes.running import FakeVllm, fake_vllm


@pytest.fixture(scope="session")
def running_fake() -> Iterator[FakeVllm]:
    """A fake vLLM that serves a harmony and a chat model."""
    with fake_vllm() as fake:
        yield fake


@pytest.fixture
def fake(running_fake: FakeVllm) -> FakeVllm:
    """The fake vLLM, which has forgotten what other tests told it."""
    running_fake.script()
    return running_fake


@pytest.fixture
def judge() -> Iterator[Judge]:
    """The judge of all streams of a test."""
    judge = Judge()
    yield judge
    judge.verdict()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, running_fake: FakeVllm) -> Iterator[Fleet]:
    """The servers of a module, on a SQLite file of its own."""
    folder = tmp_path_factory.mktemp("fleet")
    with Fleet(folder, f"sqlite:///{folder / 'log.db'}", engine="vllm", engine_url=running_fake.url) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def server(fleet: Fleet) -> Server:
    """The server of a module."""
    return fleet.start()


@pytest.fixture
def api(server: Server, judge: Judge, fake: FakeVllm) -> Api:
    """A user of the module's server."""
    return Api(server.url, judge)
