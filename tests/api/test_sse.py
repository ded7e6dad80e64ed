"""The event stream on the wire: exact bytes, one send per span (some for a long one), and every way it can end."""

from collections.abc import Callable

import orjson
import pytest
import structlog

from app.api.application import build_app
from app.api.options import EdgeOptions
from app.api.sse import FRAMES_PER_SEND, frames, obfuscated
from app.ports import Span
from tests.api.asgi import Call
from tests.api.fake_service import COMPLETED, CREATED, DELTA, EVENTS, FakeService, Feed

STREAM = {"model": "m", "input": "hi", "stream": True}
FRAMES = (
    b"event: response.created\ndata: " + CREATED + b"\n\n",
    b"event: response.output_text.delta\ndata: " + DELTA + b"\n\n",
    b"event: response.completed\ndata: " + COMPLETED + b"\n\n",
)
DONE = b"data: [DONE]\n\n"


def created(service: FakeService, **options: float) -> Call:
    return Call(build_app(service, options=EdgeOptions(**options)), "POST", "/v1/responses", body=STREAM)  # type: ignore[arg-type]


def test_a_frame_is_the_type_and_the_stored_bytes() -> None:
    assert frames(EVENTS) == b"".join(FRAMES)


def test_no_events_are_no_bytes() -> None:
    assert frames([]) == b""


async def test_a_span_is_one_send_and_done_is_the_last() -> None:
    async with created(FakeService()) as call:
        await call.end()
    assert call.bodies == [FRAMES[0], FRAMES[1] + FRAMES[2], DONE]
    assert call.complete


@pytest.mark.parametrize("count", [1, FRAMES_PER_SEND, FRAMES_PER_SEND + 1, 3 * FRAMES_PER_SEND - 1])
async def test_a_long_span_is_sent_by_turns(count: int) -> None:
    events = [CREATED, *[DELTA] * (count - 1)]
    async with created(FakeService(feed=Feed(Span(0, events), Span(count, [COMPLETED]), None))) as call:
        await call.end()
    assert call.body == frames([*events, COMPLETED]) + DONE
    assert [body.count(b"\nevent: ") + 1 for body in call.bodies[:-2]] == [
        len(events[start : start + FRAMES_PER_SEND]) for start in range(0, count, FRAMES_PER_SEND)
    ]
    assert call.complete


async def test_the_headers_keep_proxies_from_buffering() -> None:
    async with created(FakeService()) as call:
        await call.end()
    assert call.status == 200
    assert call.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert call.headers["cache-control"] == "no-cache"
    assert call.headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in call.headers


async def test_who_asks_for_the_head_does_not_wait_for_the_end() -> None:
    service = FakeService(feed=Feed(Span(0, [CREATED])))  # a stream that goes on
    async with Call(build_app(service), "HEAD", "/v1/responses/resp_1", query="stream=true") as call:
        await call.end()
    assert (call.status, call.bodies, call.complete) == (200, [b""], True)
    assert call.headers["content-type"] == "text/event-stream; charset=utf-8"


async def test_the_status_line_is_out_before_the_first_event() -> None:
    async with created(FakeService(feed=Feed())) as call:
        await call.until(lambda: bool(call.sent))
        assert (call.status, call.bodies) == (200, [])


async def test_a_span_is_sent_as_soon_as_it_is_there() -> None:
    service = FakeService(feed=Feed())
    async with created(service) as call:
        for position, event in enumerate(EVENTS):
            service.feed.give(Span(position, [event]))
            await call.until(lambda n=position: len(call.bodies) == n + 1)  # type: ignore[misc]
        assert call.bodies == list(FRAMES)


async def test_a_finished_stream_is_not_abandoned() -> None:
    service = FakeService()
    async with created(service) as call:
        await call.end()
    assert service.started[0].abandoned == 0
    assert service.feed.closed.is_set()


async def test_a_client_that_goes_away_abandons_its_response() -> None:
    service = FakeService(feed=Feed(Span(0, [CREATED])))
    async with created(service) as call:
        await call.until(lambda: bool(call.bodies))
        call.disconnect()
        await call.end()
    assert service.started[0].abandoned == 1
    assert service.feed.closed.is_set()
    assert DONE not in call.body


async def test_a_client_that_was_gone_before_the_first_event_abandons_too() -> None:
    service = FakeService(feed=Feed())
    async with created(service) as call:
        call.disconnect()
        await call.end()
    assert service.started[0].abandoned == 1


@pytest.mark.parametrize("keep_alive_seconds", [0.01, 60.0])
async def test_a_send_that_fails_abandons(keep_alive_seconds: float) -> None:
    service = FakeService(feed=Feed())
    async with created(service, keep_alive_seconds=keep_alive_seconds) as call:
        await call.until(lambda: bool(call.sent))
        call.send_error = ConnectionResetError("gone")
        with structlog.testing.capture_logs() as logs:
            service.feed.give(Span(0, [CREATED]))
            await call.end()
    assert {entry["log_level"] for entry in logs} <= {"info"}
    assert service.started[0].abandoned == 1
    assert service.feed.closed.is_set()


async def test_a_cancelled_stream_abandons_and_stays_cancelled() -> None:
    service = FakeService(feed=Feed(Span(0, [CREATED])))
    async with created(service) as call:
        await call.until(lambda: bool(call.bodies))
        call.task.cancel()
        await call.ended()
        assert call.task.cancelled()
    assert service.started[0].abandoned == 1
    assert service.feed.closed.is_set()
    assert not call.complete


async def test_a_reader_that_fails_is_logged_and_the_connection_is_cut_without_done() -> None:
    service = FakeService(feed=Feed(Span(0, [CREATED]), RuntimeError("database gone")))
    with structlog.testing.capture_logs() as logs:
        async with created(service) as call:
            await call.end()
    assert call.bodies == [FRAMES[0]]
    assert not call.complete
    assert [entry["event"] for entry in logs] == ["sse_reader_failed", "request"]
    assert service.started[0].abandoned == 1


async def test_a_replay_closes_its_reader_when_the_client_goes() -> None:
    service = FakeService(feed=Feed(Span(0, [CREATED])))
    async with Call(build_app(service), "GET", "/v1/responses/resp_1", query="stream=true") as call:
        await call.until(lambda: bool(call.bodies))
        call.disconnect()
        await call.end()
    assert service.feed.closed.is_set()
    assert service.started == []


async def test_a_stream_that_only_ends_with_an_error_event_ends_with_done() -> None:
    failed = b'{"type":"response.failed","sequence_number":0,"response":{}}'
    async with created(FakeService(feed=Feed(Span(0, [failed]), None))) as call:
        await call.end()
    assert call.body.endswith(b'"response":{}}\n\n' + DONE)


OBFUSCATED: list[Callable[[FakeService], Call]] = [
    lambda service: Call(
        build_app(service), "POST", "/v1/responses", body={**STREAM, "stream_options": {"include_obfuscation": True}}
    ),
    lambda service: Call(
        build_app(service), "GET", "/v1/responses/resp_1", query="stream=true&include_obfuscation=true"
    ),
]


@pytest.mark.parametrize("ask", OBFUSCATED)
async def test_obfuscation_is_added_to_deltas_on_request_only(ask: Callable[[FakeService], Call]) -> None:
    async with ask(FakeService()) as call:
        await call.end()
    pieces = call.body.split(b"\n\n")
    assert [pieces[0] + b"\n\n", pieces[2] + b"\n\n"] == [FRAMES[0], FRAMES[2]]
    delta = orjson.loads(pieces[1].partition(b"\ndata: ")[2])
    noise = delta.pop("obfuscation")
    assert 1 <= len(noise) <= 16
    assert pieces[1] + b"\n\n" == FRAMES[1].replace(b"}\n\n", b',"obfuscation":"%b"}\n\n' % noise.encode())


def test_obfuscation_has_many_lengths() -> None:
    assert len({len(obfuscated(DELTA)) for _ in range(400)}) > 8
