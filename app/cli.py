"""The command line: serve, worker, migrate, tail, verify."""

import importlib
import sys
from collections.abc import Coroutine
from types import ModuleType
from typing import Annotated, Any, TypeVar

import typer
import uvloop

from app import __version__
from app.errors import LogDamaged, ResponseNotFound, SettingsError
from app.runtime.verification import verdicts
from app.settings import Settings, load_settings

T = TypeVar("T")

cli = typer.Typer(
    add_completion=False,
    help="An event-sourced Responses API server.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,  # they show values, and so keys
)
# what typer raises for wrong words; since it has a click of its own, no public module names the class
_WrongUse: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError")

DatabaseUrl = Annotated[str | None, typer.Option(help="sqlite:///PATH or postgresql://…; default: the settings.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"verbatim {__version__}")
        raise typer.Exit


@cli.callback()
def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """An event-sourced Responses API server."""


@cli.command(short_help="Migrate the database, serve the API, and run background responses.")
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.")] = None,
    database_url: DatabaseUrl = None,
    worker: Annotated[bool | None, typer.Option(help="Also run background responses here.")] = None,
    processes: Annotated[int | None, typer.Option(help="API processes; above 1 needs PostgreSQL.")] = None,
) -> None:
    """Migrate the database and serve the API, with a worker for background responses."""
    settings = load_settings(host=host, port=port, database_url=database_url, worker=worker, processes=processes)
    _run(_main().serve(settings))


@cli.command()
def worker(
    host: Annotated[str | None, typer.Option(help="Address for /health, /livez and /metrics.")] = None,
    port: Annotated[int, typer.Option(help="Port for these; 0: any free one.")] = 0,
    database_url: DatabaseUrl = None,
) -> None:
    """Run background responses, for servers started with --no-worker."""
    _run(_main().work(load_settings(host=host, port=port, database_url=database_url, worker=True)))


@cli.command(hidden=True)
def child(
    inherited_fd: int,
    parent: int,
    database_url: DatabaseUrl = None,
    worker: Annotated[bool | None, typer.Option()] = None,
) -> None:
    """One of several processes; `serve --processes N` starts it."""
    _run(
        _main().serve_as_child(
            load_settings(database_url=database_url, worker=worker, processes=1), inherited_fd, parent
        )
    )


@cli.command()
def migrate(database_url: DatabaseUrl = None) -> None:
    """Bring the database to the newest schema."""
    _run(_main().migrate(load_settings(database_url=database_url)))
    typer.echo("The database is up to date.")


@cli.command(short_help="Print the events of a response until its end.")
def tail(
    response_id: Annotated[str, typer.Argument(help="Whose events to print.")],
    after: Annotated[int, typer.Option(help="Print only events after this position.")] = -1,
    database_url: DatabaseUrl = None,
) -> None:
    """Print the events of a response, one JSON object a line, as they come, until its end."""
    _run(_tail(load_settings(database_url=database_url), response_id, after))


@cli.command(short_help="Check everything that is stored.")
def verify(database_url: DatabaseUrl = None) -> None:
    """Fold every log and compare with its terminal event; exit code 1 when one differs, or the file is damaged."""
    sys.exit(1 if _run(_verify(load_settings(database_url=database_url))) else 0)


async def _tail(settings: Settings, response_id: str, after: int) -> None:
    async with _main().reading(settings) as log:
        try:
            async for span in log.subscribe(response_id, after=after):
                for data in span.events:
                    typer.echo(data)
        except ResponseNotFound as error:
            typer.echo(error.message, err=True)
            raise typer.Exit(1) from error


async def _verify(settings: Settings) -> int:
    wrong = ended = unfinished = 0
    try:
        await _main().check(settings)
    except LogDamaged as error:
        typer.echo(error.message, err=True)
        raise typer.Exit(1) from error
    async with _main().reading(settings) as log:
        async for verdict in verdicts(log):
            ended += verdict.has_ended
            unfinished += not verdict.has_ended
            if verdict.difference is not None:
                wrong += 1
                typer.echo(f"{verdict.response_id}: {verdict.difference}")
    typer.echo(f"{ended} responses verified, {unfinished} unfinished, {wrong} differ.")
    return wrong


def _main() -> ModuleType:
    """The composition root, imported when a command needs it: it takes a second."""
    return importlib.import_module("app.main")


def _run(work: Coroutine[Any, Any, T]) -> T:
    return uvloop.run(work)


def main() -> None:
    """Entry point: a wrong setting or option is one sentence and exit code 2."""
    try:
        code = cli(sys.argv[1:] or ["--help"], standalone_mode=False)
    except SettingsError as error:
        typer.echo(error.message, err=True)
        sys.exit(2)
    except _WrongUse as error:
        typer.echo(_sentence(error), err=True)
        sys.exit(2)
    sys.exit(code or 0)


def _sentence(error: Any) -> str:
    """What is wrong with the words of a command, as a wrong setting is told."""
    told = error.format_message()
    if type(error) is typer.BadParameter and error.param is not None:
        told = f"Option {error.param.opts[0]} is wrong: {error.message}"
    return told if told.endswith((".", "?")) else f"{told}."


if __name__ == "__main__":
    main()
