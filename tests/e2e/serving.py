"""Real `verbatim serve` processes on one database: started, stopped, killed, and held to account at the end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import httpx
from typer.testing import CliRunner

from app.cli import cli

VERBATIM: Final = Path(sys.executable).with_name("verbatim")
START_SECONDS: Final = 120.0
STOP_SECONDS: Final = 60.0
WAIT_SECONDS: Final = 60.0
POLL_SECONDS: Final = 0.01
# `verbatim`, but who is not woken does not look for what is queued either.
ONLY_WHEN_WOKEN: Final = """
from dataclasses import replace
from app import cli, main
pace = main._pace
main._pace = lambda settings: replace(pace(settings), claim=3600.0)
cli.main()
"""

T = TypeVar("T")


def eventually(look: Callable[[], T], *, within: float = WAIT_SECONDS, what: str = "it") -> T:
    """Look again and again until there is something to see, and give that. Fails at the deadline."""
    deadline = time.monotonic() + within
    while not (seen := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not happen within {within} s")
        time.sleep(POLL_SECONDS)
    return seen


def get(url: str) -> httpx.Response:
    """Ask without a client, however long the answer takes."""
    # without TLS, whose certificates take longer to read than the answer
    return httpx.get(url, timeout=WAIT_SECONDS, verify=False)


def environment(**settings: Any) -> dict[str, str]:
    """The environment of a process with these settings, and with no others."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("VERBATIM_")}
    return inherited | {f"VERBATIM_{name.upper()}": str(value) for name, value in settings.items()}


def verify(database_url: str) -> str:
    """What `verbatim verify` says; it must find no difference."""
    verified = CliRunner().invoke(cli, ["verify", "--database-url", database_url])
    assert verified.exit_code == 0, verified.output
    return verified.output


class Server:
    """A `verbatim serve` process (or another `command`, its options behind it) in a folder of its own."""

    def __init__(
        self, folder: Path, settings: dict[str, Any], *, command: str = "serve",
        program: Sequence[str | Path] = (VERBATIM,),
    ) -> None:  # fmt: skip
        folder.mkdir(parents=True)
        self._output, self._errors = folder / "stdout", folder / "stderr"
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [*program, *command.split()], cwd=folder, env=environment(**settings), stdout=output, stderr=errors
            )
        self.url = ""

    def await_health(self) -> Self:
        """Wait until it answers; `url` is known from then on."""
        eventually(self._is_healthy, within=START_SECONDS, what=f"the start of a server ({self.process.args})")
        return self

    @property
    def stdout(self) -> str:
        """What it printed."""
        return self._output.read_text()

    @property
    def stderr(self) -> str:
        """What it logged."""
        return self._errors.read_text()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def wait(self) -> int:
        """Wait for its end; gives the exit code."""
        return self.process.wait(STOP_SECONDS)

    def stop(self) -> int:
        """SIGTERM, and wait."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """SIGKILL: no chance to do anything."""
        self.process.kill()
        self.process.wait()

    def _is_healthy(self) -> bool:
        assert self.process.poll() is None, f"the server ended with {self.process.returncode}:\n{self.stderr}"
        line, ended, _ = self.stdout.partition("\n")
        if not ended:
            return False
        self.url = line.rpartition(" ")[2]
        try:
            return get(f"{self.url}/health").status_code == 200
        except httpx.TransportError:
            return False


class Fleet:
    """The servers on one database. Leaving it stops them and checks what they leave behind."""

    def __init__(self, folder: Path, database_url: str, **settings: Any) -> None:
        self.database_url = database_url
        self._folder = folder
        self._settings = {"port": 0, "database_url": database_url, "drain_seconds": 1} | settings
        self._servers: list[Server] = []

    def launch(self, *, command: str = "serve", program: Sequence[str | Path] = (VERBATIM,), **settings: Any) -> Server:
        """Begin to start one more; say `await_health` before it is used."""
        folder = self._folder / f"server-{len(self._servers)}"
        self._servers.append(Server(folder, self._settings | settings, command=command, program=program))
        return self._servers[-1]

    def start(self, **settings: Any) -> Server:
        """One more server, with settings of its own."""
        return self.launch(**settings).await_health()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        running = [server for server in self._servers if server.process.poll() is None]
        for server in running:
            server.signal(signal.SIGTERM)
        try:
            codes = [server.wait() for server in running]
        finally:
            for server in running:
                server.kill()
        if error is None:
            self._hold_to_account(codes)

    def _hold_to_account(self, codes: list[int]) -> None:
        assert codes == [0] * len(codes), "\n".join(server.stderr for server in self._servers)
        for server in self._servers:
            assert "Traceback" not in server.stderr, server.stderr
        verify(self.database_url)
