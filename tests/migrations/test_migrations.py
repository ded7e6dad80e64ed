"""Migrations lead to the schema that the program describes, up and down, also when two processes start at once."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, MetaData, inspect

from app.log.database import Database, parse_url
from app.log.migrating import config
from app.log.schema import REVISION, migrate
from app.log.tables import metadata


@pytest.fixture(params=("sqlite", "postgres"))
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without any table."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/empty.db"
    return str(request.getfixturevalue("empty_postgres_url"))


def describe(connection: Connection) -> dict[str, Any]:
    """The schema as the database tells it."""
    found = inspect(connection)
    return {
        table: {
            "columns": [
                (column["name"], str(column["type"]), column["nullable"], str(column["default"]))
                for column in found.get_columns(table)
            ],
            "key": found.get_pk_constraint(table)["constrained_columns"],
            "indexes": sorted(
                (str(index["name"]), str(index.get("column_names")), str(index.get("expressions")), _where(index))
                for index in found.get_indexes(table)
            ),
        }
        for table in sorted(found.get_table_names())
        if table != "alembic_version"
    }


def _where(index: Any) -> str:
    options = index.get("dialect_options", {})
    words = str(options.get("sqlite_where", options.get("postgresql_where", "")))
    return words.replace("(", "").replace(")", "").replace("responses.", "")


async def schema_of(url: str) -> dict[str, Any]:
    """What is there."""
    database = Database(parse_url(url))
    try:
        return await database.transaction(lambda connection: connection.run_sync(describe))
    finally:
        await database.close()


async def create(url: str) -> None:
    """The schema from scratch, without migrations."""
    database = Database(parse_url(url))
    await database.transaction(lambda connection: connection.run_sync(metadata.create_all))
    await database.close()


async def remove(url: str) -> None:
    """Drop what `create` made."""
    database = Database(parse_url(url))
    await database.transaction(lambda connection: connection.run_sync(metadata.drop_all))
    await database.close()


async def downgrade(url: str, revision: str) -> None:
    """Back to an earlier revision."""
    database = Database(parse_url(url))
    await database.transaction(lambda one: one.run_sync(lambda sync: command.downgrade(config(sync), revision)))
    await database.close()


async def test_the_schema_from_scratch_is_the_schema_from_all_migrations(empty_url: str) -> None:
    await create(empty_url)
    from_scratch = await schema_of(empty_url)
    await remove(empty_url)
    await migrate(empty_url)
    assert from_scratch == await schema_of(empty_url)
    assert set(metadata.tables) == set(from_scratch)


async def test_every_migration_goes_down_and_up_again(empty_url: str) -> None:
    await migrate(empty_url)
    migrated = await schema_of(empty_url)
    await downgrade(empty_url, "base")
    assert await schema_of(empty_url) == {}
    await migrate(empty_url)
    assert migrated == await schema_of(empty_url)


async def test_migrating_again_changes_nothing(empty_url: str) -> None:
    await migrate(empty_url)
    migrated = await schema_of(empty_url)
    await migrate(empty_url)
    assert migrated == await schema_of(empty_url)


async def test_processes_that_start_at_once_migrate_one_after_the_other(empty_url: str) -> None:
    await asyncio.gather(*(migrate(empty_url) for _ in range(4)))
    assert set(metadata.tables) == set(await schema_of(empty_url))


def test_migrations_are_numbered_and_the_program_knows_the_newest() -> None:
    revisions = [one.revision for one in ScriptDirectory.from_config(config()).walk_revisions()]
    assert revisions == [f"{number:04}" for number in range(len(revisions), 0, -1)]
    assert revisions[0] == REVISION


async def test_only_what_is_missing_is_migrated(empty_url: str) -> None:
    program = "import sys, asyncio; from app.log.schema import migrate; asyncio.run(migrate(sys.argv[1]));"
    loads = f"{program} print('alembic' in sys.modules)"
    ran = [subprocess.run([sys.executable, "-c", loads, empty_url], capture_output=True, text=True) for _ in range(2)]
    assert [one.stdout.strip() for one in ran] == ["True", "False"]


def test_the_hand_written_configuration_leads_to_the_same_scripts() -> None:
    root = Path(__file__).parents[2]
    assert root / "migrations" == Path(str(config().get_main_option("script_location")))
    assert "script_location = migrations" in (root / "alembic.ini").read_text()
    assert isinstance(metadata, MetaData)
