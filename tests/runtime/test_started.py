"""A response that has been accepted, as its client sees it."""

import pytest

from app.errors import LogUnavailable, VerbatimError
from app.log.memory import MemoryLog
from app.ports import Header
from app.runtime.started import terminal_response
from tests.contracts.logs import header

TERMINAL = b'{"type":"response.completed","sequence_number":2,"response":{"id":"resp_1"}}'


class Away(MemoryLog):
    """A log whose database is away for some questions."""

    def __init__(self, *, questions: int) -> None:
        super().__init__()
        self.questions = questions

    async def header(self, response_id: str) -> Header | None:
        """See `EventLog.header`."""
        self.questions -= 1
        if self.questions >= 0:
            raise LogUnavailable
        return await super().header(response_id)


async def test_what_has_ended_is_told_however_long_the_database_is_away() -> None:
    log = Away(questions=3)
    await log.open(header(), [b"{}", b"{}"], queued=False)
    await log.append("resp_1", [TERMINAL], expected_version=1, status="completed")
    assert await terminal_response(log, "resp_1") == b'{"id":"resp_1"}'
    assert log.questions < 0


async def test_what_was_deleted_meanwhile_is_an_error() -> None:
    with pytest.raises(VerbatimError, match="deleted"):
        await terminal_response(Away(questions=1), "resp_1")
