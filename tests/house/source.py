"""The project's own source as data."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]

_PARTS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def modules(*folders: str) -> list[Path]:
    """All Python files in these folders of the project."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@cache
def tree(path: Path) -> ast.Module:
    """A module, parsed."""
    return ast.parse(path.read_text())


def functions(path: Path) -> Iterator[Function]:
    """All functions and methods of a module."""
    return (node for node in ast.walk(tree(path)) if isinstance(node, Function))


def comments(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of all comments."""
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def names(path: Path) -> Iterator[tuple[int, str]]:
    """Line and name of everything that a module gives a name to."""
    for node in ast.walk(tree(path)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name


def words(name: str) -> set[str]:
    """The words of a name: `_claim_lost` is claim and lost, `RunEnded` run and ended."""
    return {part.lower() for part in _PARTS.findall(name)}


def dotted(node: ast.expr) -> str:
    """`a.b.c` of an expression; what is no such thing has no name."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            return f"{dotted(value)}.{attr}"
        case _:
            return ""


def where(path: Path, line: int) -> str:
    """A place, as editors like it."""
    return f"{path.relative_to(ROOT)}:{line}"
