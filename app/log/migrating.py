"""The migrations, run by alembic."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection

import migrations


def config(connection: Connection | None = None) -> Config:
    """Alembic's configuration, without a file; migrations run in the transaction of the connection."""
    made = Config()
    made.set_main_option("script_location", str(Path(str(migrations.__file__)).parent).replace("%", "%%"))
    made.attributes["connection"] = connection
    return made


def upgrade(connection: Connection) -> None:
    """Run the migrations that are missing."""
    command.upgrade(config(connection), "head")
