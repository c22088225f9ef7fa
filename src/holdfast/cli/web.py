"""`holdfast web`: the dashboard. It is a surface of its own, loaded when it is asked for: its libraries are an extra."""

import contextlib
import importlib
import re
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from holdfast.app import Holdfast
from holdfast.cli.apps import AppOption, DatabaseOption, app_name, load_app, named_app, reach
from holdfast.cli.found_server import app_database, database_before_app
from holdfast.cli.logs import LogFormat, LogLevel, configure
from holdfast.distribution import install
from holdfast.errors import ConfigurationError
from holdfast.operate.doctor.thresholds import read_limits


def surface(module: str = "holdfast.web.serve", what: str = "the dashboard") -> Any:
    """The module that serves, or how to get it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("holdfast"):
            raise
        raise ConfigurationError(f"{what} needs {error.name}. Install it: {install('web')}") from None


AllowedHostOption = Annotated[
    list[str] | None, typer.Option(help="Another host name under which it may be reached; may be repeated.")
]
ProxyHeaderOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="The header in which a proxy passes the user's name.")
]
ProxyAddressOption = Annotated[
    list[str] | None, typer.Option(help="An address or network of that proxy; may be repeated.")
]
AdminOption = Annotated[
    list[str] | None, typer.Option(help="A name from the proxy that is an admin; others are viewers.")
]
OperatorOption = Annotated[
    list[str] | None, typer.Option(help="A name that is an operator; both may be DATABASE=NAME.")
]
TokenHashOption = Annotated[
    str | None, typer.Option(metavar="sha256:HEX", help="Of a bearer token for programs.")
]
UsersOption = Annotated[
    str | None, typer.Option("--users", metavar="FILE", help="A file of users: lines of NAME ROLE HASH.")
]
NewUserOption = Annotated[
    str | None,
    typer.Option(metavar="NAME=ROLE", help="Ask for a password, print a line for that file, and end."),
]
LimitsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="NAME=VALUE",
        help="Another limit of the doctor, such as stuck=300; may be repeated.",
    ),
]
TraceUrlOption = Annotated[
    str | None, typer.Option(metavar="URL", help="Where a trace is shown, with {trace} in it.")
]
DatabasesOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=URL",
        envvar="HOLDFAST_WEB_DATABASES",
        help="A database behind the switcher, or NAME=MODULE:APP; may be repeated.",
    ),
]


def web_command(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port.")] = 8765,
    read_only: Annotated[bool, typer.Option("--read-only", help="Nobody can change anything.")] = False,
    allowed_host: AllowedHostOption = None,
    proxy_header: ProxyHeaderOption = None,
    proxy_address: ProxyAddressOption = None,
    admin: AdminOption = None,
    operator: OperatorOption = None,
    token_hash: TokenHashOption = None,
    title: Annotated[str | None, typer.Option(help="The name of this database in the dashboard.")] = None,
    limits: LimitsOption = None,
    trace_url: TraceUrlOption = None,
    users: UsersOption = None,
    new_user: NewUserOption = None,
    database: DatabasesOption = None,
    database_url: DatabaseOption = None,
    app: AppOption = None,
) -> None:
    """Serve the dashboard. On this machine alone, unless options name the users."""
    configure(LogFormat.console, LogLevel.warning)
    serving = surface()
    if new_user is not None:
        typer.echo(_new_user(new_user))
        return
    wanted = read_limits(limits or ())
    found, named = _apps(database or (), database_url, app)
    served = serving.Served(
        host,
        port,
        read_only,
        allowed_host or (),
        proxy_header,
        proxy_address or (),
        admin or (),
        operator or (),
        token_hash,
        title,
        wanted,
        trace_url,
        named,
        users,
    )
    with contextlib.ExitStack() as stack:
        for one in found.values() if isinstance(found, dict) else (found,):
            stack.enter_context(contextlib.closing(one))
        serving.serve(found, served)


def _new_user(said: str) -> str:
    users = surface("holdfast.web.users")
    name, _, role = said.partition("=")
    users.newcomer(name, role)  # before a password is asked for
    if sys.stdin.isatty():
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    else:
        password = sys.stdin.readline().rstrip("\n")
    line: str = users.new_line(name, role, password)
    return line


_APP = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def _apps(
    databases: Sequence[str], url: str | None, app: str | None
) -> tuple[Holdfast | dict[str, Holdfast], str | dict[str, str]]:
    """The databases to serve, and how commands name them. A single one is checked; one of several may be unreachable."""
    if not databases:
        one = _app(url, app)
        reach(one.database)
        return one, app_name(app).name
    words = [word.partition("=") for word in databases]
    for name, _, where in words:
        if not where or "/" in name or "@" in name:  # an address is not repeated: it may hold a password
            raise ConfigurationError("--database takes NAME=URL or NAME=MODULE:APP")
        if sum(other == name for other, _, _ in words) > 1:
            raise ConfigurationError(f"two databases are called {name!r}. Give one another name")
    if url is not None or app is not None:
        raise ConfigurationError("--database names what is served, so -d and -a are not for it. Add NAME=URL")
    names = {name: where for name, _, where in words if _APP.fullmatch(where)}
    found = {name: load_app(where) if name in names else Holdfast(where) for name, _, where in words}
    return found, names


def _app(url: str | None, name: str | None) -> Holdfast:
    """An app where one is named: then the dashboard knows its tasks. Else only a database."""
    if url is not None:
        return Holdfast(url)
    found = load_app(name) if name or named_app() else Holdfast()
    if database_before_app(name) is not None:
        app_database(found, name)
    return found
