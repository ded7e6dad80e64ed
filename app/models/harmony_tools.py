"""Which functions the model is offered, which it must call, and the structural tag that makes an engine hold it.

A structural tag (vLLM with xgrammar 0.2 or newer) describes the whole turn, headers included: reasoning stays free, and
only the body of the answer or of the call is held. It also fits an engine with a reasoning parser, which begins to hold
at the final body: there the bare JSON alternative matches.

A held turn ends with the body. Its stop token is no text to an engine: written as the end of a tag, `<|call|>` comes
out in letters, behind the arguments.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.errors import InvalidRequest, UnsupportedValue
from app.models.harmony_decoder import PREFIX, Functions
from app.responses.request import Request

_WHITESPACE_LIMIT: Final = 32  # characters in a row: free to indent, but a model that is lost must find out of it
_NEXT: Final = "<|end|><|start|>assistant"
_FREE_TEXT: Final = {"type": "any_text", "excludes": ["<|channel|>", "<|message|>", "<|return|>", "<|call|>"]}
_SUPPORTED: Final = "'none', 'auto', 'required', {type: function}, {type: allowed_tools}"


@dataclass(frozen=True, slots=True)
class Offer:
    """`tools` go into the prompt; `functions` is what the decoder takes for a call; one of `forced` must be called."""

    tools: Sequence[Mapping[str, Any]]
    functions: Functions
    forced: Sequence[Mapping[str, Any]] = ()


def offer_of(request: Request) -> Offer:
    """What `tools` and `tool_choice` mean. Raises InvalidRequest with param `tool_choice`."""
    tools = request.tools
    choice = request.tool_choice
    everything = Functions(_names(tools))
    match choice:
        case "auto":
            return Offer(tools, everything)
        case "none":
            return Offer((), Functions(exclusive=True))
        case "required":
            return Offer(tools, everything, _forced(tools))
        case {"type": "function", "name": str(name)}:
            return Offer(tools, everything, _declared([name], tools))
        case {"type": "allowed_tools", "mode": ("auto" | "required") as mode, "tools": list(allowed)}:
            chosen = _declared([_name_of(one) for one in allowed], tools)
            if mode == "required":
                return Offer(tools, Functions(_names(chosen), exclusive=True), _forced(chosen))
            return Offer(chosen, Functions(_names(chosen), exclusive=True))
    raise UnsupportedValue(f"This tool_choice is not supported by this model; use {_SUPPORTED}.", param="tool_choice")


def structural_tag(request: Request, offer: Offer) -> str | None:
    """What the engine must hold, or None when everything is free."""
    answer = _answer_schema(request.text_format)
    calls = [_call(tool) for tool in (offer.forced or offer.tools)]
    if offer.forced:
        ends = calls
    elif answer is not None:
        heads = ("<|channel|>final <|constrain|>json<|message|>", "<|channel|>final<|message|>", "")
        ends = [*(_held(head, answer) for head in heads), *calls]
    else:
        return None
    free = [_tag(f"<|channel|>{channel}<|message|>", _FREE_TEXT, _NEXT) for channel in ("analysis", "commentary")]
    any_number = {"separator": "", "at_least_one": False, "stop_after_first": False}
    before = {"type": "tags_with_separator", "tags": free, **any_number}
    turn = {"type": "sequence", "elements": [before, {"type": "or", "elements": ends}]}
    return json.dumps({"type": "structural_tag", "format": turn}, ensure_ascii=False)


def _answer_schema(text_format: Mapping[str, Any]) -> Mapping[str, Any] | None:
    match text_format.get("type"):
        case "json_schema":
            schema: Mapping[str, Any] = text_format["schema"]  # the edge has checked it
            return schema
        case "json_object":
            return {"type": "object"}
        case "text":
            return None
    raise UnsupportedValue("Use text, json_schema or json_object.", param="text.format.type")


def _call(tool: Mapping[str, Any]) -> dict[str, Any]:
    head = f"<|channel|>commentary to={PREFIX}{tool['name']} <|constrain|>json<|message|>"
    return _held(head, tool.get("parameters") or {"type": "object"})


def _held(head: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The last message of a turn."""
    content = {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": _WHITESPACE_LIMIT}
    return _tag(head, content, "")


def _tag(begin: str, content: Mapping[str, Any], end: str) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def _names(tools: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    return frozenset(tool["name"] for tool in tools)


def _name_of(allowed: Any) -> str:
    match allowed:
        case {"type": "function", "name": str(name)}:
            return name
    raise UnsupportedValue("allowed_tools can name function tools only.", param="tool_choice")


def _declared(names: Sequence[str], tools: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    known, wanted = _names(tools), frozenset(names)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InvalidRequest(f"The function '{unknown[0]}' is not among the tools.", param="tool_choice")
    return [tool for tool in tools if tool["name"] in wanted]


def _forced(tools: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    if not tools:
        raise InvalidRequest("tool_choice demands a call, but there is no tool to call.", param="tool_choice")
    return tools
