"""The committer's statements on SQLite, on a thread of its own."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Final, Literal

from app.errors import Fenced
from app.log.commit import HEADER_COLUMNS, Commit, CrashPoints, Interrupted, Refused, header_row
from app.log.database import SQLITE_PASSING
from app.log.packing import Packing
from app.log.segments import Move

Durability = Literal["strict", "relaxed"]

BUSY_MS: Final = 2_000

_JOURNAL: Final = (
    "INSERT INTO journal (writer, n, batch) SELECT ?1, ?2, ?3"
    " WHERE EXISTS (SELECT 1 FROM writers WHERE id = ?1 AND token = ?4 AND NOT fenced)"
)
_WRITTEN: Final = "SELECT 1 FROM journal WHERE writer = ? AND n = ?"
_OPEN: Final = f"INSERT INTO responses ({', '.join(HEADER_COLUMNS)}) VALUES ({', '.join('?' * len(HEADER_COLUMNS))})"
_STATUS: Final = "UPDATE responses SET status = ? WHERE id = ?"
_MOVED: Final = "UPDATE responses SET version = ? WHERE id = ? AND owner IS ?"
_RELEASED: Final = "UPDATE responses SET version = ?, owner = NULL WHERE id = ? AND owner IS ?"
_ENDED: Final = (
    "UPDATE responses SET version = ?, status = ?, terminal = ?, ended_at = ?, owner = NULL, prompt = NULL"
    " WHERE id = ? AND owner IS ?"
)
_REPLACED: Final = "DELETE FROM segments WHERE response = ? AND last >= ?"
_SEGMENT: Final = "INSERT INTO segments (response, first, last, events, tokens) VALUES (?, ?, ?, ?, ?)"
_TOKENS: Final = "UPDATE segments SET tokens = NULL WHERE response = ? AND tokens IS NOT NULL"
_TRIM: Final = "DELETE FROM journal WHERE writer = ? AND n <= ?"


class SqliteDriver:
    """One thread with one connection; results come back with one call into the loop per commit."""

    def __init__(self, path: Path, *, durability: Durability, crash_points: CrashPoints) -> None:
        self._crash_points = crash_points
        self.commits = 0
        self._checkpoint_due = False
        self._packing = Packing()
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._connection = connect(path, synchronous="FULL" if durability == "strict" else "NORMAL")
        self._thread = threading.Thread(target=self._run, name="verbatim-committer", daemon=True)
        self._thread.start()

    async def commit(self, work: Commit) -> None:
        """See `Driver`."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def job() -> None:
            loop.call_soon_threadsafe(_finish, done, self._attempt(work))

        self._jobs.put(job)
        await done

    def checkpoint_soon(self) -> None:
        """Do a small checkpoint after the next commit: a background one alone lets the WAL grow without bound."""
        self._checkpoint_due = True

    async def close(self) -> None:
        """See `Driver`."""
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                job()
        finally:
            self._connection.close()

    def _attempt(self, work: Commit) -> Exception | None:
        try:
            work.pack(self._packing)
            self._commit(work)
            self.commits += 1
        except (Fenced, Refused, Interrupted) as error:
            return error
        except OSError as error:
            return Interrupted(str(error))
        except sqlite3.OperationalError as error:
            passes = error.sqlite_errorcode & 0xFF in SQLITE_PASSING
            return Interrupted(str(error)) if passes else Refused(str(error))
        except (sqlite3.Error, OverflowError, TypeError, ValueError) as error:
            return Refused(str(error))
        except Exception as error:  # noqa: BLE001 - a bug of ours: the committer must hear of it, not wait for ever
            return error
        if self._checkpoint_due:
            self._checkpoint_due = False
            with suppress(sqlite3.OperationalError):  # the next one does it
                self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        return None

    def _commit(self, work: Commit) -> None:
        if work.is_small and not work.resent:  # a statement alone is a transaction, and gives the GIL back less often
            self._crash_points.before_commit()
            self._journal(work)
        else:
            self._transact(work)
        self._crash_points.after_commit()

    def _transact(self, work: Commit) -> None:
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        try:
            if not (work.resent and execute(_WRITTEN, (work.identity.writer, work.n)).fetchone()):
                self._journal(work)
                self._write(work)
            self._crash_points.before_commit()
            execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                execute("ROLLBACK")
            raise

    def _journal(self, work: Commit) -> None:
        writer, token = work.identity
        if not self._connection.execute(_JOURNAL, (writer, work.n, work.batch, token)).rowcount:
            raise Fenced

    def _write(self, work: Commit) -> None:
        self._connection.executemany(_OPEN, map(header_row, work.opened))
        self._connection.executemany(_STATUS, ((status, response) for response, status in work.statuses))
        for move in work.moves:
            if not self._move(move):
                work.missing.add(move.response)
        if work.trim:
            self._connection.execute(_TRIM, (work.identity.writer, work.trim))

    def _move(self, move: Move) -> bool:
        """False: the response was deleted, or is not ours any more."""
        execute = self._connection.execute
        if move.ending is None:
            change = _RELEASED if move.releases else _MOVED  # what does not name the owner leaves its indexes alone
            found = execute(change, (move.version, move.response, move.owner)).rowcount
        else:
            status, terminal, ended_at = move.ending
            found = execute(_ENDED, (move.version, status, terminal, ended_at, move.response, move.owner)).rowcount
        if not found:
            return False
        if move.merges:
            execute(_REPLACED, (move.response, move.group_first))
        if move.ending is not None and move.group_first > 0:
            execute(_TOKENS, (move.response,))
        self._connection.executemany(_SEGMENT, ((move.response, *segment) for segment in move.segments))
        return True


def connect(path: Path, *, synchronous: str) -> sqlite3.Connection:
    """A connection in autocommit mode, in WAL mode, without automatic checkpoints (they stall commits by 20 ms)."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=BUSY_MS / 1000, check_same_thread=False)
    for pragma in ("journal_mode = WAL", f"synchronous = {synchronous}", "wal_autocheckpoint = 0"):
        connection.execute(f"PRAGMA {pragma}")
    return connection


def _finish(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
