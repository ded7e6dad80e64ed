"""The project's documents as data: their code blocks, tables, links and headings."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
DOCUMENTS: Final = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

_FENCE: Final = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
_CELL: Final = re.compile(r"(?<!\\)\|")
_LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
_CODE: Final = re.compile(r"`([^`]+)`")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: `info` is what stands behind its opening fence, `line` where it begins."""

    document: Path
    line: int
    info: str
    text: str

    def __str__(self) -> str:
        """Where it is."""
        return f"{self.document.relative_to(ROOT)}:{self.line}"


def blocks(document: Path) -> list[Block]:
    """All fenced blocks of a document, in order."""
    text = document.read_text()
    return [
        Block(document, text.count("\n", 0, found.start()) + 1, found["info"].strip(), found["text"])
        for found in _FENCE.finditer(text)
    ]


def prose(document: Path) -> str:
    """A document without its fenced blocks."""
    return _FENCE.sub("", document.read_text())


def table(document: Path, *header: str) -> list[list[str]]:
    """The rows below this header, as cells. Fails when there is no such table."""
    rows = iter(prose(document).splitlines())
    for line in rows:
        if _cells(line) == list(header):
            next(rows)
            return list(_rows(rows))
    raise AssertionError(f"{document.name} has no table with the header {header}")


def tables(document: Path, *header: str) -> list[list[str]]:
    """The rows of all tables with this header. Fails when there is none."""
    lines = prose(document).splitlines()
    starts = [number + 2 for number, line in enumerate(lines) if _cells(line) == list(header)]
    assert starts, f"{document.name} has no table with the header {header}"
    return [row for start in starts for row in _rows(iter(lines[start:]))]


def code(text: str) -> list[str]:
    """What is set as code."""
    return _CODE.findall(text)


def links(document: Path) -> list[str]:
    """The targets of all links."""
    return _LINK.findall(prose(document))


def anchors(document: Path) -> set[str]:
    """What a link may name after `#`."""
    headings = [line.lstrip("#").strip() for line in prose(document).splitlines() if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _rows(lines: Iterator[str]) -> Iterator[list[str]]:
    for line in lines:
        if not line.startswith("|"):
            return
        yield _cells(line)


def _cells(line: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in _CELL.split(line.strip())[1:-1]]
