"""Which app and which database a command means."""

import contextlib
import difflib
import functools
import importlib
import os
import shlex
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.busy import busy
from holdfast.cli.found_server import (
    app_database,
    database_before_app,
    found_database,
    project_folders,
    refuse_to_make,
)
from holdfast.db import migrate
from holdfast.db.database import Database
from holdfast.db.migrate.address import describe, masked
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.model.actor import Actor
from holdfast.model.text import printable
from holdfast.operate.advice import Knows
from holdfast.operate.operator import Operator
from holdfast.settings import (
    Setting,
    default_actor,
    describe_settings,
    ignored_file,
    load_settings,
    settings_file,
)

if TYPE_CHECKING:
    from holdfast.app import Holdfast

APP_VARIABLE = "HOLDFAST_APP"
URL_VARIABLE = "HOLDFAST_DATABASE_URL"

DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        "-d",
        help="postgresql://user@host/name, or embedded:",
        show_default="the app's, HOLDFAST_DATABASE_URL, DATABASE_URL, PG*",
    ),
]
AppOption = Annotated[
    str | None,
    typer.Option("--app", "-a", help="MODULE:APP whose database to use.", show_default=APP_VARIABLE),
]
AppArgument = Annotated[
    str | None,
    typer.Argument(metavar="MODULE:APP", help="The app, such as shop.jobs:app.", show_default=APP_VARIABLE),
]
JsonOption = Annotated[bool, typer.Option("--json", help="For programs.")]


@dataclass(frozen=True)
class Where:
    """Which database, and whether a person or a program reads the output."""

    database_url: DatabaseOption = None
    app: AppOption = None
    as_json: JsonOption = False


def named_app() -> Setting | None:
    """The app that HOLDFAST_APP names, else holdfast.toml. Errors of that file are reported by the command that needs it;
    that its app is not trusted is reported here, once."""
    if (said := os.environ.get(APP_VARIABLE)) is not None:
        return Setting("app", said, APP_VARIABLE) if said else None
    with contextlib.suppress(ConfigurationError):
        if ignored := ignored_file():
            _note(ignored)
        found = next(s for s in describe_settings() if s.name == "app")
        return found if found.value else None
    return None


@functools.cache
def _note(text: str) -> None:
    typer.echo(f"note: {printable(text)}", err=True)


def load_app(name: str | None) -> "Holdfast":
    """The app that MODULE:APP names; modules are looked for in the current folder first, and then where holdfast.toml or
    the server of `dev` is, if that is above. Without a name it is that of HOLDFAST_APP or of holdfast.toml; the modules of
    the latter are looked for beside that file alone, and after those of Python."""
    named = None if name else named_app()
    name = named.value if named else name
    if not name:
        raise ConfigurationError(
            f"no app was named. Pass MODULE:APP, such as shop.jobs:app, or set {APP_VARIABLE}"
        )
    module_name, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise ConfigurationError(
            f"{name!r} is not MODULE:APP. Write it like shop.jobs:app{_as_module(module_name)}"
        )
    found = _attribute(_import(module_name, _beside_file(named)), attribute or "app")
    from holdfast.app import Holdfast  # with the user's module, which most often has loaded it

    if not isinstance(found, Holdfast):
        raise ConfigurationError(
            f"{module_name}:{attribute or 'app'} is not a Holdfast app but {_a(type(found).__name__)}"
        )
    found.load()
    return found


def _as_module(text: str) -> str:
    """A hint for users who wrote a path."""
    path = text.removesuffix(".py").strip("./")
    name = path.replace("/", ".")
    usable = name != text and all(part.isidentifier() for part in name.split("."))
    return f", here perhaps {name}:app" if usable else ""


def _beside_file(named: Setting | None) -> Path | None:
    """Where the code is, if a holdfast.toml names it that was found, and not named by the user."""
    if named is None or named.source == APP_VARIABLE or os.environ.get("HOLDFAST_CONFIG"):
        return None
    return settings_file().absolute().parent


def _look_in(*folders: Path) -> None:
    """After the modules of Python itself, which no file of a project may replace, and before those that are installed."""
    own = (str(Path(os.__file__).parent), str(Path(os.__file__).parent / "lib-dynload"))
    after = max((at for at, path in enumerate(sys.path, 1) if path in own), default=len(sys.path))
    sys.path[after:after] = [str(folder) for folder in folders if str(folder) not in sys.path]


def _import(name: str, folder: Path | None) -> ModuleType:
    """`folder`: look in no other, but for what Python and the installation have."""
    here = str(folder or Path.cwd())
    if folder is not None:
        _look_in(folder)
    else:
        if sys.path[:1] != [here]:
            sys.path.insert(0, here)
        _look_in(*project_folders())
    try:
        return importlib.import_module(name)
    except HoldfastError:
        raise
    except Exception as error:  # noqa: BLE001 whatever the module raises is the user's to see
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and (name == missing or name.startswith(f"{missing}.")):
            near = _nearby(name) if folder is None else ", whose holdfast.toml names it"
            raise ConfigurationError(f"there is no module {name!r} in {here}{near}") from None
        _print_trace(error)
        said = f"{type(error).__name__}: {error}"
        raise ConfigurationError(f"module {name!r} cannot be imported: {said}") from None


def _print_trace(error: Exception) -> None:
    """Where in the user's own code it went wrong, without the frames that led there."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.filename != __file__ and "importlib" not in f.filename]
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(own)]
    if isinstance(error, SyntaxError):  # its line has no frame
        lines += traceback.format_exception_only(error)[:-1]
    typer.echo("".join(lines), err=True, nl=False)


def _nearby(name: str) -> str:
    """The name that the user may have meant, or the existing ones."""
    near = sorted({*_modules(Path()), *_modules(Path(*name.split(".")[:-1]))})
    close = difflib.get_close_matches(name, near, 1, 0.6)
    if close:
        return f". Did you mean {close[0]!r}?"
    if not near:
        return " (it has no Python files). Run this in the folder that has your package"
    return f" (there are: {', '.join(near[:8])}{', ...' if len(near) > 8 else ''})"


def _modules(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    files = [f for f in folder.glob("*.py") if f.stem.isidentifier() and f.stem != "__init__"]
    packages = [f.parent for f in folder.glob("*/__init__.py") if f.parent.name.isidentifier()]
    return [".".join(path.with_suffix("").parts) for path in (*files, *packages)]


def _attribute(module: ModuleType, name: str) -> object:
    from holdfast.app import Holdfast

    found: object = module
    for part in name.split("."):
        if not hasattr(found, part):
            apps = sorted(key for key, value in vars(module).items() if isinstance(value, Holdfast))
            hint = f" (it has: {', '.join(apps)})" if apps else " and no Holdfast app under another name"
            raise ConfigurationError(f"module {module.__name__!r} has no {name!r}{hint}")
        found = getattr(found, part)
    return found


def _a(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


@contextlib.contextmanager
def open_database(
    url: str | None, app: str | None = None, *, checked: bool = True, makes: bool = False, looks: bool = False
) -> Iterator[Database]:
    """The database a command works on, reached and checked: the url, the app's, or what the environment names. `makes`: an
    embedded server that is not there yet is made. `looks`: the command changes nothing, so that the app need not load."""
    for option, value in (("--database-url", url), ("--app", app)):
        if value is not None and not value.strip():  # an unset variable must not mean another database
            raise ConfigurationError(f"{option} is empty. Name one, or leave the option out")
    if url is not None:
        database = Database(url, load_settings())
    elif app:
        database = app_database(load_app(app), app)
    elif database_before_app(app) is None and (named := named_app()):
        database = _of_named(named, looks)
    else:
        database = found_database()
    if not makes:
        refuse_to_make(database)
    try:
        if checked:
            reach(database)
        yield database
    finally:
        database.close()


def _of_named(named: Setting, looks: bool) -> Database:
    """The database of this app. A query does not need its code if HOLDFAST_DATABASE_URL or holdfast.toml names one too,
    as in the line that `dev` prints: an incident may be examined elsewhere, or the code may be the broken part. An
    act is refused: the app may name another database than they do."""
    try:
        app = load_app(None)
    except ConfigurationError as error:
        source = APP_VARIABLE if named.source == APP_VARIABLE else f"app in {named.source}"
        own = next(s for s in describe_settings() if s.name == "database_url")
        if not own.value:
            raise
        own_url = f'"${URL_VARIABLE}"' if own.source == URL_VARIABLE else "ADDRESS"
        if not looks:
            raise ConfigurationError(
                f"{source} cannot be used: {error}. This command changes something, so it does not fall back to "
                f"{own.source}. Name the database, with -d {own_url}, or fix the app"
            ) from None
        typer.echo(f"note: {source} is not used, the database is that of {own.source}: {error}", err=True)
        return Database(own.value, load_settings())
    return app_database(app, None)


@contextlib.contextmanager
def operator_at(
    where: Where,
    *,
    checked: bool = True,
    reason: str | None = None,
    makes: bool = False,
    looks: bool = False,
) -> Iterator[Operator]:
    """The operator at this command line, and why it acts. The database is opened when a verb needs it."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def database() -> Database:
            url, app = where.database_url, where.app
            opened = open_database(url, app, checked=checked, makes=makes, looks=looks)
            return stack.enter_context(opened)

        yield Operator(database, Actor(default_actor(), "cli", reason=reason))


def check(database: Database) -> None:
    """Fail at once and with the reason when the server is unreachable or the schema is not this release's."""
    migrate.status(database.dsn).verify()


def reach(database: Database) -> None:
    """Check it before something is served from it. The first use of an embedded server starts it, and has a bar."""
    with busy("starting PostgreSQL" if database.is_embedded else "reaching the database"):
        check(database)


@dataclass(frozen=True, slots=True)
class AppName:
    """How the application is named in commands that start a worker, and whether it can run a task, as far as is known."""

    name: str = "MODULE:APP"
    knows: Knows = lambda task, version: True


def app_name(app: str | None) -> AppName:
    """How to name the app in a command for the user to run, and what it can run, if it can be loaded."""
    named = None if app else named_app()
    name = named.value if named else app
    if not name:
        return AppName()
    try:
        tasks = load_app(app).tasks
    except HoldfastError:
        return AppName(name)
    return AppName(name, lambda task, version: tasks.find(task, version) is not None)


def note_for_pasting(url: str | None, app: str | None) -> str | None:
    """What printed commands need to mean the same database, when it was named by an option."""
    if url is not None:
        return f"To run these commands, first: export {URL_VARIABLE}={shlex.quote(masked(url))}"
    if app is not None and app != os.environ.get(APP_VARIABLE):
        return f"To run these commands, first: export {APP_VARIABLE}={shlex.quote(app)}"
    return None


def place_of(database: Database) -> str:
    """Where the database is, never with a password."""
    return describe(database.dsn)
