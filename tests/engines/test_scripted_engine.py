"""The scripted engines: order, matching, pace, faults, continuation, and script files."""

import asyncio
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from app.engines.scripted import ScriptedChat, ScriptedTokens
from app.engines.scripts import Fault, Hold, Output, Piece, ToolCall, load_script
from app.errors import EngineFailed, EngineRefused, EngineStalled, SettingsError
from app.ports import Sampling, Tokens

PROMPT = "<user>hello<assistant>"


def encode(text: str) -> list[int]:
    return [ord(character) for character in text]


def decode(tokens: Sequence[int]) -> str:
    return "".join(map(chr, tokens))


def token_engine(*outputs: Output, **settings: Any) -> ScriptedTokens:
    return ScriptedTokens(encode, decode, outputs, **settings)


async def generate(engine: ScriptedTokens, prompt: str = PROMPT, sampling: Sampling | None = None) -> list[Tokens]:
    return [tokens async for tokens in engine.generate("m", encode(prompt), sampling or Sampling())]


def text_of(told: Sequence[Tokens]) -> str:
    return decode([token for tokens in told for token in tokens.ids])


async def said_until_fault(engine: ScriptedTokens, error: type[Exception], prompt: str = PROMPT) -> str:
    told: list[Tokens] = []
    with pytest.raises(error):
        async for tokens in engine.generate("m", encode(prompt), Sampling()):
            told += [tokens]
    return text_of(told)


async def complete(engine: ScriptedChat, text: str = "hello", **fields: Any) -> list[Mapping[str, Any]]:
    return [chunk async for chunk in engine.complete({"messages": [{"role": "user", "content": text}], **fields})]


def deltas(chunks: Sequence[Mapping[str, Any]]) -> list[Any]:
    return [delta for chunk in chunks if chunk.get("choices") and (delta := chunk["choices"][0]["delta"])]


async def test_a_script_is_told_in_chunks_with_the_finish_on_the_last() -> None:
    told = await generate(token_engine(Output(text="abcde", tokens_per_chunk=2, cached_tokens=3)))

    assert told[0] == Tokens()
    assert [decode(tokens.ids) for tokens in told[1:]] == ["ab", "cd", "e"]
    assert [tokens.finish_reason for tokens in told] == [None, None, None, "stop"]
    assert told[-1].cached_tokens == 3


async def test_without_a_script_it_says_hello_with_reasoning() -> None:
    tokens = text_of(await generate(ScriptedTokens(encode, decode)))
    chat = deltas(await complete(ScriptedChat()))

    assert tokens.startswith("<|channel|>analysis<|message|>")
    assert tokens.endswith("Hello! I am a scripted model.<|return|>")
    assert "".join(delta.get("content", "") for delta in chat) == "Hello! I am a scripted model."
    assert "".join(delta.get("reasoning", "") for delta in chat) == "The user wants to talk. I greet."


async def test_outputs_come_in_order_and_the_last_one_repeats() -> None:
    engine = token_engine(Output(text="one", repeat=2), Output(text="two"))

    assert [text_of(await generate(engine)) for _ in range(5)] == ["one", "one", "two", "two", "two"]


async def test_a_match_is_only_for_prompts_that_contain_it() -> None:
    engine = token_engine(Output(text="plain"), Output(text="weather", match="Oslo"))

    assert [text_of(await generate(engine, p)) for p in ("<u>Oslo<a>", "<u>hi<a>", "<u>Oslo<a>", "<u>hi<a>")] == [
        "weather",
        "plain",
        "weather",
        "plain",
    ]


async def test_a_prompt_that_fits_nothing_is_refused() -> None:
    with pytest.raises(EngineRefused, match="No scripted output fits"):
        await generate(token_engine(Output(text="weather", match="Oslo")))


async def test_a_prompt_that_ends_inside_an_answer_continues_it_in_any_process() -> None:
    outputs = [Output(text="first answer"), Output(text="second answer")]

    for fresh in (token_engine(*outputs), token_engine(*outputs)):
        assert text_of(await generate(fresh, PROMPT + "second a")) == "nswer"
        assert text_of(await generate(fresh)) == "first answer"


async def test_answers_that_begin_alike_are_continued_by_their_match() -> None:
    outputs = [Output(text="same for all", match="all"), Output(text="same for one", match="one")]
    outputs += [Output(text="same for some")]

    assert text_of(await generate(token_engine(*outputs), "one?same f")) == "or one"
    assert text_of(await generate(token_engine(*outputs), "all?same f")) == "or all"
    assert text_of(await generate(token_engine(*outputs), "who?same f")) == "or some"


async def test_max_tokens_and_stop_tokens_cut() -> None:
    engine = token_engine(Output(text="abcdef"))

    cut = await generate(engine, sampling=Sampling(max_tokens=2))
    stopped = await generate(engine, sampling=Sampling(stop_token_ids=encode("d")))

    assert (text_of(cut), cut[-1].finish_reason) == ("ab", "length")
    assert (text_of(stopped), stopped[-1].finish_reason) == ("abcd", "stop")


async def test_an_empty_output_still_ends() -> None:
    told = await generate(token_engine(Output(text="")))

    assert [tokens.finish_reason for tokens in told] == [None, "stop"]


async def test_a_finish_reason_can_be_forced() -> None:
    told = await generate(token_engine(Output(text="abc", finish="length")))

    assert told[-1].finish_reason == "length"


async def test_logprobs_have_one_entry_per_token() -> None:
    told = await generate(token_engine(Output(text="ab")), sampling=Sampling(logprobs=1))

    assert [entry for tokens in told for entry in tokens.logprobs] == [
        (-0.1, [(ord("a"), "", -0.1)]),
        (-0.1, [(ord("b"), "", -0.1)]),
    ]


async def test_pace_and_first_delay_are_kept() -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()

    await generate(token_engine(Output(text="abcd", pace_ms=10, first_token_delay_ms=30)))

    assert loop.time() - began >= 0.06


async def test_a_refusal_comes_before_anything_else() -> None:
    engine = token_engine(Output(text="abc", fault=Fault("refuse", status=429, message="later", retry_after=2.0)))

    with pytest.raises(EngineRefused, match="later") as refused:
        await generate(engine)

    assert (refused.value.status, refused.value.retry_after) == (429, 2.0)


async def test_a_reset_breaks_off_and_a_continuation_has_it_behind_it() -> None:
    engine = token_engine(Output(text="abcdef", fault=Fault("reset", after=3), tokens_per_chunk=2))

    said = await said_until_fault(engine, EngineFailed)

    assert said == "abc"
    assert text_of(await generate(engine, PROMPT + said)) == "def"


async def test_a_fault_behind_the_continuation_still_strikes() -> None:
    engine = token_engine(Output(text="abcdef", fault=Fault("reset", after=4)))

    assert await said_until_fault(engine, EngineFailed, PROMPT + "ab") == "cd"


async def test_a_fault_can_strike_a_number_of_times() -> None:
    engine = token_engine(Output(text="abc", fault=Fault("reset", after=1, times=2)))

    assert [await said_until_fault(engine, EngineFailed) for _ in range(2)] == ["a", "a"]
    assert text_of(await generate(engine)) == "abc"


async def test_an_error_has_its_sentence_and_a_stall_its_deadline() -> None:
    with pytest.raises(EngineFailed, match=r"^boom$"):
        await generate(token_engine(Output(text="abc", fault=Fault("error", after=1, message="boom"))))
    with pytest.raises(EngineStalled):
        await generate(token_engine(Output(text="abc", fault=Fault("stall", after=1)), stall_seconds=0.01))


async def test_a_held_output_waits_for_its_file_and_a_continuation_behind_it_does_not(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    engine = token_engine(Output(text="abcdef", hold=Hold(str(gate), after=3), tokens_per_chunk=2))
    told: list[Tokens] = []

    async with aclosing(engine.generate("m", encode(PROMPT), Sampling())) as generation:
        while text_of(told) != "abc":
            told.append(await anext(generation))
        behind = asyncio.ensure_future(anext(generation))
        assert text_of(await generate(engine, PROMPT + "abcd")) == "ef"
        assert not behind.done()
        gate.touch()
        told.append(await behind)
        told += [tokens async for tokens in generation]

    assert text_of(told) == "abcdef"


def test_a_crash_ends_the_whole_process() -> None:
    script = (
        "import asyncio; from tests.engines.test_scripted_engine import *\n"
        "asyncio.run(generate(token_engine(Output(text='abc', fault=Fault('crash', after=1)))))"
    )
    ended = subprocess.run([sys.executable, "-c", script], check=False, cwd=Path(__file__).parents[2])

    assert ended.returncode == 70


async def test_closing_in_the_middle_is_fine() -> None:
    async with aclosing(token_engine(Output(text="abc")).generate("m", encode(PROMPT), Sampling())) as generation:
        assert await anext(generation) == Tokens()


async def test_chat_tells_reasoning_content_and_calls() -> None:
    call = Piece(tool_call=ToolCall("get_weather", '{"city":"Oslo"}'))
    engine = ScriptedChat([Output(chat=[Piece(reasoning="go on"), Piece(content="Well."), call])])

    chunks = await complete(engine)

    assert deltas(chunks) == [
        {"reasoning": "go"},
        {"reasoning": " on"},
        {"content": "Well"},
        {"content": "."},
        {
            "tool_calls": [
                {"index": 0, "id": "call_0", "type": "function", "function": {"name": "get_weather", "arguments": ""}}
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"city":"Oslo"}'}}]},
    ]
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert chunks[-1]["usage"]["completion_tokens"] == 6
    assert chunks[-1]["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}


async def test_chat_is_cut_by_max_tokens_and_matched_by_messages() -> None:
    engine = ScriptedChat([Output(chat=[Piece(content="one two three")], match='say "it"'), Output(text="other")])

    chunks = await complete(engine, 'say "it"', max_tokens=2)

    assert [delta["content"] for delta in deltas(chunks)] == ["one", " two"]
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert deltas(await complete(engine, "hello"))[0] == {"content": "other"}


async def test_chat_faults_come_after_what_was_said() -> None:
    engine = ScriptedChat([Output(chat=[Piece(content="one two")], fault=Fault("error", after=1, message="boom"))])
    chunks: list[Mapping[str, Any]] = []

    with pytest.raises(EngineFailed, match="boom"):
        async for chunk in engine.complete({"messages": []}):
            chunks += [chunk]

    assert deltas(chunks) == [{"content": "one"}]


async def test_one_form_of_an_output_is_derived_from_the_other() -> None:
    pieces = [Piece(reasoning="think"), Piece(content="answer"), Piece(tool_call=ToolCall("f", "{}"))]
    text = (
        "<|channel|>analysis<|message|>think<|end|><|start|>assistant<|channel|>final<|message|>answer<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"
    )

    assert Output(chat=pieces).as_text() == text
    assert Output(text=text).as_chat() == pieces
    assert Output(text="plain words").as_chat() == [Piece(content="plain"), Piece(content=" words")]


async def test_both_answer_by_all_their_names() -> None:
    tokens, chat = ScriptedTokens(encode, decode, models=["a", "b"]), ScriptedChat(models=["c"])

    assert [card.id for card in await tokens.cards()] == ["a", "b"]
    assert [card.id for card in await chat.cards()] == ["c"]
    await tokens.close()
    await chat.close()


TOML = """
[[outputs]]
match = "Oslo"
pace_ms = 2.5
chat = [{ reasoning = "hm" }, { tool_call = { name = "f", arguments = "{}" } }]

[[outputs]]
text = "hi"
fault = { kind = "reset", after = 3 }
"""


def test_a_toml_file_is_a_script(tmp_path: Path) -> None:
    (tmp_path / "script.toml").write_text(TOML)

    one, two = load_script(tmp_path / "script.toml")

    assert (one.match, one.pace_ms, one.chat) == (
        "Oslo",
        2.5,
        [Piece(reasoning="hm"), Piece(tool_call=ToolCall("f", "{}"))],
    )
    assert (two.text, two.fault) == ("hi", Fault("reset", after=3))


@pytest.mark.parametrize("text", ['[{"text": "hi"}]', '{"outputs": [{"text": "hi"}]}'])
def test_a_json_file_is_a_script(tmp_path: Path, text: str) -> None:
    (tmp_path / "script.json").write_text(text)

    assert load_script(tmp_path / "script.json") == [Output(text="hi")]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.toml", "outputs = 3"),
        ("a.toml", "not toml at all"),
        ("a.toml", "other = 1"),
        ("a.json", "{"),
        ("a.json", "[]"),
        ("a.json", "3"),
        ("a.json", '[{"text": "hi", "tokens_per_chunk": 0}]'),
        ("a.json", '[{"text": "hi", "colour": "red"}]'),
        ("a.json", '[{"match": "hi"}]'),
        ("a.json", '[{"text": "hi", "fault": {"kind": "flood"}}]'),
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)

    with pytest.raises(SettingsError, match=name) as wrong:
        load_script(tmp_path / name)

    assert "\n" not in wrong.value.message


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="can not be read"):
        load_script(tmp_path / "none.toml")
