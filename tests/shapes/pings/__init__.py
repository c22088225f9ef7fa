"""A shape in one folder, through the seam only: every worker notes the names that the code declares with `ping()`."""

from collections.abc import Iterator
from typing import Any

import typer

from holdfast.cli.apps import DatabaseOption, open_database
from holdfast.db.database import Database
from holdfast.operate.advice import start_worker
from holdfast.operate.doctor.finding import Check, Finding, Patient
from holdfast.runtime.service import Service
from holdfast.shape import Shape
from holdfast.store.statement import Statement, count, ids, named, nothing
from holdfast.store.wake import Question
from holdfast.tasks.registry import TaskRegistry

app = typer.Typer()


class Pinging(TaskRegistry):
    def ping(self, name: str) -> None:
        self._declare_thing("pings", name, name, same=lambda other: True)


class HasPings:
    database: Any  # of the app

    @property
    def pings(self) -> list[str]:
        return list(self.database.run(names))


def names() -> Statement[list[str]]:
    return named("ping_names", (), ids)


def forget(days: int, limit: int) -> Statement[int]:
    return named("ping_forget", (days, limit), count)


class Pinger(Service):
    name = "pings"

    def __init__(self, database: Database, declared: list[str]) -> None:
        super().__init__()
        self._session, self._declared = database.session("pings"), declared
        self.question = Question("pings_missing", (declared,))

    async def tick(self) -> float:
        await self._session.run(named("ping_write", (self._declared,), nothing))
        return 3600.0

    def on_answer(self, answer: int) -> None:
        if answer:
            self.wake()

    async def finish(self) -> None:
        await self._session.close()


def check_pings(patient: Patient) -> Iterator[Finding]:
    if not patient.probe.look(names()):
        yield Finding("no_pings", "warning", "nobody has pinged", [start_worker("inbox")])


@app.callback()
def group() -> None:
    """Look at pings."""


@app.command("list")
def list_pings(database_url: DatabaseOption = None) -> None:
    with open_database(database_url) as database:
        found = database.run(names)
        typer.echo(" ".join(found))


SHAPE = Shape(
    "pings",
    services=lambda database, tasks: [Pinger(database, list(tasks.declared("pings")))],
    prunes={"pings": forget},
    checks=[Check("pings", "somebody pings", ("no_pings",), check_pings)],
    cli={"pings": f"{__name__}:app"},
)
