"""Which task framework there is: django.tasks of Django 6, or its backport django-tasks."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from ...errors import ConfigurationError


def _name() -> str:
    if find_spec("django.tasks") is not None:
        return "django.tasks"
    if find_spec("django_tasks") is not None:
        return "django_tasks"
    raise ConfigurationError(
        "holdfast.contrib.django.backend needs Django 6, or on Django 5.2 its backport: pip install django-tasks"
    )


PACKAGE = _name()
base: Any = import_module(f"{PACKAGE}.backends.base")
exceptions: Any = import_module(f"{PACKAGE}.exceptions")
signals: Any = import_module(f"{PACKAGE}.signals")
values: Any = import_module(f"{PACKAGE}.base")
