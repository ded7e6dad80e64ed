"""Random digits for ids."""

import secrets
from typing import Final

_BATCH_BYTES: Final = 4096  # one system call gives the digits of some hundred ids


class Dice:
    """Hexadecimal digits from the system's randomness, read in batches."""

    def __init__(self) -> None:
        self._digits = ""

    def digits(self, count: int) -> str:
        """So many digits that were never given before."""
        if len(self._digits) < count:
            self._digits = secrets.token_hex(_BATCH_BYTES)
        given, self._digits = self._digits[:count], self._digits[count:]
        return given
