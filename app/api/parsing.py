"""A create request: from the JSON object to the frozen `Request`, or one sentence about the first mistake."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from app.api.body import parse_object
from app.api.checks import check, list_at, missing, one_of, path, quoted, wrong
from app.api.items import parse_input
from app.api.json_schema import SchemaChecker
from app.api.schemas import (
    ID_PATTERN,
    INCLUDES,
    BackgroundOptions,
    CreateBody,
    ReasoningBody,
    StreamOptions,
    TextBody,
)
from app.api.tools import parse_text_format, parse_tool_choice, parse_tools
from app.errors import InvalidRequest, PreviousResponseNotFound, UnsupportedValue
from app.responses.request import Request

KNOWN: Final = frozenset(CreateBody.model_fields)
REFUSED: Final = ("conversation", "prompt", "moderation", "image")
STOP_STRINGS: Final = 16
COPIED: Final = (
    "model", "instructions", "previous_response_id", "store", "background", "stream", "parallel_tool_calls",
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed",
    "logit_bias", "max_output_tokens", "max_tool_calls", "top_logprobs", "truncation", "metadata", "safety_identifier",
    "prompt_cache_key", "prompt_cache_retention", "user", "priority",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Parsed:
    """A request, and the names of the fields that were given and had no effect."""

    request: Request
    ignored: Sequence[str]


@dataclass(frozen=True, slots=True)
class RequestParser:
    """Parses create requests. `default_model` stands in for a missing `model`."""

    default_model: str | None = None
    schemas: SchemaChecker = field(default_factory=SchemaChecker)

    def parse(self, data: bytes) -> Parsed:
        """The request in these bytes. Raises InvalidRequest naming the param."""
        raw = parse_object(data)
        if raw.get("model") is None:
            if self.default_model is None:
                raise missing("model")
            raw = {**raw, "model": self.default_model}
        body = check(CreateBody, raw, "")
        _refuse_unserved(body)
        _refuse_contradictions(body)
        request = self._request(body)
        ignored = [name for name, value in raw.items() if name not in KNOWN and value is not None]
        if isinstance(body.reasoning, dict) and body.reasoning.get("context") == "all_turns":
            ignored.append("reasoning.context")  # Codex asks for it; a model gets the reasoning that its format keeps
        return Parsed(request, ignored)

    def _request(self, body: CreateBody) -> Request:
        reasoning = check(ReasoningBody, _or_empty(body.reasoning), "reasoning")
        if reasoning.mode == "pro":
            raise UnsupportedValue("Reasoning mode 'pro' is not supported here.", param="reasoning.mode")
        text = check(TextBody, _or_empty(body.text), "text")
        tools = [] if body.tools is None else parse_tools(body.tools, self.schemas)
        choice = "auto" if body.tool_choice is None else parse_tool_choice(body.tool_choice, tools)
        return Request(
            **{name: getattr(body, name) for name in COPIED},
            items=_items(body),
            tools=tools,
            tool_choice=choice,
            text_format={"type": "text"} if text.format is None else parse_text_format(text.format, self.schemas),
            verbosity=text.verbosity,
            reasoning_effort=reasoning.effort,
            reasoning_summary=reasoning.summary or reasoning.generate_summary,
            include=[] if body.include is None else parse_include(list_at(body.include, "include")),
            include_obfuscation=_stream_options(body).include_obfuscation,
            stop=_stop(body.stop),
            service_tier="default",  # the tier that is really used, whatever was asked for
        )


def parse_include(values: Sequence[Any]) -> list[str]:
    """`include`, every value known."""
    for i, value in enumerate(values):
        if value not in INCLUDES:
            raise wrong(path("include", i), f"{quoted(str(value))} is none of {one_of(INCLUDES)}")
    return list(values)


def _items(body: CreateBody) -> list[dict[str, Any]]:
    items = parse_input(body.input)
    if not items and body.previous_response_id is None:
        raise wrong("input", "it is empty, and there is no previous_response_id")
    return items


def _stream_options(body: CreateBody) -> StreamOptions:
    return check(StreamOptions, _or_empty(body.stream_options), "stream_options")


def _stop(value: Any) -> list[str]:
    stops = [value] if isinstance(value, str) else list_at([] if value is None else value, "stop")
    if len(stops) > STOP_STRINGS:
        raise wrong("stop", f"at most {STOP_STRINGS} strings are allowed")
    for i, stop in enumerate(stops):
        if not isinstance(stop, str) or not stop:
            raise wrong(path("stop", i) if isinstance(value, list) else "stop", "must be a string that is not empty")
    return stops


def _refuse_unserved(body: CreateBody) -> None:
    """Nothing is dropped silently that changes what the model does."""
    for name in REFUSED:
        if getattr(body, name) is not None:
            raise UnsupportedValue(f"'{name}' is not supported here.", param=name)
    if body.background_options is not None:
        options = check(BackgroundOptions, body.background_options, "background_options")
        if options != BackgroundOptions():
            raise UnsupportedValue("Only the default is supported here.", param="background_options")
    if body.context_management is not None and list_at(body.context_management, "context_management"):
        raise UnsupportedValue("'context_management' is not supported here.", param="context_management")
    if body.truncation == "auto":
        raise UnsupportedValue("truncation 'auto' is not supported here; supported: 'disabled'.", param="truncation")


def _refuse_contradictions(body: CreateBody) -> None:
    if body.background and not body.store:
        raise InvalidRequest("A background response must be stored: 'store' must not be false.", param="background")
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("'stream_options' is only allowed together with 'stream'.", param="stream_options")
    if body.previous_response_id is not None and not ID_PATTERN.match(body.previous_response_id):
        raise PreviousResponseNotFound(f"Previous response with id {quoted(body.previous_response_id)} not found.")


def _or_empty(value: Any) -> Any:
    return {} if value is None else value
