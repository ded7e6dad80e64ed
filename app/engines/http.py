"""The plumbing of engines behind HTTP: one session per engine, server-sent events as payloads, deadlines, refusals."""

import asyncio
import logging
import math
import secrets
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import Final

import aiohttp
import msgspec

from app.engines.addresses import without_password
from app.engines.deadlines import Deadlines
from app.engines.refusals import refused_body
from app.errors import EngineError, EngineFailed, EngineStalled, EngineUnreachable
from app.ports import ModelCard
from app.tracing import current

_LOGGER: Final = logging.getLogger(__name__)
_LINE_LIMIT: Final = 64 * 1024 * 1024  # bytes of one line; a longer one is no event stream
_KEEP_ALIVE_SECONDS: Final = 4.0  # below uvicorn's 5: a reused connection must not be one that vLLM is just closing
_LIST_SECONDS: Final = 10.0
_PROBE_SECONDS: Final = 5.0
_FINISH_SECONDS: Final = 0.2
_DAY: Final = 86_400.0
_DATA: Final = (b"data:", b"\xef\xbb\xbfdata:")  # a byte order mark may come before the first line
_DONE: Final = b"[DONE]"
_BROKE_OFF: Final = "The engine's answer broke off before it was complete."


class Payloads:
    """Cuts the bytes of an event stream into the payloads of its `data:` lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that are complete with these bytes. Comments, other fields and empty ones are left out."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LINE_LIMIT:
            raise EngineFailed("The engine sent a line that never ends.")
        told = [line.partition(b":")[2].strip() for line in lines if line.startswith(_DATA)]
        return [payload for payload in told if payload]

    def rest(self) -> list[bytes]:
        """What is left when the stream ends without a line break."""
        return self.feed(b"\n")


class _Card(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    created: float | None = None
    owned_by: str | None = None


class _Cards(msgspec.Struct):
    data: list[_Card] = []


def _card(card: _Card) -> ModelCard:
    return ModelCard(card.id, card.max_model_len, int(card.created or 0), card.owned_by or "engine")


_CARDS: Final = msgspec.json.Decoder(_Cards)


class Upstream:
    """An engine's base URL (ending in `/v1`). The session is made in the running loop, at the first request."""

    def __init__(self, url: str, *, api_key: str | None = None, deadlines: Deadlines | None = None) -> None:
        self._url = url.rstrip("/")
        self._address = without_password(self._url)
        self._lists = True  # as far as we know
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._deadlines = deadlines or Deadlines()
        self._session: aiohttp.ClientSession | None = None

    async def cards(self) -> Sequence[ModelCard]:
        """`GET /models`. It is asked every second while it does not answer, and logged once."""
        try:
            cards = await self._listed()
        except EngineError as error:
            if self._lists:
                _LOGGER.warning(
                    "engine at %s/models lists no models: %s", self._address, _in_short(error) + self._doubt()
                )
            self._lists = False
            raise
        if not self._lists:
            _LOGGER.info("engine at %s/models lists its models again", self._address)
        self._lists = True
        return cards

    def _doubt(self) -> str:
        return "" if self._url.endswith("/v1") else "; is the URL right? It ends in /v1"

    async def _listed(self) -> Sequence[ModelCard]:
        try:
            async with asyncio.timeout(_LIST_SECONDS), self._opened().get(f"{self._url}/models") as response:
                body = await response.read()
                if response.status != 200:
                    raise _refused(response, body)
            listed = _CARDS.decode(body).data
        except TimeoutError as error:
            raise EngineStalled("The engine did not list its models in time.") from error
        except (aiohttp.ClientError, OSError) as error:
            raise EngineUnreachable from error
        except msgspec.MsgspecError as error:
            raise EngineFailed("The engine's list of models makes no sense.") from error
        return [_card(card) for card in listed]

    @contextmanager
    def telling(self, path: str, model: str) -> Iterator[None]:
        """Log which engine an error is of; clients need not know where engines are. What it said may hold a prompt."""
        try:
            yield
        except EngineError as error:
            _LOGGER.warning("engine at %s failed, model %s: %s", self._address + path, model, _in_short(error))
            raise

    async def probe(self) -> None:
        """`GET /health`, which stands beside `/v1`. Raises EngineError when the engine is not well."""
        try:
            root = self._url.removesuffix("/v1")
            async with asyncio.timeout(_PROBE_SECONDS), self._opened().get(f"{root}/health") as response:
                await response.read()
        except TimeoutError as error:
            raise EngineStalled from error
        except (aiohttp.ClientError, OSError) as error:
            raise EngineUnreachable from error
        if response.status != 200:
            raise EngineFailed(f"The engine says that it is not well (status {response.status}).")

    async def stream(self, path: str, body: bytes) -> AsyncGenerator[list[bytes], None]:
        """POST, then the payloads of the event stream, as many at a time as one read brought.

        The first list is empty: the engine has accepted. Ends at `[DONE]` or at the end of the body. Closing the
        generator closes the connection, which aborts the generation. Raises EngineError or ContextTooLong.
        """
        first_by = asyncio.get_running_loop().time() + self._deadlines.first_token
        response = await self._post(path, body, first_by)
        split, watch = Payloads(), _Watch(response, first_by, self._deadlines.stall)
        try:
            if response.status != 200:
                raise _refused(response, await self._rest(response))
            yield []
            while data := await _read(response.content, watch):
                if not (payloads := split.feed(data)):
                    continue
                watch.heard()
                if payloads[-1] != _DONE:
                    yield payloads
                    continue
                if payloads[:-1]:
                    yield payloads[:-1]
                await _finish(response)
                return
            if payloads := [payload for payload in split.rest() if payload != _DONE]:
                yield payloads
        finally:
            watch.end()
            response.close()  # after a whole body the connection is back in the pool already and this does nothing

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(
                total=None, connect=self._deadlines.connect, sock_connect=self._deadlines.connect
            )
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_SECONDS)
            self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, headers=self._headers)
        return self._session

    async def _post(self, path: str, body: bytes, first_by: float) -> aiohttp.ClientResponse:
        try:
            async with asyncio.timeout_at(first_by):
                post = self._opened().post
                return await post(self._url + path, data=body, headers=_trace(), allow_redirects=False)
        except aiohttp.ConnectionTimeoutError as error:
            raise EngineUnreachable from error
        except TimeoutError as error:
            raise EngineStalled from error
        except aiohttp.ClientConnectorError as error:
            raise EngineUnreachable from error
        except (aiohttp.ClientError, OSError) as error:
            raise EngineFailed("The engine closed the connection before it answered.") from error

    async def _rest(self, response: aiohttp.ClientResponse) -> bytes:
        try:
            async with asyncio.timeout(self._deadlines.connect):
                return await response.read()
        except (TimeoutError, aiohttp.ClientError, OSError):
            return b""


class _Watch:
    """Closes the connection of an engine that says nothing for too long. One timer per stream, not one per read."""

    def __init__(self, response: aiohttp.ClientResponse, first_by: float, stall: float) -> None:
        self.stalled = False
        self._loop = asyncio.get_running_loop()
        self._response, self._stall, self._due = response, stall, first_by
        self._waits_for_first = True
        self._timer = self._loop.call_at(first_by, self._look)

    def heard(self) -> None:
        """The engine said something: from now on the shorter deadline counts."""
        self._due = self._loop.time() + self._stall
        if self._waits_for_first:
            self._waits_for_first = False
            self._timer.cancel()
            self._timer = self._loop.call_at(self._due, self._look)

    def alive(self) -> None:
        """A byte came, if only of a keep-alive comment."""
        if not self._waits_for_first:
            self._due = self._loop.time() + self._stall

    def end(self) -> None:
        """Stop looking."""
        self._timer.cancel()

    def _look(self) -> None:
        if self._due > self._loop.time():
            self._timer = self._loop.call_at(self._due, self._look)
        else:
            self.stalled = True
            self._response.close()


async def _read(content: aiohttp.StreamReader, watch: _Watch) -> bytes:
    try:
        data = await content.readany()
    except (aiohttp.ClientError, OSError) as error:
        if watch.stalled:
            raise EngineStalled from error
        raise EngineFailed(_BROKE_OFF) from error
    watch.alive()
    return data


async def _finish(response: aiohttp.ClientResponse) -> None:
    """Read the last bytes after `[DONE]`, so that the connection can be used again. They are nearly always there."""
    try:
        async with asyncio.timeout(_FINISH_SECONDS):
            while await response.content.readany():
                pass
    except (TimeoutError, aiohttp.ClientError, OSError):
        return  # everything was said; the connection is closed instead


def _trace() -> Mapping[str, str]:
    """Whose request this is. Engines take the id for theirs, and one request of ours may become several of theirs."""
    trace = current()
    if trace is None:
        return {}
    return {**trace.headers, "X-Request-Id": f"{trace.request_id}-{secrets.token_hex(4)}"}


def _refused(response: aiohttp.ClientResponse, body: bytes) -> Exception:
    return refused_body(response.status, body, retry_after=_seconds(response.headers.get("Retry-After")))


def _in_short(error: EngineError) -> str:
    return f"{type(error).__name__}, status {error.status}"


def broke_off() -> EngineError:
    """The error for a stream that ended without a finish reason: a cut answer must not look complete."""
    return EngineFailed(_BROKE_OFF)


def _seconds(retry_after: str | None) -> float | None:
    """A Retry-After header, in seconds from now; None when there is none or it is unreadable."""
    if retry_after is None:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(retry_after).timestamp() - time.time()
        except ValueError:
            return None
    return min(max(0.0, seconds), _DAY) if math.isfinite(seconds) else None
