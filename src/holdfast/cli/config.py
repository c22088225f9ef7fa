"""`holdfast config`: which settings hold here, and why."""

import os

import typer

from holdfast.cli import render
from holdfast.cli.apps import APP_VARIABLE, AppOption, DatabaseOption, JsonOption, load_app
from holdfast.model.release import own_version
from holdfast.model.text import printable
from holdfast.operate.configuration import AppChoice, Configuration, describe_configuration

app = typer.Typer(help="Show which settings apply here, and why.", no_args_is_help=True)


@app.callback()
def config() -> None:
    """Show which settings apply here, and why."""


@app.command("show")
def show_command(
    app: AppOption = None, database_url: DatabaseOption = None, as_json: JsonOption = False
) -> None:
    """Print every setting with its value and where it comes from. Passwords are masked; nothing is connected to."""
    found = describe_configuration(own_version(), database_url, _choice(app))
    if as_json:
        render.print_json(found)
    else:
        _print(found)


def _choice(app: str | None) -> AppChoice | None:
    name = app or os.environ.get(APP_VARIABLE)
    if not name:
        return None
    loaded = load_app(name)
    return AppChoice(name, "--app" if app else APP_VARIABLE, loaded._url, loaded._given_settings)


def _print(found: Configuration) -> None:
    rows = [
        [
            s.name,
            "-" if s.value is None else f"{s.value:g}" if isinstance(s.value, float) else str(s.value),
            s.source,
        ]
        for s in found.settings
    ]
    render.print_table(("setting", "value", "from"), rows)
    typer.echo("")
    typer.echo(f"app       {printable(f'{found.app} ({found.app_source})' if found.app else '-')}")
    typer.echo(f"file      {printable(found.file)}{'' if found.file_found else ' (not there)'}")
    typer.echo(f"release   {found.release}, Python {found.python}")
    for warning in found.warnings:
        typer.echo(f"warning   {printable(warning)}")
