"""The paths of the API and what each does: parse, ask the service, send its bytes."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final
from urllib.parse import quote

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from app.api.authentication import TENANT
from app.api.body import read_body
from app.api.checks import wrong
from app.api.disconnect import while_connected
from app.api.errors import error_answer
from app.api.options import EdgeOptions
from app.api.pages import model_card, page
from app.api.parsing import RequestParser
from app.api.queries import bounded, check_include, choice, flag, natural
from app.api.schemas import ID_PATTERN
from app.api.sse import EventStream
from app.errors import ModelNotFound, ResponseNotFound, VerbatimError
from app.runtime.interface import ResponsesService, Started

IGNORED_FIELDS: Final = "x-verbatim-ignored-fields"
IGNORED_NAMES, IGNORED_NAME_LENGTH = 32, 64
PARSED_AT_ONCE: Final = 64 * 1024  # bytes; a larger body is parsed aside, so that others are served meanwhile
UNAVAILABLE: Final = 503
CLIENT_CLOSED_REQUEST: Final = 499  # nobody reads it but the access log

Endpoint = Callable[[Request], Awaitable[ASGIApp]]


class Routes:
    """All endpoints over one service."""

    def __init__(self, service: ResponsesService, options: EdgeOptions) -> None:
        self._service = service
        self._options = options
        self._parser = RequestParser(default_model=options.default_model)

    def table(self) -> list[Route]:
        """One route per path, so that a wrong method is answered with all the right ones."""
        return [
            _route("/v1/responses", {"POST": self.create}),
            _route("/v1/responses/{response_id}", {"GET": self.show, "DELETE": self.delete}),
            _route("/v1/responses/{response_id}/cancel", {"POST": self.cancel}),
            _route("/v1/responses/{response_id}/input_items", {"GET": self.input_items}),
            _route("/v1/models", {"GET": self.models}),
            _route("/v1/models/{model:path}", {"GET": self.model}),
            _route("/health", {"GET": self.health}),
            _route("/livez", {"GET": self.livez}),
        ]

    async def create(self, request: Request) -> ASGIApp:
        """`POST /v1/responses`: frames with `stream`, else one object."""
        body = await read_body(request, limit=self._options.max_body_bytes)
        large = len(body) > PARSED_AT_ONCE
        parsed = await asyncio.to_thread(self._parser.parse, body) if large else self._parser.parse(body)
        headers = {IGNORED_FIELDS: _header_list(parsed.ignored)} if parsed.ignored else {}
        started = await self._service.create(parsed.request, tenant=_tenant(request))
        if parsed.request.stream:
            return EventStream(
                started.follow(),
                keep_alive_seconds=self._options.keep_alive_seconds,
                obfuscate=parsed.request.include_obfuscation,
                on_abandon=started.abandon,
                headers=headers,
            )
        return await _plain_answer(started, request, headers)

    async def show(self, request: Request) -> ASGIApp:
        """`GET /v1/responses/{id}`: the response as it is, or with `stream=true` its events after a position."""
        response_id, query = _response_id(request), request.query_params
        check_include(query)
        after, obfuscate = natural(query, "starting_after"), flag(query, "include_obfuscation")
        if not flag(query, "stream"):
            if after is not None:
                raise wrong("starting_after", "it is only allowed together with stream=true")
            return _json(await self._service.snapshot(response_id, tenant=_tenant(request)))
        spans = await self._service.replay(response_id, tenant=_tenant(request), after=-1 if after is None else after)
        return EventStream(spans, keep_alive_seconds=self._options.keep_alive_seconds, obfuscate=obfuscate)

    async def delete(self, request: Request) -> ASGIApp:
        """`DELETE /v1/responses/{id}`."""
        response_id = _response_id(request)
        await self._service.delete(response_id, tenant=_tenant(request))
        return _json(orjson.dumps({"id": response_id, "object": "response", "deleted": True}))

    async def cancel(self, request: Request) -> ASGIApp:
        """`POST /v1/responses/{id}/cancel`."""
        return _json(await self._service.cancel(_response_id(request), tenant=_tenant(request)))

    async def input_items(self, request: Request) -> ASGIApp:
        """`GET /v1/responses/{id}/input_items`, newest first unless asked otherwise."""
        response_id, query = _response_id(request), request.query_params
        check_include(query)
        limit = bounded(query, "limit", default=20, limit=100)
        order, after = choice(query, "order", ("desc", "asc")), query.get("after")
        items = await self._service.input_items(response_id, tenant=_tenant(request))
        return _json(orjson.dumps(page(items if order == "asc" else items[::-1], after=after, limit=limit)))

    async def models(self, request: Request) -> ASGIApp:  # noqa: ARG002 (endpoints take a request)
        """`GET /v1/models`."""
        cards = await self._service.models()
        return _json(orjson.dumps({"object": "list", "data": [model_card(card) for card in cards]}))

    async def model(self, request: Request) -> ASGIApp:
        """`GET /v1/models/{id}`; the id may hold slashes."""
        name = request.path_params["model"]
        for card in await self._service.models():
            if card.id == name:
                return _json(orjson.dumps(model_card(card)))
        raise ModelNotFound(f"The model {name[:128]!r} is not served here.")

    async def health(self, request: Request) -> ASGIApp:  # noqa: ARG002
        """`GET /health`: can this process serve?"""
        try:
            await self._service.ready()
        except VerbatimError as error:
            answer = error_answer(error)
            answer.status_code = UNAVAILABLE
            return answer
        return _json(b'{"status":"ok"}')

    async def livez(self, request: Request) -> ASGIApp:  # noqa: ARG002
        """`GET /livez`: does this process answer at all?"""
        return _json(b'{"status":"ok"}')


async def _plain_answer(started: Started, request: Request, headers: Mapping[str, str]) -> Response:
    """The response as one object; the generation is stopped when the client does not wait for it."""
    body = None
    try:
        body = await while_connected(started.result(), request.receive)
    finally:
        if body is None:
            started.abandon()
    return Response(status_code=CLIENT_CLOSED_REQUEST) if body is None else _json(body, headers)


def _json(body: bytes, headers: Mapping[str, str] | None = None) -> Response:
    return Response(body, headers=headers, media_type="application/json")


def _tenant(request: Request) -> str:
    tenant: str = request.scope[TENANT]
    return tenant


def _response_id(request: Request) -> str:
    """The id in the path. What cannot be an id of anything never reaches a database."""
    response_id: str = request.path_params["response_id"]
    if not ID_PATTERN.match(response_id):
        raise ResponseNotFound(response_id[:128])
    return response_id


def _header_list(names: Sequence[str]) -> str:
    """Names from a client as a header value: nothing of theirs can end it."""
    return ", ".join(quote(name[:IGNORED_NAME_LENGTH]) for name in names[:IGNORED_NAMES])


def _route(path: str, endpoints: Mapping[str, Endpoint]) -> Route:
    async def dispatch(request: Request) -> ASGIApp:
        return await endpoints["GET" if request.method == "HEAD" else request.method](request)

    return Route(path, dispatch, methods=list(endpoints), name=path)
