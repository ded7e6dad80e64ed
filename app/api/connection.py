"""A client's connection, below the API: what is no HTTP, or never becomes a request, is told in the API's shape."""

import asyncio
from typing import Any, Final

import httptools
import structlog
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from app.api.errors import WrongRequest, error_answer
from app.api.middleware import REQUEST_ID, new_request_id
from app.errors import RequestTooSlow, VerbatimError

HEAD_LIMIT: Final = 64 * 1024  # bytes of a request's head, or of what else comes beside its body

logger = structlog.get_logger(__name__)


class Connection(HttpToolsProtocol):
    """uvicorn's, with a deadline: each request must be whole `receive_seconds` after its first byte.

    The deadline is for all of it, so a byte now and then buys no time. Answers may take as long as they like.
    A head has a limit: the parser joins it piece by piece, which takes time with the square of its length.
    """

    def __init__(self, receive_seconds: float, **given: Any) -> None:
        super().__init__(**given)
        self._receive_seconds = receive_seconds
        self._deadline: asyncio.TimerHandle | None = None
        self._is_new = True
        self._unread = 0  # bytes of a head, or a trailer, that is not complete yet

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The first request is awaited."""
        super().connection_made(transport)
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is awaited any more."""
        self._expect_nothing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Some bytes of a request."""
        self._is_new = False
        self._unset_keepalive_if_required()
        if self._deadline is None:
            self._expect_request()
        self._unread += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._decline(data[offer.args[0] :])
        except httptools.HttpParserError:
            self._refuse(WrongRequest("Invalid HTTP request received.", status=400))
        else:
            if self._unread > HEAD_LIMIT:
                self._refuse(WrongRequest(f"The head of a request may have {HEAD_LIMIT} bytes.", status=431))

    def on_headers_complete(self) -> None:
        """The request begins, unless it offers another protocol: then it begins when that is declined."""
        self._unread = 0
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of the body; those who read it know how much they take."""
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._unread = 0
        if not self.parser.should_upgrade():
            self._expect_nothing()
            super().on_message_complete()

    def _decline(self, rest: bytes) -> None:
        """Read the request again without its offer: the parser takes what follows an offer for the other protocol.

        Java's own client offers HTTP/2 with the first request of each connection, also with those that have a body.
        """
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        if method == b"CONNECT":
            self._refuse(WrongRequest("This server is no proxy.", status=400))
            return
        lines = [b"%s: %s\r\n" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self.data_received(b"%s %s HTTP/%s\r\n" % (method, self.url, version) + b"".join(lines) + b"\r\n" + rest)

    def _expect_request(self) -> None:
        self._deadline = self.loop.call_later(self._receive_seconds, self._give_up)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        answering = self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body
        if answering or self.pipeline:
            self._expect_request()  # the next one came too early: its time begins when it can be read
        elif self._is_new:
            self.transport.close()  # kept in stock by a client: an answer would be taken for one to its first request
        else:
            self._refuse(RequestTooSlow())

    def _refuse(self, error: VerbatimError) -> None:
        """Answer and close; only close when an answer has begun that this would be taken for a part of."""
        cycle = self.cycle
        begun = cycle is not None and cycle.response_started and (cycle.more_body or not cycle.response_complete)
        if not begun and not self.pipeline:
            self._write(error)
        self.transport.close()

    def _write(self, error: VerbatimError) -> None:
        request_id, answer = new_request_id(), error_answer(error)
        headers = [
            *self.server_state.default_headers,
            *answer.raw_headers,
            (REQUEST_ID.encode(), request_id.encode()),
            (b"connection", b"close"),
        ]
        lines = b"".join(b"%s: %s\r\n" % header for header in headers)
        self.transport.write(STATUS_LINE[error.status] + lines + b"\r\n" + bytes(answer.body))
        logger.info("no_request", request_id=request_id, status=error.status, reason=type(error).__name__)
