"""`pytest tests/golden --update-golden` writes the transcripts again from their scripts; the diff is the review."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/transcripts again")


@pytest.fixture(scope="session")
def updates_golden(request: pytest.FixtureRequest) -> bool:
    """Whether this run writes the transcripts instead of judging by them."""
    return bool(request.config.getoption("--update-golden", default=False))  # unknown when all of tests/ is run
