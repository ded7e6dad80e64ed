"""Bytes in the database per delta event: while streams run (journal and segments), and at rest (segments)."""

import sqlite3
import time
from pathlib import Path
from typing import Final

from app.log.packing import Packing, unfold
from bench.load import Load, request, run_window
from bench.processes import database_file, sqlite, verbatim
from bench.prose import write_script
from bench.report import Figure

_STREAMS: Final = 64
_TOKENS: Final = 500
_PACE_MS: Final = 20.0
_LOOK_AFTER: Final = 5.0  # seconds into streams of ten


def measure(folder: Path, *, streams: int = _STREAMS) -> list[Figure]:
    """Real English, another text for every stream."""
    script = write_script(folder / "script.json", [_TOKENS] * streams, pace_ms=_PACE_MS)
    looks: list[Look] = []
    with verbatim(sqlite(folder), engine="scripted", script=script, dialect="harmony") as server:
        load = Load(port=server.port, body=request(model="scripted"), streams=streams, at_once=streams)

        def look_later() -> None:
            time.sleep(_LOOK_AFTER)
            looks.append(Look(database_file(folder)))

        seen = run_window(server, load, window=_LOOK_AFTER + 0.5, meanwhile=look_later).seen
        end = Look(database_file(folder))
    running = looks[0]
    return [
        Figure("streams", streams),
        Figure("delta events per stream", seen.deltas / streams),
        Figure("while running, bytes per event", (running.journal + running.segments) / running.events, "B"),
        Figure("while running, in the journal", 100 * running.journal / (running.journal + running.segments), "%"),
        Figure("at rest, bytes per event", end.segments / end.events, "B", "<= 12 B", "314 as rows"),
        Figure("at rest, headers per response", end.headers / streams / 1000, "kB"),
        Figure("as JSON, bytes per event", end.plain / end.events, "B"),
        Figure("file at rest, bytes per event", end.file / end.events, "B"),
    ]


class Look:
    """A database as one transaction sees it: bytes of content, and the distinct events in it."""

    def __init__(self, path: Path) -> None:
        packing, places = Packing(), set[tuple[str, int]]()
        self.journal = self.segments = self.plain = 0
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)
        connection.execute("BEGIN")
        for (batch,) in connection.execute("SELECT batch FROM journal"):
            self.journal += len(batch)
            for entry in packing.entries(batch):
                count = len(unfold(entry).events)
                places.update((entry.response, entry.first + i) for i in range(count))
        query = "SELECT response, first, last, events, length(coalesce(tokens, '')) FROM segments"
        for response, first, last, events, tokens in connection.execute(query):
            self.segments += len(events) + tokens
            self.plain += sum(map(len, packing.events_in(events)))
            places.update((response, position) for position in range(first, last + 1))
        sizes = "length(request) + length(coalesce(prompt, '')) + length(coalesce(terminal, ''))"
        self.headers: int = connection.execute(f"SELECT sum({sizes}) FROM responses").fetchone()[0]
        pages = connection.execute("SELECT page_count - freelist_count FROM pragma_page_count, pragma_freelist_count")
        self.file = pages.fetchone()[0] * connection.execute("PRAGMA page_size").fetchone()[0]
        self.events = len(places)
        connection.close()
