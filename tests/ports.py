"""TCP ports for tests that run beside each other."""

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager

_PORTS = range(20_000, 32_000)  # below those that the system gives out by itself, to clients too
_claims: list[socket.socket] = []


def free_port() -> int:
    """A port that nobody uses now, and that no other test is told, whichever process runs it, while this one lives."""
    for port in random.SystemRandom().sample(_PORTS, 1_000):
        # the UDP port of this number is the claim, which the system takes back when this process ends
        claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            claim.bind(("127.0.0.1", port))
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        return port
    raise RuntimeError("no port is free")


@contextmanager
def refusing_port() -> Iterator[int]:
    """A port that refuses all connections as long as the block lasts: it is taken, and nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield int(taken.getsockname()[1])
