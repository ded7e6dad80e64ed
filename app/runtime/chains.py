"""The context of a turn: the items of its ancestors, references resolved, rules checked."""

from collections.abc import Iterable, Mapping, Sequence

import orjson

from app.errors import InvalidRequest, PreviousResponseNotFound
from app.ports import Ancestor, Archive
from app.responses.events import ENDED, response_inside
from app.responses.history import Turn, check_calls, history, resolve
from app.responses.ids import response_of
from app.responses.request import Item, load_request


class Chains:
    """Reads chains from the archive, for one tenant at a time."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    async def parent(self, previous_response_id: str, tenant: str) -> list[Ancestor]:
        """The chain that ends with this response, oldest first.

        Raises PreviousResponseNotFound for an unknown or deleted member, InvalidRequest for a parent without an end.
        """
        chain = await self._archive.chain(previous_response_id)
        if not chain or chain[-1].tenant != tenant:
            raise PreviousResponseNotFound(f"Previous response with id '{previous_response_id}' not found.")
        missing = load_request(chain[0].request).previous_response_id
        if missing is not None:
            raise PreviousResponseNotFound(f"Previous response with id '{missing}' not found: it was deleted.")
        _check_usable(chain[-1])
        return chain

    async def resolved(self, chain: Sequence[Ancestor], own: Sequence[Item], tenant: str) -> list[Item]:
        """Own input with its references replaced, by items of the chain or of any stored response."""
        wanted = {item["id"] for item in own if item["type"] == "item_reference"}
        if not wanted:
            return list(own)
        known = _by_id(chain)
        for response_id in {found for item in wanted - known.keys() if (found := response_of(item))}:
            strangers = (await self._archive.chain(response_id))[-1:]
            known = {**_by_id([one for one in strangers if one.tenant == tenant]), **known}
        return resolve(own, known)


def listed(chain: Sequence[Ancestor], own: Sequence[Item] = ()) -> list[Item]:
    """The items of a chain and its newest input, oldest first, each once."""
    return history([turn_of(ancestor) for ancestor in chain], own)


def context(earlier: Sequence[Item], own: Sequence[Item]) -> list[Item]:
    """What the model gets. Raises InvalidRequest for calls without output and outputs without call."""
    return check_calls(history([Turn(earlier, ())], own))


def turn_of(ancestor: Ancestor) -> Turn:
    """What a finished response adds to a chain."""
    output = orjson.loads(response_inside(ancestor.terminal))["output"] if ancestor.terminal else []
    return Turn(load_request(ancestor.request).items, output)


def _by_id(chain: Iterable[Ancestor]) -> Mapping[str, Item]:
    turns = [turn_of(ancestor) for ancestor in chain]
    return {item["id"]: item for turn in turns for item in (*turn.items, *turn.output) if item.get("id")}


def _check_usable(parent: Ancestor) -> None:
    if parent.status == "failed":
        raise InvalidRequest(
            f"Previous response with id '{parent.id}' failed; continue from the one before it.",
            param="previous_response_id",
        )
    if parent.status not in ENDED:
        raise InvalidRequest(
            f"Previous response with id '{parent.id}' is still {parent.status}; wait for its end or cancel it.",
            param="previous_response_id",
        )
