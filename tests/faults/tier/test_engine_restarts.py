"""An engine that breaks off, refuses or is started again in mid-turn: a pause for its clients, and nothing else."""

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final

import httpx
import pytest

from tests.e2e.client import text_of
from tests.e2e.serving import Fleet
from tests.fakes.running import ROOT, FakeVllm
from tests.faults.tier.conftest import PATIENT
from tests.faults.tier.readers import WITHIN_SECONDS, Reader, Readers, reading, start, told_more, until
from tests.oracle import assert_keeps_invariants
from tests.ports import free_port

SAID: Final = " ".join(f"word {n}," for n in range(150))
"""Nothing in it comes twice: the fake finds its place in it by what was said."""
SLOWLY: Final = 50.0
FAST: Final = 4.0
"""Milliseconds per token. Nobody gets to the end of it slowly while a test waits for some words."""
STREAMS: Final = 4
PATIENCE_SECONDS: Final = 2.0
STALL_SECONDS: Final = 2.0
REFUSALS: Final = 2
"""How often each turn is refused before it may go on."""
SENTENCE: Final = "EngineCore encountered an issue."


def script_of(pace: float) -> dict[str, Any]:
    return {"text": f"<|channel|>final<|message|>{SAID}<|return|>", "pace_ms": pace}


class Restartable:
    """A fake vLLM that can be killed and started again on its port, with its script."""

    def __init__(self) -> None:
        self.fake = FakeVllm(free_port())
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self, pace: float, **script: Any) -> None:
        """Start, and wait until it answers."""
        default = json.dumps(script_of(pace) | script)
        command = [sys.executable, "-m", "tests.fakes.fake_vllm", "--port", str(self.fake.port), "--default", default]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        await until(self._answers, what="the start of the fake")

    def recovers(self) -> None:
        """Drop all that runs; from now on it does not break off."""
        self._tell(FAST, unwell=None)

    def breaks_off(self, pace: float, **unwell: Any) -> None:
        """Drop all that runs, then refuse with this error, so many `times` each or for good."""
        self._tell(pace, unwell=unwell)

    def _tell(self, pace: float, **more: Any) -> None:
        told = {"reset": True, "default": script_of(pace)} | more
        url = f"http://127.0.0.1:{self.fake.port}/__script"
        assert httpx.post(url, json=told, timeout=WITHIN_SECONDS).status_code == 200

    def kill(self) -> None:
        """Gone, with all its connections."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.fake.port)) == 0


@pytest.fixture
def engine() -> Iterator[Restartable]:
    engine = Restartable()
    yield engine
    engine.kill()


@pytest.fixture
def settings(engine: Restartable) -> dict[str, Any]:
    return {"engine": "vllm", "engine_url": engine.fake.url, "model": "gpt-oss", "lease_seconds": 10} | PATIENT


def begin(readers: Readers, url: str) -> list[Reader]:
    return [readers.create(url, f"Go on, {n}.", background=n % 2 == 0) for n in range(STREAMS)]


def assert_told_whole(streams: list[Reader]) -> None:
    for reader in streams:
        assert reader.response["status"] == "completed"
        assert text_of(reader.response) == SAID
        assert [event["type"] for event in reader.events].count("response.output_item.added") == 1
        assert_keeps_invariants(bytes(reader.body))


async def held(fake: FakeVllm, count: int) -> None:
    """So many stand before their fault."""
    await until(lambda: [one["state"] for one in fake.log()].count("held") == count, what="being held")


async def test_an_engine_that_is_started_again_costs_a_pause(fleet: Fleet, engine: Restartable) -> None:
    await engine.start(SLOWLY)
    (server,) = await start(fleet, {})
    async with reading() as readers:
        streams = begin(readers, server.url)
        for pace in (SLOWLY, FAST):
            await told_more(streams)
            engine.kill()
            await asyncio.sleep(0.5)  # away for a while
            assert not any(reader.ended for reader in streams)
            await engine.start(pace)
    assert_told_whole(streams)


@pytest.mark.parametrize("kind", ["reset", "close", "hang"])
async def test_an_engine_that_breaks_off_some_times_is_asked_again(
    fleet: Fleet, engine: Restartable, kind: str
) -> None:
    await engine.start(FAST, fault={"kind": kind, "after": 100, "held": kind != "hang"})
    (server,) = await start(fleet, {"stall_seconds": STALL_SECONDS} if kind == "hang" else {})
    async with reading() as readers:
        streams = begin(readers, server.url)
        if kind != "hang":  # which is heard of later, by the silence
            await held(engine.fake, STREAMS)
            engine.fake.release()
            await held(engine.fake, STREAMS)
        await until(lambda: len(engine.fake.log()) >= 2 * STREAMS, what="being asked again")
        engine.recovers()
    assert_told_whole(streams)


@pytest.mark.parametrize("status", [500, 503])
async def test_an_engine_that_breaks_off_and_refuses_for_a_while_costs_a_pause(
    fleet: Fleet, engine: Restartable, status: int
) -> None:
    await engine.start(SLOWLY)
    (server,) = await start(fleet, {})
    async with reading() as readers:
        streams = begin(readers, server.url)
        for pace in (SLOWLY, FAST):
            await told_more(streams)
            engine.breaks_off(pace, status=status, message=SENTENCE, times=REFUSALS)
            refused = f"http {status}"
            await until(lambda: [one["state"] for one in engine.fake.log()].count(refused) >= REFUSALS * STREAMS)  # noqa: B023
    assert_told_whole(streams)


@pytest.mark.parametrize("status", [500, 503])
async def test_an_engine_that_only_refuses_any_more_is_given_up_in_its_own_words(
    fleet: Fleet, engine: Restartable, status: int
) -> None:
    await engine.start(SLOWLY)
    (server,) = await start(fleet, {})
    async with reading() as readers:
        streams = begin(readers, server.url)
        await told_more(streams)
        engine.breaks_off(SLOWLY, status=status, message=SENTENCE)
    for reader in streams:
        error, failed = reader.events[-2:]
        assert [error["type"], failed["type"]] == ["error", "response.failed"]
        assert [error["message"], failed["response"]["error"]["message"]] == [SENTENCE] * 2
        assert failed["response"]["error"]["code"] == "server_error"
        assert SAID.startswith(text_of(failed["response"]))
        assert_keeps_invariants(bytes(reader.body))


async def test_an_engine_that_never_comes_back_is_given_up(fleet: Fleet, engine: Restartable) -> None:
    await engine.start(SLOWLY)
    (server,) = await start(fleet, {"engine_retry_seconds": PATIENCE_SECONDS})
    async with reading() as readers:
        streams = begin(readers, server.url)
        await told_more(streams)
        engine.kill()
    for reader in streams:
        failed = reader.response
        assert [event["type"] for event in reader.events[-2:]] == ["error", "response.failed"]
        assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
        assert SAID.startswith(text_of(failed))
        assert_keeps_invariants(bytes(reader.body))
