"""`holdfast group`: jobs that were enqueued together, and what follows them."""

from typing import Annotated

import typer

from holdfast.cli import render
from holdfast.cli.apps import AppOption, DatabaseOption, JsonOption, open_operator
from holdfast.cli.filters import IdArgument, LimitOption
from holdfast.operate.groups import GroupLine

app = typer.Typer(help="Groups of jobs with a callback.", no_args_is_help=True)
_NUMBERS = ("total", "open", "discarded")


@app.command("list")
def list_command(
    only_open: Annotated[bool, typer.Option("--open", help="Only those that are not finished.")] = False,
    limit: LimitOption = 50,
    database_url: DatabaseOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """List groups, the newest first."""
    with open_operator(database_url, app) as operator:
        found = operator.list_groups(only_open=only_open, limit=limit)
    if as_json:
        render.print_json({"groups": found})
    elif not found:
        typer.echo("No groups.")
    else:
        columns = ("group", "state", "wants", *_NUMBERS, "created", "finished", "fault")
        render.print_table(columns, [_row(line) for line in found], _NUMBERS)


def _row(line: GroupLine) -> list[str]:
    group = line.group
    return [
        str(group.id),
        line.state,
        group.when,
        *(f"{n:,}" for n in (group.total, group.open, group.discarded)),
        render.moment(group.created_at),
        render.moment(group.finished_at),
        render.one_line(group.fault, 200) if group.fault else "-",
    ]


@app.command("show")
def show_command(
    group_id: IdArgument,
    database_url: DatabaseOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one group: how many have ended, how, and its callback."""
    with open_operator(database_url, app) as operator:
        report = operator.find_group(group_id)
    if as_json:
        render.print_json(report)
        return
    group = report.group
    facts = {
        "group": group.id,
        "state": report.state,
        "wants": f"all {group.total} {group.when}",
        "open": group.open,
        "discarded": group.discarded or None,
        "created": render.moment(group.created_at),
        "finished": render.moment(group.finished_at),
        "callback": ", ".join(str(i) for i in group.callback_ids),
        "fault": group.fault,
        "members": ", ".join(f"{count} {state}" for state, count in report.members.items()),
    }
    for name, value in facts.items():
        if value not in (None, "", "-"):
            typer.echo(f"{name:<12}{render.line(str(value))}")
