"""The app of a Django project: `from holdfast.contrib.django import app`, and `@app.task` in any app's tasks.py."""

import contextlib
import functools
import logging
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import django
from django.apps import apps
from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.module_loading import import_string, module_has_submodule

from ...app import Holdfast
from ...db.database import Database
from ...errors import ConfigurationError
from ...model.clock import Clock
from ...model.release import find_release
from ...settings import Settings
from .address import address_of, check_place, place_of
from .connections import DjangoLender, threads, usable_connections
from .options import Options, read_options

NAME = "holdfast.contrib.django:app"
_LINE_PER_TASK = ("django.tasks", "django_tasks")  # loggers


class DjangoHoldfast(Holdfast):
    """Its settings are settings.HOLDFAST, its database is in settings.DATABASES, its tasks are in every app's tasks.py."""

    def __init__(self) -> None:
        super().__init__()
        self._made_in = __name__
        self._read: Options | None = None
        self._loaded: set[str] = set()
        self._place: tuple[object, ...] | None = None
        self._first_place: tuple[object, ...] | None = None
        self._own: Database | None = None
        self._writer.check_guest = self._check_guest
        self.around(usable_connections, in_async=threads.of_handler)

    @property
    def options(self) -> Options:
        """What settings.HOLDFAST says."""
        if self._read is None:
            self._read = read_options()
        return self._read

    @property
    def database(self) -> Database:
        """Where Django's connection goes now: a test runner puts another database in its place."""
        with self._opening:
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
        # A test runner put another database in its place, and will drop it.
        database.keeps_idle = self._first_place in (None, place_of(self.options.database))
        return database

    def _check_guest(self, conn: object) -> None:
        check_place(self.options.database, conn, lambda asked: self.database.run(lambda: asked))

    @property
    def release(self) -> str:
        """`HOLDFAST = {"RELEASE": ...}`, HOLDFAST_RELEASE, or the git commit of the project: where its settings are."""
        return find_release(self.settings.release, getattr(django_settings, "SETTINGS_MODULE", ""))

    def _environment(self) -> dict[str, str]:
        return {"DJANGO_SETTINGS_MODULE": getattr(django_settings, "SETTINGS_MODULE", "")}

    def load(self) -> None:
        """Set Django up, if nobody has, and import every app's tasks.py."""
        options = self.options
        if not apps.models_ready:
            _set_up()
        if self._first_place is None:
            self._first_place = place_of(options.database)
        self._middleware = (*self._middleware[:1], *(_imported(p, "MIDDLEWARE") for p in options.middleware))
        given = None if options.lifespan is None else _imported(options.lifespan, "LIFESPAN")
        self._lifespan = functools.partial(_with_threads, given)
        found = [f"{c.name}.tasks" for c in apps.get_app_configs() if module_has_submodule(c.module, "tasks")]
        new = [name for name in (*found, *options.include) if name not in self._loaded]
        self._loaded.update(new)
        self._modules += new
        super().load()
        if any("holdfast" in p.get("BACKEND", "") for p in getattr(django_settings, "TASKS", {}).values()):
            import_string("holdfast.contrib.django.backend.declare_queues")(django_settings.TASKS)


@contextlib.asynccontextmanager
async def _with_threads(given: Any, app: Holdfast) -> AsyncIterator[None]:
    """The lifespan of the settings, and the end of the threads of async handlers."""
    try:
        with _no_line_per_task():
            async with contextlib.nullcontext() if given is None else given(app):
                yield
    finally:
        threads.close(connections.close_all)


@contextlib.contextmanager
def _no_line_per_task() -> Iterator[None]:
    """Django logs two lines at info for every task. A worker sums its jobs up, and has a line for each at debug alone: so
    have these, unless LOGGING gives that logger a level."""
    below = logging.getLogger().getEffectiveLevel() > logging.DEBUG
    changed = [logger for logger in map(logging.getLogger, _LINE_PER_TASK) if below and not logger.level]
    for logger in changed:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger in changed:
            logger.setLevel(logging.NOTSET)


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
