"""A TCP connection's way to a server that can be cut or stopped up: what a client sees when the server dies or stalls.

A test that acts in the middle of an answer rations it first, so that the middle waits for the test.
"""

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import inf
from typing import Any, Final

SOME_BYTES: Final = 20_000
"""Of vLLM's answers: some dozens of tokens, if they come one by one."""

BYTES_FOR_EACH_TOKEN: Final[dict[str, Any]] = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
"""Ask so, and no ration holds a long answer: else a vLLM that is late tells many tokens at once, in few bytes."""

_BYTES: Final = 4096
_PIECE: Final = re.compile(rb".*?\n\n|.+", re.DOTALL)  # up to the end of an event, or of what was read


class Cable:
    """Passes everything on, both ways, as far as the ration of answers goes; can drop all that runs through it."""

    def __init__(self, listener: socket.socket, host: str, port: int) -> None:
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self.connections = 0
        self._listener, self._end = listener, (host, port)
        self._whole: list[_Connection] = []
        self._left: float = inf
        self._changed = threading.Condition()

    def ration(self, answers: float) -> None:
        """Let so many more bytes of answers through, the last event whole, and nothing after it; `inf` opens it."""
        with self._changed:
            self._left = answers
            self._changed.notify_all()

    def cut(self) -> None:
        """Drop every open connection; new ones are served."""
        with self._changed:
            for connection in self._whole:
                connection.cut()
            self._whole.clear()
            self._changed.notify_all()

    def serve(self) -> None:
        """Pass on until the listener is closed."""
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                connection = _Connection(near, socket.create_connection(self._end))
                with self._changed:
                    self._whole.append(connection)
                    self.connections += 1
                threading.Thread(target=self._carry, args=(connection,), daemon=True).start()

    def _carry(self, connection: "_Connection") -> None:
        """Both ways until one end has gone. Who passes on closes: else another's socket could get its number."""
        with connection.near, connection.far:
            back = threading.Thread(target=self._pass_back, args=(connection,), daemon=True)
            back.start()
            with suppress(OSError):
                while said := connection.near.recv(_BYTES):
                    connection.far.sendall(said)
            self._end_of(connection)
            back.join()

    def _pass_back(self, connection: "_Connection") -> None:
        begun = False  # an event has begun, and not ended
        with suppress(OSError):
            while said := connection.far.recv(_BYTES):
                for piece in _PIECE.findall(said):
                    self._spend(len(piece), connection, at_once=begun)
                    connection.near.sendall(piece)
                    begun = not piece.endswith(b"\n\n")
        self._end_of(connection)

    def _spend(self, count: int, connection: "_Connection", *, at_once: bool) -> None:
        """Take this much from the ration, or wait for it; ConnectionError when it is cut meanwhile."""
        with self._changed:
            self._changed.wait_for(lambda: connection.is_cut or at_once or self._left > 0)
            if connection.is_cut:
                raise ConnectionError
            self._left -= count

    def _end_of(self, connection: "_Connection") -> None:
        with self._changed:
            connection.cut()
            self._changed.notify_all()


class _Connection:
    """A client's end and the server's."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.near, self.far = near, far
        self.is_cut = False

    def cut(self) -> None:
        """Both hear that it has ended."""
        self.is_cut = True
        for end in self.near, self.far:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def cable_to(url: str) -> Iterator[Cable]:
    """A cable to the server at this URL, while the context lasts."""
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        cable = Cable(listener, host, int(port))
        thread = threading.Thread(target=cable.serve)
        thread.start()
        try:
            yield cable
        finally:
            cable.ration(inf)
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            cable.cut()
