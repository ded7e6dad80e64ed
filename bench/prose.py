"""English text to be said by scripted models: compresses like what real models say, and is in every Python."""

import json
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from pydoc_data.topics import topics
from typing import Final

CHARACTERS_PER_TOKEN: Final = 4


def prose(tokens: int, *, part: int = 0) -> str:
    """Text of about so many tokens; each part is another one, until the text begins anew."""
    whole = "\n".join(text for text in topics.values() if "<|" not in text)
    size = tokens * CHARACTERS_PER_TOKEN
    start = part * size % (len(whole) - size)
    return whole[start : start + size]


def write_script(path: Path, tokens: Sequence[int], *, pace_ms: float) -> Path:
    """A script for the scripted engine: one answer of about so many tokens after the other."""
    offsets = [0, *accumulate(tokens)]
    outputs = [
        {"text": f"<|channel|>final<|message|>{prose(count, part=offsets[i] // count)}<|return|>", "pace_ms": pace_ms}
        for i, count in enumerate(tokens)
    ]
    path.write_text(json.dumps({"outputs": outputs}))
    return path
