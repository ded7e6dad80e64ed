"""The OpenAPI document: written by hand where the routes are ours, generated where the models are."""

from typing import Any, Final

from app import __version__
from app.api.parsing import REFUSED
from app.api.schemas import INCLUDES, CreateBody, ReasoningBody, StreamOptions, TextBody

Json = dict[str, Any]

ERROR_NAMES: Final = {
    400: "The request is not valid", 401: "An API key is missing or wrong", 404: "There is no such thing",
    408: "The request took too long to arrive", 413: "The request body is too large",
    415: "The request body has an encoding that is not read here", 429: "Too much is waiting", 500: "The server failed",
    502: "The engine failed", 503: "The server cannot serve now", 504: "The engine said nothing for too long",
}  # fmt: skip
ITEM: Final[Json] = {"type": "object", "description": "An item of the Responses API (message, function_call, ...)"}
ID: Final[Json] = {
    "name": "response_id", "in": "path", "required": True, "schema": {"type": "string"}
}  # fmt: skip


def document(*, with_keys: bool) -> Json:
    """The whole document; with the bearer scheme when keys are needed."""
    whole: Json = {
        "openapi": "3.1.0",
        "info": {"title": "Verbatim", "version": __version__, "description": "An event-sourced Responses API server"},
        "paths": {**_responses_paths(), **_other_paths()},
        "components": {"schemas": _schemas()},
    }
    if with_keys:
        whole["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        whole["security"] = [{"key": []}]
    return whole


def _responses_paths() -> Json:
    response, events = _content("Response"), {"text/event-stream": {"schema": {"type": "string"}}}
    both = {**response, **events}
    create = _operation("createResponse", "Create a response", both, refusals=(408, 413, 415, 429, 502, 503, 504))
    create["requestBody"] = {"required": True, "content": _content("CreateResponse")}
    return {
        "/v1/responses": {"post": create},
        "/v1/responses/{response_id}": {
            "parameters": [ID],
            "get": _operation("getResponse", "A response, or its events", both, query=_SHOW, refusals=(404,)),
            "delete": _operation("deleteResponse", "Delete a response", _content("Deleted"), refusals=(404,)),
        },
        "/v1/responses/{response_id}/cancel": {
            "parameters": [ID],
            "post": _operation("cancelResponse", "Cancel a background response", response, refusals=(404,)),
        },
        "/v1/responses/{response_id}/input_items": {
            "parameters": [ID],
            "get": _operation("listInputItems", "What the model was given", _content("ItemList"), query=_PAGE,
                              refusals=(404,)),
        },
    }


def _other_paths() -> Json:
    model = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
    health = _operation("health", "Can this process serve?", _content("Health"), refusals=(503,))
    live = _operation("live", "Does this process answer?", _content("Health"))
    return {
        "/v1/models": {"get": _operation("listModels", "The models", _content("ModelList"), refusals=(502,))},
        "/v1/models/{model}": {
            "parameters": [model],
            "get": _operation("getModel", "One model", _content("Model"), refusals=(404, 502)),
        },
        "/health": {"get": {**health, "security": []}},
        "/livez": {"get": {**live, "security": []}},
    }


def _operation(name: str, summary: str, content: Json, *, query: tuple[Json, ...] = (),
               refusals: tuple[int, ...] = ()) -> Json:
    errors = {str(status): {"description": ERROR_NAMES[status], "content": _content("ErrorBody")}
              for status in (400, 401, *refusals, 500)}  # fmt: skip
    return {
        "operationId": name,
        "summary": summary,
        "parameters": [{"in": "query", **parameter} for parameter in query],
        "responses": {"200": {"description": "Done", "content": content}, **errors},
    }


def _content(schema: str) -> Json:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}


def _schemas() -> Json:
    create = CreateBody.model_json_schema()
    create["properties"] = {name: field if name in create["required"] else _nullable(field)
                            for name, field in create["properties"].items()}  # fmt: skip
    create["required"] = ["model", "input"]
    create["properties"] |= {
        "input": {"anyOf": [{"type": "string"}, {"type": "array", "items": ITEM}]},
        **{name: {"type": "null", "description": "Not supported here"} for name in REFUSED},
        "tools": _nullable({"type": "array", "items": {"type": "object"}}),
        "tool_choice": {"anyOf": [{"enum": ["none", "auto", "required"]}, {"type": "object"}, {"type": "null"}]},
        "include": _nullable({"type": "array", "items": {"enum": list(INCLUDES)}}),
        "reasoning": _nullable(ReasoningBody.model_json_schema()),
        "text": _nullable(TextBody.model_json_schema()),
        "stream_options": _nullable(StreamOptions.model_json_schema()),
    }
    return {
        "CreateResponse": create,
        "Response": _object(id="string", object="string", status="string", output="array"),
        "Deleted": _object(id="string", object="string", deleted="boolean"),
        "ItemList": _object(object="string", data="array", first_id="string", last_id="string", has_more="boolean"),
        "Model": _object(id="string", object="string", created="integer", owned_by="string"),
        "ModelList": _object(object="string", data="array"),
        "Health": _object(status="string"),
        "ErrorBody": {"type": "object", "required": ["error"], "properties": {"error": _error()}},
    }


def _nullable(schema: Json) -> Json:
    return {"anyOf": [schema, {"type": "null"}]}


def _object(**types: str) -> Json:
    properties = {name: {"type": kind} for name, kind in types.items()}
    return {"type": "object", "required": list(types), "properties": properties}


def _error() -> Json:
    text, maybe = {"type": "string"}, {"type": ["string", "null"]}
    return {"type": "object", "required": ["message", "type", "param", "code"],
            "properties": {"message": text, "type": text, "param": maybe, "code": maybe}}


_BOOLEAN: Final[Json] = {"type": "boolean", "default": False}
_INCLUDE: Final[Json] = {"name": "include", "schema": {"type": "array", "items": {"enum": list(INCLUDES)}}}
_SHOW: Final[tuple[Json, ...]] = (
    {"name": "stream", "schema": _BOOLEAN},
    {"name": "starting_after", "schema": {"type": "integer", "minimum": 0}, "description": "Events after this number"},
    {"name": "include_obfuscation", "schema": _BOOLEAN},
    _INCLUDE,
)
_PAGE: Final[tuple[Json, ...]] = (
    {"name": "limit", "schema": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20}},
    {"name": "order", "schema": {"enum": ["asc", "desc"], "default": "desc"}},
    {"name": "after", "schema": {"type": "string"}, "description": "The id of the last item already seen"},
    _INCLUDE,
)
