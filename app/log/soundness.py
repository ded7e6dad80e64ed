"""Whether a database file is whole, before anything in it is believed."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from app.errors import LogDamaged
from app.log.database import is_sqlite, parse_url, sqlite_path

_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


async def check_file(url: str) -> None:
    """Let SQLite look through its whole file. Raises LogDamaged; PostgreSQL looks after its files itself."""
    parsed = parse_url(url)
    if is_sqlite(parsed) and sqlite_path(parsed).is_file():
        await asyncio.to_thread(_check, sqlite_path(parsed))


def _check(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        if (found := _found(database)) != "ok":
            raise LogDamaged(f"The database file {path} is damaged: {found.splitlines()[-1].rstrip('.')}.")


def _found(database: sqlite3.Connection) -> str:
    try:
        return str(database.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF in _DAMAGED:
            return str(error)
        raise
