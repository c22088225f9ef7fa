"""`holdfast workers`: the workers, and asking them to leave."""

from functools import partial
from typing import Annotated

import typer

from holdfast.cli import render
from holdfast.cli.apps import AppOption, DatabaseOption, JsonOption
from holdfast.cli.arguments import parse_span
from holdfast.cli.command import Shown, command
from holdfast.cli.completion import complete_worker
from holdfast.cli.confirm import DryRunOption, YesOption, confirm
from holdfast.cli.exits import TIMED_OUT
from holdfast.errors import ConfigurationError
from holdfast.model.vitals import Vitals
from holdfast.operate.operator import Operator
from holdfast.operate.workers import Drained
from holdfast.store.queue_load import WorkerLine

app = typer.Typer(invoke_without_command=True)

EveryoneOption = Annotated[bool, typer.Option("--all", help="Those that are gone too.")]


@app.callback()
def workers_command(
    context: typer.Context,
    database_url: DatabaseOption = None,
    app: AppOption = None,
    everyone: EveryoneOption = False,
    as_json: JsonOption = False,
) -> None:
    """List workers and ask them to leave. Without a command: list them."""
    if context.invoked_subcommand is None:
        list_command(database_url=database_url, app=app, everyone=everyone, as_json=as_json)
    elif database_url or app or everyone or as_json:
        verb = context.invoked_subcommand
        raise ConfigurationError(f"options go behind the command: holdfast workers {verb} ...")


@app.command("list")
@command(looks=True)
def list_command(operator: Operator, everyone: EveryoneOption = False) -> Shown[list[WorkerLine]]:
    """List the workers: where each runs, when it was last heard of, and how many jobs it has."""
    found = operator.list_workers(with_gone=everyone)
    return Shown(found, print_list, {"workers": found})


def print_list(found: list[WorkerLine]) -> None:
    if not found:
        typer.echo("No workers. Start one: holdfast worker MODULE:APP")
    else:
        labelled = any(w.labels for w in found)
        rows = [
            [
                w.id,
                w.host,
                str(w.pid),
                w.status,
                render.age(w.last_seen_seconds),
                f"{w.running}/{w.concurrency}",
                w.release,
                _how(w.vitals),
                *(
                    [render.line(",".join(f"{k}={v}" for k, v in w.labels.items())) or "-"]
                    if labelled
                    else []
                ),
                ", ".join(w.queues),
            ]
            for w in found
        ]
        named = ("labels",) if labelled else ()  # a fleet without labels has no column for them
        heads = (
            "worker",
            "host",
            "pid",
            "status",
            "last seen",
            "running",
            "release",
            "process",
            *named,
            "queues",
        )
        drop = ("process", "labels", "pid", "host", "queues", "release")
        render.print_table(heads, rows, ("pid", "running", "last seen"), drop)


def _how(vitals: Vitals | None) -> str:
    """How its process is."""
    if vitals is None:
        return "-"
    parts = [f"lag {1000 * vitals.lag:.0f} ms", f"{vitals.connections} connections"]
    if vitals.load is not None:
        parts.insert(0, f"load {vitals.load:g}")
    if vitals.memory is not None:
        parts.insert(0, f"{vitals.memory / 2**20:,.0f} MiB")
    return ", ".join(parts)


@app.command("drain")
@command(asks_why=True)
def drain_command(
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ID]...",
            help="These workers; the beginning of an id or of its last part is enough.",
            autocompletion=complete_worker,
        ),
    ] = None,
    everyone: Annotated[bool, typer.Option("--all", help="All there are.")] = False,
    host: Annotated[str | None, typer.Option(help="Those of this host.")] = None,
    wait: Annotated[
        str | None,
        typer.Option(
            metavar="SPAN", help="How long to wait until they are gone, such as 60s; then exit with 124."
        ),
    ] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    *,
    operator: Operator,
) -> Shown[Drained]:
    """Ask workers to stop claiming, finish or hand back their jobs, and leave. Their process ends with 0."""
    patience = None if wait is None else parse_span(wait, "--wait")
    if dry_run or not ids:
        would = operator.drain_workers(ids=ids or (), host=host, everyone=everyone, dry_run=True)
        if dry_run:
            answer = {"would_ask": would.asked, "draining": would.draining, "gone": would.gone}
            return Shown(would, _print_would, answer)
        if would.asked:
            confirm(f"drain {len(would.asked)} worker{'' if len(would.asked) == 1 else 's'}", yes)
    done = operator.drain_workers(ids=ids or (), host=host, everyone=everyone)
    left = []
    if patience is not None:
        left = operator.wait_until_gone([*done.asked, *done.draining], patience)
    said = partial(_print_drained, waited=patience is not None and not left)
    answer = {"asked": done.asked, "draining": done.draining, "gone": done.gone, "left": left}
    if not left:
        return Shown(done, said, answer)
    return Shown(done, said, answer, TIMED_OUT, f"not gone after {patience:g} s: {', '.join(left)}")


def _print_would(would: Drained) -> None:
    for worker in would.asked:
        typer.echo(render.line(worker))
    typer.echo(f"Dry run: {len(would.asked)} would be asked to drain. Nothing was changed.")


def _print_drained(done: Drained, waited: bool) -> None:
    says = "has left" if waited else "is asked to drain"
    for worker in done.asked:
        typer.echo(f"Worker {worker} {says}.")
    for worker in done.draining:
        typer.echo(f"Worker {worker} {'has left' if waited else 'drains already'}.")
    for worker in done.gone:
        typer.echo(f"Worker {worker} is gone already.")
    if not (done.asked or done.draining or done.gone):
        typer.echo("No workers.")
