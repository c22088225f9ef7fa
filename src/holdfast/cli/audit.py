"""`holdfast audit`: the acts of operators."""

import json
from typing import Annotated, Any

import typer

from holdfast.cli import render
from holdfast.cli.command import Shown, command
from holdfast.cli.filters import LimitOption
from holdfast.operate.audit import AuditPage
from holdfast.operate.operator import Operator
from holdfast.store.audit import AuditLine


@command(looks=True)
def audit_command(
    limit: LimitOption = 50,
    before: Annotated[
        int | None, typer.Option(metavar="ENTRY", min=0, max=2**63 - 1, help="Continue below this entry.")
    ] = None,
    actor: Annotated[str | None, typer.Option(metavar="NAME", help="Only by this one.")] = None,
    verb: Annotated[
        str | None, typer.Option(metavar="VERB", help="Only this act: 'jobs retry', or all on jobs: jobs.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only about this: the id of a job, a queue, a task.")
    ] = None,
    *,
    operator: Operator,
) -> Shown[AuditPage]:
    """List what operators did to jobs, queues, tasks and workers, the last act first."""
    page = operator.list_audit(before=before, limit=limit, actor=actor, action=verb, target=target)
    return Shown(page, _print, {"audit": page.entries, "next": page.next, "cut": page.cut})


def _print(page: AuditPage) -> None:
    if page.entries:
        _print_entries(page.entries)
    else:
        typer.echo("Nothing found so far." if page.cut else "No acts.")
    if page.next is not None:
        typer.echo(f"There may be more: --before {page.next}")


def _print_entries(entries: list[AuditLine]) -> None:
    """Columns that no entry has anything for are left out."""
    heads = ("entry", "at", "who", "role", "via", "what", "how many", "which", "change", "why")
    rows = [_row(entry) for entry in entries]
    kept = [
        n for n, head in enumerate(heads) if head not in ("change", "why") or any(r[n] != "-" for r in rows)
    ]
    shown = [[r[n] for n in kept] for r in rows]
    drop = ("role", "via", "change", "how many", "which")
    render.print_table([heads[n] for n in kept], shown, ("entry", "how many"), drop)


def _row(entry: AuditLine) -> list[str]:
    address = f" {entry.address}" if entry.address else ""
    return [
        str(entry.id),
        render.ago(entry.at),
        entry.actor,
        entry.role or "-",
        f"{entry.surface or '-'}{address}",
        entry.action,
        f"{entry.count:,}",
        render.one_line(_text(entry.selection), 200),
        render.one_line(_change(entry), 200) or "-",
        render.one_line(entry.reason or "-", 200),
    ]


def _change(entry: AuditLine) -> str:
    was, now = entry.before or {}, entry.after or {}
    return ", ".join(f"{name}: {_side(was, name)} -> {_side(now, name)}" for name in {**was, **now})


def _side(values: dict[str, Any], name: str) -> str:
    return _text(values[name]) if name in values else "-"


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
