"""What a request asks for besides its items, as fields of a chat-completions body. Parsed at the edge, trusted here."""

from collections.abc import Mapping
from typing import Any, Final

from app.responses.request import Request

_SAME_NAME: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "logit_bias",
    "verbosity",
    "reasoning_effort",
)
_SCHEMA_FIELDS: Final = ("name", "description", "strict", "schema")


def options(request: Request) -> dict[str, Any]:
    """All fields but model, messages and stream. What the client left out is left out: the upstream decides."""
    chosen: dict[str, Any] = {name: value for name in _SAME_NAME if (value := getattr(request, name)) is not None}
    if request.stop:
        chosen["stop"] = list(request.stop)
    if request.max_output_tokens is not None:
        chosen["max_tokens"] = request.max_output_tokens
    if request.wants_logprobs:
        chosen |= {"logprobs": True, "top_logprobs": request.top_logprobs or 0}
    if request.priority:
        chosen["priority"] = request.priority
    return chosen | _tools(request) | _format(request.text_format)


def allowed_names(request: Request) -> frozenset[str] | None:
    """The functions that may be called; None when a call to any is one, also to one that the model has invented."""
    match request.tool_choice:
        case "none":
            return frozenset()
        case {"type": "allowed_tools", "tools": list(tools)}:
            return frozenset(tool["name"] for tool in tools)
    return None


def _tools(request: Request) -> dict[str, Any]:
    """Tools and their choice. Only allowed ones are sent: that holds the model to them, whatever it is told."""
    choice, tools = request.tool_choice, list(request.tools)
    if not tools:
        return {}
    if isinstance(choice, Mapping) and choice["type"] == "allowed_tools":
        allowed = {tool["name"] for tool in choice["tools"]}
        choice, tools = choice["mode"], [tool for tool in tools if tool["name"] in allowed]
    elif isinstance(choice, Mapping):
        choice = {"type": "function", "function": {"name": choice["name"]}}
    chosen: dict[str, Any] = {"tools": [_function(tool) for tool in tools], "tool_choice": choice}
    if not request.parallel_tool_calls:
        chosen["parallel_tool_calls"] = False
    return chosen


def _function(tool: Mapping[str, Any]) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool["name"]}
    if tool.get("description"):
        function["description"] = tool["description"]
    function["parameters"] = tool.get("parameters") or {"type": "object", "properties": {}}
    if tool.get("strict"):
        function["strict"] = True
    return {"type": "function", "function": function}


def _format(form: Mapping[str, Any]) -> dict[str, Any]:
    match form["type"]:
        case "json_schema":
            schema = {name: value for name in _SCHEMA_FIELDS if (value := form.get(name)) is not None}
            return {"response_format": {"type": "json_schema", "json_schema": schema}}
        case "json_object":
            return {"response_format": {"type": "json_object"}}
        case _:
            return {}
