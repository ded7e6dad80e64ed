"""Fixtures for all tests: databases that are migrated once."""

import asyncio
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

import asyncpg
import pytest
from hypothesis import HealthCheck, settings

from app.log.schema import migrate
from app.log.tables import metadata
from tests.servers import Postgres, Valkey

# Whether a change may land is no matter of luck or speed; `--hypothesis-profile=default` looks for new examples.
settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")

DISCONNECT = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file."""
    path = tmp_path_factory.mktemp("template") / "log.db"
    asyncio.run(migrate(f"sqlite:///{path}"))
    return path


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """A migrated SQLite file of the test's own."""
    path = tmp_path / "log.db"
    shutil.copy(sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server: `TEST_POSTGRES_URL`, or one that is started for this run."""
    if (url := os.environ.get("TEST_POSTGRES_URL")) is not None:
        yield url
        return
    with Postgres(tmp_path_factory.mktemp("postgres")) as server:
        yield server.url


@pytest.fixture(scope="session")
def postgres_database(postgres_server: str) -> Iterator[str]:
    """A migrated database."""
    with _new_database(postgres_server) as url:
        asyncio.run(migrate(url))
        yield url


@pytest.fixture
def postgres_url(postgres_database: str) -> Iterator[str]:
    """A migrated, empty PostgreSQL database: emptied after each test, because copying one takes a second."""
    yield postgres_database
    asyncio.run(_execute(postgres_database, DISCONNECT, f"TRUNCATE {', '.join(metadata.tables)}"))


@pytest.fixture
def empty_postgres_url(postgres_server: str) -> Iterator[str]:
    """A PostgreSQL database without any table."""
    with _new_database(postgres_server) as url:
        yield url


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """The URL of a Redis: `TEST_REDIS_URL`, or a Valkey that is started for this run. Keys get prefixes."""
    if (url := os.environ.get("TEST_REDIS_URL")) is not None:
        yield url
        return
    with Valkey() as server:
        yield server.url


@contextmanager
def _new_database(server: str) -> Iterator[str]:
    name = f"verbatim_{token_hex(8)}"
    asyncio.run(_execute(server, f"CREATE DATABASE {name}"))
    yield f"{server.rpartition('/')[0]}/{name}"
    asyncio.run(_execute(server, f"DROP DATABASE {name} WITH (FORCE)"))


async def _execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    for statement in statements:
        await connection.execute(statement)
    await connection.close()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A skipped test is no passed one: it fails the run."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and reporter.stats.get("skipped"):
        reporter.write_line("\ntests were skipped: that fails the run", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
