"""The embedded server that a command means when none is named, and none that a command would have to make first."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.db.database import Database
from holdfast.db.embedded import default_path, parse_embedded_url, status
from holdfast.errors import ConfigurationError
from holdfast.settings import database_url, describe_database, load_settings, settings_file

if TYPE_CHECKING:
    from holdfast.app import Holdfast

_HERE = "embedded:"


def found_database() -> Database:
    """What the environment names; else the embedded server of this folder, or of one above it."""
    named = describe_database() is not None or nearby_server() is None
    return Database(database_url(None if named else _HERE), load_settings())


def app_database(app: "Holdfast") -> Database:
    """The app's own; where nobody names one, the embedded server of this folder, or of one above it."""
    given = app._given_settings.database_url if app._given_settings else None
    if not (app._url or given or describe_database()) and nearby_server():
        app._url = _HERE
    return app.database


def project_folders() -> list[Path]:
    """The folders above that have holdfast.toml, or an embedded server of this user, as `dev` makes it: the code is there
    too."""
    folders = [settings_file().absolute().parent]
    if "HOLDFAST_HOME" not in os.environ:
        folders.append(default_path().parent.parent)
    return [folder for folder in folders if folder in Path.cwd().parents]


def nearby_server() -> Path | None:
    """The folder of the embedded server of this folder, or of one above it, if there is one."""
    return found.path if (found := status(default_path())).exists else None


def refuse_to_make(database: Database) -> None:
    """Whoever only looks makes no server: an empty one would answer, and nobody would know that it is the wrong one."""
    if database.is_embedded and not status(folder := parse_embedded_url(database.url)).exists:
        raise ConfigurationError(
            f"there is no embedded server in {folder} yet, and this command makes none. "
            "Start it: holdfast dev MODULE:APP, or holdfast db start"
        )
