"""Golden transcripts: what was said, the events that it makes, the response that they are. A name states a rule."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from app.responses.decider import Failure
from app.responses.events import decode
from app.responses.projection import project, snapshot
from app.responses.said import ArgumentsSaid, CallStarted, Finished, ItemEnded, MessageSaid, ReasoningSaid, Usage
from tests.core.turn import Turn
from tests.oracle import assert_keeps_invariants

TRANSCRIPTS: Final = sorted((Path(__file__).parent / "transcripts").glob("*.json"))
USAGE: Final = Usage(input_tokens=20, output_tokens=10, cached_tokens=16, reasoning_tokens=4)

each_transcript = pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)


def played(script: list[list[Any]]) -> Turn:
    """The turn of a script: its steps are `[verb, argument, …]`, in the words of `app/responses/said.py`."""
    turn = Turn(queued=script[0] == ["queued"])
    for verb, *arguments in script:
        match verb, arguments:
            case "queued", []:
                pass
            case "begin", []:
                turn.begin()
            case "reasoning", [text]:
                turn.say(ReasoningSaid(text))
            case "message", [text, *more]:
                turn.say(MessageSaid(text, *more))
            case "call", [name, *call_id]:
                turn.say(CallStarted(name, *call_id))
            case "arguments", [text]:
                turn.say(ArgumentsSaid(text))
            case "item_ended", []:
                turn.say(ItemEnded())
            case "finished", [reason]:
                turn.say(Finished(reason, USAGE))
            case "cancel", []:
                turn.cancel(None if turn.projection.output == [] else USAGE)
            case "fail", [message, code]:
                turn.fail(Failure(message, code), USAGE)
            case _:
                raise ValueError(f"no such step: {verb} {arguments}")
    return turn


def read(path: Path) -> dict[str, Any]:
    transcript: dict[str, Any] = json.loads(path.read_bytes())
    return transcript


def written(transcript: dict[str, Any]) -> str:
    """One line for each step and each event, so that a diff shows what changed."""
    lists = {
        name: "[\n" + ",\n".join(f"    {json.dumps(one, ensure_ascii=False)}" for one in transcript[name]) + "\n  ]"
        for name in ("script", "events")
    }
    response = json.dumps(transcript["response"], ensure_ascii=False, indent=2).replace("\n", "\n  ")
    return f'{{\n  "script": {lists["script"]},\n  "events": {lists["events"]},\n  "response": {response}\n}}\n'


@each_transcript
def test_the_script_makes_the_events(path: Path, updates_golden: bool):
    script = read(path)["script"]
    turn = played(script)
    if updates_golden:
        transcript = {"script": script, "events": turn.events, "response": turn.response}
        path.write_bytes(written(transcript).encode())
    assert turn.events == read(path)["events"]


@each_transcript
def test_the_events_are_the_response(path: Path):
    transcript = read(path)
    events = [decode(json.dumps(event).encode()) for event in transcript["events"]]
    assert snapshot(project(events)) == transcript["response"] == transcript["events"][-1]["response"]


@each_transcript
def test_the_stored_stream_keeps_the_invariants(path: Path):
    """Old files stay readable: today's judge and today's fold accept what was stored."""
    transcript = read(path)
    assert_keeps_invariants(transcript["events"], retrieved=transcript["response"])
    assert path.read_bytes().decode() == written(transcript)


def test_there_are_transcripts():
    assert len(TRANSCRIPTS) >= 16
