"""Decide: the projection and what was said in, drafts out. Pure; the projection is all the state there is.

Every event type has one builder, here. Indexes and texts come from the projection, ids are minted where a thing opens.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, assert_never

from app.responses.events import Draft, Status
from app.responses.ids import Kind
from app.responses.projection import Place, Projection, evolve, fork, open_item, snapshot, text_at
from app.responses.said import (
    ArgumentsSaid,
    CallStarted,
    Finished,
    FinishReason,
    ItemEnded,
    MessageSaid,
    Phase,
    ReasoningSaid,
    Said,
    Usage,
)

NewId = Callable[[Kind], str]

_CUT: Final[Mapping[FinishReason, str]] = {"length": "max_output_tokens", "content_filter": "content_filter"}


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a response failed, as both the `error` event and the response tell it."""

    message: str
    code: str = "server_error"
    type: str = "server_error"
    param: str | None = None


def decide(projection: Projection, said: Said, *, new_id: NewId, now: int) -> list[Draft]:
    """The drafts that follow from one thing said. `now` is unix seconds, for `completed_at`."""
    match said:
        case ReasoningSaid(text):
            return _reasoning(projection, text, new_id)
        case MessageSaid():
            return _message(projection, said, new_id)
        case CallStarted(name, call_id):
            return [*close(projection), *_call(projection, name, call_id or new_id("call"), new_id)]
        case ArgumentsSaid(text):
            return [_arguments_delta(projection, text)] if text else []
        case ItemEnded():
            return close(projection)
        case Finished(reason, usage):
            return _finish(projection, reason, usage, now)
        case _:
            assert_never(said)


def start(resource: Mapping[str, Any], *, queued: bool) -> list[Draft]:
    """The first events of a stream: created and, for a background response, queued."""
    created = Draft("response.created", {"response": resource})
    return [created, Draft("response.queued", {"response": resource})] if queued else [created]


def begin(projection: Projection) -> list[Draft]:
    """A worker has taken the response up."""
    return [Draft("response.in_progress", {"response": {**snapshot(projection), "status": "in_progress"}})]


def cancel(projection: Projection, usage: Usage | None) -> list[Draft]:
    """The end of a cancelled stream: no client knows `response.cancelled`, so it is incomplete with that status."""
    return _end(projection, close(projection, "incomplete"), "cancelled", {"usage": _usage(usage)})


def fail(projection: Projection, failure: Failure, usage: Usage | None) -> list[Draft]:
    """The end of a failed stream: open things closed, `error`, `response.failed`."""
    told = {"type": failure.type, "code": failure.code, "message": failure.message, "param": failure.param}
    error = Draft("error", {**{key: told[key] for key in ("code", "message", "param")}, "error": told})
    kept = {"code": failure.code, "message": failure.message}
    drafts = [*close(projection, "incomplete"), error]
    return _end(projection, drafts, "failed", {"error": kept, "usage": _usage(usage)})


def close(projection: Projection, status: str = "completed") -> list[Draft]:
    """Close the open item, if any, with everything that was said in it."""
    item = open_item(projection)
    if item is None:
        return []
    index = len(projection.output) - 1
    if item["type"] == "function_call":
        return _close_call(projection, index, item, status)
    return _close_part(projection, index, item, status)


def _reasoning(projection: Projection, text: str, new_id: NewId) -> list[Draft]:
    item = open_item(projection)
    if item is not None and item["type"] == "reasoning":
        return [_delta("reasoning_text", len(projection.output) - 1, item, text)] if text else []
    fresh = {"id": new_id("reasoning"), "type": "reasoning", "status": "in_progress", "summary": [], "content": []}
    part = {"type": "reasoning_text", "text": ""}
    return [*close(projection), *_opened(projection, fresh, part, text)]


def _message(projection: Projection, said: MessageSaid, new_id: NewId) -> list[Draft]:
    item = open_item(projection)
    extra = {"logprobs": said.logprobs}
    if item is not None and item["type"] == "message" and item.get("phase") == said.phase:
        index = len(projection.output) - 1
        return [_delta("output_text", index, item, said.text, extra)] if said.text else []
    fresh = _fresh_message(new_id("message"), said.phase)
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    return [*close(projection), *_opened(projection, fresh, part, said.text, extra)]


def _fresh_message(message_id: str, phase: Phase | None) -> dict[str, Any]:
    item = {"id": message_id, "type": "message", "status": "in_progress", "role": "assistant", "content": []}
    return item if phase is None else {**item, "phase": phase}


def _opened(
    projection: Projection,
    item: dict[str, Any],
    part: dict[str, Any],
    text: str,
    extra: Mapping[str, Any] | None = None,
) -> list[Draft]:
    """A new item with its one part, and the first piece of its text."""
    index = len(projection.output)
    part_added = Draft("response.content_part.added", {**_part_place(index, item), "part": part})
    drafts = [_item_added(index, item), part_added]
    return [*drafts, _delta(part["type"], index, item, text, extra)] if text else drafts


def _call(projection: Projection, name: str, call_id: str, new_id: NewId) -> list[Draft]:
    item = {
        "id": new_id("function_call"),
        "type": "function_call",
        "status": "in_progress",
        "arguments": "",
        "call_id": call_id,
        "name": name,
    }
    return [_item_added(len(projection.output), item)]


def _arguments_delta(projection: Projection, text: str) -> Draft:
    item = open_item(projection)
    if item is None or item["type"] != "function_call":
        raise ValueError("arguments were said while no call is open")
    return _call_delta(len(projection.output) - 1, item, text)


def _call_delta(index: int, item: Mapping[str, Any], text: str) -> Draft:
    place = {"item_id": item["id"], "output_index": index, "delta": text}
    return Draft("response.function_call_arguments.delta", place)


def _close_call(projection: Projection, index: int, item: Mapping[str, Any], status: str) -> list[Draft]:
    arguments = text_at(projection, (index, "arguments", -1))
    drafts = []
    if not arguments and status == "completed":  # a call without arguments is one with an empty object
        arguments = "{}"
        drafts.append(_call_delta(index, item, arguments))
    done = {"item_id": item["id"], "output_index": index, "arguments": arguments}
    drafts.append(Draft("response.function_call_arguments.done", done))
    return [*drafts, _item_done(index, {**item, "status": status, "arguments": arguments})]


def _close_part(projection: Projection, index: int, item: Mapping[str, Any], status: str) -> list[Draft]:
    part = item["content"][0]
    place: Place = (index, "content", 0)
    text = text_at(projection, place)
    said: dict[str, Any] = {"text": text}
    if part["type"] == "output_text":
        said["logprobs"] = projection.logprobs.get(place, [])
    full = {**part, **said}
    where = _part_place(index, item)
    return [
        Draft(f"response.{part['type']}.done", {**where, **said}),
        Draft("response.content_part.done", {**where, "part": full}),
        _item_done(index, {**item, "status": status, "content": [full]}),
    ]


def _part_place(index: int, item: Mapping[str, Any]) -> dict[str, Any]:
    return {"item_id": item["id"], "output_index": index, "content_index": 0}


def _delta(
    family: str, index: int, item: Mapping[str, Any], text: str, extra: Mapping[str, Any] | None = None
) -> Draft:
    place = {"item_id": item["id"], "output_index": index, "content_index": 0, "delta": text}
    return Draft(f"response.{family}.delta", {**place, **extra} if extra else place)


def _item_added(index: int, item: Mapping[str, Any]) -> Draft:
    return Draft("response.output_item.added", {"output_index": index, "item": item})


def _item_done(index: int, item: Mapping[str, Any]) -> Draft:
    return Draft("response.output_item.done", {"output_index": index, "item": item})


def _finish(projection: Projection, reason: FinishReason, usage: Usage, now: int) -> list[Draft]:
    spent = {"usage": _usage(usage)}
    if reason == "stop":
        return _end(projection, close(projection), "completed", {**spent, "completed_at": now})
    details = {"incomplete_details": {"reason": _CUT[reason]}}
    return _end(projection, close(projection, "incomplete"), "incomplete", {**spent, **details})


def _end(projection: Projection, drafts: Sequence[Draft], status: Status, added: Mapping[str, Any]) -> list[Draft]:
    """Drafts and the terminal event after them; its payload is the projection (law L4)."""
    last = fork(projection)
    for draft in drafts:
        evolve(last, draft)
    name = "incomplete" if status == "cancelled" else status
    return [*drafts, Draft(f"response.{name}", {"response": {**snapshot(last), "status": status, **added}})]


def _usage(usage: Usage | None) -> dict[str, Any] | None:
    if usage is None:
        return None
    cached = min(usage.cached_tokens, usage.input_tokens)
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": min(usage.reasoning_tokens, usage.output_tokens)},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
