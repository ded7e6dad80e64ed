"""The `verbatim` command itself: what each subcommand prints and with which exit code."""

import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app import __version__
from app.cli import cli, main
from tests.e2e.client import ENDLESS, Api
from tests.e2e.judge import frames
from tests.e2e.serving import START_SECONDS, VERBATIM, Fleet, Server, environment, verify
from tests.fakes.running import FakeVllm

Run = Callable[..., subprocess.CompletedProcess[str]]

UNKNOWN = "resp_00000000000000000000000000000000"


def verbatim(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [VERBATIM, *words],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
    )


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run the command to its end in this process: what it prints does not depend on whose process it is."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["verbatim", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return subprocess.CompletedProcess(words, ended.value.code, *capsys.readouterr())

    return run


def lines_of(body: bytes) -> list[str]:
    """The events of a stream, as `verbatim tail` prints them."""
    return [frame.partition(b"data: ")[2].decode() for frame in frames(body)]


def test_version_is_told() -> None:
    told = verbatim("--version")

    assert (told.returncode, told.stdout, told.stderr) == (0, f"verbatim {__version__}\n", "")


def test_help_names_every_subcommand() -> None:
    told = verbatim("--help")

    assert told.returncode == 0
    assert all(name in told.stdout for name in ("serve", "migrate", "tail", "verify"))


def test_migrate_makes_a_database_and_may_be_repeated(run_here: Run, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'new.db'}"

    for _ in range(2):
        told = run_here("migrate", "--database-url", url)
        assert (told.returncode, told.stdout, told.stderr) == (0, "The database is up to date.\n", "")

    assert verify(url) == "0 responses verified, 0 unfinished, 0 differ.\n"


def test_tail_prints_the_events_of_a_running_response_until_its_end(api: Api, fake: FakeVllm, fleet: Fleet) -> None:
    fake.script(ENDLESS)
    with api.stream(background=True) as stream:
        command = [VERBATIM, "tail", stream.response_id, "--database-url", fleet.database_url]
        with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as tail:
            assert tail.stdout is not None
            first = tail.stdout.readline()
            api.cancel(stream.response_id)
            rest = tail.stdout.read()
        stream.read()

    assert tail.returncode == 0
    assert (first + rest).splitlines() == lines_of(stream.body)


def test_tail_begins_after_a_position(run_here: Run, api: Api, fleet: Fleet) -> None:
    with api.stream(background=True) as stream:
        stream.read()

    told = run_here("tail", stream.response_id, "--after", "5", "--database-url", fleet.database_url)

    assert told.returncode == 0
    assert told.stdout.splitlines() == lines_of(stream.body)[6:]


def test_tail_of_an_unknown_response_says_so(run_here: Run, server: Server, fleet: Fleet) -> None:
    told = run_here("tail", UNKNOWN, "--database-url", fleet.database_url)

    assert (told.returncode, told.stdout) == (1, "")
    assert told.stderr == f"Response with id '{UNKNOWN}' not found.\n"


@pytest.fixture
def copy(api: Api, fleet: Fleet, tmp_path: Path) -> Path:
    """A copy of a database that holds two finished responses or more."""
    for _ in range(2):
        api.create()
    path = tmp_path / "copy.db"
    with closing(sqlite3.connect(fleet.database_url.removeprefix("sqlite:///"))) as database:
        database.execute("VACUUM INTO ?", (str(path),))
    return path


def test_verify_finds_nothing_wrong_in_what_was_served(run_here: Run, copy: Path) -> None:
    told = run_here("verify", "--database-url", f"sqlite:///{copy}")

    assert (told.returncode, told.stderr) == (0, "")
    assert re.fullmatch(r"[1-9]\d* responses verified, \d+ unfinished, 0 differ\.\n", told.stdout)


def test_verify_counts_what_has_not_ended_apart(run_here: Run, copy: Path) -> None:
    open_one = "UPDATE responses SET status = 'in_progress', ended_at = NULL, terminal = NULL WHERE id = :id"
    with closing(sqlite3.connect(copy)) as database, database:
        [[one]] = database.execute("SELECT max(id) FROM responses WHERE ended_at IS NOT NULL")
        database.execute(open_one, {"id": one})
        [[every, ended]] = database.execute("SELECT count(*), count(ended_at) FROM responses")

    told = run_here("verify", "--database-url", f"sqlite:///{copy}")

    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout == f"{ended} responses verified, {every - ended} unfinished, 0 differ.\n"


@pytest.mark.parametrize("place", ["first page", "some page", "a table's page"])
def test_verify_of_a_corrupt_file_is_one_sentence_and_exit_code_1(run_here: Run, copy: Path, place: str) -> None:
    with closing(sqlite3.connect(copy)) as database:
        [[root]] = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'segments'")
        [[size]] = database.execute("PRAGMA page_size")
    with copy.open("r+b") as file:
        file.seek({"first page": 0, "some page": 100, "a table's page": (root - 1) * size}[place])
        file.write(b"\xff" * 60)

    told = run_here("verify", "--database-url", f"sqlite:///{copy}")

    assert (told.returncode, told.stdout) == (1, "")
    [sentence] = told.stderr.splitlines()
    assert sentence.startswith(f"The database file {copy} is damaged: ")
    assert sentence.endswith(".")


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE segments SET events = (SELECT events FROM segments WHERE response = :other) WHERE response = :id",
        "UPDATE segments SET events = substr(events, 1, length(events) - 20) WHERE response = :id",
        "UPDATE segments SET events = x'' WHERE response = :id",
        "UPDATE segments SET first = first + 1 WHERE response = :id",
        "DELETE FROM segments WHERE response = :id",
        "UPDATE responses SET terminal = (SELECT terminal FROM responses WHERE id = :other) WHERE id = :id",
        "UPDATE responses SET terminal = NULL WHERE id = :id",
    ],
)
def test_verify_names_the_response_whose_record_was_damaged(copy: Path, damage: str) -> None:
    with closing(sqlite3.connect(copy)) as database:
        [[victim], [other]] = database.execute("SELECT id FROM responses WHERE ended_at IS NOT NULL LIMIT 2")
        with database:
            assert database.execute(damage, {"id": victim, "other": other}).rowcount == 1

    told = CliRunner().invoke(cli, ["verify", "--database-url", f"sqlite:///{copy}"])

    assert told.exit_code == 1
    *differences, summary = told.output.splitlines()
    assert [line.partition(":")[0] for line in differences] == [victim]
    assert summary.endswith(" unfinished, 1 differ.")
    assert other not in told.output


@pytest.mark.parametrize("words", [("verify",), ("tail", UNKNOWN)])
def test_a_database_that_is_not_there_is_not_made(run_here: Run, tmp_path: Path, words: tuple[str, ...]) -> None:
    path = tmp_path / "nothing.db"

    told = run_here(*words, "--database-url", f"sqlite:///{path}")

    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr == f"There is no database at '{path}': run `verbatim migrate`.\n"
    assert not path.exists()


def test_verify_of_a_damaged_record_is_exit_code_1(copy: Path) -> None:
    with closing(sqlite3.connect(copy)) as database, database:
        database.execute("DELETE FROM segments WHERE response = (SELECT max(response) FROM segments)")

    assert verbatim("verify", "--database-url", f"sqlite:///{copy}").returncode == 1
