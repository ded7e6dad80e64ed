"""A harmony turn with all that can be cut: reasoning, a preamble, a call, headers, emoji of many tokens."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from app.models.harmony_decoder import HarmonyDecoder
from app.models.harmony_rendering import HarmonyRenderer
from app.models.vocabulary import Vocabulary
from app.responses.said import CallStarted, Finished, ItemEnded

TURN: Final = (
    "<|channel|>analysis<|message|>The user wants the weather in two cities 🏳️‍🌈. I look it up first.<|end|>"
    "<|start|>assistant<|channel|>commentary<|message|>Let me look 🫠🦤 at the weather in Oslo — one moment.<|end|>"
    "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
    '{"city":"Oslo","unit":"°C","note":"🫥 today"}<|call|>'
)
TOOLS: Final = [{"type": "function", "name": "get_weather", "strict": False, "parameters": {"type": "object"}}]
UNDISTURBED: Final = 0

Where = Literal["reasoning", "message", "arguments", "between items", "header", "character"]
Seen = tuple[int, int, int]
"""Characters of deltas, items begun as calls, items ended."""

_VOCABULARY: Final = Vocabulary()
_IDS: Final = re.compile(r'"(resp|rs|msg|fc|call)_\w+"')


@cache
def tokens() -> Sequence[int]:
    """The turn as the scripted engine gives it."""
    return tuple(HarmonyRenderer(_VOCABULARY).load().encode(TURN, allowed_special="all"))


def positions() -> range:
    """After how many tokens the turn can be cut."""
    return range(1, len(tokens()))


@cache
def visible(position: int) -> Seen:
    """What the log shows of so many tokens: nothing that the decoder still holds."""
    decoder, said, shown = HarmonyDecoder(_VOCABULARY), Counter[str](), (0, 0, 0)
    for token in tokens()[:position]:
        for piece in decoder.feed([token]):
            said["calls"] += isinstance(piece, CallStarted)
            said["ended"] += isinstance(piece, ItemEnded)
            said["text"] += 0 if isinstance(piece, CallStarted | ItemEnded | Finished) else len(piece.text)
        if decoder.holds_nothing:
            shown = (said["text"], said["calls"], said["ended"])
    return shown


def seen(events: Sequence[dict[str, Any]]) -> Seen:
    """The same of what a reader got."""
    kinds = Counter(event["type"] for event in events)
    text = sum(len(event["delta"]) for event in events if event["type"].endswith(".delta"))
    added = [event["item"]["type"] for event in events if event["type"] == "response.output_item.added"]
    return text, added.count("function_call"), kinds["response.output_item.done"]


def where(position: int) -> Where:
    """What a cut there is in the middle of."""
    said = b"".join(_VOCABULARY.bytes_of(token) or b"|" for token in tokens()[:position])
    try:
        said.decode()
    except UnicodeDecodeError:
        return "character"
    decoder, kind = HarmonyDecoder(_VOCABULARY), "header"
    kinds: dict[str, Where] = {"ReasoningSaid": "reasoning", "MessageSaid": "message", "ArgumentsSaid": "arguments"}
    for piece in decoder.feed(tokens()[:position]):
        kind = type(piece).__name__
    if not decoder.holds_nothing:
        return "header"
    return kinds.get(kind, "between items")


def name(copy: int) -> str:
    """What a prompt says to get a copy: all are equally long."""
    return f"copy-{copy:03}"


def said_script(path: Path, said: str, *, pace_ms: int, gate: Path | None = None, after: int = 100) -> Path:
    """One answer, token by token. With a gate it is held after so many tokens until the gate exists."""
    output: dict[str, Any] = {"text": f"<|channel|>final<|message|>{said}<|return|>", "pace_ms": pace_ms}
    if gate is not None:
        output["hold"] = {"until": str(gate), "after": after}
    path.write_text(json.dumps([output]))
    return path


def held_script(path: Path, gate: Path) -> Path:
    """One output for each position, which is held there until the gate exists; and one that is not held."""
    held = [
        {"match": name(position), "text": TURN, "hold": {"until": str(gate), "after": position}}
        for position in positions()
    ]
    path.write_text(json.dumps([{"match": name(UNDISTURBED), "text": TURN}, *held]))
    return path


def plain(response: dict[str, Any]) -> str:
    """A response without what is never twice the same: ids and times."""
    text = json.dumps(response | {"created_at": 0, "completed_at": 0}, sort_keys=True)
    return _IDS.sub(r'"\1_"', text)
