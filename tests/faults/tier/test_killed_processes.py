"""`kill -9` of a worker, or of the process that clients read from, at every token of a turn."""

import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from tests.e2e.serving import Fleet
from tests.faults.tier.conftest import LEASE_SECONDS
from tests.faults.tier.readers import Reader, Readers, reading, start, until
from tests.faults.tier.turn import TOOLS, UNDISTURBED, Where, name, plain, positions, seen, visible, where
from tests.oracle import assert_keeps_invariants

LONG_LEASE_SECONDS: Final = 10
EVERY_PLACE: set[Where] = {"reasoning", "message", "arguments", "between items", "header", "character"}


def create(readers: Readers, url: str, copy: int) -> Reader:
    return readers.create(url, name(copy), tools=TOOLS)


async def all_held(held: dict[int, Reader]) -> None:
    """Wait until everybody sees everything up to where the engine is held."""
    for position, reader in held.items():
        await until(lambda: seen(reader.events) == visible(position), what=f"being held at {position}")  # noqa: B023


def assert_told_alike(whole: Reader, *others: Reader, after: int = -1) -> None:
    """Byte for byte the same, and a proper stream."""
    for other in others:
        assert other.ended
        assert other.frames == whole.frames[after + 1 :]


async def test_a_worker_may_die_at_any_token(fleet: Fleet, gate: Path) -> None:
    places = Counter(map(where, positions()))
    assert set(places) == EVERY_PLACE
    assert len(positions()) >= 60
    front, other, worker = await start(fleet, {"worker": False}, {"worker": False}, {"command": "worker"})
    async with reading() as readers:
        live = {position: create(readers, front.url, position) for position in positions()}
        await all_held(live)
        elsewhere = {n: readers.follow(other.url, reader.response_id) for n, reader in live.items()}
        leaving = {n: readers.follow(other.url, reader.response_id) for n, reader in live.items()}
        await all_held(elsewhere)
        await all_held(leaving)
        await start(fleet, {"command": "worker"})
        before = {n: list(reader.frames) for n, reader in live.items()}
        for reader in leaving.values():
            readers.stop(reader)

        worker.kill()
        killed_at = time.monotonic()
        gate.touch()

        back = {n: readers.follow(front.url, live[n].response_id, one.position) for n, one in leaving.items()}
        undisturbed = create(readers, front.url, UNDISTURBED)

    waits = [reader.times[len(before[n])] - killed_at for n, reader in live.items()]
    expected = plain(undisturbed.response)
    for n, whole in live.items():
        assert whole.frames[: len(before[n])] == before[n]
        assert_told_alike(whole, elsewhere[n])
        assert_told_alike(whole, back[n], after=leaving[n].position)
        assert plain(whole.response) == expected, f"killed at token {n}, in a {where(n)}"
        assert_keeps_invariants(bytes(whole.body))
    print(f"\nkill to next event, lease {LEASE_SECONDS} s: {min(waits):.2f} to {max(waits):.2f} s")


async def test_the_process_that_clients_read_from_may_die_at_any_token(fleet: Fleet, gate: Path) -> None:
    kinds: list[dict[str, Any]] = [{"worker": False}, {"worker": False}, {"command": "worker"}]
    # nobody waits for a lease here, and who is slow must not be held dead: what runs in the front ends with it
    front, other, _ = await start(fleet, *(kind | {"lease_seconds": LONG_LEASE_SECONDS} for kind in kinds))
    async with reading() as readers:
        live = {position: create(readers, front.url, position) for position in positions()}
        elsewhere = readers.create(front.url, name(40), background=False)
        await all_held(live)
        await until(lambda: seen(elsewhere.events) == visible(40))

        front.kill()
        gate.touch()

        await until(lambda: all(reader.cut for reader in live.values()))
        back = {n: readers.follow(other.url, reader.response_id, reader.position) for n, reader in live.items()}
        whole = {n: readers.follow(other.url, reader.response_id) for n, reader in live.items()}
        undisturbed = create(readers, other.url, UNDISTURBED)

    expected = plain(undisturbed.response)
    for n, reader in live.items():
        assert reader.frames + back[n].frames == whole[n].frames
        assert plain(whole[n].response) == expected
        assert_keeps_invariants(bytes(whole[n].body))
