"""API keys, tenants, and pages of other origins."""

from collections.abc import AsyncIterator
from hashlib import sha256

import httpx
import pytest

from app.api.application import build_app
from app.api.options import EdgeOptions
from tests.api.fake_service import FakeService

KEYS = frozenset({"sk-one", "sk-two"})
ORIGIN = {"origin": "http://localhost:5173"}


@pytest.fixture
async def locked(service: FakeService) -> AsyncIterator[httpx.AsyncClient]:
    app = build_app(service, api_keys=KEYS, options=EdgeOptions(cors_origins=["http://localhost:5173"]))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://edge") as client:
        yield client


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer("sk-wrong"),
        bearer(""),
        bearer("sk-on"),
        {"authorization": "sk-one"},
        {"authorization": "Basic sk-one"},
        {"authorization": b"Bearer \xff\xfe"},
    ],
)
@pytest.mark.parametrize("path", ["/v1/models", "/v1/responses/resp_1", "/v1/unknown", "/v1"])
async def test_without_a_good_key_nothing_below_v1_is_shown(
    locked: httpx.AsyncClient, service: FakeService, headers: dict[str, str], path: str
) -> None:
    answer = await locked.get(path, headers=headers)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["x-request-id"].startswith("req_")
    assert service.calls == []


@pytest.mark.parametrize("path", ["/health", "/livez", "/openapi.json"])
async def test_health_and_the_document_need_no_key(locked: httpx.AsyncClient, path: str) -> None:
    assert (await locked.get(path)).status_code == 200


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
async def test_the_tenant_is_a_short_digest_of_the_key(
    locked: httpx.AsyncClient, service: FakeService, scheme: str
) -> None:
    for key in sorted(KEYS):
        answer = await locked.get("/v1/responses/resp_1", headers={"authorization": f"{scheme} {key}"})
        assert answer.status_code == 200
    tenants = [call[-1] for call in service.calls]
    assert tenants == [sha256(key.encode()).hexdigest()[:16] for key in sorted(KEYS)]


async def test_the_tenant_goes_with_every_use_case(locked: httpx.AsyncClient, service: FakeService) -> None:
    headers, url = bearer("sk-one"), "/v1/responses/resp_1"
    await locked.post("/v1/responses", json={"model": "m", "input": "hi"}, headers=headers)
    await locked.get(f"{url}?stream=true", headers=headers)
    await locked.post(f"{url}/cancel", headers=headers)
    await locked.get(f"{url}/input_items", headers=headers)
    await locked.delete(url, headers=headers)
    tenant = sha256(b"sk-one").hexdigest()[:16]
    assert [call[0] for call in service.calls] == ["create", "replay", "cancel", "input_items", "delete"]
    assert all(tenant in call for call in service.calls)


async def test_without_keys_everybody_is_one_tenant(client: httpx.AsyncClient, service: FakeService) -> None:
    await client.get("/v1/responses/resp_1", headers=bearer("anything"))
    assert service.calls == [("snapshot", "resp_1", "")]


async def test_a_preflight_needs_no_key(locked: httpx.AsyncClient) -> None:
    asked = {"access-control-request-method": "POST",
             "access-control-request-headers": "authorization,content-type,x-stainless-os"}  # fmt: skip
    answer = await locked.options("/v1/responses", headers={**ORIGIN, **asked})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == ORIGIN["origin"]
    assert "authorization" in answer.headers["access-control-allow-headers"].lower()


@pytest.mark.parametrize("headers", [{}, bearer("sk-one")])
async def test_errors_and_answers_carry_the_headers_a_page_needs(
    locked: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    answer = await locked.get("/v1/models", headers={**ORIGIN, **headers})
    assert answer.headers["access-control-allow-origin"] == ORIGIN["origin"]
    assert "x-request-id" in answer.headers["access-control-expose-headers"]


async def test_without_origins_no_page_may_call(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v1/models", headers=ORIGIN)
    assert "access-control-allow-origin" not in answer.headers
