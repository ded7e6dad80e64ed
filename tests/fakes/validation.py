"""What vLLM 0.32 refuses, in its own words, as seen at a real one (`tests/vllm/FACTS.md`)."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

MOST_LOGPROBS: Final = 20
VOCABULARY_SIZE: Final = 201_088
ROLES: Final = ("user", "assistant", "system", "developer", "tool")
_TYPES: Final = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
_NUMBERS: Final = {"temperature": "float", "top_p": "float", "max_tokens": "int", "seed": "int", "logprobs": "int"}
_KINDS: Final = {"float": "a valid number", "int": "a valid integer"}
_CONSTRAINTS: Final = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
_WORDS: Final = {"int": "integer", "float": "number"}

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A 400: its message, param and type. `late`: found when a stream has begun already, and told in it."""

    message: str
    param: str | None = None
    type: str = "BadRequestError"
    late: bool = False


def refusal_of_completion(body: Body, prompt: object) -> Refusal | None:
    """What is wrong with a request to /v1/completions, but for its length."""
    return next(_of_completion(body, prompt), None)


def refusal_of_chat(body: Body, *, harmony: bool) -> Refusal | None:
    """What is wrong with a request to /v1/chat/completions, but for its length. `harmony`: the model is gpt-oss."""
    return next(_of_chat(body, harmony=harmony), None)


def refusal_of_room(max_tokens: int, room: int, max_model_len: int) -> Refusal | None:
    """What is wrong with the number of tokens wanted, when the context leaves that much room."""
    if max_tokens > max_model_len:
        wanted = f"max_tokens={max_tokens} cannot be greater than max_model_len={max_model_len}."
        hint = f" Please request fewer output tokens. (parameter=max_tokens, value={max_tokens})"
        return Refusal(wanted + hint, "max_tokens")
    if (allowed := min(max_tokens, room)) < 1:
        return _out_of_range("max_tokens", "must be at least 1", allowed)
    return None


def _of_completion(body: Body, prompt: object) -> Iterator[Refusal]:
    yield from _of_prompt_types(prompt)
    yield from _of_types(body)
    yield from _of_options(body)
    if isinstance(prompt, list) and not prompt:
        yield Refusal("You must pass at least one prompt")
    if not prompt or not isinstance(prompt, list | str):
        yield _named("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    yield from _of_sampling(body, body.get("logprobs"))
    yield from _of_constraint(body.get("structured_outputs"))
    if isinstance(prompt, list):
        yield from (Refusal(f"Token id {one} is out of vocabulary") for one in prompt if one >= VOCABULARY_SIZE)


def _of_chat(body: Body, *, harmony: bool) -> Iterator[Refusal]:
    if not isinstance(body.get("messages"), list):
        yield _invalid("messages", "missing", "Field required", "<dict>")
    yield from _of_types({name: value for name, value in body.items() if name != "logprobs"})
    yield from _of_options(body)
    if body.get("top_logprobs") and not body.get("logprobs"):
        yield _named("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
    yield from _of_tool_choice(body)
    if not body["messages"]:
        yield Refusal("Cannot apply chat template to an empty conversation. Provide at least one message.")
    if harmony:
        yield from (_unknown_role(one["role"]) for one in body["messages"] if one.get("role") not in ROLES)
    yield from _of_sampling(body, body.get("top_logprobs"))
    yield from _of_schema((body.get("response_format") or {}).get("json_schema", {}).get("schema"))


def _of_prompt_types(prompt: object) -> Iterator[Refusal]:
    if not isinstance(prompt, list):
        return
    for i, one in enumerate(prompt):
        if type(one) is not int:
            yield _invalid(f"prompt.{i}", "int_parsing", "Input should be a valid integer", one)
        elif one < 0:
            yield _invalid(f"prompt.{i}", "greater_than_equal", "Input should be greater than or equal to 0", one)


def _of_types(body: Body) -> Iterator[Refusal]:
    for name, kind in _NUMBERS.items():
        if isinstance(value := body.get(name), str):
            message = f"Input should be {_KINDS[kind]}, unable to parse string as {_article(_WORDS[kind])}"
            yield _invalid(name, f"{kind}_parsing", message, value)


def _of_options(body: Body) -> Iterator[Refusal]:
    if body.get("stream_options") and not body.get("stream"):
        yield _named("Stream options can only be defined when `stream=True`.", "stream_options")


def _of_sampling(body: Body, logprobs: int | None) -> Iterator[Refusal]:
    temperature, top_p, n, stop = (body.get(name) for name in ("temperature", "top_p", "n", "stop"))
    if temperature is not None and temperature < 0:
        yield _out_of_range("temperature", "must be non-negative", float(temperature))
    if top_p is not None and not 0 < top_p <= 1:
        yield _out_of_range("top_p", "must be in (0, 1]", float(top_p))
    if n is not None and n > 1 and temperature == 0:
        yield Refusal(f"n must be 1 when using greedy sampling, got {n}.")
    if stop is not None and "" in ([stop] if isinstance(stop, str) else stop):
        yield Refusal("stop cannot contain an empty string.")
    if logprobs is not None and logprobs > MOST_LOGPROBS:
        asked = f"Requested sample logprobs of {logprobs}, which is greater than max allowed: {MOST_LOGPROBS}"
        yield Refusal(f"{asked} (parameter=logprobs, value={logprobs})", "logprobs")


def _of_tool_choice(body: Body) -> Iterator[Refusal]:
    choice, tools = body.get("tool_choice"), body.get("tools")
    if choice in (None, "none", "auto"):
        return
    if not tools:
        yield _named("When using `tool_choice`, `tools` must be set.", "tool_choice")
    elif isinstance(choice, dict) and choice["function"]["name"] not in [tool["function"]["name"] for tool in tools]:
        told = "The tool specified in `tool_choice` does not match any of the specified `tools` (parameter=tool_choice)"
        yield Refusal(told, "tool_choice")


def _of_constraint(constraint: Body | None) -> Iterator[Refusal]:
    if constraint is None:
        return
    kinds = [kind for kind in _CONSTRAINTS if constraint.get(kind) is not None]
    if not kinds:
        none = dict.fromkeys(_CONSTRAINTS)
        yield Refusal(f"You must use one kind of structured outputs constraint but none are specified: {none}")
    if len(kinds) > 1:
        kind = "You can only use one kind of constraints for structured outputs ('json', 'regex' or 'choice')."
        yield _named(kind, "structured_outputs")
    if "json" in kinds:
        yield from _of_json(constraint["json"])
    if "structural_tag" in kinds and not _is_structural_tag(constraint["structural_tag"]):
        told = "Invalid structured_outputs structural_tag specification. (parameter=structured_outputs)"
        yield Refusal(told, "structured_outputs")


def _of_json(schema: object) -> Iterator[Refusal]:
    try:
        yield from _of_schema(json.loads(schema) if isinstance(schema, str) else schema)
    except ValueError:
        yield Refusal("Invalid JSON grammar specification.")


def _of_schema(schema: object) -> Iterator[Refusal]:
    yield from (Refusal(f"Grammar error: Invalid type: {kind}", late=True) for kind in _wrong_types(schema))


def _is_structural_tag(text: str) -> bool:
    try:
        tag = json.loads(text)
    except ValueError:
        return False
    if "structures" in tag:
        return True
    return tag.get("type") == "structural_tag" and not any(
        next(_wrong_types(one["json_schema"]), None) for one in _parts(tag["format"]) if "json_schema" in one
    )


def _parts(node: object) -> Iterator[Body]:
    """All formats inside a structural tag's format, but nothing inside a schema."""
    if isinstance(node, Sequence) and not isinstance(node, str):
        for one in node:
            yield from _parts(one)
    elif isinstance(node, Mapping):
        yield node
        for name, one in node.items():
            if name != "json_schema":
                yield from _parts(one)


def _wrong_types(schema: object) -> Iterator[str]:
    if not isinstance(schema, Mapping):
        return
    kind = schema.get("type")
    yield from (one for one in ([kind] if isinstance(kind, str) else kind or ()) if one not in _TYPES)
    for one in (schema.get("properties") or {}).values():
        yield from _wrong_types(one)
    yield from _wrong_types(schema.get("items"))


def _unknown_role(role: object) -> Refusal:
    roles = ", ".join(map(repr, ROLES[:-1])) + f" or {ROLES[-1]!r}"
    told = f"Input should be {roles} [type=enum, input_value={role!r}, input_type=str]"
    more = "For further information visit https://errors.pydantic.dev/2.14/v/enum"
    return Refusal(f"1 validation error for Author\nrole\n  {told}\n    {more}")


def _out_of_range(name: str, rule: str, value: float) -> Refusal:
    return Refusal(f"{name} {rule}, got {value}. (parameter={name}, value={value})", name)


def _named(message: str, param: str) -> Refusal:
    return Refusal(f"{message} (parameter={param})", param)


def _invalid(place: str, kind: str, message: str, value: object) -> Refusal:
    """As pydantic complains."""
    told = {"type": kind, "loc": f"body.{place}", "msg": message, "input": str(value)}
    return Refusal(f"1 validation error:\n  {told}", f"body.{place}", "Bad Request")


def _article(word: str) -> str:
    return f"an {word}" if word == "integer" else f"a {word}"
