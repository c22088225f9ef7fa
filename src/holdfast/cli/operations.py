"""`holdfast operations`: acts over many that workers run: their progress, and stopping them."""

import json
from functools import partial
from typing import Annotated, Any
from uuid import UUID

import typer

from holdfast.cli import render
from holdfast.cli.command import Shown, command
from holdfast.cli.filters import LimitOption
from holdfast.cli.ids import parse_operation_id
from holdfast.operate.operations import OperationPage
from holdfast.operate.operator import Operator
from holdfast.store.operations import STATES, Operation

app = typer.Typer(
    help="See the progress of bulk acts that workers carry out, and stop them.", no_args_is_help=True
)
OperationArgument = Annotated[
    UUID,
    typer.Argument(metavar="ID", help="The operation's id, or its beginning.", parser=parse_operation_id),
]


@app.command("list")
@command(looks=True)
def list_command(
    state: Annotated[str | None, typer.Option("--state", "-s", help=f"One of {', '.join(STATES)}.")] = None,
    limit: LimitOption = 50,
    after: Annotated[str | None, typer.Option(metavar="PLACE", help="Continue where a page ended.")] = None,
    *,
    operator: Operator,
) -> Shown[OperationPage]:
    """List operations, the newest first."""
    states = None if state is None else [state]
    return Shown(operator.list_operations(states=states, after=after, limit=limit), _print_page)


def _print_page(page: OperationPage) -> None:
    if not page.operations:
        typer.echo("No operations.")
        return
    rows = [
        [
            render.job_id(o.id),
            o.verb,
            o.state,
            _progress(o),
            _rate(o),
            o.actor,
            render.ago(o.created_at),
            _note(o),
        ]
        for o in page.operations
    ]
    heads = ("id", "verb", "state", "looked at", "per second", "who", "begun", "note")
    render.print_table(
        heads, rows, ("looked at", "per second"), drop=("per second", "who", "begun", "looked at")
    )
    render.print_more(page.next, False)


@app.command("show")
@command(looks=True)
def show_command(operation: OperationArgument, operator: Operator) -> Shown[Operation]:
    """Show one operation: its selection, its progress, what was left out and why."""
    return Shown(operator.find_operation(operation), _print)


@app.command("stop")
@command(asks_why=True)
def stop_command(operation: OperationArgument, operator: Operator) -> Shown[Operation]:
    """Stop an operation after its batch. What was done stays. Safe to run twice."""
    found, stopped = operator.stop_operation(operation)
    return Shown(found, partial(_print_stopped, stopped=stopped))


@app.command("run")
@command
def run_command(operation: OperationArgument, operator: Operator) -> Shown[Operation]:
    """Run an operation to its end in this process, with your rights."""
    return Shown(operator.run_operation(operation), _print)


def _print_stopped(found: Operation, stopped: bool) -> None:
    word = "stopped" if stopped else f"had ended: it is {found.state}"
    typer.echo(f"Operation {found.id} {word}. {found.done:,} changed of {_total(found)}.")


def _print(o: Operation) -> None:
    lines = [
        ("operation", str(o.id)),
        ("verb", o.verb),
        ("which", _text({**o.selection, **o.options} or {"all": True})),
        ("state", o.state + (f" by {o.stopped_by}" if o.stopped_by else "")),
        ("begun", f"{render.moment(o.created_at)} by {o.actor} ({o.surface})"),
        *([("why", o.reason)] if o.reason else []),
        ("looked at", _progress(o)),
        ("changed", f"{o.done:,}" + "".join(f", {n:,} {how}" for how, n in o.results.items())),
        *([("rate", f"{_rate(o)} a second")] if o.per_second else []),
        *([("runner", o.runner)] if o.runner else []),
        *([("ended", render.moment(o.ended_at))] if o.ended_at else []),
        *(("left", f"{left.count:,}, {left.text}") for left in o.left),
        *([("fault", o.fault)] if o.fault else []),
        ("audit", str(o.audit)),
    ]
    for name, text in lines:
        typer.echo(f"{name:<11} {render.one_line(text, 300)}")


def _total(o: Operation) -> str:
    return render.number(o.total)


def _progress(o: Operation) -> str:
    return f"{o.looked_at:,} of {_total(o)}"


def _rate(o: Operation) -> str:
    return "-" if o.per_second is None else f"{o.per_second:,.1f}"


def _note(o: Operation) -> str:
    return render.one_line(o.fault or o.reason or "-", 100)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
