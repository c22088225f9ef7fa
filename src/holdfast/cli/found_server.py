"""The embedded server that a command means when none is named, and none that a command would have to make first."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.db.database import Database
from holdfast.db.embedded import default_path, parse_embedded_url, status
from holdfast.errors import ConfigurationError
from holdfast.settings import database_url, describe_database, load_settings

if TYPE_CHECKING:
    from holdfast.app import Holdfast

_HERE = "embedded:"


def found_database() -> Database:
    """What the environment names; else the embedded server of this folder, or of one above it."""
    named = describe_database() is not None or not _is_there()
    return Database(database_url(None if named else _HERE), load_settings())


def app_database(app: "Holdfast") -> Database:
    """The app's own; where nobody names one, the embedded server of this folder, or of one above it."""
    given = app._given_settings.database_url if app._given_settings else None
    if not (app._url or given or describe_database()) and _is_there():
        app._url = _HERE
    return app.database


def project_folder() -> Path | None:
    """The folder above that has an embedded server of this user, as `dev` makes it: its code is there too."""
    folder = default_path().parent.parent
    return folder if "HOLDFAST_HOME" not in os.environ and folder in Path.cwd().parents else None


def _is_there() -> bool:
    return status(default_path()).exists


def refuse_to_make(database: Database) -> None:
    """Whoever only looks makes no server: an empty one would answer, and nobody would know that it is the wrong one."""
    if database.is_embedded and not status(folder := parse_embedded_url(database.url)).exists:
        raise ConfigurationError(
            f"there is no embedded server in {folder} yet, and this command makes none. "
            "Start it: holdfast dev MODULE:APP, or holdfast db start"
        )
