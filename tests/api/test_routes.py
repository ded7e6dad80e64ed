"""Every path over a fake service: what is asked, what is answered."""

import asyncio
from typing import Any

import httpx
import orjson
import pytest
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from app.api.application import build_app
from app.api.options import EdgeOptions
from app.errors import EngineFailed, ResponseNotFound, ShuttingDown
from tests.api.asgi import DEADLINE, Call, error_of
from tests.api.fake_service import FINAL, FakeService, Feed

BODY = {"model": "m", "input": "hi"}


async def test_a_plain_create_answers_the_final_object_as_its_stored_bytes(
    client: httpx.AsyncClient, service: FakeService
) -> None:
    answer = await client.post("/v1/responses", json=BODY)
    assert (answer.status_code, answer.content) == (200, FINAL)
    assert answer.headers["content-type"] == "application/json"
    assert service.requests[0].model == "m"
    assert service.started[0].abandoned == 0


async def test_accept_does_not_decide_about_streaming(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/responses", json=BODY, headers={"accept": "text/event-stream"})
    assert answer.content == FINAL


async def test_a_body_needs_no_content_type(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/responses", content=orjson.dumps(BODY))
    assert answer.status_code == 200


async def test_ignored_fields_are_named_in_a_header(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/responses", json={**BODY, "max_token": 5, "bad\r\nname: é": 1})
    assert answer.headers["x-verbatim-ignored-fields"] == "max_token, bad%0D%0Aname%3A%20%C3%A9"


async def test_a_stream_names_its_ignored_fields_too(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/responses", json={**BODY, "stream": True, "client_metadata": {}})
    assert answer.headers["x-verbatim-ignored-fields"] == "client_metadata"


async def test_the_header_of_ignored_fields_is_bounded(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/responses", json={**BODY, **{f"{i}" + "x" * 500: 1 for i in range(500)}})
    assert answer.status_code == 200
    assert len(answer.headers["x-verbatim-ignored-fields"]) < 4096


async def test_without_ignored_fields_there_is_no_such_header(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/responses", json=BODY)
    assert "x-verbatim-ignored-fields" not in answer.headers


async def test_a_bad_request_never_reaches_the_service(client: httpx.AsyncClient, service: FakeService) -> None:
    answer = await client.post("/v1/responses", json={**BODY, "temperature": 3})
    assert answer.status_code == 400
    assert (await error_of(answer))["param"] == "temperature"
    assert service.calls == []


async def test_a_failed_response_is_an_http_error(client: httpx.AsyncClient, service: FakeService) -> None:
    service.result = EngineFailed("The engine closed without a word.")
    answer = await client.post("/v1/responses", json=BODY)
    assert answer.status_code == 502
    assert (await error_of(answer))["message"] == "The engine closed without a word."


async def test_a_client_that_leaves_while_waiting_abandons_its_response() -> None:
    service = FakeService(result=None)
    async with Call(build_app(service), "POST", "/v1/responses", body=BODY) as call:
        await asyncio.wait_for(service.waiting.wait(), DEADLINE)
        call.disconnect()
        await call.end()
    assert service.started[0].abandoned == 1
    assert service.started[0].cancelled


async def test_a_wait_that_is_cut_at_the_end_of_the_server_abandons_its_response_and_says_so() -> None:
    service = FakeService(result=None)
    async with Call(build_app(service), "POST", "/v1/responses", body=BODY) as call:
        await asyncio.wait_for(service.waiting.wait(), DEADLINE)
        call.task.cancel()
        await call.ended()
        assert call.task.cancelled()
    assert service.started[0].abandoned == 1
    assert (call.status, orjson.loads(call.body)["error"]["message"]) == (503, ShuttingDown().message)
    assert call.headers["retry-after"] == "1"


async def test_a_body_over_the_limit_is_refused_before_it_is_read() -> None:
    service = FakeService()
    app = build_app(service, options=EdgeOptions(max_body_bytes=100))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://edge") as client:
        declared = await client.post("/v1/responses", content=b"x" * 101)
        counted = await client.post("/v1/responses", content=_chunks(b"x" * 60, b"x" * 60))
        fits = await client.post("/v1/responses", content=orjson.dumps(BODY).ljust(100))
    for answer in (declared, counted):
        assert answer.status_code == 413
        assert (await error_of(answer))["code"] == "request_too_large"
    assert fits.status_code == 200


async def test_a_body_that_says_it_is_too_large_is_not_waited_for() -> None:
    app = build_app(FakeService(), options=EdgeOptions(max_body_bytes=100))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://edge") as client:
        answer = await client.post("/v1/responses", content=b"{}", headers={"content-length": "101"})
    assert answer.status_code == 413


async def _chunks(*chunks: bytes) -> Any:
    for chunk in chunks:
        yield chunk


async def test_the_default_model_is_used_without_a_model(service: FakeService) -> None:
    app = build_app(service, options=EdgeOptions(default_model="tiny"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://edge") as client:
        assert (await client.post("/v1/responses", json={"input": "hi"})).status_code == 200
    assert service.requests[0].model == "tiny"


async def test_get_answers_the_snapshot(client: httpx.AsyncClient, service: FakeService) -> None:
    answer = await client.get("/v1/responses/resp_1", params={"include": "reasoning.encrypted_content"})
    assert answer.json() == {"id": "resp_1", "status": "queued"}
    assert service.calls == [("snapshot", "resp_1", "")]


async def test_get_of_an_unknown_response_is_404(client: httpx.AsyncClient, service: FakeService) -> None:
    service.error = ResponseNotFound("resp_9")
    answer = await client.get("/v1/responses/resp_9")
    assert answer.status_code == 404
    assert "resp_9" in (await error_of(answer))["message"]


@pytest.mark.parametrize("path", ["resp_%00", "resp%20x", "r%C3%A9sp", "x" * 200])
@pytest.mark.parametrize(("method", "end"), [("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")])
async def test_an_impossible_id_is_404_and_never_reaches_the_service(
    client: httpx.AsyncClient, service: FakeService, path: str, method: str, end: str
) -> None:
    answer = await client.request(method, f"/v1/responses/{path}{end}")
    assert answer.status_code == 404
    assert service.calls == []


@pytest.mark.parametrize(
    ("query", "after"),
    [
        ("stream=true", -1),
        ("stream=true&starting_after=0", 0),
        ("stream=True&starting_after=17&include_obfuscation=false", 17),
    ],
)
async def test_get_with_stream_replays_after_a_position(
    client: httpx.AsyncClient, service: FakeService, query: str, after: int
) -> None:
    answer = await client.get(f"/v1/responses/resp_1?{query}")
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert service.calls == [("replay", "resp_1", "", after)]


async def test_a_replay_that_is_refused_is_an_http_error(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v1/responses/resp_9?stream=true")
    assert answer.status_code == 404
    await error_of(answer)


async def test_a_replay_past_the_end_is_an_empty_stream_that_closes(
    client: httpx.AsyncClient, service: FakeService
) -> None:
    service.feed = Feed(None)
    answer = await client.get("/v1/responses/resp_1?stream=true&starting_after=99")
    assert (answer.status_code, answer.content) == (200, b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("stream=true&starting_after=-1", "starting_after"),
        ("stream=true&starting_after=abc", "starting_after"),
        ("stream=true&starting_after=", "starting_after"),
        ("stream=true&starting_after=1.5", "starting_after"),
        ("stream=true&starting_after=9999999999999999999999", "starting_after"),
        ("starting_after=3", "starting_after"),
        ("stream=maybe", "stream"),
        ("stream=true&include_obfuscation=maybe", "include_obfuscation"),
        ("include=everything", "include[0]"),
        ("include[]=reasoning.encrypted_content&include[]=everything", "include[1]"),
    ],
)
async def test_a_wrong_query_of_get_is_named(
    client: httpx.AsyncClient, service: FakeService, query: str, param: str
) -> None:
    answer = await client.get(f"/v1/responses/resp_1?{query}")
    assert answer.status_code == 400
    assert (await error_of(answer))["param"] == param
    assert service.calls == []


async def test_delete_says_so(client: httpx.AsyncClient, service: FakeService) -> None:
    answer = await client.delete("/v1/responses/resp_1")
    assert answer.json() == {"id": "resp_1", "object": "response", "deleted": True}
    assert service.calls == [("delete", "resp_1", "")]


@pytest.mark.parametrize("body", [None, {}])
async def test_cancel_answers_the_final_object(client: httpx.AsyncClient, body: Any) -> None:
    answer = await client.post("/v1/responses/resp_1/cancel", json=body)
    assert answer.json() == {"id": "resp_1", "status": "cancelled"}


async def test_health_is_ok_while_the_service_is_ready(client: httpx.AsyncClient) -> None:
    answer = await client.get("/health")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


@pytest.mark.parametrize("error", [ShuttingDown(), EngineFailed()])
async def test_health_is_503_while_it_is_not(client: httpx.AsyncClient, service: FakeService, error: Exception) -> None:
    service.error = error
    answer = await client.get("/health")
    assert answer.status_code == 503
    await error_of(answer)


async def test_livez_asks_nobody(client: httpx.AsyncClient, service: FakeService) -> None:
    service.error = ShuttingDown()
    assert (await client.get("/livez")).status_code == 200


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/chat/completions", "/responses", "/v1/responses/", "/v1/responses/resp_1/nothing"]
)
async def test_an_unknown_path_is_a_json_404(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.get(path)
    assert answer.status_code == 404
    assert path in (await error_of(answer))["message"]


@pytest.mark.parametrize("path", ["/v1/responses/compact", "/v1/responses/input_tokens", "/v1/conversations"])
async def test_what_openai_has_and_this_server_has_not_is_a_404_that_says_so(
    client: httpx.AsyncClient, path: str
) -> None:
    answer = await client.post(path, json={"model": "m", "input": "hi"})
    assert answer.status_code == 404
    assert "allow" not in answer.headers
    assert (await error_of(answer))["message"] == f"This server does not have POST {path}."


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/responses", {"POST"}),
        ("PUT", "/v1/responses/resp_1", {"GET", "HEAD", "DELETE"}),
        ("GET", "/v1/responses/resp_1/cancel", {"POST"}),
        ("POST", "/v1/models", {"GET", "HEAD"}),
        ("OPTIONS", "/v1/responses", {"POST"}),
    ],
)
async def test_a_wrong_method_is_a_json_405_that_names_the_right_ones(
    client: httpx.AsyncClient, method: str, path: str, allowed: set[str]
) -> None:
    answer = await client.request(method, path)
    assert answer.status_code == 405
    assert set(answer.headers["allow"].split(", ")) == allowed
    await error_of(answer)


async def test_head_is_get_without_a_body(client: httpx.AsyncClient) -> None:
    assert (await client.head("/health")).status_code == 200


async def test_routes_of_others_are_served_beside(service: FakeService) -> None:
    app = build_app(service, routes=[Route("/metrics", lambda request: PlainTextResponse("up 1"))])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://edge") as client:
        assert (await client.get("/metrics")).text == "up 1"
