"""The laws, held against what a test leaves in the log."""

import asyncio
from typing import Final

from app.log.sql import SqlLog, open_log
from app.responses.events import ENDED, TERMINAL, decode
from app.runtime.verification import verdicts
from tests.contracts.logs import Backend
from tests.faults.tier.readers import until_answered

_OPEN: Final = "SELECT id FROM responses WHERE ended_at IS NULL"


def assert_laws(url: str) -> None:
    """Every stream has exactly one end, dense positions, and folds to its end.

    Servers may still be at work: what one of them left when it died is still to be taken up and ended.
    """
    asyncio.run(_assert_laws(url))


async def _assert_laws(url: str) -> None:
    async def all_ended() -> bool:
        return not await Backend(url).query(_OPEN)

    await until_answered(all_ended, what="the end of every stream")
    log = await open_log(url)
    try:
        async for response_id in log.ids():
            await _assert_stream(log, response_id)
        wrong = [verdict async for verdict in verdicts(log) if verdict.difference is not None]
    finally:
        await log.close()
    assert wrong == []


async def _assert_stream(log: SqlLog, response_id: str) -> None:
    header = await log.header(response_id)
    assert header is not None
    events = [decode(data) for data in (await log.read(response_id, after=-1)).events]
    ends = [event.position for event in events if event.type in TERMINAL]
    assert [event.position for event in events] == list(range(len(events))), f"{response_id} has a hole"
    assert header.status in ENDED, f"{response_id} is still {header.status}"
    assert ends == [len(events) - 1], f"{response_id} ends at {ends} of {len(events)}"
    assert (header.owner, header.version) == (None, len(events) - 1)
