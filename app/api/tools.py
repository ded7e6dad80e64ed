"""Tools, `tool_choice` and `text.format`: choose by `type`, validate, and give each its one normal form."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from app.api.checks import M, check, list_at, missing, object_at, one_of, path, quoted, wrong
from app.api.json_schema import SchemaChecker
from app.api.schemas_tools import AllowedTools, FunctionTool, JsonSchemaFormat, NamedFunction
from app.errors import InvalidRequest, UnsupportedValue

MODES: Final = ("none", "auto", "required")
FORMATS: Final = ("text", "json_object", "json_schema")
CHAT_STYLE: Final = "It is nested as in Chat Completions; here its fields stand beside 'type'."


MAX_TOOLS: Final = 1_024


def parse_tools(value: Any, schemas: SchemaChecker) -> list[dict[str, Any]]:
    """The declared function tools, with their defaults filled in."""
    if isinstance(value, list) and len(value) > MAX_TOOLS:
        raise wrong("tools", f"has more than {MAX_TOOLS} tools")
    tools = [_tool(tool, path("tools", i), schemas) for i, tool in enumerate(list_at(value, "tools"))]
    seen = set[str]()
    for i, tool in enumerate(tools):
        if tool["name"] in seen:
            raise wrong(path("tools", i, "name"), f"there are two tools named '{tool['name']}'")
        seen.add(tool["name"])
    return tools


def _tool(value: Any, at: str, schemas: SchemaChecker) -> dict[str, Any]:
    tool = object_at(value, at)
    kind = tool.get("type")
    if kind is None:
        raise missing(path(at, "type"))
    if kind != "function":
        raise UnsupportedValue(
            f"Tools of type {quoted(str(kind))} are not supported here. Supported: 'function'.", param=path(at, "type")
        )
    if "function" in tool and "name" not in tool:
        raise missing(path(at, "name"), CHAT_STYLE)
    body = check(FunctionTool, tool, at)
    _refuse_unserved(body, at)
    parameters = _parameters(body.parameters, path(at, "parameters"), schemas)
    return {"type": "function", "name": body.name, "description": body.description, "parameters": parameters,
            "strict": body.strict}


def _refuse_unserved(tool: FunctionTool, at: str) -> None:
    unserved = {
        "async": tool.async_,
        "defer_loading": tool.defer_loading,
        "allowed_callers": tool.allowed_callers not in (None, [], ["direct"]),
    }
    for name, asked in unserved.items():
        if asked:
            raise UnsupportedValue(f"'{name}' is not supported here.", param=path(at, name))


def _parameters(value: Any, at: str, schemas: SchemaChecker) -> dict[str, Any]:
    if value is None:
        return {"type": "object", "properties": {}}
    parameters = schemas.check(value, at)
    kind = parameters.get("type", "object")
    if kind != "object" and "object" not in (kind if isinstance(kind, list) else ()):
        raise wrong(at, "the arguments of a function are an object: \"type\" must be 'object'")
    return parameters


def parse_tool_choice(value: Any, tools: Sequence[Mapping[str, Any]]) -> str | dict[str, Any]:
    """A mode, one named function, or a set of allowed ones; every name must be declared."""
    if isinstance(value, str):
        return _mode(value, tools)
    choice = _choice_object(value)
    names = {tool["name"] for tool in tools}
    match choice.get("type"):
        case "function":
            return _named_function(choice, names)
        case "allowed_tools":
            return _allowed_tools(choice, names)
        case kind:
            raise UnsupportedValue(
                f"A tool_choice of type {quoted(str(kind))} is not supported here. "
                f"Supported: {one_of(MODES)}, and the types 'function' and 'allowed_tools'.",
                param="tool_choice",
            )


def _choice_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong("tool_choice", f"must be one of {one_of(MODES)} or an object")
    return value


def _mode(mode: str, tools: Sequence[Mapping[str, Any]]) -> str:
    if mode not in MODES:
        raise wrong("tool_choice", f"{quoted(mode)} is none of {one_of(MODES)}")
    if mode == "required" and not tools:
        raise wrong("tool_choice", "'required' needs 'tools'")
    return mode


def _named_function(choice: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    if "function" in choice and "name" not in choice:
        raise InvalidRequest(f"Missing required parameter: 'tool_choice.name'. {CHAT_STYLE}", param="tool_choice")
    name = _checked_choice(NamedFunction, choice).name
    if name not in names:
        raise wrong("tool_choice", f"there is no tool named {quoted(name)}")
    return {"type": "function", "name": name}


def _allowed_tools(choice: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    body = _checked_choice(AllowedTools, choice)
    if not isinstance(body.tools, list) or not body.tools:
        raise wrong("tool_choice", "'tools' must be a list of at least one tool")
    if len(body.tools) > MAX_TOOLS:
        raise wrong("tool_choice", f"'tools' has more than {MAX_TOOLS} tools")
    allowed = []
    for tool in body.tools:
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise wrong("tool_choice", "every allowed tool must be an object of type 'function'")
        allowed.append(_named_function(tool, names))
    return {"type": "allowed_tools", "mode": body.mode, "tools": allowed}


def _checked_choice(model: type[M], choice: dict[str, Any]) -> M:
    """The choice as a model; all its mistakes are told under the one param that clients know."""
    try:
        return check(model, choice, "tool_choice")
    except InvalidRequest as error:
        raise InvalidRequest(error.message, param="tool_choice") from None


def parse_text_format(value: Any, schemas: SchemaChecker) -> dict[str, Any]:
    """What form the answer's text must have."""
    at = "text.format"
    form = object_at(value, at)
    match form.get("type"):
        case None:
            raise missing(path(at, "type"))
        case "text" | "json_object" as kind:
            return {"type": kind}
        case "json_schema":
            return _json_schema_format(form, at, schemas)
        case kind:
            raise wrong(path(at, "type"), f"{quoted(str(kind))} is none of {one_of(FORMATS)}")


def _json_schema_format(form: dict[str, Any], at: str, schemas: SchemaChecker) -> dict[str, Any]:
    if isinstance(form.get("json_schema"), dict):
        raise missing(path(at, "name"), CHAT_STYLE)
    body = check(JsonSchemaFormat, form, at)
    return {"type": "json_schema", "name": body.name, "description": body.description, "strict": body.strict,
            "schema": schemas.check(body.json_schema, path(at, "schema"))}
