"""Real streams as the oracle of the fold: each one, folded, is the response inside its own terminal event."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson
import pytest

from app.responses.events import TERMINAL, Event
from app.responses.projection import ADDED_AT_THE_END, Place, Projection, evolve, project, snapshot, text_at

RECORDINGS: Final = Path(__file__).parents[1] / "recordings"

# Where a real server's terminal response is not the fold of its own events, by path. Each entry is asserted to be
# true, so that the table cannot rot. (`service_tier` has a rule of its own: see below.)
DEVIATES_AT_THE_END: Final[Mapping[str, set[str]]] = {
    # OpenAI encrypts again for each serialisation.
    "pydantic-ai_test_openai_responses_code_execution_return_image_stream.yaml#0": {"output[0].encrypted_content"},
    "pydantic-ai_test_openai_responses_compact_stateful_mode_stream.yaml#2": {"output[1].encrypted_content"},
    "pydantic-ai_test_openai_responses_model_mcp_server_tool_stream.yaml#0": {
        "output[1].encrypted_content",
        "output[3].encrypted_content",
    },
    "pydantic-ai_test_openai_responses_model_web_search_tool_stream.yaml#0": {
        "output[0].encrypted_content",
        "output[2].encrypted_content",
    },
    "pydantic-ai_test_openai_responses_phase_streamed_on_part_start.yaml#0": {"output[0].encrypted_content"},
    "pydantic-ai_test_openai_responses_streaming_usage.yaml#0": {"output[0].encrypted_content"},
    "pydantic-ai_test_openai_responses_thinking_part_iter.yaml#0": {"output[0].encrypted_content"},
    "pydantic-ai_test_openai_responses_thinking_with_code_execution_tool_stream.yaml#0": {
        "output[0].encrypted_content"
    },
    "vercel_openai_openai-compaction.1.chunks.txt": {"output[1].encrypted_content"},
    "vercel_openai_openai-reasoning-encrypted-content.1.chunks.txt": {"output[0].encrypted_content"},
    "vercel_openai_programmatic-tool-calling.1.chunks.txt": {"output[0].encrypted_content", "output[1].fingerprint"},
    # OpenAI adds the verdict of its moderation at the end.
    "pydantic-ai_test_openai_responses_moderation_stream.yaml#0": {"moderation", "output[0].encrypted_content"},
    # OpenAI left two items without `output_item.done`: their tools are in the terminal event only.
    "pydantic-ai_test_openai_responses_model_mcp_list_tools_stream_backfills_missing_results.yaml#0": {
        "output[0].tools",
        "output[1].tools",
    },
    # GitHub Copilot gives every event new ids.
    "vercel_openai_github-copilot-id-rotation.1.chunks.txt": {"id", "output[0].id", "output[1].id"},
}

# Where an item is not what its own deltas and done events built, by the path inside `output_item.done`.
DEVIATES_IN_AN_ITEM: Final[Mapping[str, set[str]]] = {
    # OpenAI drops the logprobs in `content_part.done`; they are back in `output_item.done`.
    "pydantic-ai_test_openai_instructions_with_responses_logprobs_streaming.yaml#0": {"[0].content[0].logprobs"},
    # No `custom_tool_call_input.done` was recorded, only deltas.
    "vercel_openai_openai-custom-tool.1.chunks.txt": {"[0].input"},
}

# Where the text of a done event is not the sum of its deltas.
DEVIATES_IN_A_TEXT: Final[Mapping[str, set[str]]] = {
    # LM Studio formats the arguments again at the end.
    "vercel_open-responses_lmstudio-tool-call.1.chunks.txt": {"[2].arguments"},
    "vercel_open-responses_lmstudio-tool-call.2.chunks.txt": {"[2].arguments"},
    # Deltas were cut out by hand before it was published.
    "vercel_openai_openai-shell-container.1.chunks.txt": {"[2].content"},
}

# Cut by hand before it was published: items 1 and 3 are missing, positions jump.
WITH_HOLES: Final = "vercel_openai_openai-phase.1.chunks.txt"

BUILT_BY_EVENTS: Final = {
    "message": ("content",),
    "reasoning": ("content", "summary"),
    "function_call": ("arguments",),
    "mcp_call": ("arguments",),
    "custom_tool_call": ("input",),
    "code_interpreter_call": ("code",),
}
TEXT_DONE: Final[Mapping[str, tuple[str, str | None, str]]] = {
    "response.output_text.done": ("content", "content_index", "text"),
    "response.refusal.done": ("content", "content_index", "refusal"),
    "response.reasoning_text.done": ("content", "content_index", "text"),
    "response.reasoning_summary_text.done": ("summary", "summary_index", "text"),
    "response.function_call_arguments.done": ("arguments", None, "arguments"),
    "response.mcp_call_arguments.done": ("arguments", None, "arguments"),
    "response.custom_tool_call_input.done": ("input", None, "input"),
    "response.code_interpreter_call_code.done": ("code", None, "code"),
}


class Recording(NamedTuple):
    """One recorded response. `events` keep their wire form, position and type included."""

    name: str
    events: Sequence[dict[str, Any]]

    def numbered(self) -> list[Event]:
        """Numbered by position: OpenAI had no sequence numbers before the middle of 2025."""
        return [Event(position, event["type"], event) for position, event in enumerate(self.events)]

    @property
    def terminal(self) -> dict[str, Any]:
        return self.events[-1]["response"]


def recordings() -> Iterator[Recording]:
    """Every recorded response; a file may hold several, one after the other."""
    for path in sorted(RECORDINGS.glob("*.sse")):
        responses: list[list[dict[str, Any]]] = []
        for line in path.read_bytes().split(b"\n"):
            if line.startswith(b"data:"):
                event = orjson.loads(line.removeprefix(b"data:"))
                if event["type"] == "response.created":
                    responses.append([])
                responses[-1].append(event)
        for nth, events in enumerate(responses, start=1):
            yield Recording(path.stem if nth == 1 else f"{path.stem} ({nth})", events)


ALL: Final = list(recordings())
WHOLE: Final = [recording for recording in ALL if recording.name != WITH_HOLES]
each_recording = pytest.mark.parametrize("recording", WHOLE, ids=lambda recording: recording.name)


def differences(left: Any, right: Any, path: str = "") -> Iterator[str]:
    """The paths at which two JSON values differ; a list of another length differs as a whole."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in left.keys() | right.keys():
            yield from differences(left.get(key), right.get(key), f"{path}.{key}" if path else key)
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for index, (one, other) in enumerate(zip(left, right, strict=True)):
            yield from differences(one, other, f"{path}[{index}]")
    elif left != right:
        yield path


def test_every_recording_is_here_and_whole():
    assert len(ALL) == len({recording.name for recording in ALL}) == 86
    assert all(recording.events[-1]["type"] in TERMINAL for recording in ALL)
    named = DEVIATES_AT_THE_END.keys() | DEVIATES_IN_AN_ITEM.keys() | DEVIATES_IN_A_TEXT.keys() | {WITH_HOLES}
    assert named <= {recording.name for recording in ALL}


@each_recording
def test_the_fold_of_a_real_stream_is_its_terminal_response(recording: Recording):
    folded = snapshot(project(recording.numbered()))
    expected = set(DEVIATES_AT_THE_END.get(recording.name, ()))
    if (folded.get("service_tier"), recording.terminal.get("service_tier")) == ("auto", "default"):
        expected.add("service_tier")  # OpenAI tells at the end which tier served
    assert set(differences(folded, recording.terminal)) == expected


@each_recording
def test_nothing_but_the_ending_comes_from_the_terminal_event(recording: Recording):
    *before, last = recording.numbered()
    projection = project(before)
    told = snapshot(projection)
    evolve(projection, Event(last.position, last.type, {"response": {**recording.terminal, "output": ["a lie"]}}))
    changed = {key for key, value in snapshot(projection).items() if value != told.get(key)}
    assert changed <= set(ADDED_AT_THE_END)


@each_recording
def test_an_item_is_what_its_events_built(recording: Recording):
    found: set[str] = set()
    for projection, event in steps(recording):
        if event.type == "response.output_item.done":
            index, item = event.payload["output_index"], event.payload["item"]
            for name in BUILT_BY_EVENTS.get(item["type"], ()):
                built = projection.output[index].get(name)
                found.update(differences(built or None, item.get(name) or None, f"[{index}].{name}"))
    assert found == DEVIATES_IN_AN_ITEM.get(recording.name, set())


@each_recording
def test_deltas_add_up_to_the_text_of_the_done_event(recording: Recording):
    found: set[str] = set()
    for projection, event in steps(recording):
        if event.type in TEXT_DONE:
            parts, index_name, text = TEXT_DONE[event.type]
            place: Place = (event.payload["output_index"], parts, event.payload[index_name] if index_name else -1)
            if text_at(projection, place) != event.payload[text]:
                found.add(f"[{place[0]}].{parts}")
    assert found == DEVIATES_IN_A_TEXT.get(recording.name, set())


def steps(recording: Recording) -> Iterator[tuple[Projection, Event]]:
    """Each event, with the projection just before it."""
    projection = Projection()
    for event in recording.numbered():
        yield projection, event
        evolve(projection, event)


def test_a_stream_with_holes_is_refused():
    (recording,) = (one for one in ALL if one.name == WITH_HOLES)
    with pytest.raises(ValueError, match="output index 2 follows 0"):
        project(recording.numbered())
    own = [Event(event["sequence_number"], event["type"], event) for event in recording.events]
    with pytest.raises(ValueError, match="position 41 follows 5"):
        project(own)
