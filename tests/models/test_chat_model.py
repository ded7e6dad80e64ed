"""The chat model: what an upstream streams becomes what was said, however it is cut into chunks."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.engines.chat import ChatCompletions
from app.errors import EngineFailed
from app.models.chat import ChatModel
from app.models.chat_calls import Calls, Fragment, Function
from app.models.markup import Markup
from app.ports import ModelCard
from app.responses.request import Request
from app.responses.said import (
    ArgumentsSaid,
    CallStarted,
    Finished,
    ItemEnded,
    MessageSaid,
    ReasoningSaid,
    Said,
    Spoken,
    Usage,
    merge,
)
from tests.fakes.running import FakeVllm, fake_vllm

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "d",
    "parameters": {"type": "object"},
    "strict": None,
}
CLOCK = {"type": "function", "name": "clock", "description": None, "parameters": None, "strict": None}
OSLO = '{"city":"Oslo"}'
STOP = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
COUNT = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}}


class Upstream:
    """A ChatEngine that says these chunks."""

    def __init__(self, *chunks: Mapping[str, Any]) -> None:
        self.chunks, self.closed = chunks, False
        self.body: Mapping[str, Any] = {}

    async def cards(self) -> Sequence[ModelCard]:
        return []

    async def complete(self, body: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        self.body = body
        try:
            yield {}
            for chunk in self.chunks:
                yield chunk
        finally:
            self.closed = True

    async def close(self) -> None:
        pass


def delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


def fragment(
    index: int | None, name: str | None = None, arguments: Any = None, call_id: str | None = None
) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return delta(tool_calls=[{"index": index, "id": call_id, "type": "function", "function": function}])


def finish(reason: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}


def request(**fields: Any) -> Request:
    items = [{"type": "message", "id": "m", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]
    return Request(model="qwen-parser", items=items, **fields)


async def spoken_by(engine: Any, **fields: Any) -> list[Spoken]:
    model, asked = ChatModel("qwen-parser", engine), request(**fields)
    prompt = await model.render(asked, asked.items)
    return [spoken async for spoken in model.respond(asked, prompt)]


async def said_by(*chunks: Mapping[str, Any], **fields: Any) -> list[Said]:
    """All but the finish."""
    spoken = await spoken_by(Upstream(*chunks, COUNT), **fields)
    assert spoken[0] == Spoken()
    assert isinstance(spoken[-1].said[-1], Finished)
    return merged(spoken)[:-1]


def merged(spoken: Sequence[Spoken]) -> list[Said]:
    """All that was said, neighbouring pieces joined; no logprobs are always ()."""
    said = merge([one for step in spoken for one in step.said])
    return [replace(one, logprobs=one.logprobs or ()) if isinstance(one, MessageSaid) else one for one in said]


async def said_of(text: str, *, tools: bool, reason: str = "stop", **fields: Any) -> list[Said]:
    """What one-character chunks of a text say; the same as the whole text at once."""
    offered = [WEATHER] if tools else []
    whole = await said_by(delta(content=text), finish(reason), tools=offered, **fields)
    pieces = await said_by(*[delta(content=c) for c in text], finish(reason), tools=offered, **fields)
    assert pieces == whole
    return whole


def call(arguments: str = OSLO, name: str = "get_weather") -> list[Said]:
    return [CallStarted(name), ArgumentsSaid(arguments), ItemEnded()]


async def test_reasoning_text_and_calls_are_told_in_order() -> None:
    said = await said_by(
        delta(role="assistant", content=""),
        delta(reasoning="Look"),
        delta(reasoning=" up."),
        delta(content="One"),
        delta(content=" moment."),
        fragment(0, "get_weather", "", "engine-id"),
        fragment(0, None, '{"city":'),
        fragment(0, None, '"Oslo"}'),
        finish("tool_calls"),
        tools=[WEATHER],
    )

    assert said == [ReasoningSaid("Look up."), MessageSaid("One moment."), *call()]


async def test_reasoning_content_is_reasoning_too() -> None:
    assert await said_by(delta(reasoning_content="hm"), delta(content="x"), STOP) == [
        ReasoningSaid("hm"),
        MessageSaid("x"),
    ]


async def test_a_refusal_is_text() -> None:
    assert await said_by(delta(refusal="I can't."), STOP) == [MessageSaid("I can't.")]


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ("stop", "stop"),
        ("tool_calls", "stop"),
        ("length", "length"),
        ("content_filter", "content_filter"),
        ("repetition", "stop"),
    ],
)
async def test_the_finish_reason_is_translated(told: str, reason: str) -> None:
    spoken = await spoken_by(Upstream(delta(content="x"), finish(told), COUNT))

    assert spoken[-1].said[-1] == Finished(reason, Usage(9, 5))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "chunks", [[], [delta(content="Hello")], [delta(content="x"), finish("abort")], [finish("error")]]
)
async def test_an_answer_without_a_good_end_is_a_failure(chunks: list[Any]) -> None:
    with pytest.raises(EngineFailed):
        await spoken_by(Upstream(*chunks))


async def test_nonsense_in_a_chunk_is_a_failure() -> None:
    with pytest.raises(EngineFailed, match="makes no sense"):
        await spoken_by(Upstream({"choices": [{"delta": {"content": 5}}]}, STOP))


async def test_usage_is_the_upstreams_with_impossible_parts_cut() -> None:
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 99},
        "completion_tokens_details": {"reasoning_tokens": 99},
    }

    spoken = await spoken_by(Upstream(delta(content="x"), STOP, {"choices": [], "usage": usage}))

    assert spoken[-1].usage == Usage(10, 4, 10, 4)


async def test_without_usage_deltas_are_counted() -> None:
    spoken = await spoken_by(Upstream(delta(reasoning="a"), delta(content="b"), delta(content="c"), STOP))

    usage = spoken[-1].usage
    assert usage is not None
    assert (usage.output_tokens, usage.reasoning_tokens, usage.cached_tokens) == (3, 1, 0)
    assert usage.input_tokens > 0
    assert [step.usage.output_tokens for step in spoken[1:-1] if step.usage] == [1, 2, 3]


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": -1, "completion_tokens": -5},  # a negative count has ended the whole process once
        {"prompt_tokens": None, "completion_tokens": None, "total_tokens": None},
        {"prompt_tokens": "9", "completion_tokens": 1e300},
        {"prompt_tokens_details": [], "completion_tokens_details": "none"},
        {},
        [],
        "many",
    ],
)
async def test_a_usage_that_makes_no_sense_is_as_none(usage: Any) -> None:
    told = await spoken_by(Upstream(delta(content="x"), STOP, {"choices": [], "usage": usage}))
    silent = await spoken_by(Upstream(delta(content="x"), STOP))

    assert told[-1] == silent[-1]


async def test_a_count_that_is_left_out_is_our_own() -> None:
    chunks = (delta(content="x"), STOP, {"choices": [], "usage": {"prompt_tokens": 3.0}})

    assert (await spoken_by(Upstream(*chunks)))[-1].usage == Usage(3, 1)


async def test_a_content_in_parts_is_reasoning_and_text() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Look"}, {"type": "text", "text": " up."}]}

    said = await said_by(
        delta(content=[thinking]),
        delta(content=[{"type": "thinking", "thinking": " So."}, {"type": "text", "text": "One"}, {"type": "new"}]),
        delta(content=" two."),
        STOP,
    )

    assert said == [ReasoningSaid("Look up. So."), MessageSaid("One two.")]


@pytest.mark.parametrize(
    "logprobs",
    [
        [],
        "none",
        {"content": "none"},
        {"content": ["x"]},
        {"content": [{"logprob": -1}]},
        {"content": [{"token": "Hi", "logprob": None}]},
    ],
)
async def test_logprobs_that_make_no_sense_are_left_out(logprobs: Any) -> None:
    chunk = delta(content="Hi")
    chunk["choices"][0]["logprobs"] = logprobs

    assert await said_by(chunk, STOP) == [MessageSaid("Hi")]


async def test_logprobs_go_with_their_text() -> None:
    entry = {
        "id": 5,
        "token": "Hi",
        "bytes": None,
        "logprob": -0.5,
        "top_logprobs": [{"token": "H", "bytes": [72], "logprob": -1.0}],
    }
    chunk = {
        "choices": [{"index": 0, "delta": {"content": "Hi"}, "logprobs": {"content": [entry]}, "finish_reason": None}]
    }

    (said,) = await said_by(chunk, STOP)

    assert said == MessageSaid(
        "Hi",
        logprobs=[
            {
                "token": "Hi",
                "bytes": [72, 105],
                "logprob": -0.5,
                "top_logprobs": [{"token": "H", "bytes": [72], "logprob": -1.0}],
            }
        ],
    )


async def test_logprobs_of_held_text_wait_for_it() -> None:
    def told(token: str) -> dict[str, Any]:
        entry = {"token": token, "bytes": list(token.encode()), "logprob": -0.5}
        return {
            "choices": [
                {"index": 0, "delta": {"content": token}, "logprobs": {"content": [entry]}, "finish_reason": None}
            ]
        }

    said = await said_by(told("a"), told(" <"), told(" b"), STOP, tools=[WEATHER])

    assert isinstance(said[0], MessageSaid)
    assert (said[0].text, [one["token"] for one in said[0].logprobs]) == ("a < b", ["a", " <", " b"])


async def test_text_has_no_logprobs_of_the_white_space_and_markup_around_it() -> None:
    def told(*tokens: str) -> dict[str, Any]:
        entries = [{"token": token, "bytes": None, "logprob": -0.5} for token in tokens]
        chunk = delta(content="".join(tokens))
        chunk["choices"][0]["logprobs"] = {"content": entries}
        return chunk

    def spelled(said: list[Said]) -> list[list[str]]:
        return [[token["token"] for token in one.logprobs] for one in said if isinstance(one, MessageSaid)]

    after_reasoning = await said_by(delta(reasoning="So."), told("\n\n"), told("One", " two"), STOP)
    marked = told("<tool_call>", '{"name":"clock"}', "</tool_call>", " ", "One", " two")
    after_a_call = await said_by(marked, STOP, tools=[CLOCK])
    whole = told("He", "\ufffd", "llo")
    whole["choices"][0]["delta"]["content"] = "He🫠llo"  # pieces of a character spell nothing

    assert spelled(after_reasoning) == [["One", " two"]]
    assert spelled(after_a_call) == [["One", " two"]]
    assert spelled(await said_by(whole, STOP)) == [["He", "\ufffd", "llo"]]


# --- calls


async def test_interleaved_calls_come_one_after_the_other() -> None:
    said = await said_by(
        fragment(0, "get_weather", "", "a"),
        fragment(1, "clock", "", "b"),
        fragment(1, None, '{"zone":'),
        fragment(0, None, '{"city":'),
        fragment(1, None, '"CET"}'),
        fragment(0, None, '"Oslo"}'),
        finish("tool_calls"),
        tools=[WEATHER],
    )

    assert said == [*call(), *call('{"zone":"CET"}', "clock")]


async def test_a_second_call_streams_once_the_first_is_complete() -> None:
    upstream = Upstream(
        fragment(0, "f", OSLO), fragment(1, "g", '{"a'), fragment(1, None, '":1}'), finish("tool_calls")
    )

    steps = [list(step.said) for step in await spoken_by(upstream, tools=[WEATHER])]

    assert steps[1:4] == [
        [CallStarted("f"), ArgumentsSaid(OSLO)],
        [ItemEnded(), CallStarted("g"), ArgumentsSaid('{"a')],
        [ArgumentsSaid('":1}')],
    ]


async def test_ids_that_are_missing_repeated_or_new_with_every_fragment_do_not_matter() -> None:
    for ids in (("a", "a", "a"), ("a", None, None), (None, None, None), ("a", "b", "c")):
        chunks = [
            fragment(0, "get_weather", "", ids[0]),
            fragment(0, None, '{"city":', ids[1]),
            fragment(0, None, '"Oslo"}', ids[2]),
        ]
        assert await said_by(*chunks, finish("tool_calls")) == call()


async def test_calls_without_an_index_or_with_the_same_one_are_told_apart_by_id_and_name() -> None:
    for index in (None, 0):
        chunks = [fragment(index, "get_weather", OSLO, "a"), fragment(index, "clock", "{}", "b")]
        assert await said_by(*chunks, finish("tool_calls")) == [*call(), *call("{}", "clock")]


@pytest.mark.parametrize("names", [("get_", "weather"), ("get_weather", "get_weather"), ("", "get_weather")])
async def test_a_name_may_come_in_pieces_twice_or_late(names: tuple[str, str]) -> None:
    chunks = [fragment(0, names[0], ""), fragment(0, names[1], ""), fragment(0, None, OSLO)]

    assert await said_by(*chunks, finish("tool_calls")) == call()


async def test_calls_with_one_index_and_no_ids_are_told_apart_by_arguments_that_are_whole() -> None:
    chunks = [fragment(0, "get_weather", '{"city":'), fragment(0, None, '"Oslo"}'), fragment(0, "clock", "{}")]

    assert await said_by(*chunks, finish("tool_calls")) == [*call(), *call("{}", "clock")]


async def test_a_whole_call_that_is_told_again_is_one_call() -> None:
    for arguments in (OSLO, ""):
        chunks = [fragment(0, "get_weather", OSLO, "a"), fragment(0, "get_weather", arguments, "a")]
        assert await said_by(*chunks, finish("tool_calls")) == call()


async def test_an_index_in_letters_an_id_that_is_a_number_and_spaces_around_a_name_do_not_matter() -> None:
    chunk = fragment(0, " get_weather ", OSLO)
    chunk["choices"][0]["delta"]["tool_calls"][0] |= {"index": "0", "id": 7}

    assert await said_by(chunk, fragment(1, " "), finish("tool_calls")) == call()


async def test_a_call_without_a_name_is_shown_as_text() -> None:
    assert await said_by(fragment(0, None, OSLO), finish("tool_calls")) == [MessageSaid(OSLO)]
    assert await said_by(delta(tool_calls=[{"index": 0}]), finish("tool_calls")) == []


async def test_a_call_without_arguments_has_an_empty_object() -> None:
    assert await said_by(fragment(0, "ping", ""), finish("tool_calls")) == call("{}", "ping")
    assert await said_by(fragment(0, "ping", " "), fragment(0, None, "\n"), finish("tool_calls")) == call("{}", "ping")
    assert await said_by(fragment(0, "ping", " "), fragment(0, None, "{} "), finish("tool_calls")) == call(
        " {} ", "ping"
    )


async def test_arguments_as_an_object_are_written_out() -> None:
    assert await said_by(fragment(0, "get_weather", {"city": "Oslo"}), finish("tool_calls")) == call()
    assert await said_by(fragment(0, "get_weather", {}), finish("tool_calls")) == call("{}")


async def test_a_call_that_is_cut_stays_open() -> None:
    said = await said_by(fragment(0, "get_weather", '{"ci'), finish("length"))

    assert said == [CallStarted("get_weather"), ArgumentsSaid('{"ci')]
    assert await said_by(fragment(0, "get_weather", ""), finish("length")) == [CallStarted("get_weather")]


async def test_only_the_first_call_is_kept_when_one_is_allowed() -> None:
    chunks = [fragment(0, "get_weather", OSLO, "a"), fragment(1, "clock", "{}", "b"), fragment(1, None, " ")]

    assert await said_by(*chunks, finish("tool_calls"), tools=[WEATHER], parallel_tool_calls=False) == call()


def only(*names: str) -> dict[str, Any]:
    allowed = [{"type": "function", "name": name} for name in names]
    return {"type": "allowed_tools", "mode": "auto", "tools": allowed}


@pytest.mark.parametrize("choice", ["none", only("clock")])
async def test_a_call_that_the_request_forbids_is_shown_as_reasoning(choice: Any) -> None:
    chunks = [fragment(0, "get_weather", '{"city":'), fragment(0, None, '"Oslo"}')]

    said = await said_by(*chunks, finish("tool_calls"), tools=[WEATHER, CLOCK], tool_choice=choice)

    assert said == [ReasoningSaid(f"get_weather{OSLO}"), ItemEnded()]


async def test_of_several_calls_those_that_are_allowed_are_made() -> None:
    chunks = [fragment(0, "clock", "{}", "a"), fragment(1, "get_weather", OSLO, "b"), delta(content=BLOCK)]

    said = await said_by(*chunks, finish("tool_calls"), tools=[WEATHER, CLOCK], tool_choice=only("get_weather"))

    assert said == [ReasoningSaid("clock{}"), ItemEnded(), *call(), *call()]


async def test_a_block_that_calls_what_is_not_allowed_is_reasoning() -> None:
    said = await said_by(delta(content=BLOCK), STOP, tools=[WEATHER, CLOCK], tool_choice=only("clock"))

    assert said == [ReasoningSaid(f"get_weather{OSLO}"), ItemEnded()]


async def test_white_space_before_a_call_opens_no_message() -> None:
    chunks = [delta(reasoning="hm"), delta(content="\n\n"), fragment(0, "get_weather", OSLO)]

    assert await said_by(*chunks, finish("tool_calls"), tools=[WEATHER]) == [ReasoningSaid("hm"), *call()]


async def test_text_in_the_middle_of_a_call_waits_for_its_end() -> None:
    chunks = [fragment(0, "get_weather", '{"city":'), delta(content="so"), fragment(0, None, '"Oslo"}')]

    assert await said_by(*chunks, finish("tool_calls")) == [*call(), MessageSaid("so")]


async def test_text_behind_a_complete_call_ends_it() -> None:
    assert await said_by(fragment(0, "get_weather", OSLO), delta(content="so"), STOP) == [*call(), MessageSaid("so")]


# --- markup that the upstream has left in the text

BLOCK = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


async def test_think_and_tool_call_markup_become_reasoning_and_a_call() -> None:
    said = await said_of(f"<think>\nUser wants weather.\n</think>\n\n{BLOCK}", tools=True)

    assert said == [ReasoningSaid("User wants weather."), *call()]


async def test_text_around_markup_is_kept_without_the_white_space() -> None:
    said = await said_of(f"<think>a</think>\n\nLet me see.\n{BLOCK}\n{BLOCK}\nDone.", tools=True)

    assert said == [ReasoningSaid("a"), MessageSaid("Let me see."), *call(), *call(), MessageSaid("Done.")]


async def test_cut_in_the_middle_of_thinking_there_is_only_reasoning() -> None:
    assert await said_of("<think>\nFirst consider", tools=False, reason="length") == [ReasoningSaid("First consider")]


async def test_tool_call_markup_is_text_when_no_tools_were_offered() -> None:
    assert await said_of(BLOCK, tools=False) == [MessageSaid(BLOCK)]
    assert await said_of(BLOCK, tools=True, tool_choice="none") == [MessageSaid(BLOCK)]


async def test_think_counts_only_at_the_beginning() -> None:
    assert await said_of("Use <think> here", tools=True) == [MessageSaid("Use <think> here")]


async def test_think_is_text_when_the_upstream_parses_reasoning() -> None:
    said = await said_by(delta(reasoning="hm"), delta(content="<think>"), STOP)

    assert said == [ReasoningSaid("hm"), MessageSaid("<think>")]


@pytest.mark.parametrize("text", ["    indented", "a < b", "1 <tool", "<", " <think", "end  \n"])
async def test_text_that_only_looks_like_markup_is_kept_exactly(text: str) -> None:
    assert await said_of(text, tools=True) == [MessageSaid(text)]


async def test_an_empty_thought_and_white_space_alone_are_nothing() -> None:
    assert await said_of("<think>\n\n</think>\n\nHello", tools=True) == [MessageSaid("Hello")]
    assert await said_of(" \n ", tools=True) == []
    assert await said_by(delta(reasoning="\n"), delta(reasoning="\n"), delta(content="Hello"), STOP) == [
        MessageSaid("Hello")
    ]
    assert await said_by(delta(reasoning="\n"), delta(reasoning="hm"), STOP) == [ReasoningSaid("\nhm")]


async def test_a_call_ends_what_was_held_as_the_beginning_of_markup() -> None:
    chunks = [delta(content="a <tool"), fragment(0, "get_weather", OSLO)]

    assert await said_by(*chunks, finish("tool_calls"), tools=[WEATHER]) == [MessageSaid("a <tool"), *call()]


async def test_reasoning_may_come_again_between_texts() -> None:
    chunks = [delta(content="one "), delta(reasoning="hm"), delta(content=" two")]

    assert await said_by(*chunks, STOP, tools=[WEATHER]) == [
        MessageSaid("one"),
        ReasoningSaid("hm"),
        MessageSaid("two"),
    ]


async def test_several_calls_in_one_block_and_arguments_as_text() -> None:
    block = '<tool_call>[{"name":"a","arguments":{}},{"name":"b","arguments":"{\\"x\\":1}"}]</tool_call>'

    assert await said_of(block, tools=True) == [*call("{}", "a"), *call('{"x":1}', "b")]
    assert await said_of(block + BLOCK, tools=True, parallel_tool_calls=False) == call("{}", "a")


@pytest.mark.parametrize("body", ["not json", '{"arguments":{}}', "[]", '"text"', '{"name":5}'])
async def test_a_block_that_is_no_call_is_shown_without_its_markup(body: str) -> None:
    assert await said_of(f"<tool_call>{body}</tool_call>", tools=True) == [MessageSaid(body)]


def test_a_long_block_takes_no_longer_than_its_letters() -> None:
    markup, calls = Markup(tools=True), Calls(parallel=True)
    markup.feed("<tool_call>")
    began = time.process_time()
    for _ in range(100_000):
        markup.feed("abc}")
        calls.hear([Fragment(0, None, Function("f", "abc}"))])
    assert time.process_time() - began < 10  # it was a minute, and longer for a name with every fragment
    assert markup.end(cut=False) == [MessageSaid("abc}" * 100_000)]


async def test_an_open_block_at_the_end_is_a_call_or_its_beginning() -> None:
    whole = BLOCK.removesuffix("\n</tool_call>")

    assert await said_of(whole, tools=True) == call()
    assert await said_of(whole[:-6], tools=True, reason="length") == [
        CallStarted("get_weather"),
        ArgumentsSaid('{"city": "O'),
    ]
    assert await said_of("<tool_call>{", tools=True, reason="length") == [MessageSaid("{")]
    assert await said_of("<tool_call>", tools=True) == []


@given(
    st.lists(
        st.sampled_from([*"<>/ \na", "<think>", "</think>", "<tool_call>", "</tool_call>", BLOCK, "think", "{"]),
        max_size=12,
    )
)
async def test_chunking_never_changes_what_was_said(parts: list[str]) -> None:
    await said_of("".join(parts), tools=True)


# --- over HTTP


@pytest.fixture(scope="module")
def fake() -> Any:
    with fake_vllm() as server:
        yield server


@pytest_asyncio.fixture
async def engine(fake: FakeVllm) -> AsyncIterator[ChatCompletions]:
    upstream = ChatCompletions(fake.url)
    yield upstream
    await upstream.close()


async def test_a_real_stream_is_told_and_counted(fake: FakeVllm, engine: ChatCompletions) -> None:
    weather = {"tool_call": {"name": "get_weather", "arguments": OSLO}}
    fake.script(
        {"chat": [{"reasoning": "hm"}, {"content": "Well."}, weather], "cached_tokens": 1, "request_id": "eng-req-77"}
    )

    spoken = await spoken_by(engine, tools=[WEATHER], reasoning_effort="low")

    assert merged(spoken)[:-1] == [ReasoningSaid("hm"), MessageSaid("Well."), *call()]
    assert spoken[-1].usage is not None
    assert (spoken[-1].usage.cached_tokens, spoken[-1].usage.reasoning_tokens) == (1, 1)
    assert "eng-req-77" not in repr(spoken)
    assert fake.last()["body"]["reasoning_effort"] == "low"


async def test_closing_aborts_at_the_upstream(fake: FakeVllm, engine: ChatCompletions) -> None:
    fake.script({"chat": [{"content": "word "}] * 3000, "pace_ms": 50})  # 150 s
    model, asked = ChatModel("qwen-parser", engine), request()

    async with aclosing(model.respond(asked, await model.render(asked, asked.items))) as speech:
        async for spoken in speech:
            if spoken.said:
                break

    await fake.wait(lambda server: server.active() == 0)
    assert fake.last()["state"] == "aborted"


async def test_the_stored_body_can_be_run_later_and_closing_closes_the_engine() -> None:
    upstream = Upstream(delta(content="x"), STOP)
    model, asked = ChatModel("public", upstream, engine_model="upstream/name"), request()
    prompt = await model.render(asked, asked.items)

    async with aclosing(ChatModel("public", upstream).respond(asked, prompt)) as speech:
        assert await anext(speech) == Spoken()

    assert upstream.body["model"] == "upstream/name"
    assert upstream.closed
