"""Generated turns: what a model may say, in any order, cut into any pieces, with any ending."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from hypothesis import strategies as st

from app.responses.decider import Failure
from app.responses.said import (
    ArgumentsSaid,
    CallStarted,
    Finished,
    ItemEnded,
    MessageSaid,
    ReasoningSaid,
    Said,
    Usage,
    merge,
)
from tests.core.turn import Turn

End = Callable[[Turn], object]
Thing = Sequence[Said]  # one thing said: its pieces, and maybe its explicit end

FAILURE: Final = Failure("The engine broke off.")

texts: Final = st.lists(st.text(max_size=4), min_size=1, max_size=4)
usages: Final = st.builds(
    Usage,
    input_tokens=st.integers(0, 9),
    output_tokens=st.integers(0, 9),
    cached_tokens=st.integers(0, 12),
    reasoning_tokens=st.integers(0, 12),
)


def logprob(token: str) -> dict[str, Any]:
    """A token with its logprob, as the wire has it."""
    return {"token": token, "bytes": list(token.encode()), "logprob": -0.25, "top_logprobs": []}


@st.composite
def things(draw: st.DrawFn) -> Thing:
    """Reasoning, a message in a phase, or a call with its arguments."""
    pieces: list[Said]
    match draw(st.sampled_from(["reasoning", "message", "call"])):
        case "reasoning":
            pieces = [ReasoningSaid(text) for text in draw(texts)]
        case "message":
            phase = draw(st.sampled_from([None, "commentary", "final_answer"]))
            has_logprobs = draw(st.booleans())
            pieces = [
                MessageSaid(text, phase, [logprob(text)] if has_logprobs and text else ()) for text in draw(texts)
            ]
        case _:
            call = CallStarted(draw(st.sampled_from(["look", "find"])))
            pieces = [call, *(ArgumentsSaid(text) for text in draw(st.lists(st.text(max_size=4), max_size=3)))]
    return [*pieces, ItemEnded()] if draw(st.booleans()) else pieces


@st.composite
def ends(draw: st.DrawFn) -> End:
    """One of the ways in which a turn ends."""
    usage = draw(usages)
    match draw(st.sampled_from(["stop", "length", "content_filter", "cancel", "fail"])):
        case "cancel":
            return lambda turn: turn.cancel(usage)
        case "fail":
            return lambda turn: turn.fail(FAILURE, usage)
        case reason:
            return lambda turn: turn.say(Finished(reason, usage))


said: Final = st.lists(things(), max_size=5).map(lambda some: [piece for thing in some for piece in thing])


def played(script: Sequence[Said], end: End) -> Turn:
    """The whole turn."""
    turn = Turn()
    turn.begin()
    turn.say(*script)
    end(turn)
    return turn


@st.composite
def rechunked(draw: st.DrawFn, script: Sequence[Said]) -> list[Said]:
    """The same things said, with their texts cut and joined anywhere."""
    again: list[Said] = []
    for piece in merge(script):
        match piece:
            case ReasoningSaid(text):
                again += [ReasoningSaid(part) for part in draw(cuts(text))]
            case ArgumentsSaid(text):
                again += [ArgumentsSaid(part) for part in draw(cuts(text))]
            case MessageSaid(text, phase, logprobs) if not logprobs:
                again += [MessageSaid(part, phase) for part in draw(cuts(text))]
            case _:
                again.append(piece)
    return again


@st.composite
def cuts(draw: st.DrawFn, text: str) -> list[str]:
    """A text in pieces, of which some may be empty."""
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3)))
    return [text[start:stop] for start, stop in zip([0, *places], [*places, len(text)], strict=True)]
