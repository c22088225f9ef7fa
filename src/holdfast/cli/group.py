"""`holdfast group`: jobs that were enqueued together, and what follows them."""

from typing import Annotated

import typer

from holdfast.cli import render
from holdfast.cli.command import Shown, command
from holdfast.cli.filters import GroupArgument, LimitOption
from holdfast.operate.groups import GroupLine, GroupReport
from holdfast.operate.operator import Operator

app = typer.Typer(help="Groups of jobs with a callback.", no_args_is_help=True)
_NUMBERS = ("total", "open", "discarded")


@app.command("list")
@command(looks=True)
def list_command(
    only_open: Annotated[bool, typer.Option("--open", help="Only those that are not finished.")] = False,
    limit: LimitOption = 50,
    *,
    operator: Operator,
) -> Shown[list[GroupLine]]:
    """List groups, the newest first."""
    found = operator.list_groups(only_open=only_open, limit=limit)
    return Shown(found, _print_list, {"groups": found})


def _print_list(found: list[GroupLine]) -> None:
    if not found:
        typer.echo("No groups.")
    else:
        columns = ("group", "state", "wants", *_NUMBERS, "created", "finished", "fault")
        drop = ("discarded", "wants", "finished", "total", "created")
        render.print_table(columns, [_row(line) for line in found], _NUMBERS, drop)


def _row(line: GroupLine) -> list[str]:
    group = line.group
    return [
        render.job_id(group.id),
        line.state,
        group.when,
        *(f"{n:,}" for n in (group.total, group.open, group.discarded)),
        render.ago(group.created_at),
        render.ago(group.finished_at),
        render.one_line(group.fault, 200) if group.fault else "-",
    ]


@app.command("show")
@command(looks=True)
def show_command(group_id: GroupArgument, operator: Operator) -> Shown[GroupReport]:
    """Show one group: how many have ended, how, and its callback."""
    return Shown(operator.find_group(group_id), _print)


def _print(report: GroupReport) -> None:
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
