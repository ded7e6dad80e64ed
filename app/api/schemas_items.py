"""Input items and their parts as clients send them: one flat model for each `type`."""

from typing import Annotated, Any, Literal

from pydantic import Field

from app.api.checks import Checked

Label = Annotated[str, Field(min_length=1, max_length=256)]  # ids and names of clients: opaque, never looked up
ItemStatus = Literal["in_progress", "completed", "incomplete"]
Role = Literal["user", "assistant", "system", "developer"]


class MessageBody(Checked):
    """A message, also the easy form without `type`."""

    id: Label | None = None
    role: Role
    content: Any = Field(...)
    status: ItemStatus = "completed"
    phase: Literal["commentary", "final_answer"] | None = None


class FunctionCallBody(Checked):
    """A call the model made."""

    id: Label | None = None
    call_id: Label
    name: Label
    arguments: str
    status: ItemStatus = "completed"


class FunctionCallOutputBody(Checked):
    """What the client's tool gave back."""

    id: Label | None = None
    call_id: Label
    output: Any = Field(...)
    status: ItemStatus = "completed"


class ReasoningItemBody(Checked):
    """An earlier chain of thought. `encrypted_content` is read by nobody here: it is dropped."""

    id: Label | None = None
    summary: Any = None
    content: Any = None
    status: ItemStatus = "completed"


class ItemReferenceBody(Checked):
    """An item this server has stored."""

    id: Label


class TextPart(Checked):
    """`input_text`, `summary_text`, `reasoning_text`."""

    text: str


class OutputTextPart(Checked):
    """`output_text`; annotations and logprobs are kept as they came."""

    text: str
    annotations: list[dict[str, Any]] = Field(default_factory=list)
    logprobs: list[dict[str, Any]] | None = None


class RefusalPart(Checked):
    """`refusal`."""

    refusal: str


class ImagePart(Checked):
    """`input_image`."""

    image_url: str | None = None
    file_id: str | None = None
    detail: Literal["auto", "low", "high", "original"] = "auto"


class FilePart(Checked):
    """`input_file`."""

    file_data: str | None = None
    file_id: str | None = None
    file_url: str | None = None
    filename: str | None = None
