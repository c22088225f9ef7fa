"""`holdfast contracts`: whether versions of event types go together, and what is known of them."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import render
from holdfast.cli.apps import AppOption, DatabaseOption, JsonOption, load_app, open_database
from holdfast.cli.busy import busy
from holdfast.cli.exits import ENVIRONMENT
from holdfast.errors import ConfigurationError
from holdfast.operate.wording import several
from holdfast.shapes.events.contracts.catalog import FILE, declared, export
from holdfast.shapes.events.contracts.check import Verdict
from holdfast.shapes.events.contracts.pages import pages
from holdfast.shapes.events.contracts.verbs import Contracts
from holdfast.shapes.events.declare import declared as subscriptions

app = typer.Typer(
    help="Check versions of event types against each other, store them, describe them.", no_args_is_help=True
)
FileArgument = Annotated[str, typer.Argument(metavar="FILE", help="To be committed beside the code.")]


@contextlib.contextmanager
def _on_database(database_url: str | None, app: str | None) -> Iterator[Contracts]:
    application = load_app(app)
    with open_database(database_url, app) as database:
        yield Contracts(lambda: database, lambda: application.tasks)


@app.command("check")
def check_command(
    against: Annotated[
        str, typer.Option(metavar="database|FILE", help=f"What to compare with: the database, or {FILE}.")
    ] = "database",
    database_url: DatabaseOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare every version of every event type with the older ones. Exit code 1: some do not go together."""
    with busy("comparing", as_json=as_json):
        if against == "database":
            with _on_database(database_url, app) as contracts:
                found = contracts.check()
        else:
            found = load_app(app).contracts.check("file", against)
    bad = [verdict for verdict in found if not verdict.compatible]
    if as_json:
        render.print_json({"compatible": not bad, "verdicts": found})
    else:
        _print(found, bad, against)
    if bad:
        raise typer.Exit(ENVIRONMENT)


def _print(found: list[Verdict], bad: list[Verdict], against: str) -> None:
    for verdict in bad:
        typer.echo(f"{verdict}\n")
    types = len({name for name, _ in declared()})
    known = f"{several(types, 'event type')}, {several(len(found), 'comparison')}"
    if bad:
        typer.echo(f"{known}: {len(bad)} incompatible")
    else:
        then = "holdfast contracts store" if against == "database" else f"holdfast contracts export {against}"
        typer.echo(f"{known}: all compatible. To write down what is new: {then}")


@app.command("store")
def store_command(
    release: Annotated[
        str | None, typer.Option(help="The release of your application, stored with them.")
    ] = None,
    database_url: DatabaseOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Store new versions in the database. One that it has never changes."""
    with busy(as_json=as_json), _on_database(database_url, app) as contracts:
        stored = contracts.store(release=release)
    if as_json:
        render.print_json({"stored": stored})
    else:
        typer.echo(f"{several(stored, 'version')} stored" if stored else "The database has them all")


@app.command("export")
def export_command(file: FileArgument = FILE, app: AppOption = None) -> None:
    """Add new versions to a file, so that `check --against FILE` needs no database."""
    load_app(app)
    added = export(file)
    typer.echo(f"{several(len(added), 'version')} added to {file}" if added else f"{file} has them all")


@app.command("asyncapi")
def asyncapi_command(
    title: Annotated[str, typer.Option(help="The name of your application.")] = "Events",
    version: Annotated[str, typer.Option(help="The version of your application.")] = "1.0.0",
    app: AppOption = None,
) -> None:
    """Print an AsyncAPI 3.0 document of what is published and who subscribes."""
    made = load_app(app).contracts.asyncapi(title=title, version=version)
    typer.echo(json.dumps(made, indent=2))


@app.command("docs")
def docs_command(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where to write the pages; created if missing.")
    ],
    app: AppOption = None,
) -> None:
    """Write a page per event type, and a list of them, in Markdown."""
    application = load_app(app)
    made = list(pages(declared(), subscriptions(application.tasks)))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in made:
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"the pages cannot be written to {folder}: {error}") from None
    typer.echo(f"{several(len(made) - 1, 'page')} and {made[-1][0]} written to {folder}")
