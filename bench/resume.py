"""Resuming a finished response of 10,000 events: the first byte, and all of it."""

import socket
import time
from pathlib import Path
from statistics import median
from typing import Final

import orjson

from bench.load import request
from bench.processes import Process, sqlite, verbatim
from bench.prose import write_script
from bench.report import Figure

_TOKENS: Final = 12_500  # some come together: about 10,000 events
_PACE_MS: Final = 1.5
_TIMES: Final = 20
_DONE: Final = b"data: [DONE]\n\n"


def measure(folder: Path, *, tokens: int = _TOKENS) -> list[Figure]:
    """Create it once, in the background, then read it twenty times from its start and from its middle."""
    script = write_script(folder / "script.json", [tokens], pace_ms=_PACE_MS)
    with verbatim(sqlite(folder), engine="scripted", script=script, dialect="harmony") as server:
        response_id, events = _created(server)
        whole = [_read(server, f"/v1/responses/{response_id}?stream=true") for _ in range(_TIMES)]
        middle = f"/v1/responses/{response_id}?stream=true&starting_after={events // 2}"
        rest = [_read(server, middle) for _ in range(_TIMES)]
    return [
        Figure("events", events),
        Figure("bytes", whole[0][2] / 1e6, "MB"),
        Figure("from the start, first byte (median)", median(first for first, _, _ in whole), "ms", "<= 5 ms"),
        Figure("from the start, whole (median)", median(all_ for _, all_, _ in whole), "ms", "<= 30 ms"),
        Figure("from the middle, first byte (median)", median(first for first, _, _ in rest), "ms", "<= 5 ms"),
        Figure("from the middle, whole (median)", median(all_ for _, all_, _ in rest), "ms"),
    ]


def _created(server: Process) -> tuple[str, int]:
    body = orjson.dumps(request(model="scripted", background=True))
    head = f"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    data = _exchange(server, head + "Content-Type: application/json\r\nConnection: close\r\n\r\n", body)[3]
    start = data.index(b'"id":"') + 6
    return data[start : data.index(b'"', start)].decode(), data.count(b"\ndata: {")


def _read(server: Process, path: str) -> tuple[float, float, int]:
    first, whole, size, _ = _exchange(server, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    return first, whole, size


def _exchange(server: Process, head: str, body: bytes = b"") -> tuple[float, float, int, bytes]:
    """Milliseconds to the first frame and to the end, bytes, and the bytes themselves. The connection is new."""
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        began = time.perf_counter()
        connection.sendall(head.encode() + body)
        received = bytearray()
        first = 0.0
        while data := connection.recv(1 << 20):
            received += data
            if not first and b"event: " in received:
                first = (time.perf_counter() - began) * 1000
        whole = (time.perf_counter() - began) * 1000
    if _DONE not in received[-64:]:
        raise RuntimeError(f"no stream came to its end: {bytes(received[:300])!r}")
    return first, whole, len(received), bytes(received)
