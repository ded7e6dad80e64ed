"""Prompts of one user message, made without the product."""

from openai_harmony import Conversation, HarmonyEncoding, Message, RenderConversationConfig, Role, SystemContent

from tests.vllm.models.conversations import spoken, user
from tests.vllm.models.scenarios import HELLO, STORY, WEATHER


class Prompts:
    """Prompts of one user message, and what the model says to them, as token ids."""

    def __init__(self, encoding: HarmonyEncoding) -> None:
        self._encoding = encoding
        self.hello = self.asking(HELLO.user)
        self.weather = self.asking(WEATHER.user)
        self.story = self.asking(STORY.user)
        self.greeting = self.ids(spoken(HELLO.first))

    def asking(self, text: str) -> list[int]:
        """The prompt of a conversation that begins with this text."""
        system = Message.from_role_and_content(Role.SYSTEM, SystemContent.new())
        conversation = Conversation.from_messages([system, user(text)])
        config = RenderConversationConfig(auto_drop_analysis=False)
        return list(self._encoding.render_conversation_for_completion(conversation, Role.ASSISTANT, config))

    def ids(self, text: str) -> list[int]:
        """Token ids of text with markers."""
        return list(self._encoding.encode(text, allowed_special="all"))
