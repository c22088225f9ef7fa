"""The Django project on the database of the test: its connections, and its app."""

from collections.abc import Callable, Iterator

import pytest
from tests.conftest import QUICK
from tests.django_app.setting_up import set_up
from tests.guests.django_kind import database as database_of

from holdfast.testing import Kit

set_up()

from django.core.management import call_command  # noqa: E402
from django.db import connections  # noqa: E402

from holdfast.contrib.django import app as django_app  # noqa: E402


@pytest.fixture
def at(holdfast_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Django's connections go to the test's database: here, and in every process that is started."""
    monkeypatch.setenv("STOCK_DATABASE", holdfast_url)
    settings = connections.settings["default"]
    for name, value in {**database_of(holdfast_url), "CONN_MAX_AGE": 0, "CONN_HEALTH_CHECKS": False}.items():
        monkeypatch.setitem(settings, name, value)
    connections.close_all()
    yield holdfast_url
    connections.close_all()


@pytest.fixture
def stock(at: str, holdfast_kit: Callable[..., Kit]) -> Kit:
    """The project with its tables, and a kit for its app."""
    from tests.django_app.stock.models import Part

    with connections["default"].schema_editor() as editor:
        editor.create_model(Part)
    connections.close_all()
    return holdfast_kit(django_app, QUICK)


__all__ = ["call_command"]
