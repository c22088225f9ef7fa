"""Holdfast in a Django project: put "holdfast.contrib.django" into INSTALLED_APPS.

options      what settings.HOLDFAST says
address      the address of the database, from settings.DATABASES
connections  what is done around every handler, and a handler's Transaction on Django's own connection
project      the app: `from holdfast.contrib.django import app`
staff        access to the dashboard, by Django's sessions
apps         Django's side of it: its checks, and its queues after `migrate`
"""

from holdfast.distribution import install

try:
    import django as _django  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"holdfast.contrib.django needs Django. Install it: {install('django')}", name="django"
    ) from missing

from .project import app
from .staff import DjangoStaff

__all__ = ["DjangoStaff", "app"]
