"""What surrounds every request: ids, the mapping of errors, and silence about what is nobody's business."""

import re

import httpx
import pytest
import structlog
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send

from app.api.application import build_app
from app.errors import (
    ContextTooLong,
    EngineFailed,
    EngineLacksModel,
    EngineRefused,
    EngineStalled,
    InvalidRequest,
    ModelNotFound,
    PreviousResponseNotFound,
    ResponseNotFound,
    ShuttingDown,
    TooManyRequests,
    UnsupportedValue,
    VerbatimError,
)
from tests.api.asgi import Call
from tests.api.fake_service import FakeService

BODY = {"model": "m", "input": "hi"}

MAPPING = [
    (InvalidRequest("x", param="input"), 400, "invalid_request_error", None, "input"),
    (UnsupportedValue("x", param="tools[0].type"), 400, "invalid_request_error", "unsupported_value", "tools[0].type"),
    (ContextTooLong("x"), 400, "invalid_request_error", "context_length_exceeded", "input"),
    (PreviousResponseNotFound("x"), 400, "invalid_request_error", "previous_response_not_found",
     "previous_response_id"),
    (ResponseNotFound("resp_1"), 404, "invalid_request_error", None, None),
    (ModelNotFound("x"), 404, "invalid_request_error", "model_not_found", "model"),
    (TooManyRequests("x"), 429, "rate_limit_error", "rate_limit_exceeded", None),
    (ShuttingDown("x"), 503, "server_error", None, None),
    (EngineLacksModel("x"), 404, "invalid_request_error", "model_not_found", "model"),
    (EngineFailed("x"), 502, "server_error", "server_error", None),
    (EngineStalled("x"), 504, "server_error", "server_error", None),
    (EngineRefused("x", status=429), 429, "rate_limit_error", "rate_limit_exceeded", None),
    (EngineRefused("x", status=422, code="bad"), 422, "invalid_request_error", "bad", None),
    (VerbatimError("x"), 500, "server_error", None, None),
]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("error", "status", "kind", "code", "param"), MAPPING)
async def test_an_error_of_ours_says_the_same_whether_streamed_or_not(
    error: VerbatimError, status: int, kind: str, code: str | None, param: str | None, stream: bool,
    client: httpx.AsyncClient, service: FakeService,
) -> None:  # fmt: skip
    service.error = error
    answer = await client.post("/v1/responses", json={**BODY, "stream": stream})
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {"error": {"message": error.message, "type": kind, "param": param, "code": code}}


@pytest.mark.parametrize(("seconds", "header"), [(0.2, "1"), (1.0, "1"), (2.5, "3"), (None, None)])
async def test_retry_after_is_whole_seconds(
    client: httpx.AsyncClient, service: FakeService, seconds: float | None, header: str | None
) -> None:
    service.error = EngineRefused("busy", status=503, retry_after=seconds)
    answer = await client.post("/v1/responses", json=BODY)
    assert answer.headers.get("retry-after") == header


@pytest.mark.parametrize(("status", "header"), [(409, "false"), (429, None), (503, None)])
async def test_only_a_conflict_must_not_be_repeated(
    client: httpx.AsyncClient, service: FakeService, status: int, header: str | None
) -> None:
    service.error = EngineRefused("no", status=status)
    answer = await client.post("/v1/responses", json=BODY)
    assert answer.headers.get("x-should-retry") == header


@pytest.mark.parametrize("path", ["/v1/models", "/nothing", "/health", "/openapi.json"])
async def test_every_answer_has_a_request_id_of_our_own(client: httpx.AsyncClient, path: str) -> None:
    theirs = {"x-request-id": "theirs", "x-client-request-id": "theirs"}
    answers = [await client.get(path, headers=theirs) for _ in range(2)]
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert all(re.fullmatch(r"req_[0-9a-f]{32}", request_id) for request_id in ids)
    assert ids[0] != ids[1]
    assert all(answer.headers["openai-processing-ms"].isdecimal() for answer in answers)


async def test_a_stream_and_an_error_have_a_request_id(client: httpx.AsyncClient) -> None:
    for body in ({**BODY, "stream": True}, {}):
        answer = await client.post("/v1/responses", json=body)
        assert answer.headers["x-request-id"].startswith("req_")


async def test_an_unexpected_error_is_logged_whole_and_answered_without_a_word_of_it(
    client: httpx.AsyncClient, service: FakeService
) -> None:
    service.error = RuntimeError("password=hunter2")
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as logs:
        answer = await client.post("/v1/responses", json=BODY)
    assert answer.status_code == 500
    assert answer.json()["error"] == {
        "message": "The server had an error while processing your request.",
        "type": "server_error", "param": None, "code": "server_error",
    }  # fmt: skip
    assert "hunter2" not in answer.text + str(answer.headers)
    [entry, request] = logs
    assert request["event"] == "request"
    assert (entry["event"], entry["log_level"], entry["exc_info"]) == ("request_crashed", "error", service.error)
    assert entry["request_id"] == answer.headers["x-request-id"]


async def test_an_error_after_the_answer_has_begun_cuts_it_off(service: FakeService) -> None:
    async def breaks(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("too late")

    async with Call(build_app(service, routes=[Mount("/late", breaks)]), "GET", "/late/") as call:
        with pytest.raises(RuntimeError, match="too late"):
            await call.end()
    assert [message["type"] for message in call.sent] == ["http.response.start"]


async def test_of_a_mistake_of_the_client_only_the_status_is_logged(client: httpx.AsyncClient) -> None:
    with structlog.testing.capture_logs() as logs:
        await client.post("/v1/responses", json={})
    assert [(line["event"], line["status"]) for line in logs] == [("request", 400)]


async def test_a_client_that_leaves_while_sending_is_no_error(service: FakeService) -> None:
    async with Call(build_app(service), "POST", "/v1/responses", chunks=[b'{"mod']) as call:
        call.disconnect()
        await call.end()
    assert call.sent == []
    assert service.calls == []
