"""Function calls for the embedded model: a chat template that shows tools, and forced calls by a JSON schema.

SmolLM2's own template leaves tools out without a word, and llama.cpp does not hold `tool_choice` for it.
"""

from collections.abc import Mapping
from typing import Any, Final

import orjson

TEMPLATE: Final = """\
{%- if messages[0]['role'] == 'system' %}
{%- set system = messages[0]['content'] %}
{%- else %}
{%- set system = 'You are a helpful AI assistant named SmolLM, trained by Hugging Face' %}
{%- endif %}
{{- '<|im_start|>system\\n' + system }}
{%- if tools %}
{{- '\\n\\nYou may call these functions:\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
{{- '\\n</tools>\\nTo call one, answer with\\n<tool_call>\\n' }}
{{- '{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call>' }}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{{- '<|im_start|>assistant' }}
{%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
{%- for call in message.tool_calls %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}{{- call.function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
{%- elif message.role == 'user' %}
{{- '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

_NAMES: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_DATA: Final = frozenset({"const", "enum", "default", "examples"})


class ForcedCall:
    """One completion whose `tool_choice` demands a call: a schema holds its text, which is told as a call."""

    def __init__(self) -> None:
        self._text = ""

    def hear(self, chunk: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """The chunks in place of one of the engine's."""
        choices = chunk.get("choices")
        if not choices:
            return [chunk]
        choice = choices[0]
        self._text += choice["delta"].get("content") or ""
        if choice["finish_reason"] is None:
            return []
        finish, delta = choice["finish_reason"], self._delta()
        if finish == "stop" and "tool_calls" in delta:
            finish = "tool_calls"
        return [{**chunk, "choices": [{**choice, "delta": delta, "finish_reason": finish}]}]

    def _delta(self) -> dict[str, Any]:
        try:
            call = orjson.loads(self._text)
        except orjson.JSONDecodeError:  # cut off: there is no call, only its beginning
            return {"content": self._text}
        function = {"name": call["name"], "arguments": orjson.dumps(call["arguments"]).decode()}
        return {"tool_calls": [{"index": 0, "id": "call_0", "type": "function", "function": function}]}


def forced(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """The body with a schema in place of a `tool_choice` that demands a call; None when it demands none."""
    match body.get("tool_choice"):
        case "required":
            wanted = None
        case {"function": {"name": str(name)}}:
            wanted = name
        case _:
            return None
    functions = [tool["function"] for tool in body["tools"] if wanted in (None, tool["function"]["name"])]
    parameters = {f"{i}": function.get("parameters") or {"type": "object"} for i, function in enumerate(functions)}
    schema = {
        "anyOf": [_call(function["name"], f"#/$defs/{i}") for i, function in enumerate(functions)],
        "$defs": {key: _moved(schema, f"#/$defs/{key}") for key, schema in parameters.items()},
    }
    held = {"type": "json_schema", "json_schema": {"name": "call", "schema": schema}}
    return {**body, "tool_choice": "none", "response_format": held}


def _call(name: str, arguments: str) -> dict[str, Any]:
    properties = {"name": {"const": name}, "arguments": {"$ref": arguments}}
    return {
        "type": "object",
        "properties": properties,
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _moved(schema: Any, to: str) -> Any:
    """The schema with its references, which count from its own root, leading on from `to`."""
    if isinstance(schema, list):
        return [_moved(one, to) for one in schema]
    if not isinstance(schema, dict):
        return schema
    moved: dict[str, Any] = {}
    for word, value in schema.items():
        if word == "$ref" and isinstance(value, str):
            moved[word] = to + value.removeprefix("#")
        elif word in _NAMES and isinstance(value, dict):
            moved[word] = {name: _moved(one, to) for name, one in value.items()}
        else:
            moved[word] = value if word in _DATA else _moved(value, to)
    return moved
