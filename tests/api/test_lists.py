"""Lists: the input items of a response, page by page, and the models."""

from typing import Any

import httpx
import pytest

from tests.api.asgi import error_of
from tests.api.fake_service import FakeService

ITEMS = [{"type": "message", "id": f"msg_{i}"} for i in range(25)]


async def test_input_items_are_newest_first_and_twenty(client: httpx.AsyncClient, service: FakeService) -> None:
    service.items = ITEMS
    answer = (await client.get("/v1/responses/resp_1/input_items")).json()
    assert [item["id"] for item in answer["data"]] == [f"msg_{i}" for i in range(24, 4, -1)]
    assert {**answer, "data": None} == {
        "object": "list", "data": None, "first_id": "msg_24", "last_id": "msg_5", "has_more": True,
    }  # fmt: skip


async def test_pages_of_input_items_join_to_the_whole(client: httpx.AsyncClient, service: FakeService) -> None:
    service.items = ITEMS
    seen: list[Any] = []
    after: dict[str, str] = {}
    more = True
    while more:
        query = {"order": "asc", "limit": "10", **after}
        page = (await client.get("/v1/responses/resp_1/input_items", params=query)).json()
        seen += page["data"]
        more, after = page["has_more"], {"after": page["last_id"]}
    assert seen == ITEMS


@pytest.mark.parametrize(("limit", "more"), [(24, True), (25, False), (26, False)])
async def test_has_more_is_true_only_while_something_is_left(
    client: httpx.AsyncClient, service: FakeService, limit: int, more: bool
) -> None:
    service.items = ITEMS
    assert (await client.get(f"/v1/responses/resp_1/input_items?limit={limit}")).json()["has_more"] is more


async def test_an_empty_list_has_strings_for_ids(client: httpx.AsyncClient) -> None:
    answer = (await client.get("/v1/responses/resp_1/input_items?limit=100")).json()
    assert answer == {"object": "list", "data": [], "first_id": "", "last_id": "", "has_more": False}


@pytest.mark.parametrize(
    ("query", "param"),
    [("limit=0", "limit"), ("limit=101", "limit"), ("limit=x", "limit"), ("order=up", "order"),
     ("after=msg_99", "after"), ("include=x", "include[0]")],
)  # fmt: skip
async def test_a_wrong_query_of_input_items_is_named(
    client: httpx.AsyncClient, service: FakeService, query: str, param: str
) -> None:
    service.items = ITEMS
    answer = await client.get(f"/v1/responses/resp_1/input_items?{query}")
    assert answer.status_code == 400
    assert (await error_of(answer))["param"] == param


async def test_models_are_listed(client: httpx.AsyncClient) -> None:
    answer = (await client.get("/v1/models")).json()
    assert answer["object"] == "list"
    assert answer["data"][0] == {
        "id": "openai/gpt-oss-20b", "object": "model", "created": 7, "owned_by": "verbatim", "context_length": 131072,
    }  # fmt: skip


async def test_a_model_is_found_by_a_name_with_slashes(client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/models/openai/gpt-oss-20b")).json()["id"] == "openai/gpt-oss-20b"


async def test_an_unknown_model_is_404(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v1/models/gpt-9")
    assert answer.status_code == 404
    assert (await error_of(answer))["code"] == "model_not_found"
