"""What settings.HOLDFAST says: {"DATABASE": "default", "CONCURRENCY": 20, "LEASE": "2m"}."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS

from ...errors import ConfigurationError
from ...settings import Settings, load_settings, unknown_setting

_OWN = ("DATABASE", "INCLUDE", "MIDDLEWARE", "LIFESPAN")
_ELSEWHERE = ("database_url",)  # in DATABASES


@dataclass(frozen=True, slots=True)
class Options:
    """DATABASE is the alias in DATABASES; INCLUDE names modules beside every app's tasks.py; MIDDLEWARE and LIFESPAN are
    dotted paths of what Holdfast(middleware=, lifespan=) takes. All else is a setting of Holdfast, in upper case."""

    database: str
    include: tuple[str, ...]
    middleware: tuple[str, ...]
    lifespan: str | None
    settings: Settings


def read_options() -> Options:
    try:
        given = getattr(django_settings, "HOLDFAST", {})
    except ImproperlyConfigured as error:
        raise ConfigurationError(
            "Django has no settings here. Run: python manage.py holdfast ..., or set DJANGO_SETTINGS_MODULE, "
            f"such as shop.settings ({error})"
        ) from None
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"settings.HOLDFAST must be a dict, not {type(given).__name__}")
    known = {field.name.upper(): field.name for field in fields(Settings) if field.name not in _ELSEWHERE}
    for name in given:
        if name == "DATABASE_URL":
            raise ConfigurationError(
                "settings.HOLDFAST has DATABASE_URL, but the address comes from DATABASES. "
                'Name an alias of it: HOLDFAST = {"DATABASE": "default"}'
            )
        if name not in known and name not in _OWN:
            raise ConfigurationError(f"settings.HOLDFAST: {unknown_setting(str(name), [*_OWN, *known])}")
    return Options(
        _text(given, "DATABASE") or DEFAULT_DB_ALIAS,
        _texts(given, "INCLUDE"),
        _texts(given, "MIDDLEWARE"),
        _text(given, "LIFESPAN"),
        _settings({known[name]: value for name, value in given.items() if name in known}),
    )


def _settings(given: Mapping[str, Any]) -> Settings:
    """A variable of the environment wins over settings.py, as over holdfast.toml."""
    return load_settings(**{k: v for k, v in given.items() if f"HOLDFAST_{k.upper()}" not in os.environ})


def _text(given: Mapping[str, Any], name: str) -> str | None:
    value = given.get(name)
    if value is not None and not isinstance(value, str):
        raise ConfigurationError(f"settings.HOLDFAST: {name} must be text, not {value!r}")
    return value


def _texts(given: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = given.get(name, ())
    if isinstance(value, str) or not all(isinstance(one, str) for one in value):
        raise ConfigurationError(f"settings.HOLDFAST: {name} must be a list of dotted names, not {value!r}")
    return tuple(value)
