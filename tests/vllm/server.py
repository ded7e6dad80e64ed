"""Start a real vLLM on the CPU, wait until it is ready, and stop it for sure."""

import asyncio
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from tests.ports import free_port
from tests.vllm.cache import VOCABULARY, python

READY_SECONDS: Final = 900.0
STOP_SECONDS: Final = 60.0
ASK_SECONDS: Final = 60.0
WAIT_SECONDS: Final = 60.0
TRIES: Final = 20
RUNNING: Final = "vllm:num_requests_running"
WAITING: Final = "vllm:num_requests_waiting"
ENDED: Final = "vllm:request_success_total"
ENVIRONMENT_VARIABLES: Final = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_COLOR": "0",
}


class VllmDidNotStart(Exception):
    """vLLM ended, or was not ready in time; the message carries the end of its log."""


@dataclass(frozen=True, slots=True)
class Vllm:
    """A running server: its address without a path, and the name of its model."""

    url: str
    model: str

    async def metrics(self) -> str:
        """Its page of metrics."""
        # without TLS, whose certificates take longer to read than the answer
        async with httpx.AsyncClient(timeout=ASK_SECONDS, verify=False) as client:
            return (await client.get(f"{self.url}/metrics")).text

    async def until_running(self, count: int, *, deadline_seconds: float = WAIT_SECONDS) -> None:
        """Wait until exactly so many requests are in the engine; TimeoutError if that does not come true."""
        async with asyncio.timeout(deadline_seconds):
            while running_in(await self.metrics()) != count:
                await asyncio.sleep(0.05)

    async def until_aborted(self, act: Callable[[], Awaitable[object]]) -> None:
        """Begin a generation and leave it, again until one was aborted: none has come to an end of its own.

        While it generates, vLLM hears of nothing new for seconds now and then, of no question and of no goodbye.
        """
        for _ in range(TRIES):
            await self.until_running(0)
            before = await self.ended()
            await act()
            await self.until_running(0)
            if await self.ended() == before:
                return
        raise AssertionError(f"none of {TRIES} generations was aborted")

    async def ended(self) -> int:
        """How many requests have come to an end of their own since its start; an aborted one never does."""
        return total_in(await self.metrics(), ENDED)


def running_in(metrics: str) -> int:
    """The number of requests in the engine, at work or in its queue, in a page of Prometheus metrics."""
    return total_in(metrics, RUNNING) + total_in(metrics, WAITING)


def total_in(metrics: str, name: str) -> int:
    """The sum over all labels of a metric in a page."""
    values = [line.rpartition(" ")[2] for line in metrics.splitlines() if line.startswith(f"{name}{{")]
    if not values:
        raise LookupError(f"no {name} in the metrics")
    return sum(int(float(value)) for value in values)


@contextmanager
def vllm_server(model: Path, name: str, log: Path, flags: Sequence[str] = ()) -> Iterator[Vllm]:
    """Serve the model folder under this name on a port of its own, with the log in a file, while the context lasts."""
    port = free_port()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command(model, name, port, flags),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | ENVIRONMENT_VARIABLES | {"TIKTOKEN_ENCODINGS_BASE": str(VOCABULARY.folder)},
            start_new_session=True,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_ready(process, url, log)
            yield Vllm(url, name)
        finally:
            stop(process)


def command(model: Path, name: str, port: int, flags: Sequence[str]) -> list[str]:
    """The command line. `setpriv`, where there is one, ends vLLM when this process dies without a word.

    Eager, and TORCH_COMPILE_DISABLE for what is compiled nevertheless (logprobs): compiling takes a minute and a C++
    compiler, and without one the first request for logprobs kills the engine. The module, not the `vllm` command: that
    one looks for a distribution named vllm, and this one is vllm-cpu.
    """
    leash = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
    server = [str(python()), "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"]
    place = ["--host", "127.0.0.1", "--port", str(port), "--model", str(model), "--served-model-name", name]
    return [*leash, *server, *place, *flags]


def wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Wait for /health to answer 200, but not for ever, and not for a dead process."""
    deadline = time.monotonic() + READY_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if healthy(url):
            return
        time.sleep(0.2)
    fate = "was not ready in time" if process.poll() is None else f"ended with {process.returncode}"
    raise VllmDidNotStart(f"vLLM {fate}; the end of {log}:\n{tail(log)}")


def healthy(url: str) -> bool:
    """Whether the server answers."""
    try:
        return httpx.get(f"{url}/health", timeout=ASK_SECONDS, verify=False).status_code == 200
    except httpx.TransportError:
        return False


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask the whole process group to end, then make it."""
    signal_group(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_SECONDS)
    signal_group(process.pid, signal.SIGKILL)
    process.wait()


def signal_group(group: int, number: signal.Signals) -> None:
    """Signal a group that may be gone already."""
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def tail(log: Path, lines: int = 40) -> str:
    """The last lines of a log."""
    text: list[str] = log.read_text("utf-8", "replace").splitlines()
    return "\n".join(text[-lines:])
