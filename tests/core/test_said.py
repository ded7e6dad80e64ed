"""merge: neighbouring pieces of one text become one piece, and nothing else does."""

from typing import Any

import pytest

from app.responses.said import (
    DELTA_LIMIT,
    ArgumentsSaid,
    CallStarted,
    Finished,
    ItemEnded,
    MessageSaid,
    ReasoningSaid,
    Usage,
    merge,
)

STOP = Finished("stop", Usage(1, 1))
ONE, OTHER = {"token": "a"}, {"token": "b"}


def test_nothing_merges_to_nothing():
    assert merge([]) == []


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([ReasoningSaid("a"), ReasoningSaid("b"), ReasoningSaid("c")], [ReasoningSaid("abc")]),
        ([ArgumentsSaid("{"), ArgumentsSaid("}")], [ArgumentsSaid("{}")]),
        ([MessageSaid("a"), MessageSaid("b")], [MessageSaid("ab")]),
        ([MessageSaid("a", "commentary"), MessageSaid("", "commentary")], [MessageSaid("a", "commentary")]),
        (
            [MessageSaid("a", None, [ONE]), MessageSaid("b", None, [OTHER])],
            [MessageSaid("ab", None, (ONE, OTHER))],
        ),
    ],
)
def test_pieces_of_one_text_are_joined(pieces: list[Any], expected: list[Any]):
    assert merge(pieces) == expected


@pytest.mark.parametrize(
    "pieces",
    [
        [ReasoningSaid("a"), MessageSaid("b")],
        [MessageSaid("a", "commentary"), MessageSaid("b", "final_answer")],
        [MessageSaid("a"), MessageSaid("b", "final_answer")],
        [MessageSaid("a"), ItemEnded(), MessageSaid("b")],
        [CallStarted("look"), CallStarted("look")],
        [ItemEnded(), ItemEnded()],
        [CallStarted("look"), ArgumentsSaid("{}"), CallStarted("look"), ArgumentsSaid("{}")],
        [MessageSaid("a"), STOP],
    ],
)
def test_what_belongs_to_different_things_stays_apart(pieces: list[Any]):
    assert merge(pieces) == pieces


def test_order_is_kept_around_what_is_joined():
    pieces = [ReasoningSaid("a"), ReasoningSaid("b"), CallStarted("look"), ArgumentsSaid("{"), ArgumentsSaid("}"), STOP]
    assert merge(pieces) == [ReasoningSaid("ab"), CallStarted("look"), ArgumentsSaid("{}"), STOP]


@pytest.mark.parametrize("kind", [ReasoningSaid, MessageSaid, ArgumentsSaid])
@pytest.mark.parametrize("times", [1, 3])
def test_a_long_text_becomes_several_small_pieces(kind: Any, times: int):
    text = "0123456789" * DELTA_LIMIT
    merged: list[Any] = list(merge([kind(text)] * times))
    assert max(len(piece.text) for piece in merged) == DELTA_LIMIT
    assert "".join(piece.text for piece in merged) == text * times


def test_text_with_logprobs_is_never_cut_apart_from_them():
    long = "x" * (DELTA_LIMIT + 1)
    assert merge([MessageSaid(long, None, (ONE,)), MessageSaid("y", None, (OTHER,))]) == [
        MessageSaid(long + "y", None, (ONE, OTHER))
    ]
