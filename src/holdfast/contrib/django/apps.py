"""Django's side: "holdfast.contrib.django" in INSTALLED_APPS."""

import contextlib
from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class HoldfastConfig(AppConfig):
    name = "holdfast.contrib.django"
    label = "holdfast"
    verbose_name = "Holdfast"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from .project import app

        app.load()
        post_migrate.connect(_after_migrate, sender=self, dispatch_uid="holdfast.queues")


def _after_migrate(using: str, plan: Sequence[tuple[Any, bool]] = (), **_: Any) -> None:
    """After `migrate` and `flush`, and not where that was for another database or to go back. Before our schema is there,
    other apps may migrate."""
    from ...errors import SchemaMissing
    from .project import app
    from .schema import create_queues

    if using == app.options.database and not any(backwards for _, backwards in plan):
        with contextlib.suppress(SchemaMissing):
            create_queues(app)
