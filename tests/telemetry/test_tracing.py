"""The trace of a request reaches the engine, with an id of ours."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from app.api.application import build_app
from app.engines.chat import ChatCompletions
from app.tracing import Trace, current, traced
from tests.api.fake_service import FakeService
from tests.engines.raw_server import EVENTS, answering

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
STATE = "vendor=1,other=2"
ANSWER = EVENTS + 'data: {"choices":[]}\n\ndata: [DONE]\n\n'


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[ChatCompletions, list[Mapping[str, str]]]]:
    """An engine, and the headers of all requests that it got."""
    heard: list[Mapping[str, str]] = []

    def hear(head: str) -> None:
        lines = (line.partition(":") for line in head.split("\r\n")[1:])
        heard.append({name.lower(): value.strip() for name, _, value in lines})

    async with answering(ANSWER, heard=hear) as url:
        engine = ChatCompletions(url)
        yield engine, heard
        await engine.close()


async def ask(engine: ChatCompletions) -> None:
    assert [chunk async for chunk in engine.complete({"messages": []})]


async def test_an_engine_gets_the_trace_and_an_id_that_begins_with_ours() -> None:
    async with listening() as (engine, heard):
        with traced("req_1", {"traceparent": PARENT, "tracestate": STATE}):
            await ask(engine)
            await ask(engine)

    assert [(one["traceparent"], one["tracestate"]) for one in heard] == [(PARENT, STATE)] * 2
    ids = [one["x-request-id"] for one in heard]
    assert all(one.startswith("req_1-") for one in ids)
    assert ids[0] != ids[1]


async def test_what_a_request_starts_belongs_to_its_trace_also_when_it_is_over() -> None:
    async with listening() as (engine, heard):
        with traced("req_1", {"traceparent": PARENT}):
            task = asyncio.get_running_loop().create_task(ask(engine))
        await task

    assert heard[0]["traceparent"] == PARENT


async def test_outside_of_a_request_nothing_is_sent() -> None:
    async with listening() as (engine, heard):
        await ask(engine)

    assert not heard[0].keys() & {"traceparent", "tracestate", "x-request-id"}


@pytest.mark.parametrize(
    "incoming",
    [
        {},
        {"tracestate": STATE},
        {"traceparent": "nonsense", "tracestate": STATE},
        {"traceparent": PARENT + "\r\nx: y"},
        {"traceparent": PARENT.upper()},
        {"traceparent": "00-" + "a" * 100_000},
    ],
)
def test_what_is_no_trace_context_is_dropped(incoming: Mapping[str, str]) -> None:
    with traced("req_1", incoming):
        assert current() == Trace("req_1", {})
    assert current() is None


@pytest.mark.parametrize("state", ["é", "a" * 513, ""])
def test_a_state_that_can_not_be_is_dropped_alone(state: str) -> None:
    with traced("req_1", {"traceparent": PARENT, "tracestate": state}):
        assert current() == Trace("req_1", {"traceparent": PARENT})


async def test_the_edge_takes_it_in() -> None:
    seen: list[Trace | None] = []

    class Listening(FakeService):
        async def models(self) -> Any:
            seen.append(current())
            return await super().models()

    transport = httpx.ASGITransport(build_app(Listening()))
    async with httpx.AsyncClient(transport=transport, base_url="http://edge") as client:
        answer = await client.get("/v1/models", headers={"traceparent": PARENT})

    assert seen == [Trace(answer.headers["x-request-id"], {"traceparent": PARENT})]
