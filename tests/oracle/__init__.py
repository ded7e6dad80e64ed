"""The judge of a stream: the 40 ranked invariants and the contract's field lists, for every test that has a stream."""

import json
from collections.abc import Iterable
from typing import Any

from tests.oracle.check_transcript import check, check_replay
from tests.oracle.fields import misfits
from tests.oracle.findings import JsonObject


def assert_keeps_invariants(
    sse: bytes | Iterable[JsonObject],
    *,
    request: JsonObject | None = None,
    retrieved: JsonObject | None = None,
    replay: bytes | Iterable[JsonObject] | None = None,
    after: int = -1,
    content_type: str | None = None,
    dialect: str = "openai",
) -> None:
    """A whole stream keeps the 40 invariants (INVARIANTS.md), and each event fits the contract's field lists.

    `sse` is the body of a streamed answer, or its events; `request` the body that was sent; `retrieved` the body of a
    `GET` after the end; `replay` what a `GET ?stream=true` gave, with `starting_after=after`.
    """
    body = framed(sse)
    found = check(body, request=request, retrieved=retrieved, content_type=content_type, dialect=dialect)
    if replay is not None:
        found += check_replay(body, framed(replay), after=after)
    told = [f"{rule} at {position}: {message}" for rule, position, message in found]
    told += [misfit for event in events_of(body) for misfit in misfits(event)]
    assert not told, "\n".join(told)


def framed(sse: bytes | Iterable[JsonObject]) -> bytes:
    """Events as the body of a streamed answer; a body stays what it is."""
    if isinstance(sse, bytes):
        return sse
    frames = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in sse]
    return "".join([*frames, "data: [DONE]\n\n"]).encode()


def events_of(sse: bytes) -> list[dict[str, Any]]:
    """The events in the body of a streamed answer."""
    data = (line.removeprefix("data:").strip() for line in sse.decode().split("\n") if line.startswith("data:"))
    return [json.loads(one) for one in data if one and one != "[DONE]"]
