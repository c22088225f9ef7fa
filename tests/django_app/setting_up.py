"""Django, set up once per process of tests."""

import os

import django
from django.apps import apps


def set_up() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.django_app.settings")
    if not apps.ready:
        django.setup()
