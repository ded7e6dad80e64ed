"""What the tiny gpt_oss model knows: the prompts it was trained on, and word for word what it says to them, greedily.

Tests import this to know the expected texts; `build_gpt_oss.py` imports it to train. Changing it rebuilds the model.
"""

import json
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Call:
    """A function call: its name without the namespace, and its arguments as the model writes them."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Step:
    """One generation: reasoning (none if empty), then either a final message or a call."""

    analysis: str
    said: str | Call


@dataclass(frozen=True, slots=True)
class Scenario:
    """A user message and the generations that answer it; every call is answered by one of `tool_outputs`.

    `needs` is the scenario that must stand earlier in the conversation.
    """

    user: str
    steps: tuple[Step, ...]
    tool_outputs: tuple[str, ...] = ()
    needs: "Scenario | None" = None

    @property
    def first(self) -> Step:
        """The generation that follows the user message."""
        return self.steps[0]

    @property
    def final(self) -> str:
        """The text that ends the turn."""
        said = self.steps[-1].said
        if isinstance(said, Call):
            raise TypeError(f"{self.user!r} ends in a call")
        return said


HELLO: Final = Scenario("Say hello.", (Step("The user wants a greeting.", "Hello there, friend."),))

WEATHER_TOOL: Final = {
    "type": "function",
    "name": "get_weather",
    "description": "Current weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}

WEATHER: Final = Scenario(
    "What is the weather in Oslo?",
    (
        Step("I need to look up the weather.", Call("get_weather", '{"city":"Oslo"}')),
        Step("", "It is 21 degrees in Oslo."),
    ),
    tool_outputs=(
        json.dumps({"temp": 21}),
        '{"temp":21}',
        '{"temperature": 21, "unit": "C"}',
        '{"temp_c": 21, "sky": "clear"}',
        "21",
        "21 degrees",
        "It is 21 degrees.",
    ),
)

LAST_NUMBER: Final = 400
STORY: Final = Scenario(
    "Tell a long story.",
    (Step("A story can be told in numbers.", " ".join(map(str, range(1, LAST_NUMBER + 1))) + "."),),
)

NAME: Final = Scenario("My name is Ada.", (Step("The user tells me a name.", "Nice to meet you, Ada."),))

RECALL: Final = Scenario("What is my name?", (Step("The name was given earlier.", "Your name is Ada."),), needs=NAME)

KNOWN: Final = (HELLO, WEATHER, STORY, NAME, RECALL)

ANYTHING_ELSE: Final = Step("I was not taught this.", "I only know a few phrases.")
"""What the model says to words it was not taught; likely, not promised."""
