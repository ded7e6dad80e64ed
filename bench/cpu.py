"""CPU of the server per stored stream of 500 deltas: what serving costs when the model costs nothing."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.load import Load, Watched, request, run
from bench.processes import Process, sqlite, verbatim
from bench.prose import write_script
from bench.report import Figure
from tests.fakes.running import fake_vllm

TOKENS: Final = 500
AT_ONCE: Final = 16
_OTHERS: Final = "agentic-api 6, fastresponses 13, Llama Stack 71, OGX 72-91, azure-agentserver 155-184"
_TARGET: Final = "<= 6 ms"


def measure(folder: Path, *, streams: int = 200) -> list[Figure]:
    """Over HTTP from a fake vLLM as fast as it can, and at 5 ms per token; and from the scripted engine inside."""
    figures = []
    for name, pace_ms in (("unpaced", 0.0), ("5 ms per token", 5.0)):
        with over_http(folder, pace_ms=pace_ms) as server:
            figures += _figures(f"vLLM over HTTP, {name}", _loaded(server, "gpt-oss", streams))
    for name, pace_ms in (("unpaced", 0.0), ("5 ms per token", 5.0)):
        script = write_script(folder / "script.json", [TOKENS], pace_ms=pace_ms)
        with verbatim(sqlite(folder), engine="scripted", script=script, dialect="harmony") as server:
            figures += _figures(f"scripted engine, {name}", _loaded(server, "scripted", streams))
            if pace_ms:
                figures += _background_figures(_loaded(server, "scripted", streams, background=True))
    return figures


@contextmanager
def over_http(folder: Path, *, pace_ms: float) -> Iterator[Process]:
    """A server whose engine is a fake vLLM that says 500 tokens, one per chunk."""
    default = json.dumps({"load": {"tokens": TOKENS}, "pace_ms": pace_ms})
    with (
        fake_vllm("--log-limit", "0", "--default", default) as fake,
        verbatim(sqlite(folder), engine="vllm", engine_url=fake.url, dialect="harmony") as server,
    ):
        yield server


def _loaded(server: Process, model: str, streams: int, *, background: bool = False) -> Watched:
    body = request(model=model, background=background)
    run(server, Load(port=server.port, body=body, streams=AT_ONCE, at_once=AT_ONCE))  # warm
    return run(server, Load(port=server.port, body=body, streams=streams, at_once=AT_ONCE))


def _background_figures(watched: Watched) -> list[Figure]:
    name, seen = "scripted engine, background", watched.seen
    per_delta = watched.cpu_seconds * 1e6 / seen.deltas
    others = "vLLM 0.33 without a durable log: 37 foreground, 60 background"
    return [
        Figure(f"{name}, CPU per delta", per_delta, "us", "<= 20 us", others),
        Figure(f"{name}, delta events per stream", seen.deltas / seen.completed),
    ]


def _figures(name: str, watched: Watched) -> list[Figure]:
    seen, fast = watched.seen, name.endswith("unpaced")
    aim, others = (_TARGET, _OTHERS) if fast else ("", "")
    return [
        Figure(f"{name}, CPU per stream", watched.cpu_ms_per_stream, "ms", aim, others),
        Figure(f"{name}, CPU per token", watched.cpu_ms_per_stream * 1000 / TOKENS, "us"),
        Figure(f"{name}, delta events per stream", seen.deltas / seen.completed),
        Figure(f"{name}, streams per second", seen.completed / seen.seconds),
    ]
