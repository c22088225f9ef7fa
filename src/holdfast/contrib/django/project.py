"""The app of a Django project: `from holdfast.contrib.django import app`, and `@app.task` in any app's tasks.py."""

import os
from typing import Any

import django
from django.apps import apps
from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string, module_has_submodule

from ...app import Holdfast
from ...db.database import Database
from ...errors import ConfigurationError
from ...model.clock import Clock
from ...settings import Settings
from .address import address_of, place_of
from .connections import DjangoLender, ausable_connections, usable_connections
from .options import Options, read_options

NAME = "holdfast.contrib.django:app"


class DjangoHoldfast(Holdfast):
    """Its settings are settings.HOLDFAST, its database is in settings.DATABASES, its tasks are in every app's tasks.py."""

    def __init__(self) -> None:
        super().__init__()
        self._made_in = __name__
        self._read: Options | None = None
        self._loaded: set[str] = set()
        self._place: tuple[object, ...] | None = None
        self._own: Database | None = None
        self.around(usable_connections, in_async=ausable_connections)

    @property
    def options(self) -> Options:
        """What settings.HOLDFAST says."""
        if self._read is None:
            self._read = read_options()
        return self._read

    @property
    def database(self) -> Database:
        """Where Django's connection goes now: a test runner puts another database in its place."""
        if self._opened is None or self._opened is self._own:
            place = place_of(self.options.database)
            if self._own is None or place != self._place:
                self.close()
                self._own = self._new_database(address_of(self.options.database), self.options.settings)
                self._opened, self._place = self._own, place
                self._writer.forget()
        assert self._opened is not None
        return self._opened

    def _new_database(self, url: str, settings: Settings, clock: Clock | None = None) -> Database:
        database = super()._new_database(url, settings, clock)
        database.lender = DjangoLender(self.options.database)
        return database

    def load(self) -> None:
        """Set Django up, if nobody has, and import every app's tasks.py."""
        options = self.options
        if not apps.models_ready:
            _set_up()
        self._middleware = (*self._middleware[:1], *(_imported(p, "MIDDLEWARE") for p in options.middleware))
        self._lifespan = None if options.lifespan is None else _imported(options.lifespan, "LIFESPAN")
        found = [f"{c.name}.tasks" for c in apps.get_app_configs() if module_has_submodule(c.module, "tasks")]
        new = [name for name in (*found, *options.include) if name not in self._loaded]
        self._loaded.update(new)
        self._modules += new
        super().load()
        if any("holdfast" in p.get("BACKEND", "") for p in getattr(django_settings, "TASKS", {}).values()):
            import_string("holdfast.contrib.django.backend.declare_queues")(django_settings.TASKS)


def _set_up() -> None:
    try:
        django.setup()
    except ImproperlyConfigured as error:
        module = os.environ.get("DJANGO_SETTINGS_MODULE", "")
        raise ConfigurationError(f"Django cannot be set up with settings {module!r}: {error}") from error


def _imported(path: str, name: str) -> Any:
    try:
        return import_string(path)
    except ImportError as error:
        raise ConfigurationError(f"settings.HOLDFAST: {name} names {path!r}: {error}") from None


app = DjangoHoldfast()
