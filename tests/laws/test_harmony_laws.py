"""Laws of the harmony decoder on any token stream: it never raises or loses text, and chunking changes nothing (L8)."""

from collections.abc import Sequence
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from app.models.harmony_decoder import Functions, HarmonyDecoder
from app.models.harmony_framing import (
    CALL,
    CHANNEL,
    CONSTRAIN,
    END,
    END_OF_TEXT,
    MESSAGE,
    RETURN,
    START,
    Closed,
    Framing,
    Opened,
    Text,
)
from app.models.vocabulary import Vocabulary
from app.responses.said import CallStarted, ItemEnded, MessageSaid, ReasoningSaid, Said, merge

VOCABULARY: Final = Vocabulary()
TABLE: Final = VOCABULARY.load()
BYTES: Final = {data: token for token, data in enumerate(TABLE)}
WORDS: Final = [
    BYTES[word]
    for word in (
        *(
            b"assistant",
            b"analysis",
            b"comment",
            b"ary",
            b"final",
            b" to",
            b"=",
            b"functions",
            b".",
            b"ping",
            b" json",
            b" code",
        ),
        *(
            b"python",
            b"user",
            b"{",
            b"}",
            b" ",
            b"\n",
            b"<",
            b"|",
            b"\xf0",
            b"\x9f",
            b"\xab",
            b"\xa0",
            b"\xff",
            b" the",
            b"Hi",
        ),
    )
]
MARKERS: Final = [START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN, END_OF_TEXT, 200_500, 201_088, 999_999, -1]

token = st.one_of(
    st.sampled_from(MARKERS[:5]),
    st.sampled_from(MARKERS),
    st.sampled_from(WORDS),
    st.sampled_from(WORDS),
    st.integers(0, 199_997),
)
streams = st.lists(token, max_size=60)
functions = st.sampled_from([Functions(), Functions(frozenset({"ping"})), Functions(frozenset(), exclusive=True)])


def joined(said: Sequence[Said]) -> list[Said]:
    return [replace(one, logprobs=list(one.logprobs)) if isinstance(one, MessageSaid) else one for one in merge(said)]


def decode(
    tokens: Sequence[int], sizes: Sequence[int], callable_: Functions, *, parallel: bool = True
) -> tuple[list[Said], int]:
    """What is said, and how many of the tokens were taken."""
    decoder = HarmonyDecoder(VOCABULARY, callable_, parallel=parallel)
    said: list[Said] = []
    start = 0
    for size in [*sizes, len(tokens)]:
        said += decoder.feed(tokens[start : start + size])
        start += size
    return joined([*said, *decoder.close(complete=False)]), decoder.seen


@settings(max_examples=400, deadline=None)
@given(streams, st.lists(st.integers(1, 7), max_size=40), functions, st.booleans())
def test_chunking_never_changes_what_was_said(
    tokens: list[int], sizes: list[int], callable_: Functions, parallel: bool
) -> None:
    whole = decode(tokens, [len(tokens)], callable_, parallel=parallel)
    assert decode(tokens, sizes, callable_, parallel=parallel) == whole


@settings(max_examples=400, deadline=None)
@given(streams, functions)
def test_without_parallel_calls_a_turn_is_the_same_up_to_the_end_of_its_first_call(
    tokens: list[int], callable_: Functions
) -> None:
    many, _ = decode(tokens, [], callable_)
    one, _ = decode(tokens, [], callable_, parallel=False)
    first = next((i for i, said in enumerate(many) if isinstance(said, CallStarted)), len(many))
    end = next((i for i, said in enumerate(many[first:], first) if isinstance(said, ItemEnded)), len(many))
    assert one == many[: end + 1]


@settings(max_examples=400, deadline=None)
@given(st.lists(token, max_size=40), st.booleans())
def test_deltas_add_up_to_the_decoded_bytes_of_each_text(body: list[int], stops: bool) -> None:
    content = [one for one in body if 0 <= one < len(TABLE)]
    framing = Framing(TABLE)
    pieces = framing.feed([CHANNEL, BYTES[b"final"], MESSAGE])
    for one in content:
        pieces += framing.feed([one])
    pieces += framing.feed([RETURN]) if stops else framing.close(complete=False)
    text = "".join(piece.text for piece in pieces if isinstance(piece, Text))
    assert b"".join(TABLE[one] for one in content).decode("utf-8", "replace") == text


@settings(max_examples=400, deadline=None)
@given(streams, functions)
def test_what_is_said_is_well_formed(tokens: list[int], callable_: Functions) -> None:
    open_kind: str | None = None
    for piece in decode(tokens, [1] * len(tokens), callable_)[0]:
        match piece:
            case ItemEnded():
                assert open_kind is not None
                open_kind = None
            case CallStarted(name):
                assert open_kind is None
                assert name
                assert not set(name) & set("<{ \n")
                open_kind = "call"
            case MessageSaid():
                assert open_kind in (None, "message")
                open_kind = "message"
            case ReasoningSaid():
                assert open_kind in (None, "reasoning")
                open_kind = "reasoning"
            case _:
                assert open_kind == "call"


@settings(max_examples=400, deadline=None)
@given(streams)
def test_no_special_token_is_ever_spelled_out(tokens: list[int]) -> None:
    plain = [one for one in tokens if one not in (BYTES[b"<"], BYTES[b"|"])]
    plain = [one for one in plain if not 0 <= one < len(TABLE) or b"<" not in TABLE[one]]
    for piece in decode(plain, [1] * len(plain), Functions()):
        assert "<|" not in repr(piece)


@settings(max_examples=400, deadline=None)
@given(streams, st.data())
def test_a_cut_where_nothing_is_held_is_exact(tokens: list[int], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(tokens)))
    before, whole, fresh = (HarmonyDecoder(VOCABULARY) for _ in range(3))
    said = before.feed(tokens[:cut])
    if before.holds_nothing:
        assert before.close(complete=False) == [], "something was held"
    whole.feed(tokens[:cut])
    for one in tokens[:cut]:
        fresh.feed([one])
    assert whole.holds_nothing == fresh.holds_nothing
    rest = [*fresh.feed(tokens[cut:]), *fresh.close(complete=False)]
    assert joined([*whole.feed(tokens[cut:]), *whole.close(complete=False)]) == joined(rest)
    assert decode(tokens, [len(tokens)], Functions())[0] == joined([*said, *rest])


@settings(max_examples=300, deadline=None)
@given(streams, st.lists(st.integers(1, 5), max_size=30))
def test_every_token_is_counted_once(tokens: list[int], sizes: list[int]) -> None:
    decoder, framing = HarmonyDecoder(VOCABULARY), Framing(TABLE)
    start = 0
    for size in [*sizes, len(tokens)]:
        decoder.feed(tokens[start : start + size])
        assert 0 <= decoder.reasoning_tokens <= decoder.seen <= len(tokens)
        start += size
    stop = next((i for i, one in enumerate(tokens) if one in (RETURN, CALL, END_OF_TEXT)), len(tokens) - 1)
    assert stop + 1 == decoder.seen
    closed = [piece.tokens for piece in framing.feed(tokens) if isinstance(piece, Closed)]
    assert sum(closed) <= framing.seen


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([*WORDS, *range(1000, 1020)]), max_size=30), st.lists(st.integers(1, 4), max_size=20))
def test_logprobs_belong_to_exactly_the_text_they_come_with(body: list[int], sizes: list[int]) -> None:
    decoder = HarmonyDecoder(VOCABULARY)
    decoder.feed([CHANNEL, BYTES[b"final"], MESSAGE])
    said, start = [], 0
    for size in [*sizes, len(body)]:
        chunk = body[start : start + size]
        said += decoder.feed(chunk, [(-1.0, [])] * len(chunk))
        start += size
    said += decoder.feed([RETURN], [(-1.0, [])])
    marks = [one for piece in said if isinstance(piece, MessageSaid) for one in piece.logprobs]
    assert [list(TABLE[one]) for one in body] == [mark["bytes"] for mark in marks]
    text = "".join(piece.text for piece in said if isinstance(piece, MessageSaid))
    assert bytes(b for mark in marks for b in mark["bytes"]).decode("utf-8", "replace") == text


def test_the_pieces_of_a_message_stand_between_its_opening_and_its_end() -> None:
    kinds = [type(piece) for piece in Framing(TABLE).feed([CHANNEL, BYTES[b"final"], MESSAGE, BYTES[b"Hi"], RETURN])]
    assert [Opened, Text, Closed] == kinds
