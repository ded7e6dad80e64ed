"""Content parts of input items: choose by `type`, validate, and give each its one normal form."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from app.api.checks import check, missing, object_at, one_of, path, quoted, wrong
from app.api.schemas_items import FilePart, ImagePart, OutputTextPart, RefusalPart, TextPart
from app.errors import UnsupportedValue

_PICTURE: Final = re.compile(r"https?://|data:image/", re.IGNORECASE)

Normalise = Callable[[dict[str, Any], str], dict[str, Any]]


def message_parts(content: Any, role: str, at: str) -> list[dict[str, Any]]:
    """A message's `content` as a list of parts. Text is `output_text` in the assistant's mouth, else `input_text`."""
    readers = _SPOKEN if role == "assistant" else _GIVEN
    if isinstance(content, str):
        return [readers["input_text"]({"text": content}, at)]
    if not isinstance(content, list):
        raise wrong(at, "must be a string or a list of parts")
    return [_part(part, readers, path(at, i)) for i, part in enumerate(content)]


def tool_output(output: Any, at: str) -> str | list[dict[str, Any]]:
    """A `function_call_output.output`: a string, or a list of parts; both may be empty."""
    if isinstance(output, str):
        return output
    if not isinstance(output, list):
        raise wrong(at, "must be a string or a list of parts")
    return [_part(part, _GIVEN, path(at, i)) for i, part in enumerate(output)]


def reasoning_parts(parts: Sequence[Any], kind: str, at: str) -> list[dict[str, Any]]:
    """The parts of a reasoning item's `summary` or `content`, all of one kind."""

    def read(part: dict[str, Any], here: str) -> dict[str, Any]:
        return {"type": kind, "text": check(TextPart, part, here).text}

    return [_part(part, {kind: read}, path(at, i)) for i, part in enumerate(parts)]


def _part(value: Any, readers: Mapping[str, Normalise], at: str) -> dict[str, Any]:
    part = object_at(value, at)
    kind = part.get("type")
    if kind is None:
        raise missing(path(at, "type"))
    if not isinstance(kind, str) or kind not in readers:
        raise wrong(path(at, "type"), f"{quoted(str(kind))} is not allowed here. Supported: {one_of(readers)}.")
    return readers[kind](part, at)


def _input_text(part: dict[str, Any], at: str) -> dict[str, Any]:
    return {"type": "input_text", "text": check(TextPart, part, at).text}


def _output_text(part: dict[str, Any], at: str) -> dict[str, Any]:
    body = check(OutputTextPart, part, at)
    text = {"type": "output_text", "text": body.text, "annotations": body.annotations}
    return text if body.logprobs is None else {**text, "logprobs": body.logprobs}


def _refusal(part: dict[str, Any], at: str) -> dict[str, Any]:
    return {"type": "refusal", "refusal": check(RefusalPart, part, at).refusal}


def _input_image(part: dict[str, Any], at: str) -> dict[str, Any]:
    body = check(ImagePart, part, at)
    _no_file_id(body.file_id, at)
    if body.image_url is None:
        raise missing(path(at, "image_url"))
    if not _PICTURE.match(body.image_url):
        raise wrong(path(at, "image_url"), "must be an http(s) URL or a data URL of an image")
    return {"type": "input_image", "image_url": body.image_url, "detail": body.detail}


def _input_file(part: dict[str, Any], at: str) -> dict[str, Any]:
    body = check(FilePart, part, at)
    _no_file_id(body.file_id, at)
    if body.file_data is None and body.file_url is None:
        raise missing(path(at, "file_data"))
    kept = body.model_dump(include={"file_data", "file_url", "filename"}, exclude_none=True)
    return {"type": "input_file", **kept}


def _no_file_id(file_id: str | None, at: str) -> None:
    if file_id is not None:
        raise UnsupportedValue("This server stores no files: send the content itself.", param=path(at, "file_id"))


_GIVEN: Final[Mapping[str, Normalise]] = {
    "input_text": _input_text,
    "input_image": _input_image,
    "input_file": _input_file,
    "output_text": _input_text,  # tool results and user turns copied from another model's answer
}
_SPOKEN: Final[Mapping[str, Normalise]] = {
    "output_text": _output_text,
    "refusal": _refusal,
    "input_text": _output_text,  # some clients know only one kind of text
}
