"""Law L4, checked on what is stored: fold a log and compare with its terminal event."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from app.errors import ResponseNotFound
from app.ports import Archive, EventLog
from app.responses.events import ENDED, decode
from app.responses.projection import Projection, evolve, snapshot


@dataclass(frozen=True, slots=True)
class Verdict:
    """One response's log: `difference` None means that it tells what its terminal event tells, if it `has_ended`."""

    response_id: str
    difference: str | None
    has_ended: bool = True


class Record(EventLog, Archive, Protocol):
    """A log whose responses can be listed."""


async def verdicts(log: Record) -> AsyncIterator[Verdict]:
    """Check every response, oldest first. One that is still open is checked as far as it goes."""
    async for response_id in log.ids():
        try:
            verdict = await _verdict(log, response_id)
        except ResponseNotFound:  # deleted under way
            continue
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one record, the others are verified too
            verdict = Verdict(response_id, f"the record can't be read: {error!r}")
        yield verdict


async def _verdict(log: Record, response_id: str) -> Verdict:
    header = await log.header(response_id)
    if header is None:
        raise ResponseNotFound(response_id)
    span = await log.read(response_id, after=-1)
    has_ended = header.status in ENDED
    return Verdict(response_id, _difference(span.events, header.terminal, closed=has_ended), has_ended)


def _difference(events: Sequence[bytes], terminal: bytes | None, *, closed: bool) -> str | None:
    projection = Projection()
    for position, data in enumerate(events):
        event = decode(data)
        if event.position != position:
            return f"position {position} holds the event with sequence_number {event.position}"
        evolve(projection, event)
    if not closed:
        return None
    if not events or terminal != events[-1]:
        return "the terminal event in the header is not the last event of the log"
    told = decode(events[-1]).payload["response"]
    return None if snapshot(projection) == told else "the fold of the events differs from the terminal response"
