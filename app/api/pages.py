"""Lists as the API gives them: pages of items, and the models."""

from collections.abc import Sequence
from typing import Any

from app.api.checks import quoted, wrong
from app.ports import ModelCard
from app.responses.request import Item


def page(items: Sequence[Item], *, after: str | None, limit: int) -> dict[str, Any]:
    """The items after the one with this id, at most `limit`."""
    start = 0 if after is None else 1 + _index(items, after)
    shown = items[start : start + limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else "",
        "last_id": shown[-1]["id"] if shown else "",
        "has_more": start + limit < len(items),
    }


def model_card(card: ModelCard) -> dict[str, Any]:
    """A model as `/v1/models` lists it."""
    return {
        "id": card.id,
        "object": "model",
        "created": card.created,
        "owned_by": card.owned_by,
        "context_length": card.context_length,
    }


def _index(items: Sequence[Item], item_id: str) -> int:
    for i, item in enumerate(items):
        if item["id"] == item_id:
            return i
    raise wrong("after", f"there is no item {quoted(item_id)} in this list")
