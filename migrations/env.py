"""How alembic reaches the database: on the connection from `app.log.schema`, or by the URL in the environment."""

import asyncio
import os

from alembic import context
from sqlalchemy import Connection

from app.log.database import Database, parse_url
from app.log.tables import metadata


def run(connection: Connection) -> None:
    """Run the migrations on an open connection, in its transaction."""
    context.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
    with context.begin_transaction():
        context.run_migrations()


async def run_by_hand() -> None:
    """Run them on the database that `VERBATIM_DATABASE_URL` names."""
    database = Database(parse_url(os.environ["VERBATIM_DATABASE_URL"]))
    await database.transaction(lambda connection: connection.run_sync(run))
    await database.close()


handed_over = context.config.attributes.get("connection")
if handed_over is None:
    asyncio.run(run_by_hand())
else:
    run(handed_over)
