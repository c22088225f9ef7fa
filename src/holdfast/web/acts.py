"""What can be done to jobs and dead letters. Each act is a verb of the operator, with the words of the command line."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from holdfast.cli.arguments import parse_object, parse_rate
from holdfast.errors import ConfigurationError
from holdfast.model.masking import masked_text
from holdfast.model.state import CANCELLED
from holdfast.operate import preview
from holdfast.operate.bulk import Done
from holdfast.operate.dead import DISCARD_DEAD, redrive_verb
from holdfast.operate.edit import Known
from holdfast.operate.job_acts import DISCARD, RETRY, Verb, cancel_verb
from holdfast.operate.operator import Operator
from holdfast.operate.patch import patch_verb
from holdfast.operate.procedure import Procedure
from holdfast.operate.refusal import Refused
from holdfast.operate.wording import several
from holdfast.pages import Act, ActResult, Field, Given, Link, Offer, Preview, Problem, Row, Table
from holdfast.store.dead import DeadFilter
from holdfast.store.search import JobFilter
from holdfast.web.filters import (
    DEAD_FIELDS,
    JOB_FIELDS,
    dead_filter,
    ids_of,
    job_filter,
    means_all,
    options,
    text,
    words_of,
)
from holdfast.web.masking import Declared
from holdfast.web.shown import number
from holdfast.web.undoing import undo_of, undo_of_named
from holdfast.web.views.drawn import job_state, state_word

_MANY = 1000  # jobs that are named singly, or changed while the browser waits


# Jobs ---------------------------------------------------------------------------------------------------------------


def _named(given: Given) -> list[Any]:
    found = ids_of(given)
    if len(found) > _MANY:
        raise ConfigurationError(
            f"{len(found):,} jobs are named, {_MANY:,} are the most. Use a filter instead"
        )
    return found


def _previewed(found: preview.Preview, what: str, warnings: Sequence[str] = ()) -> Preview:
    states = ", ".join(
        f"{n:,}{'+' if s in found.at_least else ''} {state_word(s).word}" for s, n in found.by_state.items()
    )
    count = found.count
    rows = [
        Row(
            (
                Link(job.task, f"jobs/{job.id}"),
                job.queue,
                job_state(job),
                job.created_at,
                Problem(job.last_error),
            )
        )
        for job in found.sample
    ]
    some = "the first of them" if count.count > len(rows) else ""
    sample = Table(("Task", "Queue", "State", "Created", "Last error~"), rows, "Which", some)
    said = (
        f"{number(count)} {'job' if count.count == 1 else 'jobs'} would be {what}: {states}."
        if count.count
        else "No job fits."
    )
    return Preview(said, count.count, count.capped, warnings, sample)


def _said(done: Done, what: str, undo: Offer | None = None) -> ActResult:
    left = [f"{n:,} left alone: {why.text}" for why, n in done.left.items()]
    results = ", ".join(f"{n:,} {how.replace('_', ' ')}" for how, n in done.results.items())
    how = f" ({results})" if len(done.results) > 1 else ""
    sentence = f"{several(done.count, 'job')} {what}{how}." if done.count else "Nothing was changed."
    data = {"count": done.count, "results": done.results, "audit": done.audit}
    return ActResult(" ".join([sentence, *left]), data, undo=undo)


def _preview_jobs(verb: Verb, what: str, given: Given, masked_of: Declared) -> Procedure[Preview]:
    if named := _named(given):
        found = yield from Operator.preview_of.procedure(verb, named)
    else:
        found = yield from Operator.preview_all.procedure(verb, job_filter(given, masked_of))
    return _previewed(found, what)


def _do_jobs(verb: Verb, what: str, given: Given, masked_of: Declared) -> Procedure[ActResult]:
    if named := _named(given):
        done = yield from Operator.act_on.procedure(verb, named)
    else:
        wanted = job_filter(given, masked_of)
        seen = yield from Operator.preview_all.procedure(verb, wanted)
        if seen.count.count > _MANY or seen.count.capped:
            return (yield from _leave_to_workers(verb, wanted))
        selection = yield from Operator.select.procedure(verb, wanted)
        done = yield from Operator.act_on_all.procedure(verb, selection)
    ended = verb.action == "jobs cancel" and set(done.results) == {CANCELLED}
    return _said(done, what, (yield from undo_of_named(done.audit)) if ended else None)


def _leave_to_workers(verb: Verb, wanted: JobFilter | DeadFilter) -> Procedure[ActResult]:
    """It outlives the browser, and can be watched and stopped."""
    begun = yield from Operator.begin_operation.procedure(verb, wanted)
    sentence = f"{number(begun.total)} jobs: workers do it now, also when this page is closed."
    return ActResult(sentence, begun, f"operations/{begun.id}")


def _job_words(verb: str, given: Given, *more: str) -> list[str]:
    if ids := words_of(given):
        return ["jobs", verb, *ids, *more]
    return ["jobs", verb, *options(given, JOB_FIELDS), *more, "--yes"]


_JOBS = (Field("ids", required=False), *(Field(name, required=False) for name in JOB_FIELDS))
_WHY = Field("reason", "Why", required=False, hint="It is kept with the job and in the audit.")


def _reason(given: Given) -> list[str]:
    return ["--reason", given["reason"]] if given.get("reason") else []


# Dead letters -------------------------------------------------------------------------------------------------------


def _check_dead(given: Given) -> None:
    if not (means_all(given) or words_of(given) or any(text(given, name) for name in DEAD_FIELDS)):
        raise Refused(
            "no_dead_letters", "say which dead letters: their ids, a group or another filter, or all"
        )


def _redrive(given: Given) -> Verb:
    rate = text(given, "rate")
    return redrive_verb(None if rate is None else parse_rate(rate, "rate"))


def _preview_dead(verb: Verb, what: str, given: Given, masked_of: Declared) -> Procedure[Preview]:
    _check_dead(given)
    if named := _named(given):
        found = yield from Operator.preview_of.procedure(verb, named)
    else:
        found = yield from Operator.preview_dead.procedure(verb, dead_filter(given, masked_of))
    warnings = (yield from _warnings(found)) if verb.action == "dead redrive" else []
    return _previewed(found, what, warnings)


def _warnings(found: preview.Preview) -> Procedure[list[str]]:
    """What speaks against putting them back now."""
    said = []
    tasks = {job.task for job in found.sample}
    for line in (yield from Operator.list_tasks.procedure()):
        if line.task in tasks and line.breaker is not None and line.breaker.state != "closed":
            said.append(
                f"The breaker of {line.task} is {line.breaker.state.replace('_', ' ')}: they would wait behind it."
            )
        if line.task in tasks and line.pause is not None:
            said.append(f"Task {line.task} is paused: they would be set aside.")
    queues = {job.queue for job in found.sample}
    for load in (yield from Operator.list_queues.procedure()):
        if load.name in queues and load.paused_at is not None:
            said.append(f"Queue {load.name} is paused: they would wait.")
        if load.name in queues and (load.oldest_due_seconds or 0) > 60:
            said.append(f"Queue {load.name} is behind: {number(load.pending)} jobs are due before them.")
        if load.name in queues and load.ordering == "key" and load.on_dead_letter == "skip":
            said.append(f"Queue {load.name} is ordered: they run after what their keys have waiting by now.")
    if not (yield from _has_new_worker(found)):
        said.append("No worker has started since they died. Is what failed them fixed?")
    return said


def _has_new_worker(found: preview.Preview) -> Procedure[bool]:
    """Whether one of those that live began after the last of the examples died. Without either there is nothing to say."""
    died = [job.finished_at for job in found.sample if job.finished_at is not None]
    began = [
        worker.started_at
        for worker in (yield from Operator.list_workers.procedure())
        if worker.status == "alive"
    ]
    return not died or not began or max(began) > max(died)


def _do_dead(verb: Verb, what: str, given: Given, masked_of: Declared) -> Procedure[ActResult]:
    _check_dead(given)
    if named := _named(given):
        done = yield from Operator.act_on.procedure(verb, named)
    else:
        wanted = dead_filter(given, masked_of)
        seen = yield from Operator.preview_dead.procedure(verb, wanted)
        if seen.count.count > _MANY or seen.count.capped:
            return (yield from _leave_to_workers(verb, wanted))
        selection = yield from Operator.select_dead.procedure(wanted)
        done = yield from Operator.act_on_all.procedure(verb, selection)
    return _said(done, what, undo_of(done.audit) if verb.action == "dead redrive" else None)


def _dead_words(verb: str, given: Given) -> list[str]:
    rate = ["--rate", given["rate"]] if verb == "redrive" and given.get("rate") else []
    if ids := words_of(given):
        return ["dead", verb, *ids, *rate]
    which = options(given, DEAD_FIELDS) or ["--all"]
    return ["dead", verb, *which, *rate, "--yes"]


_DEAD = (
    Field("ids", required=False),
    Field("all", required=False),
    *(Field(n, required=False) for n in DEAD_FIELDS),
)
_UNFIT = 10  # that a preview names
_PATCH = Field(
    "patch",
    "JSON merge patch",
    "json",
    hint='{"currency": "EUR", "note": null}: null takes a name out. Redrive them after it.',
    shown=True,
)
_RATE = Field("rate", "At most", required=False, hint="Such as 50/s or 100/m. Empty: all at once.")


def job_acts(masked_of: Declared) -> tuple[Act, ...]:
    """`masked_of` says by which names of a payload no jobs are found."""

    def act(name: str, label: str, verb: Callable[[Given], Verb], words: tuple[str, str], **more: Any) -> Act:
        done, would = words
        asked = (*_JOBS, *more.pop("asks", ()))
        return Act(
            f"jobs {name}",
            label,
            lambda g: _do_jobs(verb(g), done, g, masked_of),
            asked,
            lambda g: _job_words(name, g, *_reason(g)),
            lambda g: _preview_jobs(verb(g), would, g, masked_of),
            **more,
        )

    def cancel(given: Given) -> Verb:
        return cancel_verb(given.get("reason", ""))

    return (
        act("retry", "Retry now", lambda _: RETRY, ("retried", "retried")),
        act("cancel", "Cancel", cancel, ("cancelled", "cancelled"), asks=(_WHY,)),
        act(
            "discard",
            "Discard",
            lambda _: DISCARD,
            ("discarded", "deleted for good"),
            role="admin",
            deletes=True,
        ),
    )


def _patch(given: Given, known: Known, masked_of: Declared) -> Verb:
    return patch_verb(parse_object(given["patch"], "patch"), known, sorted(masked_of("")))


def _preview_patch(given: Given, known: Known, masked_of: Declared) -> Procedure[Preview]:
    found = yield from _preview_dead(_patch(given, known, masked_of), "patched", given, masked_of)
    which = _named(given) or dead_filter(given, masked_of)
    unfit = yield from Operator.unfit_of.procedure(parse_object(given["patch"], "patch"), which, known)
    said = [f"{len(unfit):,} of them would not fit and stay as they are."] if unfit else []
    said += [
        f"{one.task} {one.id}: {masked_text(one.why, names=masked_of(one.task))}" for one in unfit[:_UNFIT]
    ]
    return replace(found, warnings=said)


def dead_acts(masked_of: Declared, known: Known) -> tuple[Act, ...]:
    def discard(given: Given) -> Procedure[ActResult]:
        return _do_dead(DISCARD_DEAD, "discarded", given, masked_of)

    def preview_discard(given: Given) -> Procedure[Preview]:
        return _preview_dead(DISCARD_DEAD, "deleted for good", given, masked_of)

    return (
        Act(
            "dead redrive",
            "Redrive",
            lambda g: _do_dead(_redrive(g), "put back to work", g, masked_of),
            (*_DEAD, _RATE),
            lambda g: _dead_words("redrive", g),
            lambda g: _preview_dead(_redrive(g), "put back to work", g, masked_of),
        ),
        Act(
            "dead patch",
            "Patch",
            lambda g: _do_dead(_patch(g, known, masked_of), "patched", g, masked_of),
            (*_DEAD, _PATCH),
            lambda g: ("dead", "patch", g.get("patch", ""), *_dead_words("patch", g)[2:]),
            lambda g: _preview_patch(g, known, masked_of),
        ),
        Act(
            "dead discard",
            "Discard",
            discard,
            _DEAD,
            lambda g: _dead_words("discard", g),
            preview_discard,
            "admin",
            deletes=True,
        ),
    )
