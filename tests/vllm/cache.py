"""Where the real-vLLM tier keeps its environment and its models: outside the checkout, one folder for each recipe.

A folder's name ends in a digest of the files it is made from: a changed recipe is built anew, beside the old one.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent.parent
MODELS: Final = HERE / "models"


def cache_folder() -> Path:
    """$VERBATIM_VLLM_CACHE, or verbatim-vllm in the user's cache folder."""
    chosen = os.environ.get("VERBATIM_VLLM_CACHE")
    if chosen:
        return Path(chosen).expanduser().resolve()
    users = os.environ.get("XDG_CACHE_HOME")
    return (Path(users) if users else Path.home() / ".cache") / "verbatim-vllm"


@dataclass(frozen=True, slots=True)
class Part:
    """Something the installer builds: its name and the files that say how."""

    name: str
    recipe: Sequence[Path]

    @property
    def folder(self) -> Path:
        """Where it lies. It exists only when it was built to its end."""
        digest = hashlib.sha256()
        for path in self.recipe:
            digest.update(path.read_bytes())
        return cache_folder() / f"{self.name}-{digest.hexdigest()[:12]}"


ENVIRONMENT: Final = Part("environment", [MODELS / "requirements.txt"])
VOCABULARY: Final = Part("vocabulary", [MODELS / "vocabulary.py"])
SMOLLM2: Final = Part("smollm2", [MODELS / "requirements.txt", MODELS / "build_smollm2.py"])
GPT_OSS: Final = Part(
    "gpt-oss",
    [
        MODELS / name
        for name in ("requirements.txt", "vocabulary.py", "scenarios.py", "conversations.py", "build_gpt_oss.py")
    ],
)


def python() -> Path:
    """The interpreter of the vLLM environment."""
    return ENVIRONMENT.folder / "bin" / "python"
