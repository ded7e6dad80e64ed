"""Bodies that clients send compressed: `Content-Encoding: gzip` and `zstd`, read no further than a body may be long."""

import gzip
import io
import zlib
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import zstandard

from app.api.checks import one_of, quoted
from app.errors import InvalidRequest, UnsupportedEncoding

IDENTITY: Final = "identity"
_WINDOW: Final = 8 * 1024 * 1024  # bytes; what RFC 9659 lets a sender of zstd ask of a reader


class _Reader(Protocol):
    def read(self, size: int, /) -> bytes: ...


class Decoder:
    """Reads bodies of one `Content-Encoding`. Raises UnsupportedEncoding for one that is not read here."""

    def __init__(self, header: str) -> None:
        self.encoding = header.strip().lower() or IDENTITY
        if self.encoding != IDENTITY and self.encoding not in _OPEN:
            raise UnsupportedEncoding(
                f"The request body has the Content-Encoding {quoted(header)}; this server reads {one_of(NAMES)}."
            )

    def decode(self, body: bytes, limit: int) -> bytes:
        """At most `limit` bytes, and one more when there are more. Raises InvalidRequest for what is no such body."""
        try:
            return _OPEN[self.encoding](body).read(limit + 1)
        except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
            raise InvalidRequest(f"The request body is not {self.encoding}, as its Content-Encoding says.") from error


def _gzip(body: bytes) -> _Reader:
    return gzip.GzipFile(fileobj=io.BytesIO(body))


def _zstd(body: bytes) -> _Reader:
    return zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(body, read_across_frames=True)


NAMES: Final = ("gzip", "zstd")
_OPEN: Final[Mapping[str, Callable[[bytes], _Reader]]] = {"gzip": _gzip, "x-gzip": _gzip, "zstd": _zstd}
