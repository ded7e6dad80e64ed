"""The schema: migrating a database to today's, and checking that it is there."""

import asyncio
import re
from pathlib import Path
from typing import Final

from sqlalchemy import URL, Connection, inspect, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from app.errors import LogUnavailable, SettingsError
from app.log.database import Database, is_sqlite, parse_url, sqlite_path

REVISION: Final = "0001"  # the newest migration; they are numbered

_LOCK: Final = 0x5665726261746D  # "Verbatm"; two processes that start at once migrate one after the other


async def migrate(url: str) -> None:
    """Bring the database to today's schema; creates an SQLite file. Raises SettingsError."""
    parsed = parse_url(url)
    if is_sqlite(parsed):
        await asyncio.to_thread(_check_folder, sqlite_path(parsed))
    database = Database(parsed)

    async def step(connection: AsyncConnection) -> None:
        if not is_sqlite(parsed):
            await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        await connection.run_sync(_upgrade)

    try:
        await database.transaction(step)
    except (DBAPIError, OSError, LogUnavailable) as error:
        raise _unreachable(parsed, error.__cause__ or error) from error
    finally:
        await database.close()


async def check(database: Database) -> None:
    """Raises SettingsError when the schema is missing or older than this program."""
    if is_sqlite(database.url) and not sqlite_path(database.url).exists():
        raise SettingsError(f"There is no database at '{database.url.database}': run `verbatim migrate`.")
    try:
        known = await database.transaction(lambda connection: connection.run_sync(_revision))
    except (DBAPIError, OSError, LogUnavailable) as error:
        raise _unreachable(database.url, error.__cause__ or error) from error
    if _is_behind(known):
        raise SettingsError("The database does not have today's schema: run `verbatim migrate`.")


def _upgrade(connection: Connection) -> None:
    if _is_behind(_revision(connection)):
        from app.log import migrating  # here, because alembic takes long to load, and mostly there is nothing to do

        migrating.upgrade(connection)


def _is_behind(revision: str | None) -> bool:
    """False for a newer one: a newer version was here, which knows how to live with this one (rollback)."""
    return revision is None or revision < REVISION


def _revision(connection: Connection) -> str | None:
    """What alembic noted."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def _check_folder(path: Path) -> None:
    if not path.parent.is_dir():
        raise SettingsError(f"The database's folder '{path.parent}' does not exist.")


def _unreachable(url: URL, error: BaseException) -> SettingsError:
    shown = url.set(drivername=url.get_backend_name()).render_as_string()  # without the password
    reason = re.sub(r"^\([\w.]+\) ", "", str(error).splitlines()[0])  # without the names of Python classes
    return SettingsError(f"The database {shown} cannot be opened: {reason.rstrip('.')}.")
