"""Ids: the prefix tells the kind, the digits tell the response."""

from typing import get_args

import pytest

from app.responses.ids import ITEM_DIGITS, PREFIX, RESPONSE_DIGITS, RESPONSE_PREFIX, Kind, item_id, response_of

RESPONSE = RESPONSE_PREFIX + "a1" * (RESPONSE_DIGITS // 2)
DIGITS = "b2" * (ITEM_DIGITS // 2)


def test_every_kind_has_its_own_prefix():
    assert set(PREFIX) == set(get_args(Kind))
    assert len(set(PREFIX.values())) == len(PREFIX)


@pytest.mark.parametrize("kind", get_args(Kind))
def test_an_id_tells_its_response(kind: Kind):
    made = item_id(kind, RESPONSE, DIGITS)
    assert made.startswith(PREFIX[kind])
    assert made.endswith(DIGITS)
    assert response_of(made) == RESPONSE


def test_an_unknown_kind_is_an_error_and_never_an_id():
    with pytest.raises(KeyError):
        item_id("tool", RESPONSE, DIGITS)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "foreign",
    ["", "msg_1", "msg_6f1d0c6e-2f0e-4f9a-9d6b-0f4c9a5f7b11", RESPONSE, "call_" + "x" * 24, "rs_" + "0" * 50],
)
def test_an_id_from_elsewhere_tells_nothing(foreign: str):
    assert response_of(foreign) is None
