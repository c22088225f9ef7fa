"""The configuration in effect: every setting, its value, and its source. It opens no connection."""

import platform
from dataclasses import dataclass, fields, replace

from ..db.migrate.address import masked
from ..settings import (
    Setting,
    Settings,
    describe_database,
    describe_settings,
    nearest_variable,
    settings_file,
    unknown_variables,
)


@dataclass(frozen=True, slots=True)
class AppChoice:
    """Settings that an app brings itself."""

    name: str
    source: str  # the option or the variable that names it
    url: str | None = None
    settings: Settings | None = None


@dataclass(frozen=True, slots=True)
class Configuration:
    release: str
    python: str
    app: str | None
    app_source: str | None
    file: str
    file_found: bool
    settings: list[Setting]  # no secret is in any of them
    warnings: list[str]


def describe_configuration(
    release: str, database: Setting | None = None, app: AppChoice | None = None
) -> Configuration:
    """`database` is the one that the caller was given; an app that brings its own settings replaces all others."""
    if app and app.settings:
        settings = [
            Setting(f.name, getattr(app.settings, f.name), f"app {app.name}") for f in fields(Settings)
        ]
    else:
        settings = describe_settings()
    shown = _database(database, app)
    file = settings_file()
    return Configuration(
        release=release,
        python=platform.python_version(),
        app=app.name if app else None,
        app_source=app.source if app else None,
        file=str(file),
        file_found=file.is_file(),
        settings=[shown if s.name == "database_url" else _no_secret(s) for s in settings],
        warnings=[*_missing_file(), *_typos()],
    )


def _database(given: Setting | None, app: AppChoice | None) -> Setting:
    """In the order in which a command searches for it."""
    if given is None and app:
        own = app.url or (app.settings.database_url if app.settings else None)
        given = Setting("database_url", own, f"app {app.name}") if own else None
    found = given or describe_database()
    if found is None:
        return Setting("database_url", None, "nothing names one")
    return replace(found, value=masked(found.value))


def _no_secret(setting: Setting) -> Setting:
    hide = setting.name == "listen_url" and setting.value
    return replace(setting, value=masked(setting.value)) if hide else setting


def _missing_file() -> list[str]:
    file = settings_file()
    return (
        []
        if file.is_file() or file.name == "holdfast.toml"
        else [f"HOLDFAST_CONFIG names {file}, which is not there"]
    )


def _typos() -> list[str]:
    said = []
    for name in unknown_variables():
        close = nearest_variable(name)
        said.append(f"nobody reads {name}." + (f" Did you mean {close}?" if close else ""))
    return said
