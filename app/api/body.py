"""The bytes of a request body: read once, bounded, and parsed into a JSON object."""

import asyncio
from typing import Any, Final

import orjson
from starlette.requests import Request

from app.api.checks import MESSAGE_LIMIT
from app.api.encodings import IDENTITY, Decoder
from app.errors import InvalidRequest, RequestTooLarge

MAX_DEPTH: Final = 100  # recursive readers (schema checks, encoders) stay far away from their own limits


async def read_body(request: Request, *, limit: int) -> bytes:
    """The whole body, decompressed. Raises RequestTooLarge before more than `limit` bytes are held."""
    too_large = RequestTooLarge(f"The request body is larger than {limit} bytes.")
    decoder = Decoder(", ".join(request.headers.getlist("content-encoding")))
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise too_large
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise too_large
        chunks.append(chunk)
    body = b"".join(chunks)
    if decoder.encoding != IDENTITY:
        body = await asyncio.to_thread(decoder.decode, body, limit)
    if len(body) > limit:
        raise too_large
    return body


def parse_object(data: bytes) -> dict[str, Any]:
    """A JSON object from bytes. Not JSON, lone surrogates, no object, nested too deep: InvalidRequest."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The request body is not valid JSON: {error}."[:MESSAGE_LIMIT]) from None
    if not isinstance(value, dict):
        raise InvalidRequest("The request body must be a JSON object.")
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH and _deeper_than(value, MAX_DEPTH):
        raise InvalidRequest(f"The request body is nested deeper than {MAX_DEPTH} levels.")
    return value


def _deeper_than(value: Any, limit: int) -> bool:
    layer = [value]
    for _ in range(limit):
        layer = [inner for outer in layer for inner in (outer.values() if isinstance(outer, dict) else outer)
                 if isinstance(inner, dict | list)]
        if not layer:
            return False
    return True
