"""`holdfast doctor`: is everything around the jobs as it should be?"""

from functools import partial
from typing import Annotated, Any

import typer

from holdfast.cli import busy, render
from holdfast.cli.advice import Shell, shell_for
from holdfast.cli.apps import Where, app_name, note_for_pasting
from holdfast.cli.command import Shown, command
from holdfast.cli.confirm import YesOption, confirm
from holdfast.cli.exits import DONE, ENVIRONMENT
from holdfast.errors import ConfigurationError
from holdfast.model.text import printable
from holdfast.operate.doctor.finding import Finding
from holdfast.operate.doctor.run import FIXES, Checked, Diagnosis
from holdfast.operate.doctor.thresholds import read_limits
from holdfast.operate.operator import Operator
from holdfast.operate.wording import several
from holdfast.shapes import CHECKS


@command(checked=False, looks="fixed")
def doctor_command(
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="CHECK", help="Only this check or finding; may be repeated."),
    ] = None,
    fixed: Annotated[
        str | None, typer.Option("--fix", metavar="NAME", help=f"Fix it: {', '.join(FIXES)}, horizon:PID.")
    ] = None,
    limits: Annotated[
        list[str] | None,
        typer.Option(
            "--limit", metavar="NAME=VALUE", help="Another limit, such as horizon=60; may be repeated."
        ),
    ] = None,
    yes: YesOption = False,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings and checks not made count too.")] = False,
    *,
    where: Where,
    operator: Operator,
) -> Shown[Diagnosis]:
    """Check the schema, the server, the connection and the jobs. Every finding comes with the command that fixes it.

    Changes nothing, except with --fix. Exits with 0 when there is no error (--strict: no warning either, and every check
    could be made), else with 1.
    """
    if fixed and only:
        raise ConfigurationError("say either what to fix or what to check: --fix NAME or --only CHECK")
    wanted, app = read_limits(limits or ()), app_name(where.app)
    if fixed == "horizon":  # with :PID it names whom it ends
        confirm(f"end every session in a transaction for more than {wanted.horizon:g} s", yes)
    if fixed:
        say = (lambda _: None) if where.as_json else _say
        found = operator.fix(fixed, limits=wanted, on_step=say)
    else:
        found = operator.doctor(only=only or (), limits=wanted, knows=app.knows, checks=CHECKS)
    note = note_for_pasting(where.database_url, where.app)
    code = DONE if found.is_fine(strict=strict) else ENVIRONMENT
    shell = shell_for(operator.database, app.name)
    return Shown(found, partial(_print, note=note, shell=shell), _for_programs(found, shell), code)


def _say(line: str) -> None:
    busy.erase()
    typer.echo(printable(line))


def _for_programs(found: Diagnosis, shell: Shell) -> dict[str, Any]:
    counts = {level: found.count(level) for level in ("error", "warning", "info")}
    checks = [
        {
            "name": check.name,
            "about": check.about,
            "findings": [_finding(finding, shell) for finding in check.findings],
            "not_checked": _not_checked(check),
        }
        for check in found.checks
    ]
    return {"done": found.done, "checks": checks, **counts, "not_checked": found.not_checked}


def _finding(finding: Finding, shell: Shell) -> dict[str, Any]:
    return {
        "code": finding.code,
        "level": finding.level,
        "what": finding.what,
        "fix": shell.lines(finding.fix),
        "details": finding.details,
        "otherwise": shell.lines(finding.otherwise),
    }


def _not_checked(check: Checked) -> str | None:
    more = ". Give it more: --limit statement=60" if check.is_slow else ""
    return None if check.not_checked is None else check.not_checked + more


def _print(found: Diagnosis, note: str | None, shell: Shell) -> None:
    if found.done:
        typer.echo("")
    for check in found.checks:
        _print_check(check, shell)
    nouns = {"error": "error", "warning": "warning", "info": "remark"}
    counts = [several(found.count(level), noun) for level, noun in nouns.items() if found.count(level)]
    if found.not_checked:
        counts.append(f"{found.not_checked} not checked")
    typer.echo(", ".join(counts) if counts else "Nothing found.")
    if note and any(finding.fix for finding in found.findings):
        typer.echo(note)


def _print_check(check: Checked, shell: Shell) -> None:
    head = f"{check.name:<{_WIDTH}}"
    for finding in check.findings:
        _print_finding(head, finding, shell)
        head = " " * _WIDTH
    if why := _not_checked(check):
        typer.echo(render.folded(f"{head}not checked: {render.line(why)}", _WIDTH))
    elif not check.findings:
        typer.echo(render.folded(f"{head}ok: {check.about}", _WIDTH))


def _print_finding(head: str, finding: Finding, shell: Shell) -> None:
    level = render.styled(finding.level.upper(), _COLOURS.get(finding.level))
    typer.echo(render.folded(f"{head}{level} {render.line(finding.what)} [{finding.code}]", _WIDTH))
    indent = " " * _WIDTH
    for line in finding.details:
        typer.echo(render.folded(f"{indent}  {render.line(line)}", _WIDTH + 4))
    for line in shell.lines(finding.fix):
        typer.echo(f"{indent}  fix: {printable(line)}")
    for line in shell.lines(finding.otherwise):
        typer.echo(f"{indent}  or:  {printable(line)}")


_COLOURS = {"error": "red", "warning": "yellow"}
_WIDTH = max(len(check.name) for check in CHECKS) + 2
