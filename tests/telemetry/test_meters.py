"""Each meter counts what it is told, on a registry of its own."""

from app.meters import Meters
from tests.telemetry.numbers import number


def test_two_sets_of_meters_know_nothing_of_each_other() -> None:
    one, other = Meters(), Meters()
    one.fenced()

    assert number(one.exposition().decode(), "verbatim_fences_total") == 1
    assert number(other.exposition().decode(), "verbatim_fences_total") == 0


def test_a_run_counts_while_it_runs_and_when_it_has_ended() -> None:
    meters = Meters()
    meters.run_began()
    meters.run_began()
    meters.run_ended("m", "completed", 2.0)
    meters.first_words("m", 0.5)
    meters.tokens_used("m", prompt=10, cached=4, generated=7)

    told = meters.exposition().decode()
    assert number(told, "verbatim_running") == 1
    assert number(told, "verbatim_runs_total", model="m", outcome="completed") == 1
    assert number(told, "verbatim_run_seconds_sum", model="m") == 2.0
    assert number(told, "verbatim_first_token_seconds_count", model="m") == 1
    kinds = ("prompt", "cached", "generated")
    assert [number(told, "verbatim_tokens_total", kind=kind) for kind in kinds] == [10, 4, 7]


def test_a_commit_counts_its_events_and_its_time() -> None:
    meters = Meters()
    meters.committed(30, 0.002)
    meters.committed(1, 0.001)

    told = meters.exposition().decode()
    assert number(told, "verbatim_commit_events_sum") == 31
    assert number(told, "verbatim_commit_seconds_count") == 2


def test_continuations_and_the_lag_of_the_tail_can_be_counted() -> None:
    meters = Meters()
    meters.run_continued("m")
    meters.tail_lagged(0.25)

    told = meters.exposition().decode()
    assert number(told, "verbatim_continuations_total", model="m") == 1
    assert number(told, "verbatim_tail_lag_seconds_sum") == 0.25
