"""`holdfast runbook`: the support queries, one per question."""

from dataclasses import asdict
from datetime import datetime
from functools import partial
from typing import Annotated, Any

import typer

from holdfast.cli import render
from holdfast.cli.advice import Shell
from holdfast.cli.command import Shown, command
from holdfast.cli.completion import complete_queue
from holdfast.errors import ConfigurationError
from holdfast.operate import wording
from holdfast.operate.operator import Operator
from holdfast.operate.runbook import Answer, sql_of
from holdfast.store.runbook import QUESTIONS, Question


def _complete_name(incomplete: str) -> list[str]:
    return [name for name in QUESTIONS if name.startswith(incomplete)]


@command(looks=True)
def runbook_command(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]", help="Which question; left out: list them.", autocompletion=_complete_name
        ),
    ] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", "-q", help="Only of this queue.", autocompletion=complete_queue)
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="How many rows at most.")] = 50,
    as_sql: Annotated[
        bool, typer.Option("--sql", help="Print the query instead; needs no database.")
    ] = False,
    *,
    operator: Operator,
) -> Shown[Any]:
    """Ask one of the questions of docs/runbook.md: the rows, the worst first, and whether that is good."""
    if name is None:
        if as_sql:
            raise ConfigurationError(
                "say which query: holdfast runbook NAME --sql. Without --sql they are listed"
            )
        questions = list(QUESTIONS.values())
        answer = [{"name": q.name, "view": q.view, "asks": q.asks} for q in questions]
        return Shown(questions, _print_list, answer)
    if as_sql:
        text = sql_of(name, queue=queue, limit=limit)
        return Shown(text, typer.echo, {"name": name, "sql": text})
    found = operator.ask(name, queue=queue, limit=limit)
    json = {**asdict(found), "advice": Shell().lines(found.advice)}
    return Shown(found, partial(_print, limit=limit), json)


def _print_list(questions: list[Question]) -> None:
    render.print_table(("name", "asks"), [[q.name, q.asks] for q in questions])


def _print(answer: Answer, limit: int) -> None:
    if answer.rows:
        shown = [[_cell(name, row[name]) for name in answer.columns] for row in answer.rows]
        heads = {name: name.removesuffix("_seconds") for name in answer.columns}
        numbers = [heads[n] for n in answer.columns if any(_is_number(row[n]) for row in answer.rows)]
        render.print_table(list(heads.values()), shown, numbers)
        if len(answer.rows) == limit:
            typer.echo(f"There may be more: --limit {limit * 10}")
        typer.echo("")
    verdict = (
        f"Good: {answer.found}." if answer.good else f"Not good: {answer.found}. Good is: {answer.expected}."
    )
    if answer.advice:
        verdict += f" See also: {', '.join(Shell().lines(answer.advice))}"
    typer.echo(render.one_line(verdict, 1000))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(column: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return render.moment(value)
    if isinstance(value, float):
        if not column.endswith("seconds"):
            return render.seconds(value)
        return render.age(value) if value >= 0 else f"-{render.age(-value)}"
    if isinstance(value, int):
        return wording.size(value) if column.endswith("bytes") else f"{value:,}"
    if isinstance(value, list):
        return f"{value[0]}{f' and {len(value) - 1} more' if len(value) > 1 else ''}" if value else "-"
    return render.one_line(str(value))
