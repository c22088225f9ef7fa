"""`holdfast config`: which settings hold here, and why."""

import os
from dataclasses import replace
from pathlib import Path

import typer

from holdfast.cli import render
from holdfast.cli.apps import APP_VARIABLE, AppOption, DatabaseOption, JsonOption, load_app
from holdfast.cli.found_server import nearby_server
from holdfast.model.release import own_version
from holdfast.model.text import printable
from holdfast.operate.configuration import AppChoice, Configuration, describe_configuration
from holdfast.settings import Setting, describe_settings

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
    server, named = nearby_server(), _app_of_environment()
    settings = [named if s.name == "app" else _nearest(s, server) for s in found.settings]
    found = replace(found, settings=settings)
    if as_json:
        render.print_json(found)
    else:
        _print(found)


def _app_of_environment() -> Setting:
    """Every command has it in HOLDFAST_APP; where holdfast.toml says the same, it came from there."""
    elsewhere = {name: value for name, value in os.environ.items() if name != APP_VARIABLE}
    ours, file = (next(s for s in describe_settings(e) if s.name == "app") for e in (os.environ, elsewhere))
    return file if ours.value == file.value else ours


def _nearest(setting: Setting, server: Path | None) -> Setting:
    """Where nobody names a database, commands take the embedded server of this folder, or of one above it."""
    if setting.name != "database_url" or setting.value is not None or server is None:
        return setting
    return replace(setting, value=f"embedded://{server}", source="the server in that folder")


def _choice(app: str | None) -> AppChoice | None:
    name = app or os.environ.get(APP_VARIABLE)
    if not name:
        return None
    loaded = load_app(name)
    source = "--app" if app else _app_of_environment().source
    return AppChoice(name, source, loaded._url, loaded._given_settings)


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
    typer.echo(f"holdfast  {found.release}, Python {found.python}")
    for warning in found.warnings:
        typer.echo(f"warning   {printable(warning)}")
