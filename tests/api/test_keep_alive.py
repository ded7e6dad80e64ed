"""Comments in silence, on a loop whose clock the test moves: nothing here waits in real time."""

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

from app.api.application import build_app
from app.api.options import EdgeOptions
from app.ports import Span
from tests.api.asgi import Call
from tests.api.fake_service import COMPLETED, CREATED, DELTA, FakeService, Feed

STREAM = {"model": "m", "input": "hi", "stream": True}
KEEP_ALIVE = b": keep-alive\n\n"
INTERVAL = 10.0  # seconds


class MovableLoop(asyncio.SelectorEventLoop):
    """An event loop whose time stands still until it is moved on, however long things take."""

    moved = 0.0

    def time(self) -> float:
        return self.moved


async def move(seconds: float) -> None:
    """Move the time on, and let everything that is due by then run."""
    cast(MovableLoop, asyncio.get_running_loop()).moved += seconds
    for _ in range(10):
        await asyncio.sleep(0)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=MovableLoop) as runner:
        runner.run(scenario)


def streaming(service: FakeService) -> Call:
    app = build_app(service, options=EdgeOptions(keep_alive_seconds=INTERVAL))
    return Call(app, "POST", "/v1/responses", body=STREAM)


def test_silence_is_filled_with_comments_between_frames() -> None:
    async def scenario() -> None:
        service = FakeService(feed=Feed())
        async with streaming(service) as call:
            await call.until(lambda: bool(call.sent))
            await move(INTERVAL - 1)
            assert call.bodies == []
            await move(1)
            await call.until(lambda: call.bodies == [KEEP_ALIVE])
            await move(INTERVAL)
            await call.until(lambda: call.bodies == [KEEP_ALIVE] * 2)
            service.feed.give(Span(0, [CREATED]))
            await call.until(lambda: len(call.bodies) == 3)
            service.feed.give(Span(1, [DELTA, COMPLETED]))
            service.feed.give(None)
            await call.end()
        assert call.bodies.count(KEEP_ALIVE) == 2
        assert call.body.replace(KEEP_ALIVE, b"").startswith(b"event: response.created\ndata: {")
        assert call.body.endswith(b"}\n\ndata: [DONE]\n\n")

    run(scenario())


def test_every_event_puts_the_next_comment_off() -> None:
    async def scenario() -> None:
        service = FakeService(feed=Feed())
        async with streaming(service) as call:
            await call.until(lambda: bool(call.sent))
            for position in range(5):
                await move(INTERVAL - 1)
                service.feed.give(Span(position, [DELTA]))
                await call.until(lambda n=position: len(call.bodies) == n + 1)  # type: ignore[misc]
            assert KEEP_ALIVE not in call.bodies
            await move(INTERVAL)
            await call.until(lambda: call.bodies[-1] == KEEP_ALIVE)

    run(scenario())


def test_no_comment_overtakes_a_send_that_waits_for_a_slow_client() -> None:
    async def scenario() -> None:
        service = FakeService(feed=Feed(Span(0, [CREATED])))
        async with streaming(service) as call:
            call.hold(lambda body: body.startswith(b"event: response.created"))
            await call.until(lambda: call.held)
            await move(10 * INTERVAL)
            assert call.bodies == []
            call.let_go()
            await call.until(lambda: len(call.bodies) == 1)
            assert call.bodies[0] != KEEP_ALIVE
            await move(2 * INTERVAL)
            await call.until(lambda: call.bodies[-1] == KEEP_ALIVE)

    run(scenario())


def test_a_comment_that_cannot_be_sent_abandons_the_response() -> None:
    async def scenario() -> None:
        service = FakeService(feed=Feed())
        async with streaming(service) as call:
            await call.until(lambda: bool(call.sent))
            call.send_error = BrokenPipeError("gone")
            await move(INTERVAL)
            await call.end()
        assert service.started[0].abandoned == 1
        assert service.feed.closed.is_set()

    run(scenario())
