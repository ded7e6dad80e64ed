"""How long engines behind HTTP are waited for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long to wait for an engine, in seconds: to connect, for the first event, for any byte after that."""

    connect: float = 10.0
    first_token: float = 600.0
    stall: float = 120.0
