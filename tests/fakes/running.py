"""Run the fake vLLM as a process of its own: its port, helpers over its control API, and its end."""

import asyncio
import http.client
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
WAIT_SECONDS = 45.0


class FakeVllm:
    """A running fake. `url` is the base URL for an engine, ending in `/v1`."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}/v1"

    def script(self, *queue: dict[str, Any], **settings: Any) -> None:
        """Forget everything, then queue these scripts (the last one becomes the default too)."""
        default = {key: value for key, value in queue[-1].items() if key != "repeat"} if queue else None
        self._call("POST", "/__script", {"reset": True, "queue": list(queue), "default": default, **settings})

    def log(self) -> list[dict[str, Any]]:
        """The requests it has seen since the last script."""
        return self._call("GET", "/__log")["requests"]

    def last(self) -> dict[str, Any]:
        """The newest request."""
        return self.log()[-1]

    def release(self) -> None:
        """Let the generations go on that are held: by the fault `hold`, or before a fault that is `held`."""
        self._call("POST", "/__release")

    def active(self) -> int:
        """How many generations run."""
        return self._call("GET", "/__active")["active"]

    async def wait(self, condition: Callable[["FakeVllm"], bool]) -> None:
        """Wait until something is true of it, while the event loop goes on."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition(self):
            if time.monotonic() > deadline:
                raise AssertionError(f"did not happen in {WAIT_SECONDS} s; log: {self._call('GET', '/__log?brief=1')}")
            await asyncio.sleep(0.005)

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_SECONDS)
        try:
            connection.request(method, path, json.dumps(body), {"Connection": "close"})
            answer = connection.getresponse()
            data = answer.read()
            assert answer.status == 200, data
            return json.loads(data or b"null")
        finally:
            connection.close()


@contextmanager
def fake_vllm(*arguments: str) -> Iterator[FakeVllm]:
    """A fake vLLM with these command line arguments, as long as the block lasts."""
    command = [sys.executable, "-m", "tests.fakes.fake_vllm", "--port", "0", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield FakeVllm(_port_of(process))
        finally:
            process.kill()


def _port_of(process: subprocess.Popen[str]) -> int:
    """Where it listens, which it says when it does."""
    assert process.stdout is not None
    found = re.search(r"http://[\d.]+:(\d+) ", process.stdout.readline())
    assert found is not None, "the fake vLLM did not come up"
    return int(found[1])
