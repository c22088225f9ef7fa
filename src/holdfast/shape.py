"""The seam between the engine and the shapes built on it: a shape declares here what it adds, and imports no engine loop.

A shape is one folder below holdfast.shapes. Its module `shape` makes one Shape, and `holdfast.shapes.SHAPES` lists them all.
What its users declare and do is in the classes that `holdfast.registry` assembles (Registry, Verbs).
A question for the pulse of sleeping workers belongs to the service that acts on the reply (`Service.question`). The text
of its statements is in `queries.sql` in its folder, and its part of the schema in `schema.sql` beside it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from .db.database import Database
from .errors import ConfigurationError
from .operate.doctor.finding import Check
from .operate.reason import Means
from .runtime.record import Recorder
from .runtime.service import Service
from .runtime.tidy import Prune
from .store.statement import Flow
from .tasks.taskset import TaskSet

T = TypeVar("T")


def _no_services(database: Database, tasks: TaskSet) -> Sequence[Service]:
    return ()


def _nothing_declared(tasks: TaskSet) -> None:
    """Nothing to check."""


class Gauge(NamedTuple):
    """A number from the latest snapshot of the database; without the prefix `holdfast_`."""

    name: str
    text: str
    labels: Sequence[str]
    samples: Sequence[tuple[Sequence[str], float]]  # values of the labels, and the number


class Counted(NamedTuple):
    """A counter that a telemetry event raises."""

    name: str
    text: str
    labels: Sequence[str] = ()  # fields of the event
    amount: str | None = None  # the field with the increment; None: one


class CountedEnds(NamedTuple):
    """A counter of how jobs of the shape's own tasks ended, once per job that ended here."""

    name: str
    text: str
    task: str  # the name of the label that has the task
    outcomes: Mapping[str, str]  # outcome of jobs_settled -> its name here; others are not counted
    tasks: Callable[[TaskSet], Iterable[str]]  # whose jobs


@dataclass(frozen=True)
class Measures:
    """The Prometheus metrics of a shape. A scrape never queries the database: `look` is part of the snapshot that a worker
    takes every few seconds, and must cost the same however many rows there are."""

    look: Callable[[float], Flow[Any]]  # is given the seconds after which a silent worker counts as gone
    gauges: Callable[[Any], Iterable[Gauge]]  # of the result of `look`
    counters: Mapping[str, Counted] = field(default_factory=dict)  # by the name of the event
    ends: CountedEnds | None = None


@dataclass(frozen=True)
class Shape:
    """What a kind of work adds to the engine. Unused parts are left out."""

    name: str
    services: Callable[[Database, TaskSet], Sequence[Service]] = _no_services  # that every worker runs
    check_declared: Callable[[TaskSet], None] = _nothing_declared  # raises TaskDefinitionError
    prunes: Mapping[str, Prune] = field(default_factory=dict)  # table -> what removes its expired rows
    recorders: Mapping[str, Recorder] = field(
        default_factory=dict
    )  # table -> the function that writes rows its tasks recorded by job.record(table, ...); see runtime/record.py
    checks: Sequence[Check] = ()  # of `holdfast doctor`
    measures: Measures | None = None  # for Prometheus
    means: Means | None = None  # what `holdfast explain` says about its own jobs
    cli: Mapping[str, str] = field(
        default_factory=dict
    )  # name of a group of commands -> the module and the Typer in it
    pages: str | None = None  # the module and the Pages in it, for the dashboard


def by_table(shapes: "Iterable[Shape]", of: Callable[[Shape], Mapping[str, T]], what: str) -> dict[str, T]:
    """The shapes' values by table, in one mapping. A table that two shapes claim is refused: one of them would never be
    called."""
    owner: dict[str, str] = {}
    found: dict[str, T] = {}
    for shape in shapes:
        for table, one in of(shape).items():
            if table in owner:
                raise ConfigurationError(
                    f"the shapes {owner[table]!r} and {shape.name!r} both have a {what} for {table!r}. "
                    "Give one of them another name"
                )
            owner[table], found[table] = shape.name, one
    return found
