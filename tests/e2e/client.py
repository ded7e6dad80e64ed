"""A small client of the API for tests: plain HTTP, so that nothing is smoothed over."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import httpx

from tests.e2e.judge import DONE, Judge, frames
from tests.e2e.serving import WAIT_SECONDS, eventually

HARMONY: Final = "gpt-oss"
CHAT: Final = "qwen-parser"
# Talks for ten seconds, and has not ended however late a test comes; what continues it has no end either.
ENDLESS: Final[dict[str, Any]] = {
    "text": "<|channel|>final<|message|>" + "and on " * 1_000, "pace_ms": 5, "fault": {"kind": "hang", "after": 1_900}
}  # fmt: skip
ENDED: Final = ("completed", "incomplete", "failed", "cancelled")


class Stream:
    """An open event stream, read as far as a test wants."""

    def __init__(self, response: httpx.Response) -> None:
        self.body = b""
        self._chunks = response.iter_raw()
        self._events: list[dict[str, Any]] = []
        self._parsed = 0

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events so far."""
        complete = self.body.rfind(b"\n\n", self._parsed)
        if complete >= 0:
            new = frames(self.body[self._parsed : complete + 2])
            self._events += [json.loads(frame.partition(b"data: ")[2]) for frame in new]
            self._parsed = complete + 2
        return self._events

    @property
    def response_id(self) -> str:
        """Whose events these are; waits for the first one."""
        return str(self.until("response.created")["response"]["id"])

    def until(self, kind: str, times: int = 1) -> dict[str, Any]:
        """Read up to the n-th event of this type, and give it."""
        while len(found := [event for event in self.events if event["type"] == kind]) < times:
            chunk = next(self._chunks, None)
            assert chunk is not None, f"the stream ended before its {kind} number {times}:\n{self.body.decode()}"
            self.body += chunk
        return found[times - 1]

    def read(self) -> list[dict[str, Any]]:
        """Read to the end, which must be a proper one, and give all events."""
        self.body += b"".join(self._chunks)
        assert self.body.endswith(DONE), "the stream was cut"
        return self.events

    def read_until_cut(self) -> list[dict[str, Any]]:
        """Read until the connection breaks, and give the events that came."""
        try:
            for chunk in self._chunks:
                self.body += chunk
        except httpx.TransportError:
            return self.events
        raise AssertionError("the stream came to a proper end")


class Api:
    """One user of one server, under the eyes of the judge."""

    def __init__(self, url: str, judge: Judge, *, key: str | None = None, model: str = HARMONY) -> None:
        self.url = url
        self._model = model
        headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
        self._http = httpx.Client(transport=judge, base_url=f"{url}/v1", timeout=WAIT_SECONDS, headers=headers)

    def post(self, **body: Any) -> httpx.Response:
        """`POST /responses`, whatever the answer is."""
        return self._http.post("/responses", content=self._body(body))

    def create(self, **body: Any) -> dict[str, Any]:
        """A response, or as far as it is when it runs in the background."""
        return _told(self.post(**body))

    def refused(self, **body: Any) -> tuple[int, dict[str, Any]]:
        """The status and the error of a create that is refused."""
        answer = self.post(**body)
        return answer.status_code, answer.json()["error"]

    @contextmanager
    def stream(self, **body: Any) -> Iterator[Stream]:
        """The events of a new response."""
        with self._http.stream("POST", "/responses", content=self._body(body | {"stream": True})) as answer:
            assert answer.status_code == 200, answer.read()
            yield Stream(answer)

    def streamed(self, **body: Any) -> list[dict[str, Any]]:
        """All events of a new response."""
        with self.stream(**body) as stream:
            return stream.read()

    @contextmanager
    def follow(self, response_id: str, after: int | None = None) -> Iterator[Stream]:
        """The events of an existing response."""
        query: dict[str, Any] = {"stream": "true"} | ({} if after is None else {"starting_after": after})
        with self._http.stream("GET", f"/responses/{response_id}", params=query) as answer:
            assert answer.status_code == 200, answer.read()
            yield Stream(answer)

    def replay(self, response_id: str, after: int | None = None) -> bytes:
        """The body of a replay that was read to its end."""
        with self.follow(response_id, after) as stream:
            stream.read()
            return stream.body

    def get(self, response_id: str, **query: Any) -> httpx.Response:
        """`GET /responses/{id}`, whatever the answer is."""
        return self._http.get(f"/responses/{response_id}", params=query)

    def retrieve(self, response_id: str) -> dict[str, Any]:
        """A stored response."""
        return _told(self.get(response_id))

    def cancel(self, response_id: str) -> httpx.Response:
        """`POST /responses/{id}/cancel`, whatever the answer is."""
        return self._http.post(f"/responses/{response_id}/cancel")

    def delete(self, response_id: str) -> httpx.Response:
        """`DELETE /responses/{id}`, whatever the answer is."""
        return self._http.delete(f"/responses/{response_id}")

    def input_items(self, response_id: str, **query: Any) -> httpx.Response:
        """`GET /responses/{id}/input_items`, whatever the answer is."""
        return self._http.get(f"/responses/{response_id}/input_items", params=query)

    def reaches(self, response_id: str, *statuses: str, within: float = WAIT_SECONDS) -> dict[str, Any]:
        """Poll until the response has one of these statuses."""

        def look() -> dict[str, Any] | None:
            found = self.retrieve(response_id)
            return found if found["status"] in statuses else None

        return eventually(look, within=within, what=f"{response_id} being {' or '.join(statuses)}")

    def ended(self, response_id: str, within: float = WAIT_SECONDS) -> dict[str, Any]:
        """Poll until the response has ended, and give it."""
        return self.reaches(response_id, *ENDED, within=within)

    def _body(self, body: dict[str, Any]) -> bytes:
        """Escaped, so that tests may send what UTF-8 cannot hold."""
        return json.dumps({"model": self._model, "input": "Say hello."} | body).encode()


def text_of(response: dict[str, Any]) -> str:
    """What the response says to its user."""
    messages = [item for item in response["output"] if item["type"] == "message"]
    return "".join(part["text"] for message in messages for part in message["content"])


def _told(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body
