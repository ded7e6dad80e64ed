"""What every model kind has to show on a real vLLM, and what vLLM itself says, past `verbatim serve`."""

from collections.abc import Callable
from contextlib import ExitStack
from math import inf
from typing import Any, Final

from tests.e2e.client import Api
from tests.e2e.judge import frames
from tests.e2e.serving import eventually, get
from tests.vllm.cable import BYTES_FOR_EACH_TOKEN, SOME_BYTES, Cable
from tests.vllm.server import ENDED, TRIES, Vllm, running_in, total_in

PROMPT_TOKENS: Final = "vllm:prompt_tokens_total"
GENERATED_TOKENS: Final = "vllm:generation_tokens_total"


def metrics(vllm: Vllm) -> str:
    """vLLM's page of metrics."""
    return get(f"{vllm.url}/metrics").text


def ended_when_idle(vllm: Vllm) -> int:
    """Wait until no generation runs; how many have come to an end of their own, which aborted ones never do.

    Compared before and after, it tells a generation that was stopped from one that had time enough to run to its limit.
    """
    eventually(lambda: running_in(metrics(vllm)) == 0, what="the end of the generation")
    return total_in(metrics(vllm), ENDED)


def counted(vllm: Vllm) -> tuple[int, int]:
    """How many tokens of prompts and of generations it has counted since its start."""
    page = metrics(vllm)
    return total_in(page, PROMPT_TOKENS), total_in(page, GENERATED_TOKENS)


def assert_suffixes_are_the_same_live_and_later(api: Api, cable: Cable, asked: dict[str, Any]) -> None:
    """Byte for byte, from the positions that are there at the first text and from some to come (law L5)."""
    cable.ration(SOME_BYTES)
    with ExitStack() as readers, api.stream(background=True, **asked, **BYTES_FOR_EACH_TOKEN) as stream:
        stream.until("response.output_text.delta")
        there = len(stream.events)
        # how many deltas are to come is a matter of speed, but text, part, item and response have to be closed
        places = [*range(0, there, 3), *range(there, there + 4)]
        live = [readers.enter_context(api.follow(stream.response_id, after)) for after in places]
        assert api.retrieve(stream.response_id)["status"] == "in_progress"
        cable.ration(inf)
        stream.read()
        for reader in live:
            reader.read()

    whole = frames(stream.body)
    assert len(whole) > max(places)
    assert [frames(reader.body) for reader in live] == [whole[after + 1 :] for after in places]
    assert [frames(api.replay(stream.response_id, n)) for n in places] == [whole[n + 1 :] for n in places]
    assert frames(api.replay(stream.response_id)) == whole


def until_stopped(vllm: Vllm, leave: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Have a generation left, again until vLLM has stopped one; what became of that response. See `until_aborted`."""
    for _ in range(TRIES):
        before = ended_when_idle(vllm)
        ended = leave()
        if ended_when_idle(vllm) == before:
            return ended
    raise AssertionError(f"vLLM has stopped none of {TRIES} generations")


def cancelled_in_mid_turn(api: Api, upstream: Vllm, asked: dict[str, Any]) -> dict[str, Any]:
    """What became of a background run that was cancelled; vLLM has stopped."""

    def leave() -> dict[str, Any]:
        with api.stream(background=True, **asked) as stream:
            stream.until("response.output_text.delta")
            cancelled = api.cancel(stream.response_id)
            events = stream.read()
        assert cancelled.json() == events[-1]["response"]
        return dict(events[-1])

    end = until_stopped(upstream, leave)
    assert (end["type"], end["response"]["status"]) == ("response.incomplete", "cancelled")
    return dict(end["response"])


def left_in_mid_turn(api: Api, upstream: Vllm, asked: dict[str, Any]) -> dict[str, Any]:
    """What became of a foreground stream whose client went away; vLLM has stopped."""

    def leave() -> dict[str, Any]:
        with api.stream(**asked) as stream:
            stream.until("response.output_text.delta")
            response_id = stream.response_id
        return dict(api.ended(response_id))

    ended = until_stopped(upstream, leave)
    assert (ended["status"], ended["error"]) == ("cancelled", None)
    return ended
