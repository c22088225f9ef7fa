"""The embedded server that a command means when none is named, and none that a command would have to make first."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.db.database import Database
from holdfast.db.embedded import default_path, parse_embedded_url, status
from holdfast.errors import ConfigurationError
from holdfast.settings import Setting, database_url, describe_database, exposed, load_settings, settings_file

if TYPE_CHECKING:
    from holdfast.app import Holdfast

_HERE = "embedded:"


def found_database() -> Database:
    """The database that the environment names; else the embedded server of this folder, or of one above it."""
    named = describe_database() is not None or nearby_server() is None
    return Database(database_url(None if named else _HERE), load_settings())


def database_before_app(name: str | None) -> Setting | None:
    """The database that is used in place of the app's own: that of the environment, where only holdfast.toml names the app.
    None: the app says, because an option or HOLDFAST_APP names it, or the environment names no database."""
    if name or "HOLDFAST_APP" in os.environ:
        return None
    found = describe_database()
    return None if found is None or found.source == str(settings_file()) else found


def app_database(app: "Holdfast", name: str | None) -> Database:
    """The app's own, or what goes before it; where nobody names one, the embedded server of this folder, or of one above
    it. `name`: how the command line names the app."""
    if (first := database_before_app(name)) is not None:
        if app._opened is not None and app._opened.url != first.value:
            raise ConfigurationError(
                f"the app opened a database when it was imported, and {first.source} names another. "
                "Name the app with HOLDFAST_APP to use its own"
            )
        app._url = first.value
    given = app._given_settings.database_url if app._given_settings else None
    if not (app._url or given or describe_database()) and nearby_server():
        app._url = _HERE
    return app.database


def project_folders() -> list[Path]:
    """The folders above that have holdfast.toml, or an embedded server of this user, as `dev` makes it: the code is there
    too. Not where others may write: the code may be theirs."""
    folders = [settings_file().absolute().parent]
    if "HOLDFAST_HOME" not in os.environ:
        server = default_path().parent
        folders += [] if exposed(server.parent) else [server.parent]
    return [folder for folder in folders if folder in Path.cwd().parents]


def nearby_server() -> Path | None:
    """The folder of the embedded server of this folder, or of one above it, if there is one."""
    return found.path if (found := status(default_path())).exists else None


def refuse_to_make(database: Database) -> None:
    """A command that only reads starts no new server: an empty one would reply, and the mistake would stay unnoticed."""
    if database.is_embedded and not status(folder := parse_embedded_url(database.url)).exists:
        raise ConfigurationError(
            f"there is no embedded server in {folder} yet, and this command makes none. "
            "Start it: holdfast dev MODULE:APP, or holdfast db start"
        )
