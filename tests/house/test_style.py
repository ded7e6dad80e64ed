"""House rules that no linter knows."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.house.markdown import DOCUMENTS
from tests.house.source import comments, dotted, modules, tree, where

OPEN_ENDS: Final = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
EXCUSES: Final = {"skip", "skipif", "xfail", "importorskip"}


def calls(path: Path) -> Iterator[ast.Call]:
    """All calls in a module."""
    return (node for node in ast.walk(tree(path)) if isinstance(node, ast.Call))


def test_every_task_has_an_owner():
    orphans = [where(path, call.lineno) for path in modules("app", "tests") for call in calls(path)
               if dotted(call.func) == "asyncio.create_task"]  # fmt: skip
    assert orphans == []


def test_no_test_is_excused():
    excused = [
        where(path, node.lineno)
        for path in modules("tests")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute) and node.attr in EXCUSES and dotted(node).startswith("pytest.")
    ]
    assert excused == []


def test_no_comment_has_an_open_end():
    open_ends = [f"{where(path, line)} {text}" for path in modules("app", "migrations", "tests")
                 for line, text in comments(path) if OPEN_ENDS.search(text)]  # fmt: skip
    assert open_ends == []
    assert [document.name for document in DOCUMENTS if OPEN_ENDS.search(document.read_text())] == []


def test_no_error_is_swallowed_whole():
    swallowed = [
        where(path, node.lineno)
        for path in modules("app", "tests")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ExceptHandler)
        if node.type is None or dotted(node.type) in ("Exception", "BaseException")
        if all(isinstance(line, ast.Pass) for line in node.body)
    ]
    assert swallowed == []


def test_every_module_says_what_it_is_for():
    silent = [path for path in modules("app", "migrations") if path.read_text() and not ast.get_docstring(tree(path))]
    assert silent == []
