"""What the fault tests share. Nothing here is collected unless VERBATIM_TEST_FAULTS=1."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.serving import Fleet
from tests.faults.tier.laws import assert_laws
from tests.faults.tier.turn import held_script

ENABLED: Final = os.environ.get("VERBATIM_TEST_FAULTS") == "1"
collect_ignore_glob = [] if ENABLED else ["*"]

LEASE_SECONDS: Final = 1
"""Where somebody is to die soon. A busy machine may hold up somebody who lives for so long: one fault more."""
TIMEOUT_SECONDS: Final = 600
PATIENT: Final = {"database_wait_seconds": 120}
"""Nobody is told to come again, where that is not the test."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Faults take their time."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.timeout(TIMEOUT_SECONDS))


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """Held outputs go on when this file exists."""
    return tmp_path / "gate"


@pytest.fixture
def script(tmp_path: Path, gate: Path) -> Path:
    """What the scripted engine says; tests may write another one there."""
    return held_script(tmp_path / "script.json", gate)


@pytest.fixture
def settings(script: Path) -> dict[str, Any]:
    """The settings of all processes of a test."""
    return {"engine": "scripted", "script": script, "model": "gpt-oss", "lease_seconds": LEASE_SECONDS} | PATIENT


@pytest.fixture
def fleet(postgres_url: str, tmp_path: Path, settings: dict[str, Any]) -> Iterator[Fleet]:
    """Processes on PostgreSQL; whatever happens to them, the laws hold for what they leave."""
    with Fleet(tmp_path / "fleet", postgres_url, **settings) as fleet:
        yield fleet
        assert_laws(postgres_url)
