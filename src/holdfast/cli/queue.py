"""`holdfast queue`: make queues, list them, change, pause and resume them."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Annotated

import typer

from holdfast.cli import limits, render
from holdfast.cli.apps import AppOption, load_app
from holdfast.cli.arguments import parse_span
from holdfast.cli.command import Shown, command
from holdfast.cli.completion import complete_queue
from holdfast.errors import ConfigurationError
from holdfast.model.state import BLOCKED, HELD, PARKED, PENDING, PROCESSING, QUARANTINED, SCHEDULED, SUSPENDED
from holdfast.operate.limits import QueueRulesSeen
from holdfast.operate.operator import Operator
from holdfast.operate.pauses import QueuePause
from holdfast.operate.queues import QueueMade, QueueSet, QueueSync
from holdfast.store.queue_load import QueueLoad
from holdfast.tasks.queueing import queue_rules

app = typer.Typer(help="Create queues, list, change, pause and resume them.", no_args_is_help=True)


class Ordering(StrEnum):
    none = "none"
    key = "key"


class OnDeadLetter(StrEnum):
    skip = "skip"
    block = "block"
    park = "park"


NUMBERS = (PENDING, "oldest", SCHEDULED, PROCESSING, HELD, QUARANTINED, "lease")
NameArgument = Annotated[str, typer.Argument(metavar="NAME", autocompletion=complete_queue)]


@app.command("create")
@command(asks_why=True, makes=True)
def create_command(
    name: Annotated[str, typer.Argument(help="Small letters, digits and _, a letter first.")],
    lease: Annotated[
        str | None,
        typer.Option(
            metavar="SPAN",
            help="How long a claim is valid without renewal: 60s, 2m.",
            show_default="the worker's",
        ),
    ] = None,
    ordering: Annotated[
        Ordering, typer.Option(help="key: strictly one after the other within each partition key.")
    ] = Ordering.none,
    on_dead_letter: Annotated[
        OnDeadLetter,
        typer.Option(
            help="What a key does when one of its jobs fails for good: continue, wait for it, or be parked."
        ),
    ] = OnDeadLetter.skip,
    fair: Annotated[bool, typer.Option("--fair", help="Every partition key gets its turn.")] = False,
    weight: limits.WeightOption = None,
    concurrency: limits.ConcurrencyOption = None,
    key_concurrency: limits.KeyConcurrencyOption = None,
    rate: limits.RateOption = None,
    burst: limits.BurstOption = None,
    key_rate: limits.KeyRateOption = None,
    key_burst: limits.KeyBurstOption = None,
    aging: limits.AgingOption = None,
    keep_completed: limits.KeepOption = None,
    affinity: limits.AffinityOption = None,
    *,
    operator: Operator,
) -> Shown[QueueMade]:
    """Create a queue. Safe to run twice, and while workers run."""
    made_so = {"ordering": ordering.value, "on_dead_letter": on_dead_letter.value, "fair": fair}
    named = limits.given(weight, concurrency, key_concurrency, rate, burst, key_rate, key_burst, aging)
    named |= limits.kept_and_affine(keep_completed, affinity)
    wanted = {name: value for name, value in named.items() if value is not None}
    rules = queue_rules(made_so | wanted, ConfigurationError)
    made = operator.create_queue(name, None if lease is None else parse_span(lease, "--lease"), rules)
    return Shown(made, _print_made)


def _print_made(made: QueueMade) -> None:
    typer.echo(f"Queue {made.name} {'created' if made.created else 'exists already'}.")


@app.command("list")
@command(looks=True)
def list_command(operator: Operator) -> Shown[list[QueueLoad]]:
    """List the queues with their waiting and running jobs."""
    loads, rules = operator.list_queues(), operator.list_rules()
    return Shown(loads, partial(_print_list, rules=rules), {"queues": loads, "rules": rules})


def _print_list(loads: list[QueueLoad], rules: Mapping[str, QueueRulesSeen]) -> None:
    ordered = any(load.ordering == "key" for load in loads)
    said = {load.name: limits.rules_text(rules.get(load.name)) for load in loads}
    limited = any(text != "-" for text in said.values())
    waiting = any(load.suspended.count for load in loads)
    more = (*((SUSPENDED,) if waiting else ()), *((BLOCKED, PARKED, "ordering") if ordered else ()))
    heads = ("queue", *NUMBERS, *more, *(["rules"] if limited else []), "paused")
    rows = [_row(load, waiting, ordered, [said[load.name]] if limited else []) for load in loads]
    numbers = (*NUMBERS, SUSPENDED, BLOCKED, PARKED)
    nothing = [
        head
        for i, head in enumerate(heads)
        if head in numbers and head != PENDING and all(r[i] == "0" for r in rows)
    ]
    drop = (
        "lease",
        "ordering",
        *nothing,
        QUARANTINED,
        HELD,
        SCHEDULED,
        SUSPENDED,
        "rules",
        PARKED,
        BLOCKED,
        PROCESSING,
    )
    render.print_table(heads, rows, numbers, drop)


@app.command("show")
@command(looks=True)
def show_command(name: NameArgument, operator: Operator) -> Shown[QueueRulesSeen]:
    """Show the rules of a queue, and how much of each limit is used now."""
    return Shown(operator.show_rules(name), _print_rules)


def _print_rules(seen: QueueRulesSeen) -> None:
    lines = limits.rules_lines(seen) or [("rules", "none: claimed by priority, as fast as workers can")]
    for what, text in lines:
        typer.echo(f"{what:<20} {text}")


def _row(load: QueueLoad, waiting: bool, ordered: bool, rules: list[str]) -> list[str]:
    order = f"key, {load.on_dead_letter}" if load.ordering == "key" else "-"
    more = [render.number(load.blocked), render.number(load.parked), order]
    return [
        load.name,
        render.number(load.pending),
        render.age(load.oldest_due_seconds),
        *(render.number(n) for n in (load.scheduled, load.processing, load.held, load.quarantined)),
        "-" if load.lease is None else f"{load.lease:g} s",
        *([render.number(load.suspended)] if waiting else []),
        *(more if ordered else []),
        *rules,
        render.since(load.paused_seconds, load.paused_by),
    ]


@app.command("set")
@command(asks_why=True)
def set_command(
    name: NameArgument,
    ordering: Annotated[
        Ordering | None, typer.Option(help="Only while the queue is empty and no worker serves it.")
    ] = None,
    on_dead_letter: Annotated[
        OnDeadLetter | None, typer.Option(help="Applies at once, also to running workers.")
    ] = None,
    weight: limits.WeightOption = None,
    concurrency: limits.ConcurrencyOption = None,
    key_concurrency: limits.KeyConcurrencyOption = None,
    rate: limits.RateOption = None,
    burst: limits.BurstOption = None,
    key_rate: limits.KeyRateOption = None,
    key_burst: limits.KeyBurstOption = None,
    aging: limits.AgingOption = None,
    keep_completed: limits.KeepOption = None,
    affinity: limits.AffinityOption = None,
    *,
    operator: Operator,
) -> Shown[QueueSet]:
    """Change the rules of a queue; `none` removes a limit. Keys that are blocked or parked stay so until released."""
    has = operator.rules_of(name)
    named = limits.given(weight, concurrency, key_concurrency, rate, burst, key_rate, key_burst, aging, has)
    named |= limits.kept_and_affine(keep_completed, affinity)
    if ordering is None and on_dead_letter is None and not named:
        raise ConfigurationError(
            "say what to change: --on-dead-letter skip, block or park, --ordering none or key, "
            "or a limit, as --concurrency 20 or --rate none, --drop-completed, or --affinity key or none"
        )
    done = operator.set_queue(
        name,
        ordering=None if ordering is None else ordering.value,
        on_dead_letter=None if on_dead_letter is None else on_dead_letter.value,
        limits=named,
    )
    shown = (["limits"] if named else []) + (["rules"] if ordering or on_dead_letter or not named else [])
    return Shown(done, partial(_print_set, shown=shown))


def _print_set(done: QueueSet, shown: Sequence[str]) -> None:
    what = {
        "limits": limits.changes_text(done.changes),
        "rules": f"ordering {done.ordering}, on dead letter {done.on_dead_letter}",
    }
    texts = [what[name] for name in shown if what[name]]
    said = "is changed" if done.changed else "is like this already"
    typer.echo(f"Queue {done.name} {said}{': ' if texts else ''}{', '.join(texts)}.")


@app.command("pause")
@command(asks_why=True)
def pause_command(name: NameArgument, operator: Operator) -> Shown[QueuePause]:
    """Stop claiming from a queue. What runs finishes; what waits stays where it is."""
    said = partial(_print_pause, changed=f"Queue {name} is paused.", already="was paused already")
    return Shown(operator.pause_queue(name), said)


@app.command("resume")
@command(asks_why=True)
def resume_command(name: NameArgument, operator: Operator) -> Shown[QueuePause]:
    """Claim from a paused queue again."""
    said = partial(_print_pause, changed=f"Queue {name} is resumed.", already="was not paused")
    return Shown(operator.resume_queue(name), said)


def _print_pause(done: QueuePause, changed: str, already: str) -> None:
    if done.changed:
        typer.echo(changed)
    else:
        since = f", for {render.since(done.pause.seconds, done.pause.by)}" if done.pause.at else ""
        typer.echo(f"Queue {done.queue} {already}{since}.")


@app.command("sync")
@command(asks_why=True, makes=True)
def sync_command(
    app: AppOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be created; change nothing.")
    ] = False,
    *,
    operator: Operator,
) -> Shown[QueueSync]:
    """Create the queues that an app declares and the database lacks, and change the others to the rules it declares.

    Safe to run twice, and while workers run."""
    declared = load_app(app).tasks.queue_rules()
    return Shown(operator.sync_queues(declared, dry_run=dry_run), partial(_print_sync, dry_run=dry_run))


def _print_sync(done: QueueSync, dry_run: bool) -> None:
    verb = "would be created" if dry_run else "created"
    for name in done.created:
        typer.echo(f"Queue {name} {verb}.")
    for name, changes in done.changed.items():
        typer.echo(f"Queue {name} {'would be' if dry_run else 'is'} changed: {limits.changes_text(changes)}.")
    if not done.created and not done.changed:
        typer.echo("Every queue that the app declares is there.")
    if done.unknown:
        typer.echo(f"In the database, but not declared by the app: {', '.join(done.unknown)}")
