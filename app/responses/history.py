"""What came before: the items a turn starts from, and the rules they keep."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from app.errors import InvalidRequest
from app.responses.ids import PREFIX, Kind, response_of
from app.responses.request import Item

_LABELS: Final = frozenset({"id", "status"})  # what may differ between two copies of one item
_CALL_PAIRS: Final = frozenset({"function_call", "function_call_output"})


class Turn(NamedTuple):
    """What one response of a chain adds to the next one's context."""

    items: Sequence[Item]
    output: Sequence[Item]


def with_ids(
    items: Iterable[Item], new_id: Callable[[Kind], str], *, earlier: Iterable[Item] = ()
) -> list[dict[str, Any]]:
    """Own input items, each with an id: the client's label, or a new one.

    A label that another item has already does not count: a list is paged by its ids.
    """
    labelled = {item["id"]: item for item in earlier if item.get("id")}
    own: list[dict[str, Any]] = []
    for item in items:
        kind, label = _kind(item), item.get("id")
        other = labelled.setdefault(label, item) if label else None
        fits = other is not None and (other is item or (_identity(other) == _identity(item) and _same(other, item)))
        own.append(dict(item) if fits or kind is None else {**item, "id": new_id(kind)})
    return own


def resolve(items: Sequence[Item], stored: Mapping[str, Item]) -> list[Item]:
    """Put the items themselves in the place of references. Raises InvalidRequest naming an unknown one."""
    found: list[Item] = []
    for index, item in enumerate(items):
        if item["type"] != "item_reference":
            found.append(item)
        elif item["id"] in stored:
            found.append(stored[item["id"]])
        else:
            raise InvalidRequest(f"Item with id '{item['id']}' not found.", param=f"input[{index}].id")
    return found


def history(turns: Iterable[Turn], own: Sequence[Item]) -> list[Item]:
    """Everything the model gets to see, oldest first; an item that is sent again counts once."""
    items = [item for turn in turns for item in (*turn.items, *turn.output)] + list(own)
    seen: dict[tuple[str, str], Item] = {}
    kept: list[Item] = []
    for item in items:
        key = _identity(item)
        if key is not None and key in seen and _same(seen[key], item):
            continue
        if key is not None:
            seen[key] = item
        kept.append(item)
    return kept


def check_calls(items: Sequence[Item]) -> list[Item]:
    """Every call has its output and every output its call before it; else InvalidRequest with OpenAI's sentence.

    A call that was cut off can't have an output and is left out.
    """
    called = set[str]()
    answered = {item["call_id"] for item in items if item["type"] == "function_call_output"}
    kept: list[Item] = []
    for item in items:
        if item["type"] == "function_call":
            called.add(item["call_id"])
        if item["type"] == "function_call_output" and item["call_id"] not in called:
            sentence = f"No tool call found for function call output with call_id {item['call_id']}."
            raise InvalidRequest(sentence, param="input")
        if item["type"] == "function_call" and item["call_id"] not in answered:
            if item.get("status") == "incomplete":
                continue
            raise InvalidRequest(f"No tool output found for function call {item['call_id']}.", param="input")
        kept.append(item)
    return kept


def _kind(item: Item) -> Kind | None:
    kind = item["type"]
    return kind if kind in PREFIX else None


def _identity(item: Item) -> tuple[str, str] | None:
    """What makes two items the same one: a call's id, or the item's own."""
    if item["type"] in _CALL_PAIRS:
        return item["type"], item["call_id"]
    return (item["type"], item["id"]) if item.get("id") else None


def _same(one: Item, other: Item) -> bool:
    """An id that we minted is enough; a client's own label may be used twice for different things."""
    if (item_id := other.get("id")) and item_id == one.get("id") and response_of(item_id):
        return True
    if {k: v for k, v in one.items() if k not in _LABELS} == {k: v for k, v in other.items() if k not in _LABELS}:
        return True
    if one["type"] in _CALL_PAIRS:
        raise InvalidRequest(f"Two different items of type {one['type']} have call_id {one['call_id']}.", param="input")
    return False
