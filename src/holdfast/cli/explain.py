"""`holdfast explain`: why a job is not running."""

from functools import partial
from typing import Annotated, Any
from uuid import UUID

import typer

from holdfast.cli import render
from holdfast.cli.advice import Shell, shell_for
from holdfast.cli.apps import Where, app_name, note_for_pasting
from holdfast.cli.command import Shown, command
from holdfast.cli.exits import DONE, ENVIRONMENT, USER
from holdfast.cli.ids import parse_job_id
from holdfast.operate.explain import NO_SUCH_JOB, SCHEMA, Explanation
from holdfast.operate.operator import Operator
from holdfast.shapes import MEANS


@command(checked=False, looks=True)
def explain_command(
    job_id: Annotated[
        UUID,
        typer.Argument(metavar="JOB", help="The job's id, or its beginning.", parser=parse_job_id),
    ],
    where: Where,
    operator: Operator,
) -> Shown[Explanation]:
    """Say why a job is not running, the decisive reason first, and what to do. Exits with 2 when there is no such job."""
    app = app_name(where.app)
    found = operator.explain(job_id, app.knows, MEANS)
    shell = shell_for(operator.database, app.name)
    note = note_for_pasting(where.database_url, where.app)
    code = USER if found.code == NO_SUCH_JOB else ENVIRONMENT if found.code in SCHEMA else DONE
    return Shown(found, partial(_print, note=note, shell=shell), _for_programs(found, shell), code)


def _for_programs(found: Explanation, shell: Shell) -> dict[str, Any]:
    return {
        "job_id": found.job_id,
        "state": found.state,
        "code": found.code,
        "sentence": found.sentence,
        "advice": shell.lines(found.advice),
        "reasons": [
            {"code": r.code, "sentence": r.sentence, "advice": shell.lines(r.advice)} for r in found.reasons
        ],
        "facts": found.facts,
    }


def _print(found: Explanation, note: str | None, shell: Shell) -> None:
    typer.echo(f"{'job':<10}{found.job_id}")
    if found.state:
        facts = found.facts
        what = f"{facts['task']} (version {facts['version']}), queue {facts['queue']}"
        typer.echo(f"{'task':<10}{render.line(what)}")
        typer.echo(f"{'state':<10}{found.state}")
    for index, reason in enumerate(found.reasons):
        said = f"{'also' if index else 'why':<10}{render.line(reason.sentence)} [{reason.code}]"
        typer.echo(render.folded(said, 10))
        for line, text in enumerate(shell.lines(reason.advice)):
            typer.echo(f"{'or' if line else 'next':<10}{render.line(text)}")
    if found.advice and note:
        typer.echo(note)
