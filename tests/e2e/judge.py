"""An HTTP transport that judges every event stream that passes through it: no test can forget to."""

import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final

import httpx

from tests.e2e.serving import WAIT_SECONDS
from tests.oracle import assert_keeps_invariants
from tests.oracle.check_transcript import check_replay

DONE: Final = b"data: [DONE]\n\n"
_RESPONSE: Final = re.compile(rb'"response":\{"id":"([^"]+)"')


def frames(body: bytes) -> list[bytes]:
    """The complete event frames of a stream's body, without comments and `[DONE]`."""
    blocks = body.split(b"\n\n")[:-1]
    return [block for block in blocks if block.startswith(b"event:")]


def position(frame: bytes) -> int:
    """The sequence number in a frame. It is the last one: what is said may hold the same words."""
    data = json.loads(frame.partition(b"data: ")[2])
    return int(data["sequence_number"])


class Judge(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Whole streams keep the 40 invariants and are what `GET` gives; partial ones are byte for byte a part of them."""

    def __init__(self) -> None:
        self.judged = 0
        self._wholes: dict[str, bytes] = {}
        self._parts: list[tuple[str, int, bytes, bool]] = []
        self._deleted: set[str] = set()
        self._complaints: list[str] = []
        # Each would read all certificates of the machine, which takes longer than most tests.
        self._inner = httpx.HTTPTransport(verify=False)
        self._async_inner = httpx.AsyncHTTPTransport(verify=False)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send, and listen to the answer."""
        response = self._inner.handle_request(request)
        self._note(request, response)
        if _is_stream(response):
            response.stream = _Heard(response.stream, self._listener(request, response))
        return response

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The same for asynchronous clients."""
        response = await self._async_inner.handle_async_request(request)
        self._note(request, response)
        if _is_stream(response):
            response.stream = _HeardAsync(response.stream, self._listener(request, response))
        return response

    async def aclose(self) -> None:
        """An asynchronous client is done."""
        await self._async_inner.aclose()

    def verdict(self) -> None:
        """Compare the parts of streams with the whole ones, and fail if anything was wrong."""
        for response_id, after, body, is_complete in self._parts:
            self._attempt(lambda: self._judge_part(response_id, after, body, is_complete=is_complete))  # noqa: B023
        self._inner.close()
        assert not self._complaints, "\n".join(self._complaints)

    def _note(self, request: httpx.Request, response: httpx.Response) -> None:
        if request.method == "DELETE" and response.status_code == 200:
            self._deleted.add(request.url.path.rpartition("/")[2])

    def _listener(self, request: httpx.Request, response: httpx.Response) -> Callable[[bytes], None]:
        return lambda body: self._attempt(lambda: self._hear(request, response.headers, body))

    def _attempt(self, judgement: Callable[[], None]) -> None:
        """A complaint must not get lost in a client's own error handling: it is kept for the verdict."""
        try:
            judgement()
        except AssertionError as error:
            self._complaints.append(str(error))

    def _hear(self, request: httpx.Request, headers: httpx.Headers, body: bytes) -> None:
        after = int(request.url.params.get("starting_after", -1))
        told = _RESPONSE.search(body)
        is_replay = request.method == "GET"
        if not is_replay and told is None:
            return  # cut before the first event
        response_id = request.url.path.rpartition("/")[2] if is_replay else told[1].decode()  # type: ignore[index]
        is_complete = body.endswith(DONE)
        if after >= 0 or not is_complete:
            self._parts.append((response_id, after, body, is_complete))
            return
        self.judged += 1
        assert_keeps_invariants(
            body,
            request=None if is_replay else json.loads(request.content),
            retrieved=self._retrieved(request, response_id, body),
            content_type=headers["content-type"],
        )
        known = self._wholes.setdefault(response_id, body)
        if b'"obfuscation":' not in known + body:
            assert frames(known) == frames(body), f"two whole streams of {response_id} differ"

    def _retrieved(self, request: httpx.Request, response_id: str, body: bytes) -> dict[str, Any] | None:
        """What `GET` says right after the end; None where there is nothing to get any more."""
        url = request.url.copy_with(path=f"/v1/responses/{response_id}", query=None)
        headers = {"authorization": request.headers.get("authorization", "")}
        try:
            answer = httpx.get(url, headers=headers, timeout=WAIT_SECONDS, verify=False)
        except httpx.TransportError:
            return None  # the server has just gone; what it leaves is compared by whoever reads it next
        if response_id in self._deleted or b'"store":false' in body:
            assert answer.status_code == 404, f"{response_id} is still there: {answer.text}"
            return None
        assert answer.status_code == 200, answer.text
        retrieved: dict[str, Any] = answer.json()
        return retrieved

    def _judge_part(self, response_id: str, after: int, body: bytes, *, is_complete: bool) -> None:
        whole = self._wholes.get(response_id)
        if whole is None:
            return
        expected = [frame for frame in frames(whole) if position(frame) > after]
        got = frames(body)
        if is_complete:
            assert not (found := check_replay(whole, body, after=after)), found
        if b'"obfuscation":' not in whole + body:
            assert got == (expected if is_complete else expected[: len(got)]), f"{response_id} after {after} differs"


class _Heard(httpx.SyncByteStream):
    """Passes bytes on, and tells at the end what they were."""

    def __init__(self, stream: Any, tell: Callable[[bytes], None]) -> None:
        self._stream, self._tell, self._heard, self._told = stream, tell, bytearray(), False

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._stream:
            self._heard += chunk
            yield chunk

    def close(self) -> None:
        self._stream.close()
        if not self._told:
            self._told = True
            self._tell(bytes(self._heard))


class _HeardAsync(httpx.AsyncByteStream):
    """The same for asynchronous clients."""

    def __init__(self, stream: Any, tell: Callable[[bytes], None]) -> None:
        self._stream, self._tell, self._heard, self._told = stream, tell, bytearray(), False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            self._heard += chunk
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
        if not self._told:
            self._told = True
            self._tell(bytes(self._heard))


def _is_stream(response: httpx.Response) -> bool:
    return response.headers.get("content-type", "").startswith("text/event-stream")
