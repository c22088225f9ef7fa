"""`holdfast explain`: why a job is not running."""

from typing import Annotated
from uuid import UUID

import typer

from holdfast.cli import render
from holdfast.cli.apps import AppOption, DatabaseOption, JsonOption, app_name, note_for_pasting, open_operator
from holdfast.cli.exits import ENVIRONMENT, USER
from holdfast.operate.explain import NO_SUCH_JOB, SCHEMA, Explanation


def explain_command(
    job_id: Annotated[UUID, typer.Argument(metavar="JOB", help="The job's id.")],
    database_url: DatabaseOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say why a job is not running, the decisive reason first, and what to do. Exits with 2 when there is no such job."""
    with open_operator(database_url, app, checked=False) as operator:
        found = operator.explain(job_id, app_name(app))
    if as_json:
        reason = found.reasons[0]
        render.print_json(
            {
                "job_id": found.job_id,
                "state": found.state,
                "code": reason.code,
                "sentence": reason.sentence,
                "advice": reason.advice,
                "reasons": found.reasons,
                "facts": found.facts,
            }
        )
    else:
        _print(found)
        if found.advice and (note := note_for_pasting(database_url, app)):
            typer.echo(note)
    if found.code == NO_SUCH_JOB:
        raise typer.Exit(USER)
    if found.code in SCHEMA:
        raise typer.Exit(ENVIRONMENT)


def _print(found: Explanation) -> None:
    typer.echo(f"{'job':<10}{found.job_id}")
    if found.state:
        facts = found.facts
        what = f"{facts['task']} (version {facts['version']}), queue {facts['queue']}"
        typer.echo(f"{'task':<10}{render.line(what)}")
        typer.echo(f"{'state':<10}{found.state}")
    for index, reason in enumerate(found.reasons):
        typer.echo(f"{'also' if index else 'why':<10}{render.line(reason.sentence)} [{reason.code}]")
        for line, command in enumerate(reason.advice):
            typer.echo(f"{'or' if line else 'next':<10}{render.line(command)}")
