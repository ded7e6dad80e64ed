"""The documents tell what the code does: their tables are compared with it, their links lead somewhere."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
from starlette.routing import Route

from app import errors
from app.api.application import build_app
from app.api.schemas import CreateBody
from app.cli import cli
from app.engines.scripts import Output
from app.errors import VerbatimError
from app.settings import ModelSettings, SamplingDefaults, Settings
from tests.api.fake_service import FakeService
from tests.house.markdown import DOCUMENTS, ROOT, anchors, blocks, code, links, prose, table

README: Final = ROOT / "README.md"
PROTOCOL: Final = ROOT / "PROTOCOL.md"
CONFIGURATION: Final = ROOT / "docs" / "configuration.md"
CLIENTS: Final = ROOT / "docs" / "clients.md"
SCRIPTED: Final = ROOT / "docs" / "scripted.md"
TRANSCRIPTS: Final = sorted((ROOT / "tests" / "golden" / "transcripts").glob("*.json"))
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def shown(default: Any) -> str:
    """How a default stands in a table; nothing for nothing."""
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`{default}`" if default else ""


def tree_of_errors(root: type[VerbatimError]) -> list[type[VerbatimError]]:
    """An error class and all below it that its module defines."""
    below = [one for child in root.__subclasses__() for one in tree_of_errors(child)]
    return [one for one in (root, *below) if one.__module__ == errors.__name__]


def test_the_readme_holds_the_laws():
    assert [row[0] for row in table(README, "#", "law")] == [f"L{n}" for n in range(1, 10)]


def test_the_settings_table_is_the_settings():
    rows = [tuple(row) for row in table(CONFIGURATION, "setting", "default", "meaning")]
    fields = Settings.model_fields.items()
    assert rows == [
        ("`models`" if name == "models" else f"`VERBATIM_{name.upper()}`", shown(field.default), field.description)
        for name, field in fields
    ]


def test_the_readme_names_settings_that_exist():
    named = [code(row[0])[0] for row in table(README, "variable", "default", "")]
    assert {name.removeprefix("VERBATIM_").lower() for name in named} <= Settings.model_fields.keys()


def test_the_table_of_a_model_is_its_settings():
    rows = {code(name)[0]: (default, meaning) for name, default, meaning in
            table(CONFIGURATION, "field of a model", "default", "meaning")}  # fmt: skip
    sampling = code(rows.pop("sampling")[1])
    fields = {name: field for name, field in ModelSettings.model_fields.items() if name != "sampling"}
    assert {name: default for name, (default, _) in rows.items()} == {
        name: shown(field.default) for name, field in fields.items()
    }
    assert sampling == list(SamplingDefaults.model_fields)


def test_the_example_file_is_a_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    examples = [block.text for block in blocks(CONFIGURATION) if block.info == "toml"]
    for example in examples:
        monkeypatch.setenv("VERBATIM_CONFIG", str(tmp_path / "verbatim.toml"))
        (tmp_path / "verbatim.toml").write_text(example)
        assert len(Settings().served()) == example.count("[[models]]")
    assert examples


def test_the_error_table_is_the_tree_of_errors():
    rows = [tuple(row[:4]) for row in table(PROTOCOL, "class", "status", "type", "code", "when")]
    assert sorted(rows) == sorted(
        (f"`{one.__name__}`", str(one.status), f"`{one.type}`", f"`{one.code}`" if one.code else "")
        for one in tree_of_errors(VerbatimError)
    )


def test_the_tree_in_the_module_of_errors_is_complete():
    drawn = re.findall(r"^[│├└─ ]*([A-Z]\w+)", (errors.__doc__ or "").partition("\n")[2], re.MULTILINE)
    assert sorted(drawn) == sorted(one.__name__ for one in tree_of_errors(VerbatimError))


def test_the_event_table_is_what_the_decider_builds():
    told = {code(row[0])[0] for row in table(PROTOCOL, "event", "when")}
    assert told == {event["type"] for path in TRANSCRIPTS for event in json.loads(path.read_bytes())["events"]}


def test_the_request_table_is_what_a_request_may_have():
    assert [code(row[0])[0] for row in table(PROTOCOL, "field", "what happens")] == list(CreateBody.model_fields)


def test_the_endpoint_table_is_what_is_served():
    told = {one for row in table(PROTOCOL, "method and path", "answer") for one in code(row[0])}
    served = {
        f"{method} {route.path.replace('response_id', 'id').replace(':path', '')}"
        for route in build_app(FakeService()).routes
        if isinstance(route, Route)
        for method in (route.methods or ()) - {"HEAD"}
    }
    assert told == served


def test_the_table_of_a_script_is_its_fields():
    told = {code(row[0])[0]: row[1] for row in table(SCRIPTED, "field", "default", "meaning")}
    assert told.keys() == set(Output.__struct_fields__)
    defaults = dict(zip(Output.__struct_fields__, Output.__struct_defaults__, strict=True))
    assert {name: float(text) for name, text in told.items() if text} == {
        name: default for name, default in defaults.items() if isinstance(default, int | float)
    }


def test_every_dependency_has_its_reason():
    told = {name for row in table(README, "package", "why") for name in row[0].split(", ")}
    assert told == {re.split(r"[^\w-]", dependency)[0] for dependency in PROJECT["dependencies"]}


def test_every_client_is_installed_in_the_version_that_was_tried():
    tried = [(row[0].split()[0].lower(), row[1]) for row in table(CLIENTS, "client", "version", "works", "mind")]
    commands = "\n".join(block.text for block in blocks(CLIENTS) if block.info == "sh")
    install = r"^(?:pip|npm) install (?:--global )?(?:@openai/)?([\w-]+)(?:==|@)(\S+)$"
    assert re.findall(install, commands, re.MULTILINE) == tried


def test_the_tiers_of_tests_are_told():
    rows = table(ROOT / "CONTRIBUTING.md", "folder", "what", "price")
    folders = {str(path.parent.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")}
    assert {one for row in rows for one in code(row[0])} == folders


def test_the_command_line_is_told():
    told = re.search(r"cli\.py +verbatim (.*)", (ROOT / "ARCHITECTURE.md").read_text())
    assert told is not None
    commands = [command.callback.__name__ for command in cli.registered_commands if command.callback is not None]
    assert told[1].split(" | ") == commands


@each_document
def test_links_lead_somewhere(document: Path):
    for link in links(document):
        if link.startswith("http"):
            continue
        name, _, anchor = link.partition("#")
        target = document.parent / name if name else document
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@each_document
def test_files_that_are_named_exist(document: Path):
    named = [one for one in code(prose(document)) if re.fullmatch(r"(app|docs|migrations|tests)/[\w./]+", one)]
    assert [one for one in named if "NNNN" not in one and not (ROOT / one).exists()] == []


@each_document
def test_targets_of_make_that_are_named_exist(document: Path):
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:^|`)make ([\w-]+)", document.read_text(), re.MULTILINE)) <= targets
