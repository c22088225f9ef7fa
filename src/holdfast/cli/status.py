"""`holdfast status`: how things stand."""

from functools import partial
from typing import Annotated

import typer

from holdfast.cli import render
from holdfast.cli.apps import Where, named_app, place_of
from holdfast.cli.command import Shown, command
from holdfast.cli.screen import EveryOption, TimesOption, watch
from holdfast.model.state import BLOCKED, HELD, PARKED, PENDING, PROCESSING, QUARANTINED, SCHEDULED, SUSPENDED
from holdfast.model.text import command as command_line
from holdfast.operate.operator import Operator
from holdfast.operate.overview import Overview
from holdfast.store.queue_load import Count

NUMBERS = (PENDING, "oldest", SCHEDULED, PROCESSING, HELD, QUARANTINED, "dead")


@command(looks=True)
def status_command(
    watched: Annotated[bool, typer.Option("--watch", help="Refresh it until Ctrl-C.")] = False,
    every: EveryOption = "2s",
    times: TimesOption = None,
    *,
    where: Where,
    operator: Operator,
) -> Shown[Overview]:
    """Show queues, workers, dead letters and throughput."""
    place = place_of(operator.database).removeprefix("database ")
    show = partial(_print, place=place)
    if watched:
        watch(operator.overview, show, every, times, where.as_json)
        raise typer.Exit
    return Shown(operator.overview(), show)


def _print(found: Overview, place: str) -> None:
    print_queues(found)
    _print_unserved(found)
    late = f", {found.workers.late} late" if found.workers.late else ""
    about = "about " if found.finished_is_estimate else ""
    typer.echo("")
    typer.echo(f"workers     {found.workers.alive} alive, {found.workers.draining} draining{late}")
    _print_paused(found)
    dead = f"dead        {render.number(found.dead_letters)}"
    typer.echo(render.styled(dead, "red" if found.dead_letters.count else None))
    typer.echo(f"finished    {about}{found.finished_last_minute:,} in the last minute")
    server = f"{place}, PostgreSQL {found.server_version}, schema {found.schema_version}"
    typer.echo(render.folded(f"database    {server}", 12))
    typer.echo(render.folded(f"durability  {found.durability}", 12))


def _print_unserved(found: Overview) -> None:
    """The most frequent problem of a new user: jobs wait, and no worker runs."""
    for name in found.unserved:
        named = named_app()
        start = command_line("holdfast", "worker", named.value if named else "MODULE:APP", "--queue", name)
        said = f"queue {name} has due jobs and no worker. Start one: {start}"
        typer.echo("")
        typer.echo(render.styled(render.folded(f"nobody      {said}", 12), "red"))


def _print_paused(found: Overview) -> None:
    for load in found.queues:
        if load.paused_at is not None:
            typer.echo(
                f"paused      queue {load.name} for {render.since(load.paused_seconds, load.paused_by)}"
            )
    for task in found.paused_tasks:
        about = render.since(task.paused_seconds, task.paused_by)
        typer.echo(f"paused      task {render.one_line(task.task)} for {about}")


def print_queues(found: Overview) -> None:
    dead = found.dead_letters_by_queue
    ordered = any(load.ordering == "key" for load in found.queues)
    waiting = any(load.suspended.count for load in found.queues)
    more = (*((SUSPENDED,) if waiting else ()), *((BLOCKED, PARKED) if ordered else ()))
    numbers = (*NUMBERS[:-1], *more, NUMBERS[-1])
    rows = [
        [
            load.name,
            render.number(load.pending),
            render.age(load.oldest_due_seconds),
            *(render.number(n) for n in (load.scheduled, load.processing, load.held, load.quarantined)),
            *([render.number(load.suspended)] if waiting else []),
            *([render.number(load.blocked), render.number(load.parked)] if ordered else []),
            render.number(dead.get(load.name, Count(0))),
        ]
        for load in found.queues
    ]
    known = {load.name for load in found.queues}
    rows += [
        [f"{name} (no such queue)", *["-"] * (len(numbers) - 1), render.number(count)]
        for name, count in dead.items()
        if name not in known
    ]
    render.print_table(("queue", *numbers), rows, numbers, drop=(QUARANTINED, PARKED, SUSPENDED, SCHEDULED))
