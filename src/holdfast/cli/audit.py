"""`holdfast audit`: who did what."""

import json
from functools import partial
from typing import Annotated

import typer

from holdfast.cli import render
from holdfast.cli.command import Shown, command
from holdfast.cli.filters import LimitOption
from holdfast.operate.operator import Operator
from holdfast.operate.search import check_limit
from holdfast.store.audit import AuditLine


@command
def audit_command(
    limit: LimitOption = 50,
    before: Annotated[
        int | None, typer.Option(metavar="ENTRY", min=0, max=2**63 - 1, help="Go on below this entry.")
    ] = None,
    *,
    operator: Operator,
) -> Shown[list[AuditLine]]:
    """List what operators did to jobs, queues, tasks and workers, the last act first."""
    check_limit(limit)
    found = operator.list_audit(before=before, limit=limit)
    more = found[-1].id if len(found) == limit else None
    return Shown(found, partial(_print, more=more), {"audit": found, "next": more})


def _print(found: list[AuditLine], more: int | None) -> None:
    if not found:
        typer.echo("No acts.")
        return
    rows = [
        [
            str(entry.id),
            render.moment(entry.at),
            entry.actor,
            entry.role or "-",
            entry.action,
            f"{entry.count:,}",
            render.one_line(json.dumps(entry.selection, ensure_ascii=False), 200),
        ]
        for entry in found
    ]
    render.print_table(
        ("entry", "at", "who", "role", "what", "how many", "which"), rows, ("entry", "how many")
    )
    if more is not None:
        typer.echo(f"There may be more: --before {more}")
