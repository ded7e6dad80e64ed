"""The OpenAPI document describes exactly what is served."""

import httpx
from starlette.routing import Route

from app.api.application import build_app
from app.api.parsing import KNOWN
from tests.api.fake_service import FakeService

OWN = {"/openapi.json"}


async def test_every_route_is_described_with_its_methods(client: httpx.AsyncClient, service: FakeService) -> None:
    paths = (await client.get("/openapi.json")).json()["paths"]
    served = {
        route.path.replace(":path", ""): {method.lower() for method in route.methods or ()} - {"head"}
        for route in build_app(service).routes
        if isinstance(route, Route) and route.path not in OWN
    }
    assert {path: set(operations) - {"parameters"} for path, operations in paths.items()} == served


async def test_every_reference_leads_somewhere(client: httpx.AsyncClient) -> None:
    answer = await client.get("/openapi.json")
    schemas = answer.json()["components"]["schemas"]
    for piece in answer.text.split('"$ref":"#/components/schemas/')[1:]:
        assert piece.partition('"')[0] in schemas


async def test_every_field_of_create_is_described_and_may_be_null(client: httpx.AsyncClient) -> None:
    create = (await client.get("/openapi.json")).json()["components"]["schemas"]["CreateResponse"]
    assert set(create["properties"]) == KNOWN
    assert create["required"] == ["model", "input"]
    optional = [field for name, field in create["properties"].items() if name not in create["required"]]
    assert all(field.get("type") == "null" or {"type": "null"} in field["anyOf"] for field in optional)


async def test_the_bearer_scheme_is_described_when_keys_are_needed(service: FakeService) -> None:
    assert "security" not in build_app(service).openapi()
    assert build_app(service, api_keys=frozenset({"k"})).openapi()["security"] == [{"key": []}]
