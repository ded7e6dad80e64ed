"""What is told of a run when it is over: one log line, and its numbers."""

from typing import Any, Final

import structlog

from app.meters import Meters
from app.responses.events import ENDED
from app.responses.said import Usage
from app.runtime.run import Run

_LOGGER: Final = structlog.get_logger()


class Reporter:
    """Hears of every run of this process, at its beginning and at its end."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters

    def began(self, run: Run) -> None:
        """A run was taken up, in a task of its own: the task's log lines shall name it."""
        structlog.contextvars.bind_contextvars(response_id=run.header.id)
        self._meters.run_began()

    def ended(self, run: Run) -> None:
        """It is over: its stream has its end, is someone else's now, or was lost."""
        model, seconds, silence, usage = run.header.model, run.age, run.silent_for, run.usage
        self._meters.run_ended(model, run.outcome, seconds)
        if silence is not None:
            self._meters.first_words(model, silence)
        if run.continues and run.accepted.is_set():
            self._meters.run_continued(model)
        if usage is not None and run.outcome in ENDED:  # else it is counted by whoever goes on
            self._meters.tokens_used(
                model, prompt=usage.input_tokens, cached=usage.cached_tokens, generated=usage.output_tokens
            )
        _LOGGER.info(
            "run",
            response_id=run.header.id,
            model=model,
            status=run.outcome,
            background=run.header.background,
            duration_ms=_ms(seconds),
            first_token_ms=None if silence is None else _ms(silence),
            reason=None if run.error is None else type(run.error).__name__,
            **_counts(usage),
        )


def _counts(usage: Usage | None) -> dict[str, Any]:
    if usage is None:
        return {}
    return {"tokens_in": usage.input_tokens, "tokens_cached": usage.cached_tokens, "tokens_out": usage.output_tokens}


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)
