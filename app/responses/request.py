"""A create request after the edge has parsed it: frozen, complete, with its effective values.

It is stored with the response, so that any process can run it later. Items are plain JSON objects in the wire's own
form: every one has a `type` and an `id`, a message's `content` is a list of parts.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

Item = Mapping[str, Any]


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a client asked for, with the model's sampling defaults filled in.

    `None` means that the client left it out and the model has no default: the engine decides. `instructions` are this
    turn's own. `tools` are the declared function tools with `name`, `description`, `parameters`, `strict`.
    """

    model: str
    items: Sequence[dict[str, Any]]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool = True
    background: bool = False
    stream: bool = False
    include_obfuscation: bool = False
    include: Sequence[str] = ()
    tools: Sequence[dict[str, Any]] = ()
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: Sequence[str] = ()
    logit_bias: dict[str, float] | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    top_logprobs: int | None = None
    text_format: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "text"})
    verbosity: str | None = None
    reasoning_effort: str | None = None
    reasoning_summary: str | None = None
    truncation: str = "disabled"
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    user: str | None = None
    priority: int = 0

    @property
    def wants_logprobs(self) -> bool:
        """Whether output text carries logprobs (`include`)."""
        return "message.output_text.logprobs" in self.include


_DECODER = msgspec.json.Decoder(Request)


def dump_request(request: Request) -> bytes:
    """The stored form."""
    return msgspec.json.encode(request)


def load_request(data: bytes) -> Request:
    """Read the stored form; fields that an older server did not know get their defaults."""
    return _DECODER.decode(data)
