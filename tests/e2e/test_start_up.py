"""What can be wrong at the start is one sentence on stderr and exit code 2, and nothing is served."""

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from app.cli import main
from app.main import announce
from app.settings import Settings
from tests.e2e.serving import START_SECONDS, VERBATIM, Server, environment

STARTS: Final[dict[str, str]] = {
    "taken port": r"Can't listen on 127\.0\.0\.1:\d+: .*in use; choose another with --port\.",
    "missing weights": r".*/nowhere\.gguf.*",
    "unwritable database": r".*/no-folder.*",
    "missing script": r"The script file .*/nothing\.toml can not be read\.",
}
DATABASES: Final[dict[str, str]] = {
    "sqlite:///{folder}/nowhere/log.db": r".*/nowhere' does not exist\.",
    "sqlite:///{folder}": r"The database sqlite:///.* cannot be opened: .*",
    "sqlite:///{folder}/text": r"The database sqlite:///.*text cannot be opened: .*file is not a database\.",
    "mysql://127.0.0.1/verbatim": r"The database 'mysql' is not supported: .*",
    "postgresql://postgres:secret@127.0.0.1:1/verbatim": (
        r"The database postgresql://postgres:\*\*\*@127\.0\.0\.1:1/verbatim cannot be opened: .*refused\."
    ),
}
SETTINGS: Final[dict[str, tuple[dict[str, str], str]]] = {
    "port": ({"port": "70000"}, r"Setting VERBATIM_PORT is wrong: .*"),
    "no number": ({"max_queued_runs": "many"}, r"Setting VERBATIM_MAX_QUEUED_RUNS is wrong: .*"),
    "lease": ({"lease_seconds": "0"}, r"Setting VERBATIM_LEASE_SECONDS is wrong: .*"),
    "engine": ({"engine": "steam"}, r"Setting VERBATIM_ENGINE is wrong: .*'embedded'.*"),
    "engine url": ({"engine": "vllm"}, r"Engine 'vllm' needs a URL: set VERBATIM_ENGINE_URL.*"),
    "keys that are none": ({"api_keys": " , "}, r"Setting VERBATIM_API_KEYS is wrong: .*"),
    "a slip in a name": ({"api_key": "secret"}, r"There is no setting .*_KEY; perhaps VERBATIM_API_KEYS is meant\."),
    "no such file": ({"config": "/nowhere.toml"}, r"VERBATIM_CONFIG names a file that is not there: .*"),
    "no scheme": (
        {"engine": "vllm", "engine_url": "127.0.0.1:8000"},
        r"Setting VERBATIM_ENGINE_URL is wrong: '127\.0\.0\.1:8000' is no URL; write it like http.*",
    ),
    "a password and a key": (
        {"engine": "vllm", "engine_url": "http://me:secret@gpu-1:8000/v1", "engine_api_key": "secret"},
        r"Setting VERBATIM_ENGINE_URL holds a name or password, and there is an API key too: give one\.",
    ),
    "no engine for a URL": (
        {"engine_url": "http://gpu-1:8000/v1"},
        r"Setting VERBATIM_ENGINE_URL is not for engine 'embedded': set VERBATIM_ENGINE to 'vllm' or 'chat'\.",
    ),
    "no engine for a script": (
        {"script": "script.toml"},
        r"Setting VERBATIM_SCRIPT is not for engine 'embedded': set VERBATIM_ENGINE to 'scripted'\.",
    ),
    "keys under another name": ({"keys": "secret"}, r"There is no .*; perhaps VERBATIM_API_KEYS is meant\."),
    "processes on SQLite": ({"processes": "2"}, r"Setting VERBATIM_PROCESSES above 1 needs PostgreSQL: .*"),
    "no Redis": ({"redis_url": "localhost"}, r"Setting VERBATIM_REDIS_URL is wrong: it must look like redis://.*"),
    "models": ({"models": "[]"}, r"Setting VERBATIM_MODELS is none: models are tables in verbatim\.toml\."),
    "chat url": ({"engine": "chat"}, r"Engine 'chat' needs a URL: set VERBATIM_ENGINE_URL.*"),
}
WORDS: Final[dict[str, str]] = {
    "serve --port x": r"Option --port is wrong: Input should be a valid integer, .*\.",
    "serve --processes many": r"Option --processes is wrong: Input should be a valid integer, .*\.",
    "serve --prot 80": r"No such option: --prot .*--port.*\.",
    "serve --port": r"Option '--port' requires an argument\.",
    "serve --worker=yes": r".*--worker.*\.",
    "serve here": r"Got unexpected extra argument\(s\) \(here\)\.",
    "worker --port x": r"Option --port is wrong: Input should be a valid integer, .*\.",
    "tail": r"Missing argument 'response_id'\.",
    "tail resp_1 --after x": r"Option --after is wrong: Input should be a valid integer, .*\.",
    "swerve": r"No such command 'swerve'\. Did you mean 'serve'\?",
    "--verison": r"No such option: --verison .*--version.*\.",
    "migrate --database-url": r"Option '--database-url' requires an argument\.",
}
FILES: Final[dict[str, tuple[str, str]]] = {
    "no toml": ("port = ", r"verbatim\.toml can't be read: .*"),
    "a wrong value": ("port = 70000", r"Setting 'port' in verbatim\.toml is wrong: Input should be less .*\."),
    "unknown name": ("colour = 1", r"There is no setting 'colour'\. It stands in verbatim\.toml\."),
    "a slip": ("prot = 80", r"There is no setting 'prot'; perhaps 'port' is meant\. It stands in verbatim\.toml\."),
    "an address that is none": (
        'redis_url = "localhost"',
        r"Setting 'redis_url' in verbatim\.toml is wrong: it must look like redis://host:6379/0, .*",
    ),
    "a slip in a model": (
        '[[models]]\nengin = "vllm"',
        r"There is no setting 'models\[0\]\.engin'; perhaps 'engine' is meant\. It stands in verbatim\.toml\.",
    ),
    "a variable in the file": ("VERBATIM_PORT = 80", r"There is no setting .*; perhaps 'port' is meant\. .*"),
    "a variable in a model": (
        '[[models]]\nengine_url = "http://gpu-1:8000/v1"',
        r"There is no setting 'models\[0\]\.engine_url'; perhaps 'url' is meant\. .*",
    ),
    "one bracket": (
        '[models]\nname = "a"',
        r"Setting 'models' in verbatim\.toml is wrong: write \[\[models\]\], in two brackets, above each model\.",
    ),
    "a URL for the built-in model": (
        '[[models]]\nengine = "embedded"\nurl = "http://gpu-1:8000/v1"',
        r"Setting 'models\[0\]\.url' in verbatim\.toml is not for engine 'embedded': set 'engine' to 'vllm' or .*\.",
    ),
    "a slip in the sampling of a model": (
        '[[models]]\nengine = "embedded"\nsampling = {temprature = 1}',
        r"There is no setting 'models\[0\]\.sampling\.temprature'; perhaps 'temperature' is meant\. .*",
    ),
    "a wrong value in a model": (
        '[[models]]\nengine = "embedded"\n[[models]]\nengine = "steam"',
        r"Setting 'models\[1\]\.engine' in verbatim\.toml is wrong: .*'embedded'.*",
    ),
    "two models of one name": (
        '[[models]]\nname = "a"\nengine = "scripted"\n[[models]]\nname = "a"\nengine = "embedded"',
        r"2 tables of 'models' in verbatim\.toml have the name 'a'\.",
    ),
    "a model without a URL": (
        '[[models]]\nengine = "chat"',
        r"Engine 'chat' needs a URL: set 'models\[0\]\.url' in verbatim\.toml, for example http.*",
    ),
    "a URL of a model that is none": (
        '[[models]]\nurl = "gpu-1"',
        r"Setting 'models\[0\]\.url' in verbatim\.toml is wrong: 'gpu-1' is no URL; write it like http.*",
    ),
    "processes on SQLite": (
        "processes = 2",
        r"Setting 'processes' in verbatim\.toml above 1 needs PostgreSQL: set VERBATIM_DATABASE_URL\.",
    ),
    "Redis beside SQLite": (
        'redis_url = "redis://localhost"',
        r"Setting 'redis_url' in verbatim\.toml goes with PostgreSQL only: .*",
    ),
}


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    """All servers that can't start, started at once: each is a process of its own and takes its time."""
    folder = tmp_path_factory.mktemp("start")
    (folder / "no-folder").write_text("This is a file.")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        cases: dict[str, dict[str, Any]] = {
            "taken port": {"port": taken.getsockname()[1]},
            "missing weights": {"engine": "embedded", "model_path": folder / "nowhere.gguf"},
            "unwritable database": {"database_url": f"sqlite:///{folder / 'no-folder' / 'log.db'}"},
            "missing script": {"script": folder / "nothing.toml"},
        }
        defaults = {"engine": "scripted", "port": 0, "database_url": f"sqlite:///{folder / 'log.db'}"}
        servers = {name: Server(folder / name, defaults | case) for name, case in cases.items()}
        yield servers
        for server in servers.values():
            server.kill()


def assert_one_sentence(told: str, expected: str) -> None:
    """One line that says what is wrong; no traceback."""
    [sentence] = told.splitlines()
    assert re.fullmatch(expected, sentence), sentence
    assert sentence.endswith((".", "?"))


@pytest.mark.parametrize("case", STARTS)
def test_a_server_that_cannot_start_says_why(failing: dict[str, Server], case: str) -> None:
    server = failing[case]

    assert server.process.wait(START_SECONDS) == 2, server.stderr
    assert_one_sentence(server.stderr, STARTS[case])
    assert server.stdout == ""


@pytest.mark.parametrize("url", DATABASES)
def test_a_database_that_cannot_be_opened_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, url: str
) -> None:
    (tmp_path / "text").write_text("This is no database. " * 100)
    variables = environment(database_url=url.format(folder=tmp_path))

    assert exit_code(monkeypatch, tmp_path, variables, "migrate") == 2
    assert_one_sentence(capsys.readouterr().err, DATABASES[url])


@pytest.mark.parametrize("case", SETTINGS)
def test_a_wrong_setting_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, case: str
) -> None:
    settings, expected = SETTINGS[case]

    assert exit_code(monkeypatch, tmp_path, environment(**settings)) == 2
    assert_one_sentence(capsys.readouterr().err, expected)


@pytest.mark.parametrize("case", FILES)
def test_a_wrong_line_of_the_file_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, case: str
) -> None:
    content, expected = FILES[case]
    (tmp_path / "verbatim.toml").write_text(content)

    assert exit_code(monkeypatch, tmp_path, environment()) == 2
    assert_one_sentence(capsys.readouterr().err, expected)


def test_a_wrong_option_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert exit_code(monkeypatch, tmp_path, environment(port="80"), "serve", "--port", "70000") == 2
    assert_one_sentence(capsys.readouterr().err, r"Option --port is wrong: Input should be less .*\.")


@pytest.mark.parametrize("command", WORDS)
def test_wrong_words_are_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str
) -> None:
    assert exit_code(monkeypatch, tmp_path, environment(), *command.split()) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert_one_sentence(told.err, WORDS[command])


def test_who_does_not_know_the_name_of_a_model_is_told_where_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    url = "http://127.0.0.1:8000/v1"
    announce("ADDRESS", Settings(engine="vllm", engine_url=url))
    assert "curl ADDRESS/v1/models  # lists what may stand for MODEL\n" in capsys.readouterr().out

    announce("ADDRESS", Settings(engine="vllm", engine_url=url, model="gpt-oss"))
    named = capsys.readouterr().out
    assert "/v1/models" not in named
    assert '{"model": "gpt-oss", ' in named


def test_no_words_at_all_are_helped() -> None:
    told = subprocess.run(
        [VERBATIM], env=environment(), capture_output=True, text=True, timeout=START_SECONDS, check=True
    )

    assert "Usage: verbatim" in told.stdout
    assert "serve" in told.stdout
    assert told.stderr == ""


def exit_code(
    monkeypatch: pytest.MonkeyPatch, folder: Path, variables: dict[str, str], *command: str
) -> int | str | None:
    """Run a command (`serve`, unless another is given) in this process: settings are read before anything starts."""
    monkeypatch.chdir(folder)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["verbatim", *(command or ("serve",))])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code
