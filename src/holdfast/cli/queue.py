"""`holdfast queue`: make queues, list them, change, pause and resume them."""

from enum import StrEnum
from typing import Annotated

import typer

from holdfast.cli import render
from holdfast.cli.apps import AppOption, DatabaseOption, JsonOption, load_app, open_database
from holdfast.cli.completion import complete_queue
from holdfast.errors import ConfigurationError
from holdfast.operate.pauses import QueuePause, pause_queue, resume_queue
from holdfast.operate.queues import QueueSync, create_queue, list_queues, set_queue, sync_queues
from holdfast.store.operate import QueueLoad
from holdfast.tasks.queueing import queue_rules

app = typer.Typer(help="Make queues, list them, change, pause and resume them.", no_args_is_help=True)


class Ordering(StrEnum):
    none = "none"
    key = "key"


class OnDeadLetter(StrEnum):
    skip = "skip"
    block = "block"
    park = "park"


NUMBERS = ("pending", "oldest", "scheduled", "processing", "held", "quarantined", "lease")
NameArgument = Annotated[str, typer.Argument(metavar="NAME", autocompletion=complete_queue)]


@app.command("create")
def create_command(
    name: Annotated[str, typer.Argument(help="Small letters, digits and _, a letter first.")],
    lease: Annotated[
        float | None,
        typer.Option(help="Seconds a claim is good for without renewal.", show_default="the worker's"),
    ] = None,
    ordering: Annotated[
        Ordering, typer.Option(help="key: strictly one after the other within each partition key.")
    ] = Ordering.none,
    on_dead_letter: Annotated[
        OnDeadLetter,
        typer.Option(
            help="What a key does when one of its jobs fails for good: go on, wait for it, or be parked."
        ),
    ] = OnDeadLetter.skip,
    database_url: DatabaseOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a queue. Safe to run twice, and while workers run."""
    rules = queue_rules({"ordering": ordering.value, "on_dead_letter": on_dead_letter.value})
    with open_database(database_url, app) as database:
        made = create_queue(database, name, lease, rules)
    if as_json:
        render.print_json(made)
    else:
        typer.echo(f"Queue {made.name} {'created' if made.created else 'exists already'}.")


@app.command("list")
def list_command(
    database_url: DatabaseOption = None, app: AppOption = None, as_json: JsonOption = False
) -> None:
    """List the queues with what waits and runs in each."""
    with open_database(database_url, app) as database:
        loads = list_queues(database)
    if as_json:
        render.print_json({"queues": loads})
    else:
        ordered = any(load.ordering == "key" for load in loads)
        more = ("blocked", "parked", "ordering") if ordered else ()
        heads = ("queue", *NUMBERS, *more, "paused")
        render.print_table(heads, [_row(load, ordered) for load in loads], (*NUMBERS, "blocked", "parked"))


def _row(load: QueueLoad, ordered: bool) -> list[str]:
    order = f"key, {load.on_dead_letter}" if load.ordering == "key" else "-"
    more = [render.number(load.blocked), render.number(load.parked), order]
    return [
        load.name,
        render.number(load.pending),
        render.age(load.oldest_due_seconds),
        *(render.number(n) for n in (load.scheduled, load.processing, load.held, load.quarantined)),
        "-" if load.lease is None else f"{load.lease:g} s",
        *(more if ordered else []),
        render.since(load.paused_seconds, load.paused_by),
    ]


@app.command("set")
def set_command(
    name: NameArgument,
    ordering: Annotated[
        Ordering | None, typer.Option(help="Only while the queue is empty and nobody serves it.")
    ] = None,
    on_dead_letter: Annotated[
        OnDeadLetter | None, typer.Option(help="Counts at once, also for workers that run.")
    ] = None,
    database_url: DatabaseOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change the rules of a queue. Keys that are blocked or parked stay so until they are released."""
    if ordering is None and on_dead_letter is None:
        raise ConfigurationError(
            "say what to change: --on-dead-letter skip, block or park, or --ordering none or key"
        )
    with open_database(database_url, app) as database:
        done = set_queue(
            database,
            name,
            ordering=None if ordering is None else ordering.value,
            on_dead_letter=None if on_dead_letter is None else on_dead_letter.value,
        )
    if as_json:
        render.print_json(done)
    else:
        said = "is like this already" if not done.changed else "is changed"
        typer.echo(f"Queue {name} {said}: ordering {done.ordering}, on dead letter {done.on_dead_letter}.")


@app.command("pause")
def pause_command(
    name: NameArgument,
    database_url: DatabaseOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Claim nothing more from a queue. What runs finishes; what waits stays where it is."""
    with open_database(database_url, app) as database:
        done = pause_queue(database, name)
    _print_pause(done, as_json, f"Queue {name} is paused.", "was paused already")


@app.command("resume")
def resume_command(
    name: NameArgument,
    database_url: DatabaseOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Claim from a paused queue again."""
    with open_database(database_url, app) as database:
        done = resume_queue(database, name)
    _print_pause(done, as_json, f"Queue {name} is resumed.", "was not paused")


def _print_pause(done: QueuePause, as_json: bool, changed: str, already: str) -> None:
    if as_json:
        render.print_json(done)
    elif done.changed:
        typer.echo(changed)
    else:
        since = f", for {render.since(done.pause.seconds, done.pause.by)}" if done.pause.at else ""
        typer.echo(f"Queue {done.queue} {already}{since}.")


@app.command("sync")
def sync_command(
    app: AppOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be made; make nothing.")] = False,
    database_url: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make the queues that an app declares and the database lacks. Safe to run twice, and while workers run."""
    declared = load_app(app).tasks.queue_rules()
    with open_database(database_url, app) as database:
        done = sync_queues(database, declared, dry_run=dry_run)
    if as_json:
        render.print_json(done)
    else:
        _print_sync(done, dry_run)


def _print_sync(done: QueueSync, dry_run: bool) -> None:
    verb = "would be created" if dry_run else "created"
    for name in done.created:
        typer.echo(f"Queue {name} {verb}.")
    if not done.created:
        typer.echo("Every queue that the app declares is there.")
    if done.unknown:
        typer.echo(f"In the database, but not declared by the app: {', '.join(done.unknown)}")
