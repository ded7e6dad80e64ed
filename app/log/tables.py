"""The four tables of the event log. What users or models wrote is bytes, never text: a NUL would abort a commit."""

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    false,
)

metadata: Final = MetaData()

responses: Final = Table(
    "responses",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("background", Boolean, nullable=False),
    Column("stream", Boolean, nullable=False),
    Column("request", LargeBinary, nullable=False),
    Column("parent", Text),
    Column("root", Text, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("prompt", LargeBinary),
    Column("version", BigInteger, nullable=False),
    Column("owner", BigInteger),
    Column("attempts", Integer, nullable=False),
    Column("claimed_version", BigInteger, nullable=False),
    Column("cancel_requested", Boolean, nullable=False),
    Column("ended_at", Double),
    Column("terminal", LargeBinary),
)

Index("responses_by_root", responses.c.root)
Index("responses_by_age", responses.c.created_at, responses.c.id)
Index("responses_by_end", responses.c.ended_at)

_OWNED = responses.c.owner.is_not(None)
Index("responses_owned", responses.c.owner, sqlite_where=_OWNED, postgresql_where=_OWNED)

_CLAIMABLE = responses.c.owner.is_(None) & responses.c.ended_at.is_(None)
Index(
    "responses_claimable",
    responses.c.priority,
    responses.c.created_at,
    responses.c.id,
    sqlite_where=_CLAIMABLE,
    postgresql_where=_CLAIMABLE,
)

journal: Final = Table(
    "journal",
    metadata,
    Column("writer", BigInteger, primary_key=True, autoincrement=False),
    Column("n", BigInteger, primary_key=True, autoincrement=False),
    Column("batch", LargeBinary, nullable=False),
)

segments: Final = Table(
    "segments",
    metadata,
    Column("response", Text, primary_key=True),
    Column("last", BigInteger, primary_key=True, autoincrement=False),
    Column("first", BigInteger, nullable=False),
    Column("events", LargeBinary, nullable=False),
    Column("tokens", LargeBinary),
)

writers: Final = Table(
    "writers",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("token", BigInteger, nullable=False),
    Column("beat", BigInteger, nullable=False, server_default="0"),
    Column("fenced", Boolean, nullable=False, server_default=false()),
    sqlite_autoincrement=True,  # the id of a writer that is gone must never come back
)
