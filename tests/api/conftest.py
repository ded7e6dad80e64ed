"""Clients over the application, with a fake service."""

from collections.abc import AsyncIterator

import httpx
import pytest

from app.api.application import build_app
from tests.api.fake_service import FakeService


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
async def client(service: FakeService) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(build_app(service), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://edge") as client:
        yield client
