"""`holdfast workflow`: list runs, show one with its timeline, send signals, cancel, pause, resume, retry, fork,
terminate, check histories against code."""

import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from holdfast.cli import render
from holdfast.cli.apps import (
    AppArgument,
    AppOption,
    DatabaseOption,
    JsonOption,
    Where,
    load_app,
    open_database,
)
from holdfast.cli.arguments import parse_span
from holdfast.cli.busy import busy
from holdfast.cli.command import Shown, command
from holdfast.cli.completion import Offer, offered, operator_of
from holdfast.cli.confirm import DryRunOption, YesOption, confirm
from holdfast.cli.exits import ENVIRONMENT
from holdfast.cli.filters import AfterOption, LimitOption, TagOption
from holdfast.cli.producing import known_tasks
from holdfast.errors import ConfigurationError
from holdfast.operate.operator import Operator
from holdfast.operate.wording import several
from holdfast.shapes.workflows import bars
from holdfast.shapes.workflows.checking import Checked, check
from holdfast.shapes.workflows.finding import Act
from holdfast.shapes.workflows.runs import RunFilter, RunView
from holdfast.shapes.workflows.sending import check_signal
from holdfast.shapes.workflows.verbs import Page, WorkflowVerbs
from holdfast.shapes.workflows.verbs import Shown as Whole

app = typer.Typer(
    help="List runs of workflows, show one with its timeline, send signals, cancel, pause, retry, fork, terminate.",
    no_args_is_help=True,
)


def complete_run(context: typer.Context, incomplete: str) -> list[Offer]:
    def find() -> Iterator[Offer]:
        with operator_of(context) as operator:
            page = _verbs(operator).list_runs(limit=100)
            yield from ((r.id, f"{r.workflow}, {r.state}") for r in page.runs)

    return offered(incomplete, find)


RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="The id it was started with, or its internal id.", autocompletion=complete_run
    ),
]
WorkflowOption = Annotated[
    str | None, typer.Option("--workflow", "-w", help="Of this workflow, where several have such a run.")
]
ReasonOption = Annotated[str, typer.Option(help="Why; it is kept with the run and in the audit.")]


def _verbs(operator: Operator) -> WorkflowVerbs:
    return WorkflowVerbs(lambda: operator.database, operator.actor)


@app.command("list")
@command(looks=True)
def list_command(
    workflow: Annotated[str | None, typer.Option("--workflow", "-w", help="Of this workflow.")] = None,
    states: Annotated[
        list[str] | None, typer.Option("--state", "-s", help="In this state; may be repeated.")
    ] = None,
    tag: TagOption = None,
    since: Annotated[
        str | None, typer.Option(metavar="AGE", help="Only started within: 90s, 15m, 2h, 3d.")
    ] = None,
    limit: LimitOption = 50,
    after: AfterOption = None,
    *,
    operator: Operator,
) -> Shown[Page]:
    """List runs, the newest first: their state, and what each waits for."""
    age = None if since is None else parse_span(since, "--since")
    page = _verbs(operator).list_runs(RunFilter(workflow, states, tag, age), after=after, limit=limit)
    return Shown(page, _print_page)


def _print_page(page: Page) -> None:
    if not page.runs and page.next is None:
        typer.echo("No such runs.")
        return
    heads = ("run", "workflow", "state", "age", "waits for")
    render.print_table(heads, [_row(r) for r in page.runs])
    if page.next is not None:
        why = "The search stopped here; there may be more" if page.cut else "There may be more"
        typer.echo(f"{why}: --after {page.next}")


def _row(r: RunView) -> list[str]:
    age = render.age((r.now - r.created_at).total_seconds())
    return [r.id, f"{r.workflow} v{r.version}", r.state, age, bars.waits_for(r)]


@app.command("show")
@command(looks=True)
def show_command(run: RunArgument, workflow: WorkflowOption = None, *, operator: Operator) -> Shown[Whole]:
    """Show a run: its state, and its timeline as bars, one line per record."""
    whole = _verbs(operator).show(run, workflow)
    return Shown(whole, _print_whole)


def _print_whole(whole: Whole) -> None:
    for name, text in bars.facts(whole.run, whole.signals):
        typer.echo(f"{name + ':':<10} {render.line(text)}")
    if whole.at_work is not None and whole.at_work.message:
        said = whole.at_work
        typer.echo(f"{'at work:':<10} {render.one_line(said.message)} ({render.moment(said.at)})")
    if whole.entries:
        typer.echo()
        for text in bars.drawn(whole.run, whole.entries):
            typer.echo(render.line(text))


@app.command("timeline")
@command(looks=True)
def timeline_command(
    run: RunArgument, workflow: WorkflowOption = None, *, operator: Operator
) -> Shown[Whole]:
    """List what a run recorded, in the order in which it was written: with results, errors and attempts."""
    whole = _verbs(operator).show(run, workflow)
    return Shown(whole, _print_entries, {"run": whole.run.run_id, "entries": whole.entries})


def _print_entries(whole: Whole) -> None:
    if not whole.entries:
        typer.echo("Nothing is recorded yet.")
        return
    eras = len({e.era for e in whole.entries}) > 1
    heads = ("n", "at", "key", "kind", "outcome", "took", "attempts", "result or error")
    rows = []
    for e in whole.entries:
        took = "-" if e.ended_at is None else render.seconds((e.ended_at - e.began_at).total_seconds())
        said = e.error if e.error is not None else "" if e.result is None else json.dumps(e.result)
        key = f"{e.era}: {e.key}" if eras else e.key
        at = render.moment(e.ended_at or e.began_at)
        rows.append([str(e.n), at, key, e.kind, e.outcome, took, str(e.attempts), render.one_line(said)])
    render.print_table(heads, rows, right=("n", "took", "attempts"))


@app.command("signal")
@command(asks_why=True)
def signal_command(
    run: RunArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The signal's name.")],
    payload: Annotated[str, typer.Argument(metavar="JSON", help="Its payload.")] = "null",
    key: Annotated[
        str | None, typer.Option(help="An idempotency key: the same key again is one signal.")
    ] = None,
    workflow: WorkflowOption = None,
    *,
    where: Where,
    operator: Operator,
) -> Shown[Any]:
    """Send a signal to a run. With an app its payload is checked against the signal that the workflow's module declares."""
    value = _json(payload)
    verbs = _verbs(operator)
    tasks = known_tasks(where.app)
    if tasks is not None:
        check_signal(tasks, verbs.get(run, workflow).workflow, name, value)
    act = verbs.signal(run, name, value, key=key, workflow=workflow)
    if not act.changed:
        return _done(act, f"A signal with key {key} was sent before: nothing is changed.")
    waits = act.run.waits or []
    if name in waits:
        return _done(act, f"Signal {name} is sent: {_the(act)} waits for it, and continues.")
    others = f" It waits for: {bars.waits_for(act.run)}." if waits else ""
    return _done(act, f"Signal {name} is sent: {_the(act)} finds it when it asks for it.{others}")


def _json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"the payload is not JSON: {error}. A text needs quotes of its own: '\"yes\"'"
        ) from None


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not allowed")


@app.command("cancel")
@command
def cancel_command(
    run: RunArgument, reason: ReasonOption = "", workflow: WorkflowOption = None, *, operator: Operator
) -> Shown[Any]:
    """Ask a run to end: its compensations run first, and its children are cancelled too."""
    act = _verbs(operator).cancel(run, reason, workflow=workflow)
    state = "is asked to end" if act.changed else "was asked to end before"
    return _done(act, f"{_as_subject(act)} {state}.")


@app.command("pause")
@command(asks_why=True)
def pause_command(run: RunArgument, workflow: WorkflowOption = None, *, operator: Operator) -> Shown[Any]:
    """Pause a run until it is resumed. A running one ends its current step, and begins no other."""
    act = _verbs(operator).pause(run, workflow=workflow)
    return _done(act, f"{_as_subject(act)} {'is paused' if act.changed else 'was paused already'}.")


@app.command("resume")
@command(asks_why=True)
def resume_command(run: RunArgument, workflow: WorkflowOption = None, *, operator: Operator) -> Shown[Any]:
    """Resume a paused run: it checks at once whether what it waits for has arrived."""
    act = _verbs(operator).resume(run, workflow=workflow)
    return _done(act, f"{_as_subject(act)} {'is resumed' if act.changed else 'was not paused'}.")


@app.command("retry")
@command(asks_why=True)
def retry_command(
    run: RunArgument,
    accept: Annotated[
        bool,
        typer.Option(
            "--accept",
            help="Continue with the app's code: records that it does not ask for lose their place.",
        ),
    ] = False,
    drop_signal: Annotated[
        bool, typer.Option("--drop-signal", help="Continue without the signal that its code cannot take.")
    ] = False,
    workflow: WorkflowOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --accept: say what, and change nothing.")
    ] = False,
    yes: YesOption = False,
    *,
    where: Where,
    operator: Operator,
) -> Shown[Any]:
    """Retry a run that failed or diverged from its code. Failed steps at the end of its history are made again."""
    if accept and drop_signal:
        raise ConfigurationError("give --accept or --drop-signal, not both: each is for another kind of run")
    if drop_signal:
        confirm(f"drop the signal for which run {run} was set aside", yes)
        act = _verbs(operator).drop_signal(run, workflow=workflow)
        return _done(act, f"{_as_subject(act)} continues without that signal: {act.about[0]} is dropped.")
    if accept:
        return _accept(run, workflow, dry_run, yes, where, _verbs(operator))
    if dry_run:
        raise ConfigurationError(
            "--dry-run is for --accept: without it, a retry says what it would make again by itself"
        )
    act = _verbs(operator).retry(run, workflow=workflow)
    again = f" Made again: {', '.join(act.about)}." if act.about else ""
    return _done(act, f"{_as_subject(act)} is tried again.{again}")


def _accept(
    run: str, workflow: str | None, dry_run: bool, yes: bool, where: Where, verbs: WorkflowVerbs
) -> Shown[Any]:
    tasks = load_app(where.app).tasks
    act = verbs.accept(run, tasks, workflow=workflow, dry_run=True)
    what = (
        f"{several(len(act.about), 'record')} without a place: {', '.join(act.about)}"
        if act.about
        else "all records"
    )
    if not dry_run:
        if act.about:
            confirm(f"let {_the(act)} continue with {what}", yes)
        act = verbs.accept(run, tasks, workflow=workflow)
    return _done(act, f"{_as_subject(act)} {'would continue' if dry_run else 'continues'} with {what}.")


@app.command("fork")
@command(asks_why=True)
def fork_command(
    run: RunArgument,
    step: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="STEP",
            help="The first step to make again: its key, or its number in the timeline.",
        ),
    ],
    new_id: Annotated[
        str | None, typer.Option("--id", help="The id of the new run; by default a random one.")
    ] = None,
    version: Annotated[
        int | None, typer.Option(help="The version for the new run; by default that of the old one.")
    ] = None,
    workflow: WorkflowOption = None,
    *,
    operator: Operator,
) -> Shown[Any]:
    """Start another run with the records made before a step, and continue from there. This run is not changed."""
    made = _verbs(operator).fork(run, step, new_id=new_id, version=version, workflow=workflow)
    kept = several(len(made.kept), "record")
    text = f"Run {made.run.id} of {made.run.workflow} is forked as {made.id}: {kept} kept, made again from {made.step} on."
    if made.left_out is not None:
        text += f" It does not get the signal {made.left_out} that the old one could not take."
    answer = {
        "run": made.run_id,
        "workflow": made.run.workflow,
        "id": made.id,
        "forked_from": made.run.run_id,
        "from": made.step,
        "kept": list(made.kept),
    }
    return Shown(render.line(text), typer.echo, answer)


@app.command("terminate")
@command
def terminate_command(
    run: RunArgument,
    reason: ReasonOption = "",
    workflow: WorkflowOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    *,
    operator: Operator,
) -> Shown[Any]:
    """End a run at once, without its code: compensations do not run. Prints those that it leaves undone."""
    verbs = _verbs(operator)
    act = verbs.terminate(run, reason, workflow=workflow, dry_run=True)
    if not dry_run:
        confirm(f"end {_the(act)} without its compensations", yes)
        act = verbs.terminate(run, reason, workflow=workflow)
    state = "would be terminated" if dry_run else "is terminated"
    left = f" {several(len(act.about), 'compensation')} not run: {', '.join(act.about)}." if act.about else ""
    return _done(act, f"{_as_subject(act)} {state}.{left}")


@app.command("check")
def check_command(
    application: AppArgument = None,
    workflow: Annotated[str | None, typer.Option("--workflow", "-w", help="Only of this workflow.")] = None,
    database_url: DatabaseOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replay the histories of open runs against the app's code, before it is deployed. Exit code 1: some would part."""
    app = application or app
    tasks = load_app(app).tasks
    with busy("replaying runs", as_json=as_json), open_database(database_url, app) as database:
        found = check(database, tasks, workflow)
    if as_json:
        render.print_json(found)
    else:
        _print_checked(found)
    if found.broken or found.unknown:
        raise typer.Exit(ENVIRONMENT)


def _print_checked(found: Checked) -> None:
    for broken in found.broken:
        text = (
            f"{broken.workflow} v{broken.version} {broken.id} ({broken.run_id}): {broken.divergence.message}"
        )
        typer.echo(render.line(text))
    for unknown in found.unknown:
        runs = several(unknown.runs, "open run")
        typer.echo(f"{unknown.workflow} v{unknown.version}: {runs} of a version that is not in the code")
    typer.echo(f"{several(found.runs, 'open run')} replayed: {len(found.broken)} would part from the code")


def _the(act: Act) -> str:
    return f"run {act.run.id} of {act.run.workflow}"


def _as_subject(act: Act) -> str:
    return f"R{_the(act)[1:]}"


def _done(act: Act, text: str) -> Shown[str]:
    found = act.run
    answer = {
        "run": found.run_id,
        "workflow": found.workflow,
        "id": found.id,
        "changed": act.changed,
        "about": list(act.about),
    }
    return Shown(render.line(text), typer.echo, answer)
