"""The composition root: settings in, a running server out. The only module that knows every part."""

import asyncio
import gc
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from starlette.types import ASGIApp

from app import telemetry
from app.api.application import build_app
from app.api.metrics import metrics_route
from app.api.options import EdgeOptions
from app.api.probes import build_probes
from app.assembly import UNNAMED, Assembly
from app.errors import EngineLacksModel
from app.log.memory import MemoryLog
from app.log.schema import migrate as migrate_database
from app.log.soundness import check_file
from app.log.sql import SqlLog, open_log
from app.log.tail import NoTail
from app.meters import Meters
from app.ports import Tail
from app.processes import Siblings, stop_when_orphaned
from app.runtime.dice import Dice
from app.runtime.registry import Registry
from app.runtime.reporting import Reporter
from app.runtime.run import Run
from app.runtime.runs import Runs
from app.runtime.service import Logs, Responses
from app.runtime.workers import Pace, Worker
from app.runtime.writer import Chance
from app.serving import address_of, bound_socket, configuration, serve_until_signal
from app.settings import Settings

_SECONDS_A_DAY: Final = 86_400.0
_BEAT_SECONDS: Final = 0.5  # a cancel flag set by another process is seen within it


async def serve(settings: Settings) -> None:
    """Migrate, serve until a signal, drain. Raises SettingsError before anything is served."""
    telemetry.configure(settings.log_level)
    with bound_socket(settings.host, settings.port) as listening:
        await migrate_database(settings.database_url)
        if settings.processes > 1:
            announce(address_of(listening), settings)
            await Siblings(settings, listening).run()
            return
        async with _running(settings) as assembled:
            announce(address_of(listening), settings)
            config = configuration(assembled.app, settings.receive_seconds)
            await serve_until_signal(config, listening, assembled.runs.drain, settings.drain_seconds)


async def serve_as_child(settings: Settings, inherited_fd: int, parent: int) -> None:
    """Serve on a socket that the parent opened, which has also migrated."""
    telemetry.configure(settings.log_level)
    with socket.socket(fileno=inherited_fd) as listening:
        async with _running(settings) as assembled, asyncio.TaskGroup() as tasks:
            orphaned = tasks.create_task(stop_when_orphaned(parent), name="parent")
            config = configuration(assembled.app, settings.receive_seconds)
            await serve_until_signal(config, listening, assembled.runs.drain, settings.drain_seconds)
            orphaned.cancel()


async def work(settings: Settings) -> None:
    """Run background responses and no API; only the probes are served."""
    telemetry.configure(settings.log_level)
    with bound_socket(settings.host, settings.port) as listening:
        await migrate_database(settings.database_url)
        async with _running(settings) as assembled:
            sys.stdout.write(f"Verbatim works; probes on {address_of(listening)}\n")
            sys.stdout.flush()
            config = configuration(assembled.probes, settings.receive_seconds)
            await serve_until_signal(config, listening, assembled.runs.drain, settings.drain_seconds)


async def migrate(settings: Settings) -> None:
    """Bring the database to the newest schema."""
    await migrate_database(settings.database_url)


async def check(settings: Settings) -> None:
    """Raises LogDamaged when the database file is not whole."""
    await check_file(settings.database_url)


@asynccontextmanager
async def reading(settings: Settings) -> AsyncIterator[SqlLog]:
    """The log, for reading only: this process does not become a writer."""
    log = await open_log(settings.database_url, lease_seconds=settings.lease_seconds)
    try:
        yield log
    finally:
        await log.close()


@dataclass(frozen=True, slots=True)
class Assembled:
    """What one process of the server is made of, as its front door sees it."""

    app: ASGIApp
    probes: ASGIApp
    runs: Runs


@asynccontextmanager
async def _running(settings: Settings) -> AsyncIterator[Assembled]:
    """All parts, started and wired."""
    assembly = Assembly(settings)
    chance = Chance(now=time.time, digits=Dice().digits)
    registry = Registry([assembly.source(model) for model in settings.served()], time.monotonic)
    log = await open_log(
        settings.database_url,
        tail=_tail(settings),
        durability=settings.durability,
        lease_seconds=settings.lease_seconds,
        wait_seconds=settings.database_wait_seconds,
    )
    try:
        await log.register()
        async with Runs(settings.max_concurrent_runs) as runs, asyncio.TaskGroup() as tasks:
            worker, meters = Worker(log, registry, runs, chance, _pace(settings)), Meters()
            _wire(log, registry, runs, worker, meters)
            working = tasks.create_task(worker.work() if settings.worker else worker.keep_watch(), name="worker")
            greeting = tasks.create_task(registry.greet(), name="greeting")
            logs = Logs(log, MemoryLog(keep_finished=False))
            service = Responses(logs, registry, runs, chance, settings.max_queued_runs)
            metrics = metrics_route(meters, log.waiting)
            app = build_app(
                service, api_keys=settings.api_keys, options=_edge(settings), meters=meters, routes=[metrics]
            )
            assembled = Assembled(app, build_probes(service, [metrics]), runs)
            gc.freeze()  # all this lives as long as the process: a look through it would hold up every stream by 0.1 s
            yield assembled
            working.cancel()
            greeting.cancel()
    finally:
        await log.close()
        await assembly.close()


def _tail(settings: Settings) -> Tail:
    if settings.redis_url is None:
        return NoTail()
    from app.log.redis import RedisTail  # here, because few have one, and its client takes long to load

    return RedisTail(settings.redis_url)


def _wire(log: SqlLog, registry: Registry, runs: Runs, worker: Worker, meters: Meters) -> None:
    """Who is called when something happens elsewhere."""
    reporter = Reporter(meters)

    def fenced() -> None:
        meters.fenced()
        runs.abort(log)

    def ended(run: Run) -> None:
        reporter.ended(run)
        if isinstance(run.error, EngineLacksModel):
            registry.doubt(run.header.model)

    log.on_queued, log.on_cancel, log.on_fenced, log.on_commit = worker.wake, runs.stop, fenced, meters.committed
    log.on_lag = meters.tail_lagged
    runs.on_free, runs.on_begin, runs.on_end = worker.place_freed, reporter.began, ended


def _pace(settings: Settings) -> Pace:
    lease = settings.lease_seconds
    return Pace(
        beat=min(_BEAT_SECONDS, lease / 4),
        bury=min(1.0, lease / 4),
        claim=1.0,
        retention_seconds=settings.retention_days * _SECONDS_A_DAY,
    )


def _edge(settings: Settings) -> EdgeOptions:
    return EdgeOptions(
        default_model=settings.model,
        max_body_bytes=settings.max_body_bytes,
        keep_alive_seconds=settings.keep_alive_seconds,
        cors_origins=sorted(settings.cors_origins),
    )


def announce(address: str, settings: Settings) -> None:
    served = settings.served()[0]
    model = settings.model or served.name or UNNAMED.get(served.engine)
    key = " -H 'Authorization: Bearer YOUR_KEY'" if settings.api_keys else ""
    names = "" if model else f"curl {address}/v1/models{key}  # lists what may stand for MODEL\n"
    sys.stdout.write(
        f"Verbatim serves on {address}\n{names}"
        f"curl {address}/v1/responses{key} -H 'Content-Type: application/json' "
        f"""-d '{{"model": "{model or "MODEL"}", "input": "Say hello."}}'\n"""
    )
    sys.stdout.flush()
