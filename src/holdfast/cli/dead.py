"""`holdfast dead`: look at dead letters, put them back to work, delete them."""

from functools import partial
from typing import Annotated

import typer

from holdfast.cli import render
from holdfast.cli.apps import Where
from holdfast.cli.arguments import parse_object, parse_rate
from holdfast.cli.bulk import Acted, act_on_ids, act_on_many
from holdfast.cli.command import Shown, command
from holdfast.cli.confirm import HowMany
from holdfast.cli.filters import DeadOptions, IdArgument, IdsArgument, LimitOption, note_queue
from holdfast.cli.producing import known_tasks, say_unchecked
from holdfast.cli.report import print_report
from holdfast.errors import ConfigurationError
from holdfast.operate.dead import (
    DISCARD_DEAD,
    DeadGroups,
    DeadPage,
    check_dead,
    redrive_verb,
)
from holdfast.operate.edit import masked_of
from holdfast.operate.job_acts import Verb
from holdfast.operate.jobs import JobReport
from holdfast.operate.operator import Operator
from holdfast.operate.patch import patch_verb
from holdfast.store.dead import DeadFilter

app = typer.Typer(help="List dead letters, put them back to work, delete them.", no_args_is_help=True)

AllOption = Annotated[bool, typer.Option("--all", help="All there are.")]


@app.command("list")
@command(looks=True)
def list_command(
    which: DeadOptions,
    operator: Operator,
    each: Annotated[bool, typer.Option("--each", help="One by one, the last to die first.")] = False,
    limit: LimitOption = 50,
    after: Annotated[str | None, typer.Option(help="Continue where a page of --each ended.")] = None,
) -> Shown[DeadPage] | Shown[DeadGroups]:
    """List dead letters by task and error, the largest group first; with --each or --group one by one."""
    wanted = which.filter()
    shown: Shown[DeadPage] | Shown[DeadGroups]
    if each or which.group is not None or after is not None:
        shown = Shown(operator.list_dead(wanted, after=after, limit=limit), _print_page)
    else:
        shown = Shown(operator.group_dead(wanted, limit=limit), _print_groups)
    note_queue(operator, wanted.queue)
    return shown


def _print_groups(found: DeadGroups) -> None:
    if not found.groups:
        typer.echo("Nothing found so far." if found.capped else "No dead letters.")
    else:
        rows = [
            [
                g.id,
                g.task,
                ", ".join(g.queues),
                f"{g.count:,}{'+' if found.capped else ''}",
                render.ago(g.first_died_at),
                render.ago(g.last_died_at),
                render.one_line(g.error),
            ]
            for g in found.groups
        ]
        heads = ("group", "task", "queues", "dead", "first died", "last died", "last error")
        render.print_table(heads, rows, ("dead",), drop=("first died", "queues", "last died"))
    if found.capped:
        typer.echo(f"Only the newest were looked at, {found.looked_at:,} of them fit; there may be more.")


def _print_page(page: DeadPage) -> None:
    rows = [
        [
            render.job_id(d.id),
            d.group,
            d.queue,
            d.task,
            f"{d.attempts}/{d.max_attempts}",
            render.age(d.age_seconds),
            render.one_line(d.last_error),
        ]
        for d in page.dead_letters
    ]
    if rows:
        heads = ("id", "group", "queue", "task", "attempts", "died", "error")
        render.print_table(heads, rows, ("attempts", "died"), drop=("attempts", "queue", "group", "died"))
    else:
        typer.echo("Nothing found so far." if page.cut else "No dead letters.")
    render.print_more(page.next, page.cut)


@app.command("show")
@command(looks=True)
def show_command(job_id: IdArgument, operator: Operator) -> Shown[JobReport]:
    """Show everything about one dead letter."""
    return Shown(operator.find_dead(job_id), print_report)


@app.command("redrive")
@command(asks_why=True)
def redrive_command(
    which: DeadOptions,
    how: HowMany,
    operator: Operator,
    ids: IdsArgument = None,
    everything: AllOption = False,
    rate: Annotated[
        str | None,
        typer.Option(
            metavar="N/UNIT", help="Spread out: 100/s, 5/m, 1000/h. They are due one after the other."
        ),
    ] = None,
) -> Acted:
    """Put dead letters back to work, each with a fresh set of attempts.

    At a rate, nothing has to stay running: each job gets the time at which it is due, the first one now.
    """
    verb = redrive_verb(None if rate is None else parse_rate(rate, "--rate"))
    return _act(operator, verb, ids, which.filter(), everything, how)


@app.command("patch")
@command(asks_why=True)
def patch_command(
    patch: Annotated[
        str, typer.Argument(metavar="PATCH", help='A JSON object: {"currency": "EUR", "note": null}')
    ],
    which: DeadOptions,
    how: HowMany,
    operator: Operator,
    ids: IdsArgument = None,
    everything: AllOption = False,
    *,
    where: Where,
) -> Acted:
    """Change the payloads of dead letters by one JSON merge patch, before they are redriven.

    With an app each payload is checked against its handler; one that would not fit stays as it is. A dry run says which.
    """
    said = parse_object(patch, "PATCH")
    tasks = known_tasks(where.app)
    known = tasks.definition if tasks else None
    names = {name for task, _ in tasks.known() for name in masked_of(task, known)} if tasks else ()
    verb = patch_verb(said, known, sorted(names))
    if how.dry_run:
        for one in operator.unfit_of(said, ids or which.filter(), known):
            typer.echo(f"note: {one.id} would not fit: {render.one_line(one.why, 200)}", err=True)
    say_unchecked(tasks)
    return _act(operator, verb, ids, which.filter(), everything, how)


@app.command("discard")
@command(asks_why=True)
def discard_command(
    which: DeadOptions,
    how: HowMany,
    operator: Operator,
    ids: IdsArgument = None,
    everything: AllOption = False,
) -> Acted:
    """Delete dead letters for good, with their errors and steps."""
    return _act(operator, DISCARD_DEAD, ids, which.filter(), everything, how)


def _act(
    operator: Operator, verb: Verb, ids: IdsArgument, wanted: DeadFilter, everything: bool, how: HowMany
) -> Acted:
    if sum((bool(ids), bool(wanted.given()), everything)) != 1:
        raise ConfigurationError(
            "say which dead letters: their ids, or filters such as --group, --task, --queue or --error, or --all"
        )
    if ids:
        return act_on_ids(operator, verb, ids, how)
    check_dead(wanted)
    note_queue(operator, wanted.queue)
    select, preview = partial(operator.select_dead, wanted), partial(operator.preview_dead, verb, wanted)
    return act_on_many(operator, verb, select, preview, how, partial(operator.begin_operation, verb, wanted))
