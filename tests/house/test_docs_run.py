"""Documents are run: every block marked `run`, against a real server, as its reader would."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.serving import Fleet, Server, environment
from tests.house.markdown import DOCUMENTS, ROOT, Block, blocks

ADDRESS: Final = "http://127.0.0.1:8080"  # as the documents write it
SECONDS: Final = 200
# An answer that is an error fails its block; a reader who goes away early (exit code 23) is meant.
CURL: Final = 'curl() { command curl --fail-with-body "$@" || [ $? -eq 23 ]; }\n'

EMBEDDED: Final[dict[str, Any]] = {"engine": "embedded"}
SCRIPTED: Final[dict[str, Any]] = {"engine": "scripted", "model": "smollm2-135m-instruct"}


@dataclass(frozen=True, slots=True)
class Example:
    """A block to run, and what its document says that it prints."""

    block: Block
    output: str


def examples() -> Iterator[Example]:
    """All blocks marked `run`."""
    for document in DOCUMENTS:
        found = blocks(document)
        for block, after in zip_longest(found, found[1:]):
            if block.info.endswith(" run"):
                yield Example(block, after.text if after is not None and after.info == "text output" else "")


EXAMPLES: Final = list(examples())


class Servers:
    """One server for the documents of each kind, started when the first one needs it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fleets: dict[str, Fleet] = {}
        self._servers: dict[str, Server] = {}

    def of(self, document: Path) -> tuple[Server, Fleet]:
        """The README gets the real model, the scripted engine's page its own script, all others a short hello."""
        kind = document.stem if document.stem in ("README", "scripted") else "others"
        if kind not in self._servers:
            folder = self._folder / kind
            folder.mkdir()
            fleet = self._fleets[kind] = Fleet(folder, f"sqlite:///{folder / 'log.db'}", **_settings(kind, folder))
            self._servers[kind] = fleet.start()
        return self._servers[kind], self._fleets[kind]

    def stop(self) -> None:
        """Stop all, and check what they leave behind."""
        for fleet in self._fleets.values():
            with fleet:
                pass


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Servers for documents."""
    servers = Servers(tmp_path_factory.mktemp("documents"))
    yield servers
    servers.stop()


def _settings(kind: str, folder: Path) -> dict[str, Any]:
    if kind == "README":
        return EMBEDDED
    if kind == "others":
        return SCRIPTED
    script = folder / "script.toml"
    script.write_text(next(block.text for block in blocks(ROOT / "docs" / "scripted.md") if block.info == "toml"))
    return {"engine": "scripted", "script": script}


def pattern(line: str) -> str:
    """A line of output; `…` stands for anything."""
    return ".*".join(map(re.escape, line.split("…")))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: str(example.block))
def test_a_block_runs_as_printed(example: Example, servers: Servers, tmp_path: Path):
    server, fleet = servers.of(example.block.document)
    text = example.block.text.replace(ADDRESS, server.url)
    shell = ["bash", "-euo", "pipefail", "-c", CURL + text]
    command = [sys.executable, "-c", text] if example.block.info.startswith("python") else shell
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment(database_url=fleet.database_url) | {"PATH": path},
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    printed = iter(ran.stdout.splitlines())
    for line in example.output.splitlines():
        assert any(re.search(pattern(line), one) for one in printed), f"not printed, or not here: {line}\n{ran.stdout}"


def test_the_documents_have_blocks_to_run():
    assert {example.block.document.name for example in EXAMPLES} >= {"README.md", "clients.md", "scripted.md"}
    assert len([one for one in EXAMPLES if one.block.document.name == "README.md" and "curl" in one.block.text]) == 3
