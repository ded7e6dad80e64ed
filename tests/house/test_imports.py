"""Who may import whom."""

import subprocess
import sys
import tomllib
from pathlib import Path

from tests.house.markdown import blocks
from tests.house.source import ROOT


def test_imports_keep_the_contracts():
    lint = Path(sys.executable).with_name("lint-imports")
    linted = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert linted.returncode == 0, linted.stdout + linted.stderr


def test_what_few_configure_is_not_loaded_by_all():
    looks = "import sys, app.main; print({'aiohttp', 'alembic', 'redis', 'xllamacpp'} & set(sys.modules))"
    looked = subprocess.run([sys.executable, "-c", looks], cwd=ROOT, capture_output=True, text=True, check=True)
    assert looked.stdout == "set()\n"


def test_the_architecture_shows_the_layers():
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(contract["layers"] for contract in linter["contracts"] if contract["type"] == "layers")
    assert "\n".join(layers) + "\n" in [block.text for block in blocks(ROOT / "ARCHITECTURE.md")]


def test_the_architecture_shows_what_is_in_app():
    shown = next(block.text for block in blocks(ROOT / "ARCHITECTURE.md") if block.text.startswith("app/\n"))
    there = {path.name for path in (ROOT / "app").iterdir() if path.name[0].isalpha()}
    assert {line.split()[1].rstrip("/") for line in shown.splitlines() if "── " in line} == there
