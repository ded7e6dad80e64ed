"""A slow world: the log's commits, questions and words to Redis wait at random, in every process of the tests.

Python imports this at its start when the folder is on its path (`make test-slow`). It finds tests that depend on how
fast something in the background is: what fails here and nowhere else is red in CI one day.
"""

import asyncio
import importlib.abc
import importlib.machinery
import random
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Final, NamedTuple

LEASE_SECONDS: Final = 0.4  # the shortest of the tests: most pauses are shorter


class Slow(NamedTuple):
    """Something that is waited for: now and then a pause before it, and after it, before its answer is heard."""

    owner: str
    method: str
    seconds: float


SLOW: Final = {
    "app.log.postgres": Slow("PostgresDriver", "commit", LEASE_SECONDS / 4),
    "app.log.sqlite": Slow("SqliteDriver", "commit", LEASE_SECONDS / 4),
    "app.log.database": Slow("Database", "_finished", LEASE_SECONDS / 4),
    "app.log.redis": Slow("_Mouth", "_send", LEASE_SECONDS),
}
CHANCE: Final = 0.3
LONG_CHANCE: Final = 0.03
LONG_SECONDS: Final = 2 * LEASE_SECONDS


async def _pause(seconds: float) -> None:
    chance = random.random()
    if chance < LONG_CHANCE:
        await asyncio.sleep(random.uniform(0, LONG_SECONDS))
    elif chance < CHANCE:
        await asyncio.sleep(random.uniform(0, seconds))


def _slow_down(module: ModuleType, slow: Slow) -> None:
    owner = getattr(module, slow.owner)
    quick = getattr(owner, slow.method)

    async def slowly(*arguments: Any, **options: Any) -> Any:
        await _pause(slow.seconds)
        answer = await quick(*arguments, **options)
        await _pause(slow.seconds)
        return answer

    setattr(owner, slow.method, slowly)


class _SlowModules(importlib.abc.MetaPathFinder):
    """Finds what the others find, and slows it down once it is there."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in SLOW:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next((found for finder in others if (found := finder.find_spec(name, path, target))), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_slow_down(module: ModuleType) -> None:
                execute(module)
                _slow_down(module, SLOW[name])

            spec.loader.exec_module = execute_and_slow_down  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _SlowModules())
