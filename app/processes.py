"""Several API processes on one machine: one listening socket, children that are started again, one signal for all."""

import asyncio
import os
import signal
import socket
import sys
from typing import Final

import structlog

from app.errors import SettingsError
from app.meters import SharedMeters, shared_meters
from app.settings import Settings

WRONG_SETTING: Final = 2  # exit code: starting it again would not help
_PAUSE_SECONDS: Final = 1.0  # before a child that died is started again
_LOGGER: Final = structlog.get_logger()


async def stop_when_orphaned(parent: int) -> None:
    """In a child: when the parent is gone, drain as on a signal. Nobody else would send one."""
    while os.getppid() == parent:  # noqa: ASYNC110 - nothing tells us but asking
        await asyncio.sleep(_PAUSE_SECONDS)
    _LOGGER.warning("parent_died")
    os.kill(os.getpid(), signal.SIGTERM)


class Siblings:
    """Runs `settings.processes` children on one socket until a signal."""

    def __init__(self, settings: Settings, listening: socket.socket) -> None:
        self._count = settings.processes
        self._listening = listening
        works = "--worker" if settings.worker else "--no-worker"
        self._options = ("--database-url", settings.database_url, works)
        self._children: set[asyncio.subprocess.Process] = set()
        self._ending = asyncio.Event()

    async def run(self) -> None:
        """Serve until a signal, then pass it on and wait. Raises SettingsError when a child refuses its settings."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end, number)
        try:
            with shared_meters() as meters:
                async with asyncio.TaskGroup() as keepers:
                    for place in range(self._count):
                        keepers.create_task(self._keep(place, meters), name=f"process {place}")
        except* SettingsError as group:
            raise group.exceptions[0] from None

    def _end(self, number: int) -> None:
        self._ending.set()
        for child in self._children:
            child.send_signal(number)

    async def _keep(self, place: int, meters: SharedMeters) -> None:
        """Keep one child running."""
        while not self._ending.is_set():
            code = await self._child(meters)
            if code == WRONG_SETTING:
                self._end(signal.SIGTERM)
                raise SettingsError("A server process refused its settings; its own sentence stands above.")
            if not self._ending.is_set():
                _LOGGER.warning("process_died", place=place, code=code)
                await self._pause()

    async def _child(self, meters: SharedMeters) -> int:
        fd = self._listening.fileno()
        command = (sys.executable, "-m", "app.cli", "child", str(fd), str(os.getpid()), *self._options)
        environment = {**os.environ, **meters.variables}
        child = await asyncio.create_subprocess_exec(*command, env=environment, pass_fds=[fd], start_new_session=True)
        self._children.add(child)
        try:
            if self._ending.is_set():
                child.terminate()
            return await child.wait()
        finally:
            self._children.discard(child)
            meters.died(child.pid)

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(_PAUSE_SECONDS):
                await self._ending.wait()
        except TimeoutError:
            return
