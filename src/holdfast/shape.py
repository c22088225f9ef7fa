"""The seam between the engine and what is built on it: a shape says here what it adds, and reaches into nothing.

A shape is one folder below holdfast.shapes. Its `__init__` makes one Shape, and `holdfast.shapes.SHAPES` lists them all.
What its users declare and do is in the classes that `holdfast.shapes` puts together (Registry, Verbs).
A question for the pulse of sleeping workers belongs to the service that acts on the answer (`Service.question`). The text
of its statements is in `queries.sql` in its folder, and its part of the schema in `schema.sql` beside it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from .db.database import Database
from .operate.doctor.finding import Check
from .runtime.service import Service
from .runtime.tidy import Prune
from .tasks.taskset import TaskSet


def _no_services(database: Database, tasks: TaskSet) -> Sequence[Service]:
    return ()


def _nothing_declared(tasks: TaskSet) -> None:
    """Nothing to check."""


@dataclass(frozen=True)
class Shape:
    """What a kind of work adds to the engine. What it has no need of is left out."""

    name: str
    services: Callable[[Database, TaskSet], Sequence[Service]] = _no_services  # that every worker runs
    check_declared: Callable[[TaskSet], None] = _nothing_declared  # raises TaskDefinitionError
    prunes: Mapping[str, Prune] = field(default_factory=dict)  # table -> what removes its expired rows
    checks: Sequence[Check] = ()  # that `holdfast doctor` makes
    cli: Mapping[str, str] = field(
        default_factory=dict
    )  # name of a group of commands -> the module and the Typer in it
