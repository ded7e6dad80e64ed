"""`kill -9` of workers: how long readers elsewhere wait for the next event, and whether many kills lose anything."""

import asyncio
import json
import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from bench.processes import DurablePostgres
from bench.prose import prose
from bench.report import Figure
from tests.e2e.client import text_of
from tests.e2e.serving import Fleet, Server
from tests.faults.tier.readers import Reader, Readers, reading, start, until
from tests.servers import Valkey

KILLS: Final = 5
LEASES: Final = (1.0, 10.0)
KILLS_IN_A_ROW: Final = 100
STREAMS: Final = 50
TOKENS: Final = 600
PER_SECOND: Final = 20
SEED: Final = 20
_LONG: Final = 12_000  # tokens: outlives all kills
_MORE_EVENTS: Final = 20  # between taking over and the next kill
_PAUSE_SECONDS: Final = (0.2, 2.0)  # from a worker's start to its end, in the row
_AT_MOST_SECONDS: Final = 1800.0
_WORKER: Final = {"command": "worker"}
_FRONT: Final = {"worker": False}


def measure(
    folder: Path, *, leases: Sequence[float] = LEASES, kills: int = KILLS, in_a_row: int = KILLS_IN_A_ROW
) -> list[Figure]:
    """The waits for each lease, with Redis and without; then the row of kills."""
    figures = []
    script = _script(folder / "script.json")
    settings = {"engine": "scripted", "script": script, "model": "gpt-oss", "log_level": "warning"}
    with DurablePostgres(folder) as postgres:
        for lease in leases:
            for redis in (True, False):
                name = f"lease {lease:g} s, {'with Redis' if redis else 'PostgreSQL alone'}"
                with ExitStack() as stack:
                    tail = {"redis_url": stack.enter_context(Valkey()).url} if redis else {}
                    place = folder / name.replace(" ", "-")
                    lasting = {"lease_seconds": lease, **settings, **tail}
                    fleet = stack.enter_context(Fleet(place, postgres.url, **lasting))
                    figures += _waits(name, lease, asyncio.run(_take_over(fleet, lease, kills)))
        with Fleet(folder / "row", postgres.url, lease_seconds=LEASES[0], **settings) as fleet:
            figures += asyncio.run(_row(fleet, in_a_row))
    return figures


def _waits(name: str, lease: float, waits: Sequence[float]) -> list[Figure]:
    ordered = sorted(waits)
    target = f"<= {lease + 1:g} s"
    return [
        Figure(f"kill to next event elsewhere, {name}, median of {len(waits)}", ordered[len(waits) // 2], "s"),
        Figure(f"kill to next event elsewhere, {name}, longest", ordered[-1], "s", target),
    ]


async def _take_over(fleet: Fleet, lease: float, kills: int) -> list[float]:
    """One stream goes from worker to worker, each of them killed at a random moment; its reader is elsewhere."""
    chance, waits = random.Random(SEED), []
    front, other, worker = await start(fleet, _FRONT, _FRONT, _WORKER)
    async with reading(within=_AT_MOST_SECONDS) as readers:
        stream = readers.create(front.url, "stream-long")
        await until(lambda: bool(stream.events), what="its first event")
        elsewhere = readers.follow(other.url, stream.response_id)
        for _ in range(kills):
            (heir,) = await start(fleet, _WORKER)
            await _more(elsewhere)
            await asyncio.sleep(chance.uniform(0, lease / 2))  # anywhere between two beats
            waits.append(await _wait_after_kill(worker, elsewhere, lease))
            worker = heir
        answer = await readers.http.post(f"{front.url}/v1/responses/{stream.response_id}/cancel")
        answer.raise_for_status()
    return waits


async def _more(reader: Reader) -> None:
    enough = reader.position + _MORE_EVENTS
    await until(lambda: reader.position >= enough, what="going on")


async def _wait_after_kill(worker: Server, reader: Reader, lease: float) -> float:
    """Seconds from the kill to the event that ends the silence. What was committed before may come after the kill."""
    last, killed_at = len(reader.times) - 1, time.monotonic()
    worker.kill()

    def after_silence() -> float | None:
        silences = pairwise(reader.times[last:])
        return next((after for before, after in silences if after - before > lease / 2), None)

    heard: Any = await until(after_silence, within=6 * lease + 30, what="going on after the kill")
    return float(heard - killed_at)


@dataclass
class Row:
    """A row of kills under a load that lasts as long as they do."""

    fleet: Fleet
    kills: int
    chance: random.Random = field(default_factory=lambda: random.Random(SEED))
    done: int = 0
    over: bool = False
    heard: list[tuple[int, Reader]] = field(default_factory=list)

    async def kill(self, worker: Server) -> None:
        """Kill this worker and its heirs, each a random time after its start, until all kills are done."""
        while self.done < self.kills:
            self.done += 1
            await asyncio.sleep(self.chance.uniform(*_PAUSE_SECONDS))
            worker.kill()
            (worker,) = await start(self.fleet, _WORKER)

    async def load(self, readers: Readers, url: str, number: int) -> None:
        """One stream after the other, until the kills are over; the last one may end in peace."""
        while not self.over:
            reader = readers.create(url, f"stream-{number:03}")
            self.heard.append((number, reader))
            await until(lambda: reader.ended or reader.cut, within=_AT_MOST_SECONDS, what="its end")  # noqa: B023


async def _row(fleet: Fleet, kills: int) -> list[Figure]:
    row = Row(fleet, kills)
    front, *workers = await start(fleet, _FRONT, _WORKER, _WORKER)
    began = time.monotonic()
    async with reading(within=_AT_MOST_SECONDS) as readers, asyncio.TaskGroup() as loads:
        for number in range(STREAMS):
            loads.create_task(row.load(readers, front.url, number))
        await until(lambda: len(row.heard) == STREAMS and all(one.position > 3 for _, one in row.heard))
        await asyncio.gather(*map(row.kill, workers))
        row.over = True
    took = time.monotonic() - began
    return [
        Figure("kills in a row, 2 workers", row.done, "", f"{kills}"),
        Figure("streams under them, 50 at a time", len(row.heard)),
        Figure("events of these streams", sum(len(one.events) for _, one in row.heard)),
        Figure("unterminated or failed", sum(not _completed(one) for _, one in row.heard), "", "0"),
        Figure("lost: text is another than undisturbed", sum(_lost(*one) for one in row.heard), "", "0"),
        Figure("duplicated: positions not 0, 1, 2 …", sum(not _dense(one) for _, one in row.heard), "", "0"),
        Figure("the whole row took", took, "s"),
    ]


def _completed(reader: Reader) -> bool:
    return reader.ended and reader.response["status"] == "completed"


def _lost(number: int, reader: Reader) -> bool:
    """Neither the deltas nor the stored text may differ from what the engine says undisturbed."""
    deltas = "".join(event["delta"] for event in reader.events if event["type"] == "response.output_text.delta")
    whole = text_of(reader.response) if reader.ended else ""
    return not deltas == whole == _said(number)


def _dense(reader: Reader) -> bool:
    return [event["sequence_number"] for event in reader.events] == list(range(len(reader.events)))


def _said(number: int) -> str:
    """Each text begins with another token, so that the engine knows from the first one on which it has to continue."""
    return f"{number:03} {prose(TOKENS, part=number)}"


def _script(path: Path) -> Path:
    texts = {f"stream-{number:03}": _said(number) for number in range(STREAMS)}
    texts["stream-long"] = f"{STREAMS:03} {prose(_LONG)}"
    outputs = [
        {"match": match, "text": f"<|channel|>final<|message|>{text}<|return|>", "pace_ms": 1000 / PER_SECOND}
        for match, text in texts.items()
    ]
    path.write_text(json.dumps(outputs))
    return path
