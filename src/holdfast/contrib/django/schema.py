"""Our schema by Django's `migrate`: one Django migration per release, which runs the migrations that are pending."""

from typing import Any

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

from ...app import Holdfast
from ...db import migrate
from ...model.actor import Actor
from ...operate.operator import Operator
from ...settings import default_actor
from .address import address_of


class HoldfastSchema(Operation):
    """Bring the schema `holdfast` to what this release needs. `number` is that of the newest migration of the release that
    added this: an older schema has something pending. On a connection of its own, because each of our migrations is a
    transaction with its own limits on locks."""

    reversible = False
    reduces_to_sql = False

    def __init__(self, number: int) -> None:
        self.number = number

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        return (type(self).__name__, [self.number], {})

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        pass

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        from .project import app

        alias = schema_editor.connection.alias
        if alias == app.options.database:
            migrate.up(address_of(alias))

    def describe(self) -> str:
        return f"The schema holdfast, up to its migration {self.number}"

    @property
    def migration_name_fragment(self) -> str:
        return f"schema_{self.number}"


def create_queues(app: Holdfast) -> None:
    """Make the queues that the code declares and the database has not. On connections of their own, which are closed: a test
    runner drops its database afterwards."""
    database = app._new_database(app.database.url, app.settings)
    try:
        operator = Operator(database, Actor(default_actor()))
        there = operator.queue_names()
        for name, rules in app.tasks.queue_rules().items():
            if name not in there:
                operator.create_queue(name, rules=rules)
    finally:
        database.close()
