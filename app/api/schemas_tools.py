"""Tools, tool choices and text formats as clients send them: one flat model for each `type`."""

from typing import Annotated, Any, Final, Literal

from pydantic import Field

from app.api.checks import Checked

NAME_PATTERN: Final = r"^[a-zA-Z0-9_-]{1,64}$"
Name = Annotated[str, Field(pattern=NAME_PATTERN)]


class FunctionTool(Checked):
    """A function the client runs."""

    name: Name
    description: str | None = None
    parameters: Any = None
    strict: bool = False
    # these would change what the model may do, and are not served
    async_: bool = Field(default=False, alias="async")
    defer_loading: bool = False
    allowed_callers: list[str] | None = None


class NamedFunction(Checked):
    """`{"type": "function", "name": …}` as a choice."""

    name: str


class AllowedTools(Checked):
    """`{"type": "allowed_tools", …}` as a choice."""

    mode: Literal["auto", "required"]
    tools: Any = Field(...)


class JsonSchemaFormat(Checked):
    """`{"type": "json_schema", …}` as a text format. `schema` is checked as a schema after this."""

    name: Name
    json_schema: Any = Field(..., alias="schema")
    description: str | None = None
    strict: bool = False
