"""What can be done to queues, tasks, keys and workers, and what the doctor fixes: verbs of the operator."""

from collections.abc import Mapping
from typing import Any

from holdfast.cli.arguments import parse_rate, parse_span
from holdfast.errors import ConfigurationError
from holdfast.model.queue import QueueRules, Rate
from holdfast.operate.keys import Released
from holdfast.operate.limits import shown
from holdfast.operate.operator import Operator
from holdfast.operate.procedure import Procedure
from holdfast.operate.refusal import Refused
from holdfast.operate.wording import several
from holdfast.pages import Act, ActResult, Field, Given, Link, Preview, Row, Table
from holdfast.tasks.checks import queue_name
from holdfast.tasks.queueing import queue_rules
from holdfast.web.filters import means_all, text, words_of
from holdfast.web.fixing import FIX
from holdfast.web.undoing import undo_of
from holdfast.web.views.operations import operation_id


def _pause_queue(given: Given) -> Procedure[ActResult]:
    done = yield from Operator.pause_queue.procedure(given["queue"])
    state = "is paused" if done.changed else "was paused already"
    said = f"Queue {done.queue} {state}. What runs already finishes."
    return ActResult(said, done, f"queues/{done.queue}", undo=undo_of(done.audit))


def _resume_queue(given: Given) -> Procedure[ActResult]:
    done = yield from Operator.resume_queue.procedure(given["queue"])
    return ActResult(
        f"Queue {done.queue} {'is resumed' if done.changed else 'was not paused'}.",
        done,
        f"queues/{done.queue}",
    )


_RULES = ("concurrency", "key_concurrency", "rate", "key_rate")


def _limit(rule: str, value: str | None) -> Any:
    """None: there is none."""
    if value is None or value == "none":
        return None
    if rule.endswith("rate"):
        return Rate(parse_rate(value, rule))
    if not (value.isascii() and value.isdigit() and len(value) < 10):
        raise ConfigurationError(f"{rule} must be a whole number or none, not {value[:40]!r}")
    return int(value)


def _wanted(given: Given) -> Mapping[str, Any]:
    rule = given["rule"]
    if rule not in _RULES:
        raise ConfigurationError(f"there is no limit {rule!r} (known: {', '.join(_RULES)})")
    return {rule: _limit(rule, text(given, "value"))}


def _preview_set(given: Given) -> Procedure[Preview]:
    seen = yield from Operator.show_rules.procedure(given["queue"])
    _wanted(given)
    has = seen.rules.get(given["rule"], "none")
    running = f" {seen.running:,} run now." if seen.running is not None else ""
    return Preview(
        f"{given['rule']} of queue {given['queue']} is {has}.{running} It would be {text(given, 'value') or 'none'}."
    )


def _set_queue(given: Given) -> Procedure[ActResult]:
    done = yield from Operator.set_queue.procedure(given["queue"], limits=_wanted(given))
    said = "; ".join(f"{rule} was {was}, is {now}" for rule, (was, now) in done.changes.items())
    return ActResult(f"Queue {done.name}: {said or 'nothing differs'}.", done, f"queues/{done.name}")


def _rules(given: Given) -> QueueRules:
    limits = {rule: value for rule in _RULES if (value := _limit(rule, text(given, rule))) is not None}
    made_so = {
        "ordering": given.get("ordering") or "none",
        "on_dead_letter": given.get("on_dead_letter") or "skip",
        "affinity": given.get("affinity") or "none",
    }
    return queue_rules({**made_so, "fair": given.get("fair") == "yes", **limits}, ConfigurationError)


def _preview_create(given: Given) -> Procedure[Preview]:
    queue_name(given["queue"], ConfigurationError)
    rules = _rules(given)
    if given["queue"] in (yield from Operator.queue_names.procedure()):
        return Preview(f"Queue {given['queue']} exists already, and would be left as it is.")
    said = "; ".join(f"{name} {shown(getattr(rules, name))}" for name in rules.differs(QueueRules()))
    return Preview(f"Queue {given['queue']} would be made, {said or 'with the plain rules'}.")


def _create_queue(given: Given) -> Procedure[ActResult]:
    done = yield from Operator.create_queue.procedure(given["queue"], rules=_rules(given))
    state = "is made" if done.created else "was there already"
    return ActResult(f"Queue {done.name} {state}.", done, f"queues/{done.name}")


def _create_words(given: Given) -> list[str]:
    found = ["queue", "create", given["queue"]]
    for name in ("ordering", "on_dead_letter", "affinity", *_RULES):
        if given.get(name) and given[name] not in ("none", "skip"):
            found += [f"--{name.replace('_', '-')}", given[name]]
    return [*found, "--fair"] if given.get("fair") == "yes" else found


def _pause_task(given: Given) -> Procedure[ActResult]:
    done = yield from Operator.pause_task.procedure(given["task"])
    said = f"Task {done.task} is paused. {several(done.moved, 'job')} set aside."
    return ActResult(said, done, "limits", undo=undo_of(done.audit))


def _resume_task(given: Given) -> Procedure[ActResult]:
    done = yield from Operator.resume_task.procedure(given["task"])
    closed = " Its breaker is closed." if done.breaker_closed else ""
    state = "is resumed" if done.changed else "was not paused"
    return ActResult(
        f"Task {done.task} {state}.{closed} {several(done.moved, 'job')} put back.", done, "limits"
    )


def _released(given: Given, *, dry_run: bool) -> Procedure[Released]:
    """One key, or all that do not move. A preview shows the same whatever becomes of the job in the way."""
    how = given.get("how") or ("retry" if dry_run else None)
    if means_all(given):
        if given.get("key"):
            raise ConfigurationError("say key or all, not both")
        return (yield from Operator.release_all.procedure(given["queue"], how, dry_run=dry_run))
    if not given.get("key"):
        raise Refused("no_keys_named", "say which key, or all")
    return (yield from Operator.release_keys.procedure(given["queue"], [given["key"]], how, dry_run=dry_run))


def _preview_release(given: Given) -> Procedure[Preview]:
    found = yield from _released(given, dry_run=True)
    jobs = ", ".join(str(target.job_id) for target in found.targets[:5])
    if not means_all(given):
        return Preview(
            f"Key {given['key']} of queue {given['queue']} would be released. It is blocked by job {jobs}."
        )
    if not found.count:
        return Preview(f"No key of queue {given['queue']} is blocked or parked.", 0)
    rows = [Row((target.key, Link(str(target.job_id), f"jobs/{target.job_id}"))) for target in found.targets]
    sample = Table(("Key~", "Blocking job"), rows, "Which", "some of them")
    return Preview(
        f"{several(found.count, 'key')} of queue {given['queue']} would be released.",
        found.count,
        sample=sample,
    )


def _release(given: Given) -> Procedure[ActResult]:
    done = yield from _released(given, dry_run=False)
    how = ", ".join(f"{n:,} {how}" for how, n in done.results.items()) or "nothing to release"
    which = "All keys" if means_all(given) else f"Key {given['key']}"
    return ActResult(f"{which} of queue {given['queue']}: {how}.", done, f"keys/{given['queue']}")


def _hold_options(given: Given) -> dict[str, Any]:
    span = text(given, "span")
    if given.get("trial") == "yes" and span is None:
        raise ConfigurationError(
            "a trial needs an end after which a job is tried. Say for how long, such as 10m"
        )
    return {
        "seconds": None if span is None else parse_span(span, "span"),
        "reason": text(given, "reason"),
        "trial": given.get("trial") == "yes",
    }


def _preview_hold(given: Given) -> Procedure[Preview]:
    options = _hold_options(given)
    found = yield from Operator.held_keys.procedure(given["queue"], key=given["key"], limit=1)
    warnings = ["It is held already: this hold would take the place of that one."] if found.holds else []
    end = "until it is lifted" if options["seconds"] is None else f"for {given['span']}"
    said = (
        f"Nothing of key {given['key']} of queue {given['queue']} would be claimed {end}. What runs finishes."
    )
    return Preview(said, warnings=warnings)


def _hold(given: Given) -> Procedure[ActResult]:
    done = yield from Operator.hold_keys.procedure(given["queue"], [given["key"]], **_hold_options(given))
    return ActResult(f"Key {given['key']} of queue {given['queue']} is held.", done, f"keys/{given['queue']}")


def _hold_words(given: Given) -> list[str]:
    span = ["--for", given["span"]] if given.get("span") else []
    reason = ["--reason", given["reason"]] if given.get("reason") else []
    trial = ["--trial"] if given.get("trial") == "yes" else []
    dashes = ["--"] if given["key"].startswith("-") else []
    return ["keys", "hold", *span, *reason, *trial, *dashes, given["queue"], given["key"]]


def _lift(given: Given) -> Procedure[ActResult]:
    yield from Operator.lift_keys.procedure(given["queue"], [given["key"]])
    return ActResult(
        f"Key {given['key']} of queue {given['queue']} is held no more.", None, f"keys/{given['queue']}"
    )


def _drained(given: Given) -> dict[str, Any]:
    """Those that are named, those of a host, or all. Two of them at once are a mistake."""
    ids, host = words_of(given), text(given, "host")
    return {"ids": ids, "host": host, "everyone": means_all(given)}


def _preview_drain(given: Given) -> Procedure[Preview]:
    found = yield from Operator.drain_workers.procedure(**_drained(given), dry_run=True)
    names = ", ".join(found.asked[:5])
    said = (
        f"{several(len(found.asked), 'worker')} would finish or hand back what they run, and leave: {names}."
    )
    return Preview(said, len(found.asked))


def _drain(given: Given) -> Procedure[ActResult]:
    done = yield from Operator.drain_workers.procedure(**_drained(given))
    return ActResult(f"{several(len(done.asked), 'worker')} asked to drain and leave.", done, "workers")


def _drain_words(given: Given) -> list[str]:
    if host := text(given, "host"):
        return ["workers", "drain", "--host", host, "--yes"]
    return ["workers", "drain", *(("--all", "--yes") if means_all(given) else words_of(given))]


def _stop_operation(given: Given) -> Procedure[ActResult]:
    found, stopped = yield from Operator.stop_operation.procedure(operation_id(given["id"]))
    state = "is stopped" if stopped else f"had ended: it is {found.state}"
    return ActResult(
        f"The operation {state}. {found.done:,} jobs were changed.", found, f"operations/{found.id}"
    )


def _release_words(given: Given) -> list[str]:
    how = [f"--{given['how']}"] if given.get("how") else []
    if means_all(given):
        return ["keys", "release", *how, "--all", "--yes", given["queue"]]
    return ["keys", "release", *how, given["queue"], given.get("key", "")]


_HOW = Field(
    "how",
    "The blocking job",
    "choice",
    ("retry", "skip"),
    value="retry",
    hint="skip makes it a dead letter.",
)
_VALUE = Field("value", "Value", required=False, hint="20, 50/s, or none")
_QUEUE, _KEY, _TASK = Field("queue"), Field("key"), Field("task")
_SPAN = Field("span", "For", required=False, hint="Such as 10m or 2h. Empty: until somebody lifts it.")
_WHY = Field("reason", "Why", required=False)
_TRIAL = Field(
    "trial",
    "Then one job first",
    "choice",
    ("no", "yes"),
    value="no",
    hint="The rest when the hold is lifted.",
)
_MADE_SO = (
    Field("queue", "Name", hint="Small letters, digits and _, a letter first.", shown=True),
    Field("ordering", "Ordering", "choice", ("none", "key"), value="none", required=False, shown=True),
    Field(
        "on_dead_letter",
        "On a dead letter",
        "choice",
        ("skip", "block", "park"),
        value="skip",
        required=False,
        shown=True,
    ),
    Field(
        "fair",
        "Fair",
        "choice",
        ("no", "yes"),
        value="no",
        required=False,
        hint="Every key gets its turn.",
        shown=True,
    ),
    Field(
        "affinity",
        "Affinity",
        "choice",
        ("none", "key"),
        value="none",
        required=False,
        hint="key: jobs of a key go to the same worker.",
        shown=True,
    ),
    *(Field(rule, rule.replace("_", " ").capitalize(), required=False, shown=True) for rule in _RULES),
)

ENGINE_ACTS: tuple[Act, ...] = (
    Act("queue pause", "Pause", _pause_queue, (_QUEUE,), lambda g: ("queue", "pause", g["queue"]), at_once=True),
    Act("queue resume", "Resume", _resume_queue, (_QUEUE,), lambda g: ("queue", "resume", g["queue"]), at_once=True),
    Act("queue set", "Change limit", _set_queue,
        (_QUEUE, Field("rule", "Limit", "choice", _RULES), _VALUE),
        lambda g: ("queue", "set", g["queue"], f"--{g['rule'].replace('_', '-')}", g.get("value") or "none"), _preview_set),
    Act("queue create", "Create queue", _create_queue, _MADE_SO,
        _create_words, _preview_create),
    Act("task pause", "Pause", _pause_task, (_TASK,), lambda g: ("task", "pause", g["task"]), at_once=True),
    Act("task resume", "Resume", _resume_task, (_TASK,), lambda g: ("task", "resume", g["task"]), at_once=True),
    Act("keys release", "Release", _release,
        (_QUEUE, Field("key", required=False), Field("all", required=False), _HOW), _release_words, _preview_release),
    Act("keys hold", "Hold…", _hold, (_QUEUE, _KEY, _SPAN, _WHY, _TRIAL), _hold_words, _preview_hold),
    Act("keys lift", "Lift the hold", _lift, (_QUEUE, _KEY), lambda g: ("keys", "lift", g["queue"], g["key"]), at_once=True),
    Act("workers drain", "Drain", _drain, tuple(Field(name, required=False) for name in ("ids", "host", "all")),
        _drain_words, _preview_drain),
    Act("operations stop", "Stop", _stop_operation, (Field("id"),), lambda g: ("operations", "stop", g["id"])),
    FIX,
)  # fmt: skip
