"""The event log in memory: for responses that are not to be stored, and for tests. Nothing is written anywhere."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass, replace

from app.errors import AppendRejected, LogError, NotOwned, ResponseNotFound, StreamClosed, WrongExpectedVersion
from app.log.claims import LIVES, is_suspect
from app.log.hooks import Hooks
from app.log.live import Buffer
from app.log.subscription import follow
from app.ports import Ancestor, Header, Span
from app.responses.events import ENDED, Status


@dataclass(slots=True)
class _Stream:
    header: Header
    buffer: Buffer
    owned: bool

    @property
    def got_further(self) -> bool:
        """Whether something was written since it was claimed."""
        return self.buffer.version > self.header.claimed_version

    @property
    def is_tried(self) -> bool:
        """Whether it is a suspect that has an owner now; see `LIVES`."""
        return self.owned and is_suspect(self.header) and not (self.buffer.closed or self.got_further)


class MemoryLog(Hooks):
    """`EventLog`, `Archive` and `Ownership` of one process.

    Unless `keep_finished`, a finished stream is dropped when its last subscriber has gone; one that never had a
    subscriber is dropped by `forget`.
    """

    def __init__(self, *, keep_finished: bool = True) -> None:
        super().__init__()
        self._keep_finished = keep_finished
        self._streams: dict[str, _Stream] = {}

    # EventLog

    def open(self, header: Header, events: Sequence[bytes], *, queued: bool) -> Awaitable[None]:
        """See `EventLog.open`."""
        if header.id in self._streams:
            return _done(AppendRejected(f"Response '{header.id}' exists already."))
        buffer = Buffer(header.id, version=-1)
        buffer.extend(0, events)
        self._streams[header.id] = _Stream(replace(header, version=len(events) - 1), buffer, owned=not queued)
        if queued:
            self.on_queued()
        return _done()

    def append(
        self,
        response_id: str,
        events: Sequence[bytes],
        *,
        expected_version: int,
        tokens: Sequence[int] = (),  # noqa: ARG002 - nobody can continue what is in memory only
        status: Status | None = None,
    ) -> Awaitable[None]:
        """See `EventLog.append`."""
        stream = self._streams.get(response_id)
        if (refusal := _refusal(stream, response_id, expected_version)) is not None or stream is None:
            return _done(refusal)
        if status in ENDED and not events:
            return _done(AppendRejected("A terminal append needs its terminal event."))
        buffer = stream.buffer
        buffer.extend(buffer.version + 1, events)
        stream.header = replace(stream.header, version=buffer.version, status=status or stream.header.status)
        if status in ENDED:
            stream.header = replace(stream.header, ended_at=time.time(), terminal=events[-1], prompt=None)
            buffer.closed, stream.owned = True, False
        buffer.wake()
        return _done()

    async def read(self, response_id: str, *, after: int) -> Span:
        """See `EventLog.read`. Raises ResponseNotFound."""
        return self._stream(response_id).buffer.after(after) or Span(after + 1, [])

    def subscribe(self, response_id: str, *, after: int) -> AsyncIterator[Span]:
        """See `EventLog.subscribe`."""
        return follow(self, response_id, after=after)

    async def header(self, response_id: str) -> Header | None:
        """See `EventLog.header`."""
        stream = self._streams.get(response_id)
        return None if stream is None else stream.header

    # Source

    async def join(self, response: str) -> Buffer:
        """See `Source.join`."""
        buffer = self._stream(response).buffer
        buffer.readers += 1
        return buffer

    def leave(self, buffer: Buffer) -> None:
        """See `Source.leave`."""
        buffer.readers -= 1
        if buffer.closed and not buffer.readers and not self._keep_finished:
            self.forget(buffer.response)

    async def backfill(self, response: str, *, after: int) -> Span | None:  # noqa: ARG002
        """See `Source.backfill`: memory holds all, so what it does not hold was deleted."""
        return None

    def forget(self, response_id: str) -> None:
        """Drop a stream, whatever its state; its readers are told that it is not there any more."""
        if (stream := self._streams.pop(response_id, None)) is not None:
            stream.buffer.leave()

    # Archive

    async def chain(self, response_id: str) -> list[Ancestor]:
        """See `Archive.chain`."""
        chain: list[Ancestor] = []
        at: str | None = response_id
        while at is not None and (stream := self._streams.get(at)) is not None:
            header = stream.header
            chain.append(Ancestor(header.id, header.tenant, header.status, header.request, header.terminal))
            at = header.parent
        return chain[::-1]

    async def request_cancel(self, response_id: str) -> None:
        """See `Archive.request_cancel`."""
        stream = self._streams.get(response_id)
        if stream is None or stream.buffer.closed:
            return
        stream.header = replace(stream.header, cancel_requested=True)
        if stream.owned:
            self.on_cancel(response_id)

    async def delete(self, response_id: str) -> bool:
        """See `Archive.delete`."""
        found = response_id in self._streams
        self.forget(response_id)
        return found

    async def check(self) -> None:
        """See `Archive.check`: memory is always there."""

    async def waiting(self) -> int:
        """See `Archive.waiting`."""
        return sum(not one.owned and one.header.status == "queued" for one in self._streams.values())

    async def ids(self) -> AsyncIterator[str]:
        """See `Archive.ids`."""
        for header in sorted((one.header for one in self._streams.values()), key=lambda one: (one.created_at, one.id)):
            yield header.id

    async def expire(self, *, older_than_seconds: float) -> int:
        """Remove whole trees whose newest member ended before that; gives how many responses."""
        before = time.time() - older_than_seconds
        newer = {one.header.root for one in self._streams.values() if (one.header.ended_at or before) >= before}
        old = [one.header.id for one in self._streams.values() if one.header.root not in newer]
        for response_id in old:
            self.forget(response_id)
        return len(old)

    # Ownership

    async def register(self) -> None:
        """See `Ownership.register`: one process, one writer."""

    async def beat(self) -> Sequence[str]:
        """See `Ownership.beat`."""
        return [one.header.id for one in self._streams.values() if one.owned and one.header.cancel_requested]

    async def bury(self) -> int:
        """See `Ownership.bury`: there are no others."""
        return 0

    async def claim(self, models: Sequence[str], *, limit: int) -> list[Header]:
        """See `Ownership.claim`."""
        free = [one for one in self._streams.values() if not one.owned and not one.buffer.closed]
        free.sort(key=lambda one: (one.header.priority, one.header.created_at, one.header.id))
        ending = [one for one in free if one.header.cancel_requested or not one.header.background]
        running = [one for one in free if one not in ending and one.header.model in models]
        suspects = [one for one in running if one.header.attempts >= LIVES and not one.got_further]
        tried = suspects[: not any(one.is_tried for one in self._streams.values())]
        claimed = ending + (tried + [one for one in running if one not in suspects])[:limit]
        claimed.sort(key=lambda one: (one.header.priority, one.header.created_at, one.header.id))
        for one in claimed:
            one.owned = True
            attempts = 1 if one.got_further else one.header.attempts + 1
            one.header = replace(one.header, attempts=attempts, claimed_version=one.buffer.version)
        return [one.header for one in claimed]

    async def release(self, response_id: str) -> None:
        """See `Ownership.release`."""
        stream = self._streams.get(response_id)
        if stream is None or not stream.owned:
            raise NotOwned(f"This process does not own response '{response_id}'.")
        stream.owned = False

    async def close(self) -> None:
        """Forget everything."""
        for response_id in list(self._streams):
            self.forget(response_id)

    def _stream(self, response_id: str) -> _Stream:
        stream = self._streams.get(response_id)
        if stream is None:
            raise ResponseNotFound(response_id)
        return stream


def _refusal(stream: _Stream | None, response_id: str, expected_version: int) -> LogError | None:
    if stream is not None and stream.buffer.closed:
        return StreamClosed()
    if stream is None or not stream.owned:
        return NotOwned(f"This process does not own response '{response_id}'.")
    if stream.buffer.version != expected_version:
        return WrongExpectedVersion(f"Believed {expected_version}, is {stream.buffer.version}.")
    return None


def _done(error: LogError | None = None) -> Awaitable[None]:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
    return done
