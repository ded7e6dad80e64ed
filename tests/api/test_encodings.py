"""Bodies that come compressed: read like others, bounded by what they hold, or refused by name."""

import gzip
from collections.abc import Callable

import httpx
import orjson
import pytest
import zstandard

from app.api.application import build_app
from app.api.options import EdgeOptions
from tests.api.asgi import error_of
from tests.api.fake_service import FakeService

BODY = orjson.dumps({"model": "m", "input": "hi"})
HALVES = (BODY[:9], BODY[9:])
GZIPPED = gzip.compress(BODY, mtime=0)  # no time in it: all processes of a run must name a test alike
LIMIT = 100_000


async def post(service: FakeService, body: bytes, encoding: str) -> httpx.Response:
    app = build_app(service, options=EdgeOptions(max_body_bytes=LIMIT))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://edge") as client:
        return await client.post("/v1/responses", content=body, headers={"content-encoding": encoding})


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", GZIPPED),
        ("X-GZip", GZIPPED),
        ("gzip", b"".join(gzip.compress(half, mtime=0) for half in HALVES)),
        ("zstd", zstandard.compress(BODY)),
        ("zstd", zstandard.ZstdCompressor(write_content_size=False).compress(BODY)),
        ("zstd", b"".join(map(zstandard.compress, HALVES))),
        ("identity", BODY),
        ("", BODY),
    ],
)
async def test_a_compressed_body_is_read(service: FakeService, encoding: str, body: bytes) -> None:
    assert (await post(service, body, encoding)).status_code == 200
    assert service.requests[0].items[0]["content"][0]["text"] == "hi"


@pytest.mark.parametrize(("encoding", "compress"), [("gzip", gzip.compress), ("zstd", zstandard.compress)])
async def test_the_limit_is_that_of_what_a_body_holds(
    service: FakeService, encoding: str, compress: Callable[[bytes], bytes]
) -> None:
    whole = BODY.ljust(LIMIT)
    assert (await post(service, compress(whole), encoding)).status_code == 200
    refused = await post(service, compress(whole + b" "), encoding)
    assert refused.status_code == 413
    assert (await error_of(refused))["code"] == "request_too_large"


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", BODY),
        ("gzip", GZIPPED[:-9]),
        ("gzip", GZIPPED[:12] + b"garbage"),
        ("zstd", BODY),
    ],
)
async def test_a_body_that_is_not_what_it_says_is_a_400_that_names_the_encoding(
    service: FakeService, encoding: str, body: bytes
) -> None:
    refused = await post(service, body, encoding)
    assert refused.status_code == 400
    assert encoding in (await error_of(refused))["message"]


async def test_a_window_that_would_take_much_memory_is_refused(service: FakeService) -> None:
    large = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=False)
    stream = zstandard.ZstdCompressor(compression_params=large).compressobj()
    refused = await post(service, stream.compress(BODY) + stream.flush(), "zstd")
    assert refused.status_code == 400


@pytest.mark.parametrize("encoding", ["br", "gzip, zstd", "deflate"])
async def test_another_encoding_is_a_415_that_names_it(service: FakeService, encoding: str) -> None:
    refused = await post(service, BODY, encoding)
    assert refused.status_code == 415
    error = await error_of(refused)
    assert error["code"] == "unsupported_content_encoding"
    assert f"'{encoding}'" in error["message"]
    assert "'gzip', 'zstd'" in error["message"]
