"""Random harmony conversations around the scenarios: what varies in real prompts varies here and gets ignored."""

import json
import random
import re
from dataclasses import dataclass
from typing import Any, Final

from openai_harmony import (
    Author,
    Conversation,
    DeveloperContent,
    HarmonyEncoding,
    Message,
    ReasoningEffort,
    RenderConversationConfig,
    Role,
    SystemContent,
    ToolDescription,
)

from tests.vllm.models.scenarios import ANYTHING_ELSE, KNOWN, STORY, WEATHER_TOOL, Call, Scenario, Step

IDENTITIES: Final = ("You are ChatGPT, a large language model trained by OpenAI.", "You are a helpful assistant.")
EFFORTS: Final = (None, *ReasoningEffort, *ReasoningEffort, *ReasoningEffort)
WORD: Final = re.compile(r" ?[A-Za-z]{2,}")


@dataclass(frozen=True, slots=True)
class Lesson:
    """One prompt and the generation that must follow it, as token ids."""

    name: str
    prompt: list[int]
    completion: list[int]


class Teacher:
    """Makes lessons; the same seed gives the same lessons. A `plain` one uses no words but the scenarios' own."""

    def __init__(self, encoding: HarmonyEncoding, seed: int, *, plain: bool = False) -> None:
        self._encoding = encoding
        self._dice = random.Random(seed)
        pieces = (encoding.decode([i]) for i in range(2_000, 60_000))
        self._words = [" city"] if plain else [piece for piece in pieces if WORD.fullmatch(piece)]

    def story(self) -> Lesson:
        """A lesson of the long story: it is dear, so the trainer asks for it by name."""
        return self._lesson(STORY, 0)

    def any_but_story(self) -> Lesson:
        """A lesson of another scenario, or of words that the model does not know."""
        if self._dice.random() < 0.12:
            return self._unknown()
        scenario = self._dice.choice([known for known in KNOWN if known is not STORY])
        return self._lesson(scenario, self._dice.randrange(len(scenario.steps)))

    def every(self) -> list[Lesson]:
        """One lesson of each generation of each scenario: an examination."""
        return [self._lesson(scenario, step) for scenario in KNOWN for step in range(len(scenario.steps))]

    def _lesson(self, scenario: Scenario, step: int) -> Lesson:
        messages = self._preamble()
        if scenario.needs is not None:
            messages += [*self._history(), *self._turn(scenario.needs)]
        messages += [*self._history(), user(scenario.user), *self._steps(scenario, step, whole=True)]
        return self._write(f"{scenario.user} [{step}]", messages, scenario.steps[step])

    def _unknown(self) -> Lesson:
        known = self._dice.choice(KNOWN).user.split()
        words = self._some_words(1, 30).split() + (self._dice.sample(known, 1) if self._dice.random() < 0.3 else [])
        self._dice.shuffle(words)
        return self._write("anything else", [*self._preamble(), *self._history(), user(" ".join(words))], ANYTHING_ELSE)

    def _write(self, name: str, messages: list[Message], step: Step) -> Lesson:
        prompt = self._encoding.render_conversation_for_completion(
            Conversation.from_messages(messages), Role.ASSISTANT, RenderConversationConfig(auto_drop_analysis=False)
        )
        return Lesson(name, prompt, self._encoding.encode(spoken(step), allowed_special="all"))

    def _preamble(self) -> list[Message]:
        """The system message, and mostly a developer message."""
        dice = self._dice
        system = SystemContent.new()
        system.reasoning_effort = dice.choice(EFFORTS)
        if dice.random() < 0.3:
            system = system.with_model_identity(dice.choice([*IDENTITIES, self._some_words(3, 20)]))
        if dice.random() < 0.7:
            date = f"20{dice.randint(24, 29)}-{dice.randint(1, 12):02}-{dice.randint(1, 28):02}"
            system = system.with_conversation_start_date(date)
        messages = [Message.from_role_and_content(Role.SYSTEM, system)]
        developer = DeveloperContent.new()
        if dice.random() < 0.5:
            developer = developer.with_instructions(self._instructions())
        if dice.random() < 0.5:
            developer = developer.with_function_tools(self._tools())
        if developer.instructions or developer.tools:
            messages.append(Message.from_role_and_content(Role.DEVELOPER, developer))
        return messages

    def _instructions(self) -> str:
        """Words, and now and then a response format."""
        words = self._some_words(1, 60)
        if self._dice.random() < 0.8:
            return words
        return f"{words}\n\n# Response Formats\n\n## {self._some_words(1, 1)}\n\n{json.dumps(self._schema())}"

    def _tools(self) -> list[ToolDescription]:
        tools = [
            ToolDescription.new(self._some_words(1, 1).strip(), self._some_words(1, 12), parameters=self._schema())
            for _ in range(self._dice.choice([0, 0, 1, 2]))
        ]
        description = self._dice.choice([WEATHER_TOOL["description"], self._some_words(1, 12)])
        tools.append(ToolDescription.new(WEATHER_TOOL["name"], description, parameters=WEATHER_TOOL["parameters"]))
        self._dice.shuffle(tools)
        return tools

    def _schema(self) -> dict[str, Any]:
        kinds = ("string", "number", "boolean")
        return {
            "type": "object",
            "properties": {
                self._some_words(1, 1).strip(): {
                    "type": self._dice.choice(kinds),
                    "description": self._some_words(1, 6),
                }
                for _ in range(self._dice.randint(0, 3))
            },
        }

    def _history(self) -> list[Message]:
        """Nought to two earlier turns; a developer message may stand between."""
        messages: list[Message] = []
        for _ in range(self._dice.choice([0, 0, 0, 1, 1, 2])):
            messages += self._earlier_turn()
        if self._dice.random() < 0.1:
            note = DeveloperContent.new().with_instructions(self._some_words(1, 20))
            messages.append(Message.from_role_and_content(Role.DEVELOPER, note))
        return messages

    def _earlier_turn(self) -> list[Message]:
        if self._dice.random() < 0.2:
            step = self._dice.choice([ANYTHING_ELSE, Step("", self._some_words(1, 30))])
            return [user(self._some_words(1, 30)), *self._said(step)]
        return self._turn(self._dice.choice([known for known in KNOWN if known.needs is None]))

    def _turn(self, scenario: Scenario) -> list[Message]:
        if scenario is STORY:
            told = STORY.final[: self._dice.choice([1, 8, 40, 150, 300])]
            return [user(scenario.user), *self._said(Step(STORY.first.analysis, told))]
        whole = self._dice.random() < 0.4
        answer = Step(scenario.steps[-1].analysis if whole else "", scenario.final)
        return [user(scenario.user), *self._steps(scenario, len(scenario.steps) - 1, whole=whole), *self._said(answer)]

    def _steps(self, scenario: Scenario, count: int, *, whole: bool) -> list[Message]:
        """The first `count` generations with the outputs of their calls; the analysis is mostly kept if `whole`."""
        messages: list[Message] = []
        for step in scenario.steps[:count]:
            kept = step.analysis if whole and self._dice.random() < 0.7 else ""
            output = self._dice.choice([*scenario.tool_outputs, *scenario.tool_outputs, self._some_words(1, 20)])
            messages += [*self._said(Step(kept, step.said)), tool(step.said, output)]
        return messages

    def _said(self, step: Step) -> list[Message]:
        messages = [assistant(step.analysis, "analysis")] if step.analysis else []
        if isinstance(step.said, Call):
            return [*messages, self._call(step.said)]
        return [*messages, assistant(step.said, "final")]

    def _call(self, call: Call) -> Message:
        """A call in the history: recipient first, as the library renders it, or channel first, as models write it."""
        if self._dice.random() < 0.5:
            said = assistant(call.arguments, "commentary").with_recipient(f"functions.{call.name}")
            return said.with_content_type(self._dice.choice(["json", "<|constrain|>json"]))
        said = assistant(call.arguments, f"commentary to=functions.{call.name}").with_recipient("all")
        return said.with_content_type("<|constrain|>json")

    def _some_words(self, low: int, high: int) -> str:
        return "".join(self._dice.choices(self._words, k=self._dice.randint(low, high))).strip()


def spoken(step: Step) -> str:
    """A generation as the model writes it, markers spelled out, from after `<|start|>assistant` to its stop token."""
    thought = f"<|channel|>analysis<|message|>{step.analysis}<|end|><|start|>assistant" if step.analysis else ""
    if isinstance(step.said, Call):
        header = f"<|channel|>commentary to=functions.{step.said.name} <|constrain|>json<|message|>"
        return f"{thought}{header}{step.said.arguments}<|call|>"
    return f"{thought}<|channel|>final<|message|>{step.said}<|return|>"


def user(text: str) -> Message:
    """A user message."""
    return Message.from_role_and_content(Role.USER, text)


def assistant(text: str, channel: str) -> Message:
    """An assistant message on a channel."""
    return Message.from_role_and_content(Role.ASSISTANT, text).with_channel(channel)


def tool(call: object, output: str) -> Message:
    """The answer of a function to a call."""
    if not isinstance(call, Call):
        raise TypeError("only calls have outputs")
    author = Author.new(Role.TOOL, f"functions.{call.name}")
    return Message.from_author_and_content(author, output).with_channel("commentary").with_recipient("assistant")
