"""When a writer counts as dead: only standing still that was watched counts, on one clock."""

from app.log.writers import STEPS, Sighting, observe

LEASE = 8.0


def after(looks: list[tuple[int, float]]) -> float:
    """For how long a writer was seen to stand still, after looks that saw a beat and came some seconds later."""
    seen: Sighting | None = None
    for beat, elapsed in looks:
        seen = observe(seen, beat, elapsed=elapsed, lease_seconds=LEASE)
    assert seen is not None
    return seen.still


def test_a_writer_is_alive_at_first_sight() -> None:
    assert after([(7, 100.0)]) == 0.0


def test_a_writer_that_stands_still_for_the_lease_time_is_dead() -> None:
    assert after([(7, 0.0), *[(7, 1.0)] * 7]) < LEASE
    assert after([(7, 0.0), *[(7, 1.0)] * 8]) >= LEASE


def test_a_beat_begins_it_anew() -> None:
    assert after([(7, 0.0), *[(7, 1.0)] * 7, (8, 1.0), (8, 1.0)]) == 1.0


def test_one_long_pause_buries_nobody() -> None:
    assert after([(7, 0.0), (7, 1.0), (7, 10_000.0)]) < LEASE / 2
    assert STEPS > 2
