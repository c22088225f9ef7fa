"""`holdfast db`: the embedded server by hand."""

import contextlib
import json
import os
import shlex
import signal
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.busy import busy
from holdfast.db.embedded import (
    EmbeddedOptions,
    EmbeddedServer,
    default_path,
    find_binaries,
    parse_embedded_url,
    reset,
    status,
    stop,
)
from holdfast.db.migrate.address import parts_of
from holdfast.errors import ConfigurationError
from holdfast.settings import load_settings

app = typer.Typer(
    help="Start, stop and inspect the embedded PostgreSQL server (development, or one host).",
    no_args_is_help=True,
)

PathOption = Annotated[
    Path | None,
    typer.Option(
        "--path",
        help="The server's folder.",
        show_default="of HOLDFAST_DATABASE_URL, or ./.holdfast/postgres",
    ),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Even while other processes use it.")]
PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True}


def _folder(path: Path | None) -> Path:
    """The one that is named; else the one of the embedded database that the settings name; else the default."""
    url = load_settings().database_url or ""
    if path is None and url.startswith("embedded:"):
        return parse_embedded_url(url)
    return path or default_path()


@app.command("start")
def start_command(
    path: PathOption = None,
    tcp: Annotated[bool, typer.Option("--tcp", help="Also listen on 127.0.0.1, with a password.")] = False,
) -> None:
    """Start the server and leave it running until `holdfast db stop`."""
    with contextlib.ExitStack() as stack:
        with busy("starting PostgreSQL"):
            server = stack.enter_context(EmbeddedServer.acquire(_folder(path), EmbeddedOptions(tcp=tcp)))
            server.ensure_database()
        server.keep_running()
        typer.echo(f"PostgreSQL {server.version} runs in {server.path} (process {server.pid}).")
        typer.echo(server.tcp_dsn() if tcp else server.dsn())


@app.command("stop")
def stop_command(path: PathOption = None, force: ForceOption = False) -> None:
    """Stop the server."""
    folder = _folder(path)
    with busy("stopping PostgreSQL"):
        was_running = stop(folder, force)
    typer.echo(f"Stopped the server in {folder}." if was_running else f"No server runs in {folder}.")


@app.command("status")
def status_command(
    path: PathOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Say whether the server runs."""
    found = status(_folder(path))
    if as_json:
        typer.echo(json.dumps(asdict(found), default=str))
    elif found.state == "running":
        users = "" if found.users is None else f", {found.users} using it"
        kept = ", runs until stopped" if found.kept else ", stops with its last user"
        typer.echo(f"running: PostgreSQL {found.version}, process {found.pid}{users}{kept}\n{found.dsn}")
    else:
        typer.echo(f"stopped: {found.path}" if found.exists else f"stopped: nothing in {found.path} yet")


@app.command("env")
def env_command(path: PathOption = None) -> None:
    """Print PGHOST and the like of the running server, for psql, Django and others: eval "$(holdfast db env)".

    The line is for a shell.
    """
    found = status(_folder(path))
    if found.dsn is None:
        raise ConfigurationError(f"no server runs in {found.path}. Start it: holdfast db start")
    parts = parts_of(found.dsn)
    names = {"PGHOST": "host", "PGPORT": "port", "PGUSER": "user", "PGDATABASE": "dbname"}
    said = (f"{name}={shlex.quote(str(parts[part]))}" for name, part in names.items())
    typer.echo(f"export {' '.join(said)}")


@app.command("psql", context_settings=PASS_THROUGH)
def psql_command(context: typer.Context, path: PathOption = None) -> None:
    """Open psql, or run it with the arguments given: holdfast db psql -c 'select 1'"""
    raise typer.Exit(_run_program("psql", path, context.args))


@app.command("dump", context_settings=PASS_THROUGH)
def dump_command(context: typer.Context, path: PathOption = None) -> None:
    """Write the database as SQL: holdfast db dump | psql $PRODUCTION"""
    raise typer.Exit(_run_program("pg_dump", path, context.args))


@app.command("reset")
def reset_command(
    path: PathOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    force: ForceOption = False,
) -> None:
    """Stop the server and delete everything in it."""
    folder = _folder(path)
    if not yes and not os.isatty(0):
        raise ConfigurationError(f"This deletes all data in {folder}. Say so: holdfast db reset --yes")
    if not yes and not typer.confirm(f"Delete all data in {folder}?"):
        raise ConfigurationError("Nothing was deleted.")
    with busy("deleting it"):
        was_there = reset(folder, force)
    typer.echo(f"Deleted {folder}." if was_there else f"There is nothing in {folder}.")


def _run_program(name: str, path: Path | None, args: list[str]) -> int:
    """Run a client program on the server's database.

    As a child, not in place of this process, because this process holds the server while the program runs.
    Ctrl-C is the program's to handle: our handler does nothing, and unlike SIG_IGN it is not inherited.
    """
    folder = _folder(path)
    if not status(folder).exists:
        raise ConfigurationError(f"There is no embedded server in {folder}. Start one: holdfast db start")
    program = find_binaries().program(name)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PG")}
    with contextlib.ExitStack() as stack:
        with busy("starting PostgreSQL"):
            server = stack.enter_context(EmbeddedServer.acquire(folder))
            server.ensure_database()
        before = signal.signal(signal.SIGINT, lambda *_: None)
        try:
            command = [str(program), "--dbname", server.dsn(), *args]
            return subprocess.run(command, env=environment, check=False).returncode
        finally:
            signal.signal(signal.SIGINT, before)
