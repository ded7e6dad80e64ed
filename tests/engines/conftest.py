"""One fake vLLM for all tests of a module, and an address where no engine is."""

from collections.abc import Iterator

import pytest

from tests.fakes.running import FakeVllm, fake_vllm
from tests.ports import refusing_port


@pytest.fixture(scope="module")
def running_fake() -> Iterator[FakeVllm]:
    with fake_vllm() as server:
        yield server


@pytest.fixture
def fake(running_fake: FakeVllm) -> FakeVllm:
    running_fake.script()
    return running_fake


@pytest.fixture
def nowhere() -> Iterator[str]:
    """A base URL; whoever connects is refused."""
    with refusing_port() as port:
        yield f"http://127.0.0.1:{port}/v1"
