"""Which adapters the contracts are checked on. Test files never name one."""

from collections.abc import AsyncIterator

import pytest

from tests.contracts.logs import Backend, Log

SHARED = ("sqlite", "postgres", "postgres+redis")


def _backend(request: pytest.FixtureRequest) -> Backend:
    database, _, redis = request.param.partition("+")
    urls = [request.getfixturevalue(f"{name}_url") for name in (database, redis) if name]
    return Backend(*urls)


@pytest.fixture(params=("memory", *SHARED))
def any_place(request: pytest.FixtureRequest) -> Backend:
    """Every adapter of the event log."""
    return Backend() if request.param == "memory" else _backend(request)


@pytest.fixture(params=SHARED)
def shared_place(request: pytest.FixtureRequest) -> Backend:
    """Adapters whose record outlives a process and is shared by several."""
    return _backend(request)


@pytest.fixture
async def backend(any_place: Backend) -> AsyncIterator[Backend]:
    """Every adapter; what was started is closed at the end."""
    yield any_place
    await any_place.stop()


@pytest.fixture
async def shared(shared_place: Backend) -> AsyncIterator[Backend]:
    """Shared adapters; what was started is closed at the end."""
    yield shared_place
    await shared_place.stop()


@pytest.fixture
async def log(backend: Backend) -> Log:
    """One registered log."""
    log: Log = await backend.start()
    return log
