"""The acts that change one job, or run a copy of one. Arguments are checked against the handler, as on the command line with
an app."""

from holdfast.cli.arguments import parse_moment, parse_object
from holdfast.model.masking import masked
from holdfast.model.state import COMPLETED
from holdfast.operate.edit import Changes, Known, masked_of
from holdfast.operate.operator import Operator
from holdfast.operate.procedure import Procedure
from holdfast.pages import Act, ActResult, Field, Given, Preview
from holdfast.web.filters import job_id, text, whole_number

_FIELDS = (
    Field("id"),
    Field(
        "arguments", "Arguments to put in, as a JSON object", "json", required=False, hint='{"cents": 995}'
    ),
    Field("priority", "Priority", "number", required=False),
    Field("max_attempts", "Attempts at most", "number", required=False),
    Field("run_after", "Not before", "time", required=False, hint="15m, or 2026-05-01T10:00Z"),
)


def edit_act(known: Known) -> Act:
    """`known` finds the task whose signature the arguments must fit."""
    return Act(
        "jobs edit", "Edit", lambda given: _edit(known, given), _FIELDS, lambda given: _words(given, "edit")
    )


def copy_act(known: Known) -> Act:
    return Act(
        "jobs copy",
        "Run a copy",
        lambda given: _copy(known, given),
        _FIELDS,
        lambda given: _words(given, "copy"),
        lambda given: _preview_copy(known, given),
    )


def _preview_copy(known: Known, given: Given) -> Procedure[Preview]:
    wanted = job_id(given["id"])
    found = yield from Operator.copy_job.procedure(wanted, _changes(given), known, dry_run=True)
    report = yield from Operator.find_job.procedure(wanted)
    warnings = []
    if report.job.state == COMPLETED:
        warnings.append("It completed: what it did is done again.")
    if found.alone:
        warnings.append("What followed it does not follow the copy.")
    said = f"A new job of {found.task} would be enqueued in queue {found.queue}. This one stays as it is."
    return Preview(said, warnings=warnings)


def _copy(known: Known, given: Given) -> Procedure[ActResult]:
    done = yield from Operator.copy_job.procedure(job_id(given["id"]), _changes(given), known)
    data = {"id": done.id, "copied_from": done.copied_from, "changed": sorted(done.changed)}
    return ActResult(f"This is the copy of job {done.copied_from}.", data, f"jobs/{done.id}")


_REVEALED = (
    Field("id"),
    Field("field", "Field", hint="payload.card_token, or result.customer.iban"),
    Field("reason", "Why", hint="It is kept in the audit, before the value is shown."),
)


def _reveal(given: Given) -> Procedure[ActResult]:
    wanted = job_id(given["id"])
    value = yield from Operator.reveal_field.procedure(wanted, given["field"], given["reason"])
    data = {"id": wanted, "field": given["field"]}
    return ActResult(f"{given['field']} of job {wanted}.", data, f"jobs/{wanted}", secret=value)


REVEAL = Act(
    "jobs reveal",
    "Reveal a field",
    _reveal,
    _REVEALED,
    lambda given: ("jobs", "show", given["id"]),
    role="admin",
)


def _edit(known: Known, given: Given) -> Procedure[ActResult]:
    wanted = job_id(given["id"])
    done = yield from Operator.edit_job.procedure(wanted, _changes(given), known)
    secrets = masked_of(done.task, known)
    sides = {"before": masked(done.before, names=secrets), "after": masked(done.after, names=secrets)}
    return ActResult(f"Changed: {', '.join(done.after)}.", sides, f"jobs/{wanted}")


def _changes(given: Given) -> Changes:
    run_after = text(given, "run_after")
    at = None if run_after is None else parse_moment(run_after, "run_after")
    numbers = {name: whole_number(given, name) for name in ("priority", "max_attempts")}
    arguments = parse_object(given.get("arguments") or "{}", "arguments")
    return Changes(arguments=arguments, run_after=at, **numbers)  # type: ignore[arg-type]


def _words(given: Given, verb: str) -> list[str]:
    found = ["jobs", verb, given["id"]]
    for name in ("priority", "max_attempts", "run_after"):
        found += [f"--{name.replace('_', '-')}", given[name]] if given.get(name) else []
    return found
