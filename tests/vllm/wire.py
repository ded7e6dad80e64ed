"""Plain HTTP to a vLLM server, as the facts need it: what was sent, word for word, and nothing understood."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx

from tests.vllm.server import Vllm

COMPLETIONS: Final = "/v1/completions"
CHAT: Final = "/v1/chat/completions"
DONE: Final = "[DONE]"

SECONDS: Final = 300  # for a whole story, on a machine that is busy with other things

Json = dict[str, Any]


def client_of(server: Vllm) -> httpx.AsyncClient:
    """Without TLS, whose certificates take longer to read than the answer."""
    return httpx.AsyncClient(base_url=server.url, timeout=SECONDS, verify=False)


async def get(server: Vllm, path: str) -> Json:
    """The JSON at a path."""
    async with client_of(server) as client:
        return dict((await client.get(path)).raise_for_status().json())


async def post(server: Vllm, path: str, body: Json) -> httpx.Response:
    """One request and its whole answer, whatever its status."""
    async with client_of(server) as client:
        return await client.post(path, json={"model": server.model, **body})


@asynccontextmanager
async def open_stream(server: Vllm, path: str, body: Json) -> AsyncIterator[AsyncIterator[str]]:
    """The data lines of a stream while the context lasts; leaving it closes the connection."""
    request = {"model": server.model, "stream": True, **body}
    async with (
        client_of(server) as client,
        client.stream("POST", path, json=request) as response,
    ):
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        yield data_lines(response)


async def data_lines(response: httpx.Response) -> AsyncIterator[str]:
    """What follows `data: ` in each event; there is nothing else in vLLM's streams."""
    async for line in response.aiter_lines():
        if line:
            assert line.startswith("data: "), line
            yield line.removeprefix("data: ")


async def stream(server: Vllm, path: str, body: Json) -> list[Json]:
    """All chunks of a stream, which must end with [DONE]."""
    async with open_stream(server, path, body) as lines:
        said = [line async for line in lines]
    assert said[-1] == DONE
    return [json.loads(line) for line in said[:-1]]


def choices(chunks: list[Json]) -> list[Json]:
    """The one choice of each chunk that has one."""
    return [chunk["choices"][0] for chunk in chunks if chunk["choices"]]


def tokens(chunks: list[Json]) -> list[int]:
    """The token ids of a stream."""
    return [token for choice in choices(chunks) for token in choice["token_ids"] or []]


def error(response: httpx.Response) -> tuple[int, str, str | None, str]:
    """Status, type, param and message of a refusal; the code repeats the status."""
    body = response.json()["error"]
    assert body.keys() == {"message", "type", "param", "code"}
    assert body["code"] == response.status_code
    return response.status_code, body["type"], body["param"], body["message"]
