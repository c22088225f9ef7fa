"""`holdfast web`: the dashboard. It is a surface of its own, loaded when it is asked for: its libraries are an extra."""

import contextlib
import importlib
import os
from typing import Annotated, Any

import typer

from holdfast.app import Holdfast
from holdfast.cli.apps import APP_VARIABLE, AppOption, DatabaseOption, app_name, check, load_app
from holdfast.cli.logs import LogFormat, LogLevel, configure
from holdfast.errors import ConfigurationError
from holdfast.operate.doctor.thresholds import read_limits


def surface(module: str = "holdfast.web.serve", what: str = "the dashboard") -> Any:
    """The module that serves, or how to get it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("holdfast"):
            raise
        raise ConfigurationError(
            f"{what} needs {error.name}. Install it: pip install 'holdfast[web]'"
        ) from None


def web_command(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port.")] = 8765,
    read_only: Annotated[bool, typer.Option("--read-only", help="Nobody can change anything.")] = False,
    allowed_host: Annotated[
        list[str] | None, typer.Option(help="Another name that it may be reached by; may be repeated.")
    ] = None,
    proxy_header: Annotated[
        str | None, typer.Option(metavar="NAME", help="The header in which a proxy names who asks.")
    ] = None,
    proxy_address: Annotated[
        list[str] | None, typer.Option(help="An address or network of that proxy; may be repeated.")
    ] = None,
    admin: Annotated[
        list[str] | None, typer.Option(help="A name from the proxy that is an admin; others look.")
    ] = None,
    token_hash: Annotated[
        str | None, typer.Option(metavar="sha256:HEX", help="Of a bearer token for programs.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="What the dashboard calls this database.")] = None,
    limits: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            metavar="NAME=VALUE",
            help="Another limit of the doctor, such as stuck=300; may be repeated.",
        ),
    ] = None,
    database_url: DatabaseOption = None,
    app: AppOption = None,
) -> None:
    """Serve the dashboard. On this machine alone, unless options say who may come in."""
    configure(LogFormat.console, LogLevel.warning)
    serving = surface()
    wanted = read_limits(limits or ())
    found = _app(database_url, app)
    check(found.database)
    served = serving.Served(
        host,
        port,
        read_only,
        allowed_host or (),
        proxy_header,
        proxy_address or (),
        admin or (),
        token_hash,
        title,
        wanted,
        app_name(app).name,
    )
    with contextlib.closing(found):
        serving.serve(found, served)


def _app(url: str | None, name: str | None) -> Holdfast:
    """An app where one is named: then the dashboard knows its tasks. Else only a database."""
    if url is not None:
        return Holdfast(url)
    return load_app(name) if name or os.environ.get(APP_VARIABLE) else Holdfast()
