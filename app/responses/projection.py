"""The fold: events in, the response out. Writer and readers use this one (laws L4, L6)."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from app.responses.events import Draft, Event

Payload = Mapping[str, Any]
Place = tuple[int, str, int]  # output index, the list or field inside the item, index in it (-1: a field)

# What the terminal event itself adds; everything else comes from the events before it.
ADDED_AT_THE_END: Final = ("status", "usage", "error", "incomplete_details", "completed_at")


@dataclass(slots=True)
class Projection:
    """A response as its events tell it.

    It has one owner, who folds events into it with `evolve`; whoever wants to keep a moment of it takes a `snapshot`.
    `pieces` holds the text of open parts, not yet joined: joining per delta would be quadratic.
    """

    version: int = -1
    resource: dict[str, Any] = field(default_factory=dict)
    output: list[dict[str, Any]] = field(default_factory=list)
    pieces: dict[Place, list[str]] = field(default_factory=dict)
    logprobs: dict[Place, list[Any]] = field(default_factory=dict)


def project(events: Iterable[Event]) -> Projection:
    """Fold a whole stream. Raises ValueError when positions have a hole (law L1)."""
    projection = Projection()
    for event in events:
        if event.position != projection.version + 1:
            raise ValueError(f"position {event.position} follows {projection.version}")
        evolve(projection, event)
    return projection


def evolve(projection: Projection, event: Event | Draft) -> Projection:
    """Fold one more event into the projection, in place, and give it back."""
    handler = _HANDLERS.get(event.type)
    if handler is not None:
        handler(projection, event.payload)
    projection.version += 1
    return projection


def fork(projection: Projection) -> Projection:
    """A copy to fold further without touching the original."""
    return Projection(
        projection.version,
        dict(projection.resource),
        list(projection.output),
        {place: list(pieces) for place, pieces in projection.pieces.items()},
        {place: list(logprobs) for place, logprobs in projection.logprobs.items()},
    )


def snapshot(projection: Projection) -> dict[str, Any]:
    """The response object. Items that are still open show what their events showed."""
    return {**projection.resource, "output": list(projection.output)}


def open_item(projection: Projection) -> dict[str, Any] | None:
    """The item that is being said, if any: always the last one."""
    if projection.output and projection.output[-1].get("status") == "in_progress":
        return projection.output[-1]
    return None


def text_at(projection: Projection, place: Place) -> str:
    """What was said at an open place so far."""
    return "".join(projection.pieces.get(place, ()))


def _born(projection: Projection, payload: Payload) -> None:
    projection.resource = dict(payload["response"])
    projection.output = list(projection.resource.pop("output", None) or ())


def _moved_on(projection: Projection, payload: Payload) -> None:
    resource = dict(payload["response"])
    resource.pop("output", None)
    projection.resource = resource


def _ended(projection: Projection, payload: Payload) -> None:
    response = payload["response"]
    for key in ADDED_AT_THE_END:
        if key in response:
            projection.resource[key] = response[key]


def _item_added(projection: Projection, payload: Payload) -> None:
    index = payload["output_index"]
    if index != len(projection.output):
        raise ValueError(f"output index {index} follows {len(projection.output) - 1}")
    projection.output.append(dict(payload["item"]))


def _item_done(projection: Projection, payload: Payload) -> None:
    projection.output[payload["output_index"]] = dict(payload["item"])


def _part_added(projection: Projection, payload: Payload) -> None:
    _put_part(projection, payload, "content", payload["content_index"])


def _summary_added(projection: Projection, payload: Payload) -> None:
    _put_part(projection, payload, "summary", payload["summary_index"])


def _put_part(projection: Projection, payload: Payload, parts: str, index: int) -> None:
    item = projection.output[payload["output_index"]]
    before = item.get(parts) or []
    projection.output[payload["output_index"]] = {
        **item,
        parts: [*before[:index], dict(payload["part"]), *before[index + 1 :]],
    }


def _annotation_added(projection: Projection, payload: Payload) -> None:
    index, part_index = payload["output_index"], payload["content_index"]
    part = projection.output[index]["content"][part_index]
    grown = {**part, "annotations": [*part.get("annotations", ()), payload["annotation"]]}
    _put_part(projection, {"output_index": index, "part": grown}, "content", part_index)


def _said(parts: str, index_key: str | None) -> Callable[[Projection, Payload], None]:
    """A delta: keep the piece until its part is done."""

    def handler(projection: Projection, payload: Payload) -> None:
        place = (payload["output_index"], parts, payload[index_key] if index_key else -1)
        projection.pieces.setdefault(place, []).append(payload["delta"])
        logprobs = payload.get("logprobs")
        if logprobs:
            projection.logprobs.setdefault(place, []).extend(logprobs)

    return handler


def _part_said(parts: str, index_key: str, key: str) -> Callable[[Projection, Payload], None]:
    """The whole text of a part."""

    def handler(projection: Projection, payload: Payload) -> None:
        place = (payload["output_index"], parts, payload[index_key])
        projection.pieces.pop(place, None)
        projection.logprobs.pop(place, None)
        part = projection.output[place[0]][parts][place[2]]
        full = {**part, key: payload[key]}
        if "logprobs" in part and "logprobs" in payload:
            full["logprobs"] = payload["logprobs"]
        _put_part(projection, {"output_index": place[0], "part": full}, parts, place[2])

    return handler


def _field_said(field_name: str) -> Callable[[Projection, Payload], None]:
    """The whole text of a field of an item."""

    def handler(projection: Projection, payload: Payload) -> None:
        index = payload["output_index"]
        projection.pieces.pop((index, field_name, -1), None)
        projection.output[index] = {**projection.output[index], field_name: payload[field_name]}

    return handler


_HANDLERS: Final[Mapping[str, Callable[[Projection, Payload], None]]] = {
    "response.created": _born,
    "response.queued": _moved_on,
    "response.in_progress": _moved_on,
    "response.completed": _ended,
    "response.incomplete": _ended,
    "response.failed": _ended,
    "response.output_item.added": _item_added,
    "response.output_item.done": _item_done,
    "response.content_part.added": _part_added,
    "response.content_part.done": _part_added,
    "response.output_text.delta": _said("content", "content_index"),
    "response.output_text.done": _part_said("content", "content_index", "text"),
    "response.output_text.annotation.added": _annotation_added,
    "response.refusal.delta": _said("content", "content_index"),
    "response.refusal.done": _part_said("content", "content_index", "refusal"),
    "response.reasoning_text.delta": _said("content", "content_index"),
    "response.reasoning_text.done": _part_said("content", "content_index", "text"),
    "response.reasoning_summary_part.added": _summary_added,
    "response.reasoning_summary_part.done": _summary_added,
    "response.reasoning_summary_text.delta": _said("summary", "summary_index"),
    "response.reasoning_summary_text.done": _part_said("summary", "summary_index", "text"),
    "response.function_call_arguments.delta": _said("arguments", None),
    "response.function_call_arguments.done": _field_said("arguments"),
    "response.mcp_call_arguments.delta": _said("arguments", None),
    "response.mcp_call_arguments.done": _field_said("arguments"),
    "response.custom_tool_call_input.delta": _said("input", None),
    "response.custom_tool_call_input.done": _field_said("input"),
    "response.code_interpreter_call_code.delta": _said("code", None),
    "response.code_interpreter_call_code.done": _field_said("code"),
}
