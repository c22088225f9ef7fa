"""What can be done to runs from the dashboard: the verbs of the command line, shown first."""

from collections.abc import Sequence
from typing import Any

from ...errors import ConfigurationError
from ...operate.procedure import Procedure, run
from ...operate.wording import several
from ...pages import Act, ActResult, Field, Given, Preview
from . import forks, verbs
from .retries import retry
from .timeline import recorded

_RUN = Field("run")
_WHY = Field("reason", "Why", required=False, hint="It is kept with the run and in the audit.")


def _said(act: Any, text: str) -> ActResult:
    return ActResult(
        f"Run {act.run.id} of {act.run.workflow} {text}.",
        {"changed": act.changed},
        f"workflows/{act.run.run_id}",
    )


def _pause(given: Given) -> Procedure[ActResult]:
    act = yield from verbs.pause(given["run"])
    return _said(act, "is paused" if act.changed else "was paused already")


def _resume(given: Given) -> Procedure[ActResult]:
    act = yield from verbs.resume(given["run"])
    return _said(act, "is resumed" if act.changed else "was not paused")


def _cancel(given: Given) -> Procedure[ActResult]:
    act = yield from verbs.cancel(given["run"], given.get("reason", ""))
    return _said(act, "is asked to end" if act.changed else "was asked to end before")


def _preview_cancel(given: Given) -> Procedure[Preview]:
    whole = yield from verbs.show(given["run"])
    left = verbs.undone(whole.entries, whole.run.era)
    undo = f" It would undo, in this order: {', '.join(left)}." if left else " It has nothing to undo."
    return Preview(f"Run {whole.run.id} of {whole.run.workflow} would be asked to end.{undo}")


def _retry(given: Given) -> Procedure[ActResult]:
    act = yield from retry(given["run"])
    again = f", and makes again: {', '.join(act.about)}" if act.about else ""
    return _said(act, f"is tried again{again}")


def _terminate(given: Given) -> Procedure[ActResult]:
    act = yield from verbs.terminate(given["run"], given.get("reason", ""))
    left = f"; not undone: {', '.join(act.about)}" if act.about else ""
    return _said(act, f"is terminated{left}")


def _preview_terminate(given: Given) -> Procedure[Preview]:
    act = yield from verbs.terminate(given["run"], dry_run=True)
    left = f" It would leave undone: {', '.join(act.about)}." if act.about else ""
    return Preview(
        f"Run {act.run.id} of {act.run.workflow} would end at once, without its compensations.{left}", 1
    )


def _preview_fork(given: Given) -> Procedure[Preview]:
    whole = yield from verbs.show(given["run"])
    entries = yield from run(lambda: recorded(whole.run.run_id))
    first, before = forks.kept(whole.run, entries, given["step"])
    said = f"Another run would be started with {several(len(before), 'record')} of run {whole.run.id}, and make again "
    return Preview(f"{said}from {first.key} on. This one stays as it is.")


def _fork(given: Given) -> Procedure[ActResult]:
    version = given.get("version") or ""
    if version and not (version.isascii() and version.isdigit() and len(version) < 10):
        raise ConfigurationError(f"version must be a whole number, not {version[:40]!r}")
    made = yield from verbs.fork(
        given["run"], given["step"], new_id=given.get("id") or None, version=int(version) if version else None
    )
    said = f"Run {made.run.id} of {made.run.workflow} is forked as {made.id}, from {made.step} on."
    return ActResult(said, {"run": made.run_id, "id": made.id, "kept": made.kept}, f"workflows/{made.run_id}")


def _fork_words(given: Given) -> list[str]:
    more = [word for name in ("id", "version") if given.get(name) for word in (f"--{name}", given[name])]
    return ["workflow", "fork", given["run"], "--from", given.get("step", "STEP"), *more]


def _words(verb: str) -> Any:
    def words(given: Given) -> list[str]:
        reason = ["--reason", given["reason"]] if given.get("reason") else []
        return ["workflow", verb, given["run"], *reason, *(["--yes"] if verb == "terminate" else [])]

    return words


ACTS: Sequence[Act] = (
    Act("workflow pause", "Pause", _pause, (_RUN,), _words("pause"), at_once=True),
    Act("workflow resume", "Resume", _resume, (_RUN,), _words("resume"), at_once=True),
    Act("workflow cancel", "Cancel and undo", _cancel, (_RUN, _WHY), _words("cancel"), _preview_cancel),
    Act("workflow retry", "Retry", _retry, (_RUN,), _words("retry")),
    Act(
        "workflow fork",
        "Fork",
        _fork,
        (
            _RUN,
            Field(
                "step",
                "The first step to make again",
                hint="Its key, or its number in the records.",
                shown=True,
            ),
            Field("id", "Id of the new run", required=False, hint="Empty: one is made up."),
            Field("version", "Version", required=False, hint="Empty: that of the old one."),
        ),
        _fork_words,
        _preview_fork,
    ),
    Act(
        "workflow terminate",
        "Terminate",
        _terminate,
        (_RUN, _WHY),
        _words("terminate"),
        _preview_terminate,
        "admin",
        deletes=True,
        needs_why=True,
    ),
)
