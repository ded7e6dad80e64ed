"""What the judge found: which rule, at which position, in words."""

from collections.abc import Mapping
from typing import Any, NamedTuple

JsonObject = Mapping[str, Any]


class Violation(NamedTuple):
    """One broken rule. `rule` is its number in tests/oracle/INVARIANTS.md, `position` the event's sequence number."""

    rule: str
    position: Any
    message: str


class Findings(list[Violation]):
    """Violations as they are found."""

    def add(self, rule: str, event: JsonObject | None, message: str) -> None:
        """Note a broken rule; without an event it is about the whole stream."""
        self.append(Violation(rule, event.get("sequence_number") if event is not None else None, message))

    def ranked(self) -> list[Violation]:
        """The worst rule first, in the order of the stream."""
        return sorted(self, key=lambda one: (one.rule, one.position if isinstance(one.position, int) else -1))
