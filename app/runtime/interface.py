"""What the edge may ask of the runtime: one Protocol for the use cases, one for a response that has been started."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from app.ports import ModelCard, Span
from app.responses.request import Item, Request


class Started(Protocol):
    """A response that has been accepted."""

    response_id: str

    def follow(self) -> AsyncIterator[Span]:
        """Its events from position 0; ends after the terminal event."""

    async def result(self) -> bytes:
        """What a create without `stream` answers, as JSON: the final response, or a background one as it was born.

        Waits for the terminal event of a foreground response. Raises the VerbatimError of a failed one.
        """

    def abandon(self) -> None:
        """The client of a foreground response went away: stop the generation. Idempotent; no-op for background."""


class ResponsesService(Protocol):
    """The use cases. `tenant` says whose responses are meant; those of others do not exist."""

    async def create(self, request: Request, *, tenant: str) -> Started:
        """Accept a request. Raises VerbatimError for whatever is refused before acceptance."""

    async def snapshot(self, response_id: str, *, tenant: str) -> bytes:
        """The response as it is now, as JSON."""

    async def replay(self, response_id: str, *, tenant: str, after: int) -> AsyncIterator[Span]:
        """Check first (404, 400), then give the events after a position, followed until the end."""

    async def cancel(self, response_id: str, *, tenant: str) -> bytes:
        """Cancel a background response and wait for its end; gives the final object."""

    async def delete(self, response_id: str, *, tenant: str) -> None:
        """Remove a response for good."""

    async def input_items(self, response_id: str, *, tenant: str) -> Sequence[Item]:
        """Oldest first: the history of the chain, then the response's own input."""

    async def models(self) -> Sequence[ModelCard]:
        """The models that are served here."""

    async def ready(self) -> None:
        """Raises VerbatimError while this process cannot serve."""
