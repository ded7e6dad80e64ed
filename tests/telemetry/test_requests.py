"""Each request is one log line and one count, with nothing in it that a client could multiply."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import structlog

from app.api.application import build_app
from app.api.metrics import metrics_route
from app.errors import EngineRefused
from app.meters import CONTENT_TYPE, Meters
from app.ports import Span
from tests.api.asgi import Call
from tests.api.fake_service import CREATED, FakeService, Feed
from tests.telemetry.numbers import label_values, number

KEYS = frozenset({"sk-very-secret"})
BODY = {"model": "tiny", "input": "the prompt"}


@pytest.fixture
def meters() -> Meters:
    return Meters()


@pytest.fixture
async def client(meters: Meters) -> AsyncIterator[httpx.AsyncClient]:
    async with clients(build_app(FakeService(), meters=meters)) as client:
        yield client


def clients(app: Any) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://edge")


def lines() -> Any:
    return structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars])


async def test_requests_are_counted_by_method_template_and_status(client: httpx.AsyncClient, meters: Meters) -> None:
    for response_id in ("resp_1", "resp_2", "resp_3"):
        await client.get(f"/v1/responses/{response_id}")
    await client.post("/v1/responses", json={})

    told = meters.exposition().decode()
    template = "/v1/responses/{response_id}"
    assert number(told, "verbatim_requests_total", method="GET", route=template, status="200") == 3
    assert number(told, "verbatim_requests_total", method="POST", route="/v1/responses", status="400") == 1
    assert number(told, "verbatim_request_seconds_count", method="GET", route=template) == 3


async def test_whatever_clients_ask_for_the_labels_stay_few(client: httpx.AsyncClient, meters: Meters) -> None:
    for number_ in range(20):
        await client.request(f"METHOD{number_}", f"/nowhere/{number_}")
        await client.get(f"/v1/models/model-{number_}")

    told = meters.exposition().decode()
    assert label_values(told, "method") == {"GET", "other"}
    assert label_values(told, "route") == {"none", "/v1/models/{model:path}"}


async def test_a_line_says_what_was_asked_and_what_came_of_it(client: httpx.AsyncClient) -> None:
    with lines() as logs:
        answer = await client.get("/v1/responses/resp_7?include=x")
    [line] = [line for line in logs if line["event"] == "request"]

    assert line.pop("duration_ms") >= 0
    assert line == {
        "event": "request", "log_level": "info", "method": "GET", "path": "/v1/responses/resp_7", "status": 400,
        "request_id": answer.headers["x-request-id"], "response_id": "resp_7",
    }  # fmt: skip


async def test_a_line_names_the_tenant_and_never_its_key() -> None:
    async with clients(build_app(FakeService(), api_keys=KEYS)) as client:
        with lines() as logs:
            await client.get("/v1/models", headers={"authorization": "Bearer sk-very-secret"})
            await client.get("/v1/models", headers={"authorization": "Bearer sk-wrong"})

    known, unknown = logs
    assert len(known["tenant"]) == 16
    assert (unknown["status"], unknown.get("tenant")) == (401, None)
    assert "sk-" not in str(logs)


async def test_an_engines_sentence_is_not_logged() -> None:
    service = FakeService(error=EngineRefused("I cannot cope with 'the prompt'", status=500))
    async with clients(build_app(service)) as client:
        with lines() as logs:
            await client.post("/v1/responses", json=BODY)

    assert [line["event"] for line in logs] == ["request_failed", "request"]
    assert "the prompt" not in str(logs)


@pytest.mark.parametrize("path", ["/health", "/livez"])
async def test_probes_are_told_only_to_who_asks_for_all(client: httpx.AsyncClient, path: str) -> None:
    with lines() as logs:
        await client.get(path)

    assert [line["log_level"] for line in logs] == ["debug"]


async def test_a_very_long_path_is_cut(client: httpx.AsyncClient) -> None:
    with lines() as logs:
        await client.get("/v1/responses/" + "x" * 5000)

    assert len(str(logs)) < 1500


async def test_readers_are_counted_while_they_read(meters: Meters) -> None:
    feed = Feed(Span(0, [CREATED]))
    app = build_app(FakeService(feed=feed), meters=meters)
    async with Call(app, "POST", "/v1/responses", body={**BODY, "stream": True}) as call:
        await call.until(lambda: bool(call.body))
        assert number(meters.exposition().decode(), "verbatim_readers") == 1
        assert number(meters.exposition().decode(), "verbatim_requests_total") == 0
        feed.give(None)
        await call.end()

    assert number(meters.exposition().decode(), "verbatim_readers") == 0
    assert number(meters.exposition().decode(), "verbatim_requests_total", status="200") == 1


async def test_a_client_that_leaves_before_the_answer_is_counted_as_that(meters: Meters) -> None:
    async with Call(build_app(FakeService(), meters=meters), "POST", "/v1/responses", chunks=[b'{"mod']) as call:
        call.disconnect()
        with lines() as logs:
            await call.end()

    assert [line["status"] for line in logs if line["event"] == "request"] == [499]
    assert number(meters.exposition().decode(), "verbatim_requests_total", status="499") == 1


async def test_what_one_request_bound_is_not_in_the_lines_of_the_next(client: httpx.AsyncClient) -> None:
    structlog.contextvars.bind_contextvars(response_id="resp_old")
    await client.get("/livez")
    with lines() as logs:
        await client.get("/v1/models")

    assert "response_id" not in logs[0]


async def test_the_numbers_are_served_with_the_queue_as_it_is(meters: Meters) -> None:
    async def waiting() -> int:
        return 7

    async with clients(build_app(FakeService(), meters=meters, routes=[metrics_route(meters, waiting)])) as client:
        answer = await client.get("/metrics")

    assert answer.headers["content-type"] == CONTENT_TYPE
    assert number(answer.text, "verbatim_queued") == 7
    assert number(answer.text, "process_start_time_seconds") > 0


async def test_the_numbers_are_served_while_the_database_is_away(meters: Meters) -> None:
    async def waiting() -> int:
        await asyncio.sleep(0)
        raise OSError("away")

    async with clients(build_app(FakeService(), meters=meters, routes=[metrics_route(meters, waiting)])) as client:
        answer = await client.get("/metrics")

    assert answer.status_code == 200
    assert "verbatim_queued NaN" in answer.text
