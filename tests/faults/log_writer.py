"""A writing process of its own, for tests that kill or stop it.

`python -m tests.faults.log_writer URL PREFIX STREAMS [stop-in-commit]` opens streams and appends to all of them until
it is fenced, telling on standard output what was acknowledged: `response version`. At `fenced` it ends.
"""

import asyncio
import os
import signal
import sys

from app.errors import Fenced
from app.log.commit import CrashPoints
from app.log.sql import SqlLog, open_log
from tests.contracts.logs import LEASE_SECONDS, Run
from tests.contracts.sharing import HASTY


def say(line: str) -> None:
    """Tell the parent; a pipe write this short is never torn."""
    os.write(1, f"{line}\n".encode())


async def write(log: SqlLog, response_id: str) -> None:
    """Append for ever, in changing sizes."""
    run = await Run(log, response_id).open()
    say(f"{response_id} {run.version}")
    while True:
        for count in (1, 2, 1, 3, 1, 20):
            await run.append(count, tokens=range(count), status="in_progress" if count == 3 else None)
            say(f"{response_id} {run.version}")
            await asyncio.sleep(0.002)


async def beat(log: SqlLog) -> None:
    """Say that we live."""
    while True:
        await log.beat()
        await asyncio.sleep(LEASE_SECONDS / 5)


def stop_in_fifth_commit() -> CrashPoints:
    """Stop this process inside the transaction of a later commit."""
    commits = iter(range(1_000_000))

    def stop() -> None:
        if next(commits) == 5:
            say("stopping")
            os.kill(os.getpid(), signal.SIGSTOP)

    return CrashPoints(before_commit=stop)


async def main(url: str, prefix: str, streams: str, *options: str) -> None:
    """Write until fenced."""
    points = stop_in_fifth_commit() if "stop-in-commit" in options else None
    log = await open_log(url, lease_seconds=LEASE_SECONDS, pace=HASTY, crash_points=points)
    await log.register()
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(beat(log))
            for number in range(int(streams)):
                tasks.create_task(write(log, f"{prefix}_{number}"))
    except* Fenced:
        say("fenced")
    await log.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
