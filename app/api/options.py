"""How the edge behaves, as the composition root decides."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EdgeOptions:
    """`default_model` stands in for a missing `model`. `cors_origins`: web pages that may call (`*`: all of them)."""

    default_model: str | None = None
    max_body_bytes: int = 64 * 1024 * 1024
    keep_alive_seconds: float = 15.0
    cors_origins: Sequence[str] = ()
