"""The create request as clients send it: its own fields, and the small objects in it."""

import re
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import BeforeValidator, Field, field_validator

from app.api.checks import Checked

Include = Literal[
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
]
INCLUDES: Final[tuple[str, ...]] = get_args(Include)

Summary = Literal["auto", "concise", "detailed"]
ID_PATTERN: Final = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")

BIASED_TOKENS: Final = 2**18  # more than a vocabulary has
METADATA_PAIRS, METADATA_KEY, METADATA_VALUE = 16, 64, 512  # characters, not bytes


def _metadata(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError("must be an object of strings")
    if len(value) > METADATA_PAIRS:
        raise ValueError(f"has {len(value)} pairs, at most {METADATA_PAIRS} are allowed")
    for key, text in value.items():
        if not isinstance(text, str):
            raise ValueError("every value must be a string")
        if len(key) > METADATA_KEY:
            raise ValueError(f"a key is longer than {METADATA_KEY} characters")
        if len(text) > METADATA_VALUE:
            raise ValueError(f"a value is longer than {METADATA_VALUE} characters")
    return value


def _few(value: Any) -> Any:
    """Counted before each one is checked."""
    if isinstance(value, dict) and len(value) > BIASED_TOKENS:
        raise ValueError(f"has {len(value)} tokens, at most {BIASED_TOKENS} are allowed")
    return value


def _underscored(value: Any) -> Any:
    """Older clients write `in-memory`; those that read the answer know `in_memory` only."""
    return "in_memory" if value == "in-memory" else value


class CreateBody(Checked):
    """The body of `POST /v1/responses`: OpenAI's fields, and the sampling parameters that clients of vLLM know."""

    # `input`, `tools`, `tool_choice`, `text` and `reasoning` are checked object by object after this.

    model: Annotated[str, Field(min_length=1, max_length=256)]
    input: Any = Field(default=None, description="A string, or a list of items")
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool = True
    background: bool = False
    stream: bool = False
    stream_options: Any = None
    include: Any = Field(default=None, description="What to add to the answer: " + ", ".join(INCLUDES))
    tools: Any = Field(default=None, description="Function tools")
    tool_choice: Any = None
    parallel_tool_calls: bool = True
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, lt=2**31)
    min_p: float | None = Field(default=None, ge=0, le=1)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: float | None = Field(default=None, gt=0, le=10)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    stop: Any = Field(default=None, description="A string, or a list of at most 16 strings")
    logit_bias: Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]] | None, BeforeValidator(_few)] = None
    max_output_tokens: int | None = Field(default=None, ge=1, lt=2**31)
    max_tool_calls: int | None = Field(default=None, ge=1, lt=2**31)
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    text: Any = None
    reasoning: Any = None
    truncation: Literal["auto", "disabled"] = "disabled"
    metadata: dict[str, str] = Field(default_factory=dict)
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"] | None = None
    safety_identifier: Annotated[str, Field(max_length=128)] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Annotated[Literal["in_memory", "24h"] | None, BeforeValidator(_underscored)] = None
    user: str | None = None
    priority: int = Field(default=0, ge=-(2**31), lt=2**31)

    # known, and refused unless they ask for nothing
    background_options: Any = None
    context_management: Any = None
    conversation: Any = None
    image: Any = None
    moderation: Any = None
    prompt: Any = None

    _metadata = field_validator("metadata", mode="plain")(_metadata)


class ReasoningBody(Checked):
    """`reasoning`. Efforts that a model does not know are the model's to map."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Summary | None = None
    generate_summary: Summary | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: Literal["standard", "pro"] | None = None


class TextBody(Checked):
    """`text`."""

    format: Any = None
    verbosity: Literal["low", "medium", "high"] | None = None


class StreamOptions(Checked):
    """`stream_options`."""

    include_obfuscation: bool = False


class BackgroundOptions(Checked):
    """`background_options`: nothing but the default is served."""

    completion_window: Literal["soonest", "2h", "8h"] = "soonest"
    continuation_id: str | None = None
