"""What follows a writer's journal leaves nothing behind when its last reader has gone."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from app.log import scanner
from app.log.packing import Folded
from app.log.record import Record
from app.log.scanner import Scanner
from app.log.tail import NoTail
from app.ports import Hearer
from tests.contracts.logs import until


class Journal(Record):
    """A journal without rows; a look at it ends when it may."""

    def __init__(self) -> None:
        self.looks = 0
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def journal_of(self, writer: int) -> str | None:
        return f"{writer}:a"

    async def rows(self, writer: int, *, after: int) -> AsyncIterator[tuple[int, list[Folded]]]:
        self.looks += 1
        await self.may_end.wait()
        rows: list[tuple[int, list[Folded]]] = []
        for row in rows:
            yield row


class Followers(NoTail):
    """A tail that only knows who follows what."""

    def __init__(self) -> None:
        self.hearers: dict[str, Hearer] = {}

    def follow(self, journal: str, hearer: Hearer) -> None:
        self.hearers[journal] = hearer

    def leave(self, journal: str) -> None:
        self.hearers.pop(journal, None)


@pytest.mark.parametrize("live", [True, False])
async def test_one_that_is_stopped_in_mid_look_does_not_follow_again(
    live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanner, "QUIET_SECONDS", 0.0)
    journal, tail = Journal(), Followers()
    old = Scanner(journal, tail, 1)

    async def is_followed() -> bool:
        return tail.hearers == {"1:a": old}

    await until(is_followed)
    old.tuned(False)  # after a break the tail has to tell news before it is trusted
    old.tuned(live)
    journal.may_end.clear()
    looks = journal.looks

    async def is_looked_at() -> bool:
        return journal.looks > looks

    await until(is_looked_at)

    old.stop()
    new = Scanner(journal, tail, 1)
    tail.follow("1:a", new)
    journal.may_end.set()
    await old.task

    assert tail.hearers == {"1:a": new}
    new.stop()
    await new.task
    assert tail.hearers == {}
