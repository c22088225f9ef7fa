"""`holdfast config`: which settings hold here, and why."""

from dataclasses import replace
from pathlib import Path

import typer

from holdfast.cli import render
from holdfast.cli.apps import AppOption, DatabaseOption, JsonOption, load_app, named_app
from holdfast.cli.found_server import database_before_app, nearby_server
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
    database = Setting("database_url", database_url, "--database-url") if database_url else None
    found = describe_configuration(own_version(), database, _choice(app))
    server, named = nearby_server(), _app_setting()
    settings = [named if s.name == "app" else _nearest(s, server) for s in found.settings]
    found = replace(found, settings=settings)
    if as_json:
        render.print_json(found)
    else:
        _print(found)


def _app_setting() -> Setting:
    """What names the app, also where the app brings settings of its own."""
    return next(s for s in describe_settings() if s.name == "app")


def _nearest(setting: Setting, server: Path | None) -> Setting:
    """Where nobody names a database, commands take the embedded server of this folder, or of one above it."""
    if setting.name != "database_url" or setting.value is not None or server is None:
        return setting
    return replace(setting, value=f"embedded://{server}", source="the server in that folder")


def _choice(app: str | None) -> AppChoice | None:
    named = Setting("app", app, "--app") if app else named_app()
    if named is None:
        return None
    loaded = load_app(app)
    url, settings = loaded._url, loaded._given_settings
    if database_before_app(app) is not None:
        url, settings = None, settings and replace(settings, database_url=None)
    return AppChoice(named.value, named.source, url, settings)


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
