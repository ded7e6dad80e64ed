"""What docstrings, comments and documents cite is there for whoever reads this repository, or has an address."""

import re
from pathlib import Path
from typing import Final

import pytest

from tests.house.markdown import DOCUMENTS
from tests.house.source import ROOT, modules, where

FILES: Final = {path.name for path in (*DOCUMENTS, *(ROOT / "tests").rglob("*.md"), *(ROOT / "bench").rglob("*.md"))}
READ: Final = [*modules("app", "bench", "migrations", "tests"), *DOCUMENTS, ROOT / "Makefile", ROOT / "pyproject.toml"]
SECTION: Final = "\N{SECTION SIGN}"  # only PROTOCOL.md numbers its sections, and cites them itself

_NAMED: Final = re.compile(r"(?<![\w/.-])[\w./-]+\.md\b(?!\w)")
_CODE_OF_A_LIST: Final = re.compile(r"(?<!noqa: )(?<![\w\"#])B\d{3}\b")
_ALOUD: Final = re.compile(r"\b(?:CONTRACT|DESIGN|INVARIANTS|LIMITS|NOTES|STYLE)\b(?!\.md| *[:=])")


def found(pattern: re.Pattern[str]) -> list[tuple[Path, int, str]]:
    """Where the pattern stands, and what stands there."""
    return [
        (path, number, match[0])
        for path in READ
        if path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for match in pattern.finditer(line)
    ]


def is_here(name: str, cited_in: Path) -> bool:
    """Whether a document is in the repository: by its path, beside who names it, or by a name that is clear."""
    return name in FILES or any((folder / name).exists() for folder in (ROOT, cited_in.parent))


def test_documents_that_are_named_are_here():
    named = found(_NAMED)
    assert named
    assert [f"{where(path, line)} {name}" for path, line, name in named if not is_here(name, path)] == []


@pytest.mark.parametrize(
    ("pattern", "line"),
    [(_NAMED, "see NOWHERE.md"), (_CODE_OF_A_LIST, "refused (B071)"), (_ALOUD, "within half a second (DESIGN, 7)")],
)
def test_a_citation_is_seen(pattern: re.Pattern[str], line: str):
    assert pattern.search(line)


def test_no_number_of_a_list_that_is_elsewhere_is_cited():
    assert [f"{where(path, line)} {number}" for path, line, number in found(_CODE_OF_A_LIST)] == []


def test_no_document_is_cited_that_is_elsewhere():
    assert [f"{where(path, line)} {name}" for path, line, name in found(_ALOUD)] == []


def test_sections_are_those_of_the_protocol():
    cited = {path for path, _, _ in found(re.compile(SECTION))}
    assert cited <= {ROOT / "PROTOCOL.md"}
