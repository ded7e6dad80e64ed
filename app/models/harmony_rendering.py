"""A request and its items to prompt tokens, with openai_harmony's vocabulary and framing."""

import json
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from math import inf
from typing import Any, Final

import openai_harmony as harmony
from openai_harmony import Message, Role, TextContent

from app.errors import ContextTooLong, UnsupportedValue
from app.models.harmony_framing import START
from app.models.harmony_items import INSTRUCTIONS, Conversation, contents_of, pieces_of
from app.models.harmony_schema import for_prompt
from app.models.vocabulary import BASE_VARIABLE, Vocabulary
from app.responses.request import Item, Request

EFFORTS: Final = {
    "low": harmony.ReasoningEffort.LOW,
    "medium": harmony.ReasoningEffort.MEDIUM,
    "high": harmony.ReasoningEffort.HIGH,
}
_BREAK: Final = f" {secrets.token_hex(16)} "  # no text of a client holds it
_TOO_LONG: Final = "This model's maximum context length is {} tokens, but the input has {} tokens."
_FAR: Final = 2  # times the context
ASSISTANT: Final = 173_781  # the word, after `<|start|>`


def effort_of(request: Request) -> harmony.ReasoningEffort:
    """How hard to think; medium unless said. gpt-oss knows three: any other is refused rather than quietly changed."""
    if request.reasoning_effort is None:
        return harmony.ReasoningEffort.MEDIUM
    effort = EFFORTS.get(request.reasoning_effort)
    if effort is None:
        raise UnsupportedValue(
            f"This model's reasoning effort is one of {', '.join(EFFORTS)}, not '{request.reasoning_effort}'.",
            param="reasoning.effort",
        )
    return effort


class HarmonyRenderer:
    """Renders prompts. The encoding loads on first use (0.2 s), once; safe to share between threads."""

    def __init__(self, vocabulary: Vocabulary, today: Callable[[], date] = date.today) -> None:
        self._vocabulary = vocabulary
        self._today = today
        self._lock = threading.Lock()
        self._encoding: harmony.HarmonyEncoding | None = None

    def load(self) -> harmony.HarmonyEncoding:
        """The encoding, loaded from the vocabulary's directory."""
        self._vocabulary.load()
        with self._lock:
            if self._encoding is None:
                os.environ.setdefault(BASE_VARIABLE, str(self._vocabulary.directory))
                self._encoding = harmony.load_harmony_encoding(harmony.HarmonyEncodingName.HARMONY_GPT_OSS)
            return self._encoding

    def render(
        self,
        request: Request,
        items: Sequence[Item],
        tools: Sequence[Mapping[str, Any]],
        *,
        context_length: int | None = None,
    ) -> list[int]:
        """The prompt, ending in `<|start|>assistant`.

        Raises InvalidRequest for what gpt-oss cannot take, and ContextTooLong; one that is far too long is not
        encoded to its end.
        """
        tokens: list[int] = []
        limit = inf if context_length is None else context_length
        for part in self._parts(request, items, tools):
            tokens += part
            if len(tokens) > _FAR * limit:
                raise ContextTooLong(_TOO_LONG.format(limit, f"more than {len(tokens)}"))
        if len(tokens) >= limit:
            raise ContextTooLong(_TOO_LONG.format(limit, len(tokens)))
        return tokens

    def _parts(
        self, request: Request, items: Sequence[Item], tools: Sequence[Mapping[str, Any]]
    ) -> Iterator[Sequence[int]]:
        conversation = Conversation(items, own=len(request.items))
        # The tools are text of ours, so the system message has to be told that there are some.
        options = harmony.RenderOptions(conversation_has_function_tools=bool(tools))
        yield self.load().render(self._system(request), options)
        developer = self._developer(request, conversation.leading_instructions(), tools)
        if developer:
            yield from self._tokens(Message.from_role_and_contents(Role.DEVELOPER, contents_of(developer)))
        for message in conversation.messages():
            yield from self._tokens(message)
        yield START, ASSISTANT

    def _tokens(self, message: Message) -> Iterator[Sequence[int]]:
        """A message's tokens; a long one's piece by piece, because the library lets no other thread run meanwhile."""
        encoding, pieces = self.load(), message.content
        if len(pieces) == 1:
            yield encoding.render(message)
            return
        *head, end = encoding.render(message.model_copy(update={"content": [TextContent(text="")]}))
        yield head
        for piece in pieces:
            if isinstance(piece, TextContent):
                yield encoding.encode(piece.text, disallowed_special=())
        yield [end]

    def _system(self, request: Request) -> Message:
        content = harmony.SystemContent.new().with_reasoning_effort(effort_of(request))
        content = content.with_conversation_start_date(self._today().isoformat())
        return Message.from_role_and_content(Role.SYSTEM, content)

    def _developer(self, request: Request, leading: Sequence[str], tools: Sequence[Mapping[str, Any]]) -> str:
        """One message: the instructions, the leading system and developer items, the tools, the answer's form."""
        instructions = [text for text in (request.instructions, *leading) if text]
        sections = [INSTRUCTIONS + "\n\n".join(instructions)] if instructions else []
        if tools:
            sections.append(self._tools(tools))
        if request.text_format.get("type") == "json_schema":
            sections.append(_response_format(request.text_format))
        return "\n\n".join(sections)

    def _tools(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """The tools section as openai_harmony writes it."""
        described = [
            harmony.ToolDescription.new(
                tool["name"], _broken(tool.get("description") or ""), _broken(for_prompt(tool.get("parameters")))
            )
            for tool in tools
        ]
        content = harmony.DeveloperContent.new().with_function_tools(described)
        message = Message.from_role_and_content(Role.DEVELOPER, content)
        return self._vocabulary.text_of(self.load().render(message)).removeprefix("developer").replace(_BREAK, "")


def _broken(value: Any) -> Any:
    """The same texts, with breaks in their long runs: openai_harmony writes the section only as tokens."""
    match value:
        case str():
            return _BREAK.join(pieces_of(value))
        case dict():
            return {_broken(key): _broken(one) for key, one in value.items()}
        case list():
            return [_broken(one) for one in value]
        case _:
            return value


def _response_format(text_format: Mapping[str, Any]) -> str:
    """The schema where gpt-oss was trained to look for it."""
    description = text_format.get("description")
    comment = f"// {description}\n" if description else ""
    schema = json.dumps(text_format.get("schema"), ensure_ascii=False, separators=(",", ":"))
    return f"# Response Formats\n\n## {text_format.get('name') or 'answer'}\n\n{comment}{schema}"
