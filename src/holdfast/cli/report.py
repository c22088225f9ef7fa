"""Everything about one job, on paper: for `jobs show`, `dead show` and `archive show`."""

import typer

from holdfast.cli import render
from holdfast.model.state import PROCESSING
from holdfast.model.text import printable
from holdfast.operate.jobs import JobReport
from holdfast.operate.wording import several
from holdfast.store.chains import GroupStatus
from holdfast.store.show import JobDetail

_PLACES = {"queue": "live, in queue {}", "archive": "the archive", "dead_letters": "the dead letters"}


def print_report(report: JobReport) -> None:
    for name, value in _facts(report):
        if value not in (None, "", "-"):
            typer.echo(f"{name:<12}{render.line(str(value))}")
    if report.progress:
        said = report.progress
        typer.echo(
            f"{'progress':<12}{said.fraction:.0%} {render.one_line(said.message)} ({render.moment(said.at)})"
        )
    _print_block("payload", render.pretty_json(report.job.payload))
    if report.job.result is not None:
        _print_block("result", render.pretty_json(report.job.result))
    if report.job.metadata is not None:
        _print_block("metadata", render.pretty_json(report.job.metadata))
    if report.steps:
        _print_block(
            "steps", "\n".join(f"{render.moment(s.at)}  {render.line(s.name)}" for s in report.steps)
        )
    if report.job.follow_ups is not None and report.place != "archive":
        _print_block("follow-ups", render.pretty_json(report.job.follow_ups))
    if report.children:
        lines = [f"{c.id}  {c.task} in {c.queue}, {c.state}" for c in report.children]
        _print_block("children", "\n".join(render.line(line) for line in lines))
    for failed in report.errors:
        by = f", worker {failed.worker}" if failed.worker else ""
        head = f"{failed.what} (generation {failed.generation}{by}) at {render.moment(failed.at)}"
        summary = failed.kind + (f": {failed.message}" if failed.message else "")
        _print_block(head, printable(failed.trace.rstrip() or summary))


def _facts(report: JobReport) -> list[tuple[str, object]]:
    job = report.job
    return [
        ("job", job.id),
        ("task", f"{job.task} (version {job.version})"),
        ("queue", f"{job.queue}, priority {job.priority}"),
        ("state", job.state),
        ("place", _PLACES[report.place].format(job.queue)),
        ("reason", report.cancel_reason or job.hold_reason),
        (
            "attempts",
            f"{job.attempts} of {job.max_attempts}"
            + (f", {several(job.crashes, 'crash', 'crashes')}" if job.crashes else ""),
        ),
        ("generation", job.generation),
        ("sequence", job.sequence),
        ("fence", job.fence),
        (
            "key",
            f"{job.partition_key} (bucket {job.partition_bucket})" if job.partition_key is not None else None,
        ),
        ("tags", ", ".join(job.tags)),
        ("parent", job.parent_id),
        ("group", describe_group(report.group) if report.group else job.group_id),
        ("created", render.moment(job.created_at)),
        ("due", render.moment(job.available_at)),
        ("gives up", _gives_up(job)),
        ("claimed", render.moment(job.claimed_at)),
        ("owner" if job.state == PROCESSING else "ran on", job.claimed_by),
        ("lease", _lease(job)),
        (
            "cancel",
            f"asked for at {render.moment(job.cancel_requested_at)}" if job.cancel_requested_at else None,
        ),
        ("finished", render.moment(job.finished_at)),
        ("error", None if report.cancel_reason else render.one_line(job.last_error, 500)),
    ]


def describe_group(group: GroupStatus) -> str:
    ended = f"{group.total - group.open} of {group.total} {group.when}"
    return f"{group.id}, {group.state}, {ended}"


def _gives_up(job: JobDetail) -> str | None:
    if job.gives_up_at is None:
        return None
    return f"with the first attempt that fails after {render.moment(job.gives_up_at)}"


def _lease(job: JobDetail) -> str | None:
    if job.lease_left_seconds is None:
        return None
    left = job.lease_left_seconds
    text = f"{render.age(left)} left" if left >= 0 else f"ran out {render.age(-left)} ago"
    return f"until {render.moment(job.lease_expires_at)} ({text})"


def _print_block(title: str, text: str) -> None:
    typer.echo(f"\n{render.line(title)}")
    for line in text.splitlines():
        typer.echo(f"  {line}")
