"""The options that say which jobs, the same for a list and for an act over many."""

from dataclasses import dataclass, replace
from typing import Annotated, TypedDict
from uuid import UUID

import typer

from holdfast.cli.arguments import parse_span
from holdfast.cli.completion import complete_queue, complete_state, complete_task
from holdfast.cli.ids import parse_group_id, parse_job_id
from holdfast.cli.render import line
from holdfast.model.state import STATES
from holdfast.operate.operator import Operator
from holdfast.store.dead import DeadFilter
from holdfast.store.search import JobFilter


class PageArguments(TypedDict):
    limit: int
    after: UUID | None
    patience: float | None


IdsArgument = Annotated[
    list[UUID] | None,
    typer.Argument(metavar="[ID]...", help="These jobs, all or none.", parser=parse_job_id),
]
IdArgument = Annotated[
    UUID, typer.Argument(metavar="ID", help="The job's id, or its beginning.", parser=parse_job_id)
]
GroupArgument = Annotated[
    UUID, typer.Argument(metavar="ID", help="The group's id, or its beginning.", parser=parse_group_id)
]
StateOption = Annotated[
    str | None,
    typer.Option(
        "--state", "-s", help=f"One of {', '.join(STATES)} (or dead).", autocompletion=complete_state
    ),
]
FinishedOption = Annotated[str | None, typer.Option("--state", "-s", help="completed or cancelled.")]
QueueOption = Annotated[
    str | None, typer.Option("--queue", "-q", help="Only of this queue.", autocompletion=complete_queue)
]
TaskOption = Annotated[
    str | None, typer.Option("--task", "-t", help="Only of this task.", autocompletion=complete_task)
]
BackingOffOption = Annotated[
    bool, typer.Option("--backing-off", help="Only jobs that failed and wait for their next attempt.")
]
KeyOption = Annotated[str | None, typer.Option("--key", "-k", help="Only with this partition key.")]
TagOption = Annotated[str | None, typer.Option("--tag", help="Only with this tag.")]
ErrorOption = Annotated[
    str | None,
    typer.Option("--error", "-e", metavar="TEXT", help="Only with this text in the last error."),
]
OlderOption = Annotated[
    str | None, typer.Option("--older-than", metavar="AGE", help="Only created longer ago: 90s, 15m, 2h, 3d.")
]
NewerOption = Annotated[
    str | None, typer.Option("--newer-than", metavar="AGE", help="Only created within: 90s, 15m, 2h, 3d.")
]
WorkerOption = Annotated[
    str | None, typer.Option("--worker", metavar="ID", help="Only jobs that this worker runs, or ran last.")
]
MinAttemptsOption = Annotated[
    int | None,
    typer.Option("--min-attempts", metavar="N", help="Only with at least that many attempts spent."),
]
FieldOption = Annotated[
    str | None,
    typer.Option("--field", metavar="NAME=VALUE", help="Only with this in the payload: customer.id=17."),
]
GroupOption = Annotated[
    str | None, typer.Option("--group", "-g", help="Only of this group, as `dead list` names it.")
]
DiedBeforeOption = Annotated[
    str | None, typer.Option("--older-than", metavar="AGE", help="Only died longer ago: 90s, 15m, 2h, 3d.")
]
DiedSinceOption = Annotated[
    str | None, typer.Option("--newer-than", metavar="AGE", help="Only died within: 90s, 15m, 2h, 3d.")
]
LimitOption = Annotated[int, typer.Option("--limit", "-n", help="How many at most.")]
AfterOption = Annotated[UUID | None, typer.Option(help="Continue where a page ended.")]
PatienceOption = Annotated[
    str | None,
    typer.Option(
        "--patience",
        metavar="SPAN",
        help="How long to search for what is rare, such as 5m.",
        show_default="2s",
    ),
]


@dataclass(frozen=True)
class Page:
    """How much of a list."""

    limit: LimitOption = 50
    after: AfterOption = None
    patience: PatienceOption = None

    def arguments(self) -> PageArguments:
        patience = None if self.patience is None else parse_span(self.patience, "--patience")
        return {"limit": self.limit, "after": self.after, "patience": patience}


@dataclass(frozen=True)
class AnyJobOptions:
    """Which jobs, live or not."""

    state: StateOption = None
    queue: QueueOption = None
    task: TaskOption = None
    key: KeyOption = None
    tag: TagOption = None
    error: ErrorOption = None
    older_than: OlderOption = None
    newer_than: NewerOption = None
    worker: WorkerOption = None
    min_attempts: MinAttemptsOption = None
    field: FieldOption = None

    def filter(self) -> JobFilter:
        states = None if self.state is None else (self.state,)
        ages = _age("--older-than", self.older_than), _age("--newer-than", self.newer_than)
        found = JobFilter(states, self.queue, self.task, self.key, self.tag, self.error, *ages)
        return replace(found, worker=self.worker, min_attempts=self.min_attempts, field=self.field)


@dataclass(frozen=True)
class JobOptions(AnyJobOptions):
    """Which jobs."""

    backing_off: BackingOffOption = False

    def filter(self) -> JobFilter:
        found = super().filter()
        return replace(found, backing_off=True) if self.backing_off else found


@dataclass(frozen=True)
class FinishedOptions(AnyJobOptions):
    """Which finished jobs."""

    state: FinishedOption = None


@dataclass(frozen=True)
class DeadOptions:
    """Which dead letters."""

    group: GroupOption = None
    queue: QueueOption = None
    task: TaskOption = None
    error: ErrorOption = None
    key: KeyOption = None
    tag: TagOption = None
    older_than: DiedBeforeOption = None
    newer_than: DiedSinceOption = None

    def filter(self) -> DeadFilter:
        ages = _age("--older-than", self.older_than), _age("--newer-than", self.newer_than)
        return DeadFilter(self.group, self.queue, self.task, self.error, self.key, self.tag, *ages)


def note_queue(operator: Operator, name: str | None) -> None:
    """Finished and dead jobs may outlive their queue: a queue that is not there is no mistake, but is reported."""
    if note := operator.no_queue_now(name):
        typer.echo(f"note: {line(note)}", err=True)


def _age(option: str, text: str | None) -> float | None:
    return None if text is None else parse_span(text, option)
