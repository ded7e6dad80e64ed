"""What a checker remembers of one output item while it reads a stream."""

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

Place = tuple[str, Any]  # event family, and the index of the part in the item (None: a field of the item)


class Family(NamedTuple):
    """A `X.delta` / `X.done` pair: its done field, the index that counts it, its item, its part, its rule."""

    text: str
    counter: str | None
    item: str
    part: str | None
    rule: str


FAMILIES: Final = {
    "response.output_text": Family("text", "content_index", "message", "output_text", "I09"),
    "response.refusal": Family("refusal", "content_index", "message", "refusal", "I09"),
    "response.reasoning_text": Family("text", "content_index", "reasoning", "reasoning_text", "I33"),
    "response.reasoning": Family("text", "content_index", "reasoning", "reasoning_text", "I33"),
    "response.reasoning_summary_text": Family("text", "summary_index", "reasoning", None, "I33"),
    "response.function_call_arguments": Family("arguments", None, "function_call", None, "I10"),
    "response.custom_tool_call_input": Family("input", None, "custom_tool_call", None, "I32"),
    "response.mcp_call_arguments": Family("arguments", None, "mcp_call", None, "I10"),
    "response.code_interpreter_call_code": Family("code", None, "code_interpreter_call", None, "I32"),
}
REASONING: Final = ("response.reasoning_text", "response.reasoning")
SUMMARY: Final = "response.reasoning_summary_text"


@dataclass
class Part:
    """A content part: its type when it was added, and what its done event said."""

    type: str
    done: dict[str, Any] | None = None


@dataclass
class Item:
    """One output item, from its added event on."""

    added: dict[str, Any]
    done: dict[str, Any] | None = None
    parts: dict[Any, Part] = field(default_factory=dict)
    summaries: set[Any] = field(default_factory=set)
    said: dict[Place, str] = field(default_factory=dict)
    whole: set[Place] = field(default_factory=set)
    annotations: dict[Any, list[Any]] = field(default_factory=dict)
    progress: list[str] = field(default_factory=list)

    @property
    def type(self) -> str:
        return str(self.added.get("type"))

    def reasoning_at(self, index: Any) -> str | None:
        """The reasoning text said in a part, in either dialect; None when there was none."""
        return next((self.said[family, index] for family in REASONING if (family, index) in self.said), None)
