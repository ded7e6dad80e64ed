"""How long the disk takes for a small durable write, measured beside a load: the floor of every strict commit."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_BLOCK: Final = os.urandom(4096)
_PAUSE_SECONDS: Final = 0.02


class FsyncWatch:
    """The times of 4 kB appends with fsync, about fifty a second."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stop = threading.Event()
        self._taken: list[float] = []

    @property
    def taken_ms(self) -> list[float]:
        """What they took, sorted, in milliseconds."""
        return sorted(self._taken)

    def run(self) -> None:
        """Write until told to stop."""
        with self._path.open("ab", buffering=0) as file:
            while not self._stop.wait(_PAUSE_SECONDS):
                began = time.perf_counter()
                file.write(_BLOCK)
                os.fsync(file.fileno())
                self._taken.append((time.perf_counter() - began) * 1000)

    def stop(self) -> None:
        """Write no more."""
        self._stop.set()


@contextmanager
def watched(folder: Path) -> Iterator[FsyncWatch]:
    """Watch the disk of this folder as long as the block lasts."""
    watch = FsyncWatch(folder / "fsync.probe")
    thread = threading.Thread(target=watch.run, name="fsync-watch")
    thread.start()
    try:
        yield watch
    finally:
        watch.stop()
        thread.join()
