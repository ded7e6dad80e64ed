"""Ids: which prefix a thing has, and how the id of an item tells its response.

An item's id holds the hexadecimal part of its response's id, so a stored item is found by its id alone
(`item_reference`) without an index.
"""

from typing import Final, Literal

Kind = Literal["message", "reasoning", "function_call", "function_call_output", "call"]

RESPONSE_PREFIX: Final = "resp_"
PREFIX: Final[dict[Kind, str]] = {
    "message": "msg_",
    "reasoning": "rs_",
    "function_call": "fc_",
    "function_call_output": "fco_",
    "call": "call_",
}
RESPONSE_DIGITS: Final = 32
ITEM_DIGITS: Final = 8


def item_id(kind: Kind, response_id: str, digits: str) -> str:
    """The id of a new thing inside a response. An unknown kind is a KeyError, never an id with a wrong prefix."""
    return f"{PREFIX[kind]}{response_id.removeprefix(RESPONSE_PREFIX)}{digits}"


def response_of(item: str) -> str | None:
    """The id of the response that an item of ours belongs to; None for an id that is not ours."""
    _, _, digits = item.partition("_")
    if len(digits) != RESPONSE_DIGITS + ITEM_DIGITS:
        return None
    return RESPONSE_PREFIX + digits[:RESPONSE_DIGITS]
