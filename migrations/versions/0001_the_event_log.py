"""The event log: headers, journal, segments, writers."""

from typing import Final

import sqlalchemy as sa
from alembic import op

revision: Final = "0001"
down_revision: Final = None
branch_labels: Final = None
depends_on: Final = None


def upgrade() -> None:
    """To this revision."""
    op.create_table(
        "responses",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("background", sa.Boolean, nullable=False),
        sa.Column("stream", sa.Boolean, nullable=False),
        sa.Column("request", sa.LargeBinary, nullable=False),
        sa.Column("parent", sa.Text),
        sa.Column("root", sa.Text, nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("prompt", sa.LargeBinary),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("owner", sa.BigInteger),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("claimed_version", sa.BigInteger, nullable=False),
        sa.Column("cancel_requested", sa.Boolean, nullable=False),
        sa.Column("ended_at", sa.Double),
        sa.Column("terminal", sa.LargeBinary),
    )
    op.create_index("responses_by_root", "responses", ["root"])
    op.create_index("responses_by_age", "responses", ["created_at", "id"])
    op.create_index("responses_by_end", "responses", ["ended_at"])
    owned = sa.text("owner IS NOT NULL")
    op.create_index("responses_owned", "responses", ["owner"], sqlite_where=owned, postgresql_where=owned)
    claimable = sa.text("owner IS NULL AND ended_at IS NULL")
    op.create_index(
        "responses_claimable",
        "responses",
        ["priority", "created_at", "id"],
        sqlite_where=claimable,
        postgresql_where=claimable,
    )
    op.create_table(
        "journal",
        sa.Column("writer", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("n", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("batch", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "segments",
        sa.Column("response", sa.Text, primary_key=True),
        sa.Column("last", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("first", sa.BigInteger, nullable=False),
        sa.Column("events", sa.LargeBinary, nullable=False),
        sa.Column("tokens", sa.LargeBinary),
    )
    op.create_table(
        "writers",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("beat", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("fenced", sa.Boolean, nullable=False, server_default=sa.false()),
        sqlite_autoincrement=True,
    )


def downgrade() -> None:
    """To the one before."""
    for table in ("writers", "segments", "journal", "responses"):
        op.drop_table(table)
