"""Script files of the scripted engine: what it says, how fast, and where it breaks.

A file is TOML (`[[outputs]]` tables) or JSON (`{"outputs": [...]}`, or the list alone). One output:

    name                  for the reader
    text                  model-side text; for harmony with its `<|…|>` markers, starting after `<|start|>assistant`
    chat                  [{"reasoning": …} | {"content": …} | {"tool_call": {"name": …, "arguments": "…"}}, …]
                          One of both is enough: the other is derived from it.
    match                 only for prompts (or messages) that contain this text
    repeat                how many requests in a row get it (default 1)
    tokens_per_chunk      (default 1); of `chat`, a word counts as a token
    pace_ms               per token (default 0)
    first_token_delay_ms  before the first chunk (default 0)
    finish                the finish reason, when it is not the natural one
    cached_tokens         told in the usage (default 0)
    hold                  {"until": path, "after": tokens (default 0)}: waits there until the file exists
    fault                 {"kind": "refuse" | "reset" | "error" | "stall" | "crash", "after": tokens (default 0),
                           "times": N, "status": 503, "message": …, "retry_after": seconds}
"""

import re
import tomllib
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from app.errors import SettingsError

_WORD: Final = re.compile(r"\s*\w{1,6}|\s*[^\w\s]|\s+")
_MESSAGE: Final = re.compile(
    r"(?:^|<\|start\|>assistant)(?P<head>[^\n]*?)<\|message\|>(?P<body>.*?)(?=<\|(?:end|return|call)\|>|$)", re.DOTALL
)
_FUNCTION: Final = re.compile(r"to=functions\.([\w-]+)")


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where an output breaks. A generation that continues at or behind `after` has the fault behind it.

    `refuse` comes before anything is said. `times`: only the first N requests that reach it; 0 is all of them.
    `crash` ends the whole process at once, as a bug in an engine's own code would: for tests of what others do then.
    """

    kind: Literal["refuse", "reset", "error", "stall", "crash"]
    after: int = 0
    times: int = 0
    status: int = 503
    message: str = "scripted fault"
    retry_after: float | None = None


class Hold(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where an output waits until a file exists. A generation that continues behind it does not wait."""

    until: str
    after: int = 0


class ToolCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function call of a chat script."""

    name: str
    arguments: str = ""


class Piece(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One thing said in a chat script: exactly one of the three."""

    reasoning: str | None = None
    content: str | None = None
    tool_call: ToolCall | None = None


class Output(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One scripted generation; the fields are in the module's docstring."""

    name: str = ""
    text: str | None = None
    chat: list[Piece] | None = None
    match: str | None = None
    repeat: int = 1
    tokens_per_chunk: int = 1
    pace_ms: float = 0.0
    first_token_delay_ms: float = 0.0
    finish: str | None = None
    cached_tokens: int = 0
    hold: Hold | None = None
    fault: Fault | None = None

    def as_text(self) -> str:
        """What it says as harmony text."""
        if self.text is not None:
            return self.text
        return "<|end|><|start|>assistant".join(map(_harmony, self.chat or ())) + self._last_marker()

    def as_chat(self) -> list[Piece]:
        """What it says as pieces for a chat stream, one word each."""
        pieces = self.chat if self.chat is not None else _pieces(self.text or "")
        return [word for piece in pieces for word in _words(piece)]

    def _last_marker(self) -> str:
        return "<|call|>" if self.chat and self.chat[-1].tool_call else "<|return|>"


DEFAULT: Final = Output(
    name="hello",
    text="<|channel|>analysis<|message|>The user wants to talk. I greet.<|end|>"
    "<|start|>assistant<|channel|>final<|message|>Hello! I am a scripted model.<|return|>",
)


def load_script(path: Path) -> list[Output]:
    """The outputs of a script file. Raises SettingsError with one sentence for a file that is none."""
    try:
        data = path.read_bytes()
        found: Any = msgspec.json.decode(data) if path.suffix == ".json" else tomllib.loads(data.decode())
        outputs = msgspec.convert(found["outputs"] if isinstance(found, dict) else found, list[Output])
    except OSError as error:
        raise SettingsError(f"The script file {path} can not be read.") from error
    except KeyError as error:
        raise SettingsError(f"The script file {path} has no `outputs`.") from error
    except (msgspec.MsgspecError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"The script file {path} is wrong: {error}.") from error
    if not outputs:
        raise SettingsError(f"The script file {path} has no outputs.")
    for number, output in enumerate(outputs):
        if output.text is None and output.chat is None:
            raise SettingsError(f"The script file {path} is wrong: output {number} has neither `text` nor `chat`.")
        if output.tokens_per_chunk < 1 or output.repeat < 1:
            raise SettingsError(f"The script file {path} is wrong: a count of output {number} is below 1.")
    return outputs


def _harmony(piece: Piece) -> str:
    if piece.tool_call is not None:
        call = piece.tool_call
        return f"<|channel|>commentary to=functions.{call.name} <|constrain|>json<|message|>{call.arguments}"
    if piece.reasoning is not None:
        return f"<|channel|>analysis<|message|>{piece.reasoning}"
    return f"<|channel|>final<|message|>{piece.content or ''}"


def _pieces(text: str) -> list[Piece]:
    """Harmony text as an upstream with parsers would tell it; text without markers is content."""
    found: list[Piece] = []
    for message in _MESSAGE.finditer(text):
        head, body = message["head"], message["body"]
        if function := _FUNCTION.search(head):
            found.append(Piece(tool_call=ToolCall(function[1], body)))
        else:
            found.append(Piece(reasoning=body) if "analysis" in head else Piece(content=body))
    return found or [Piece(content=text)]


def _words(piece: Piece) -> list[Piece]:
    if piece.reasoning is not None:
        return [Piece(reasoning=word) for word in _WORD.findall(piece.reasoning)]
    if piece.content is not None:
        return [Piece(content=word) for word in _WORD.findall(piece.content)]
    return [piece]
