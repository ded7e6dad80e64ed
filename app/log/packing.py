"""The stored forms: a format byte, then zstd over msgpack. Old rows stay readable when a new format gets a new byte."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
import zstandard

UNREADABLE: Final = (ValueError, msgspec.MsgspecError, zstandard.ZstdError)
"""What unpacking raises: the bytes are broken, or of a newer version."""

_ZSTD_MSGPACK: Final = b"\x01"

TokenRun = tuple[int, Sequence[int]]
"""The position of an append's first event, and the tokens that produced the append."""


class Entry(NamedTuple):
    """One append inside a journal row. `ends`: its last event is the terminal event."""

    response: str
    first: int
    events: Sequence[bytes]
    tokens: Sequence[int]
    ends: bool


class Folded(NamedTuple):
    """An entry whose events and tokens are not unpacked yet: most readers want few responses of a row."""

    response: str
    first: int
    events: msgspec.Raw
    tokens: msgspec.Raw
    ends: bool


_ENCODER: Final = msgspec.msgpack.Encoder(enc_hook=list)  # tokens may be any kind of sequence
_FOLDED: Final = msgspec.msgpack.Decoder(list[Folded])
_EVENTS: Final = msgspec.msgpack.Decoder(list[bytes])
_TOKENS: Final = msgspec.msgpack.Decoder(list[int])
_RUNS: Final = msgspec.msgpack.Decoder(list[tuple[int, list[int]]])


class Packing:
    """Packs and unpacks. One per thread: zstd contexts are kept, and are not to be shared."""

    def __init__(self) -> None:
        self._compressor = zstandard.ZstdCompressor(level=1)  # as small as level 3 here (measured), and faster
        self._decompressor = zstandard.ZstdDecompressor()

    def batch(self, entries: Sequence[Entry]) -> bytes:
        """A journal row."""
        return _ZSTD_MSGPACK + self._compressor.compress(_ENCODER.encode(entries))

    def events(self, events: Sequence[bytes]) -> bytes:
        """The events of a segment."""
        return _ZSTD_MSGPACK + self._compressor.compress(_ENCODER.encode(events))

    def tokens(self, runs: Sequence[TokenRun]) -> bytes | None:
        """The tokens of a segment; None when there are none."""
        return _ZSTD_MSGPACK + self._compressor.compress(_ENCODER.encode(runs)) if runs else None

    def entries(self, batch: bytes) -> list[Folded]:
        """What is in a journal row."""
        return _FOLDED.decode(self._open(batch))

    def events_in(self, segment: bytes) -> list[bytes]:
        """What is in a segment."""
        return _EVENTS.decode(self._open(segment))

    def runs_in(self, tokens: bytes | None) -> list[tuple[int, list[int]]]:
        """The tokens of a segment, by append."""
        return _RUNS.decode(self._open(tokens)) if tokens else []

    def _open(self, blob: bytes) -> bytes:
        if blob[:1] != _ZSTD_MSGPACK:
            raise ValueError(f"stored with format {blob[:1].hex() or 'none'}, which this version does not know")
        return self._decompressor.decompress(memoryview(blob)[1:])


def unfold(folded: Folded) -> Entry:
    """Unpack the events and tokens of an entry."""
    response, first, events, tokens, ends = folded
    return Entry(response, first, _EVENTS.decode(events), _TOKENS.decode(tokens), ends)
