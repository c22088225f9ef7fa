"""Schedules on the dashboard: when each fires, whether it did, and its acts."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from ...errors import ConfigurationError
from ...model.duration import parse_duration
from ...operate.procedure import Procedure
from ...operate.producing import make_job
from ...operate.wording import moment, several, span
from ...pages import (
    Act,
    ActResult,
    Facts,
    Field,
    Given,
    Link,
    Offer,
    Page,
    PageRequest,
    Pages,
    Preview,
    Problem,
    Row,
    State,
    Table,
    Text,
    View,
)
from ...tasks.taskset import TaskSet
from . import verbs
from .declare import make_spec
from .spec import MISSED, OVERLAP, Spec
from .store import Decided
from .verbs import Schedule

_NAME = Field("name")
_START = Field("start", "From", "time", hint="Such as 2026-05-01T00:00+02:00.", shown=True)
_END = Field("end", "To", "time", required=False, hint="Empty: until now.", shown=True)


def _list(asked: PageRequest) -> Procedure[View]:
    found = yield from verbs.list_schedules()
    heads = ("Schedule", "When~", "Task", "Next", "Last", "State")
    table = Table(heads, [_row(one) for one in found], "Schedules", f"{len(found)}")
    return View([table], found, ("schedule", "list"), offers=(Offer("schedule add", {}),))


def _row(one: Schedule) -> Row:
    last = None if one.last_slot is None else one.last_slot
    cells = (
        Link(one.name, f"schedules/{one.name}"),
        one.when,
        Link(one.task, "jobs", {"task": one.task}),
        one.next_at,
        last,
        _state(one),
    )
    return Row(cells, _offers(one), one.name)


def _state(one: Schedule) -> State:
    if one.paused_seconds is not None:
        return State("paused", "held", f"{span(one.paused_seconds)}, by {one.paused_by or 'somebody'}")
    if not one.is_declared:
        return State("in no live worker's code", "retry")
    if one.problem is not None:
        return State("fails", "dead", Problem(one.problem))
    if one.last_slot is not None and one.last_job is None:
        return State("skipped last", "retry")
    return State("fires", "done")


def _offers(one: Schedule) -> tuple[Offer, ...]:
    turn = "schedule pause" if one.paused_seconds is None else "schedule resume"
    return Offer("schedule run", {"name": one.name}), Offer(turn, {"name": one.name})


def _one(asked: PageRequest) -> Procedure[View]:
    name = asked.path["name"]
    one = yield from verbs.get(name)
    ahead = yield from verbs.next_slots(name, 10)
    slots = [
        Row((slot.local.strftime("%a %Y-%m-%d %H:%M:%S %Z"), slot.at, slot.note or "")) for slot in ahead
    ]
    behind = yield from verbs.last_slots(name)
    past = [
        Row((slot.slot, _BECAME[slot.kind], slot.at, _job(slot)), key=slot.slot.isoformat())
        for slot in behind
    ]
    facts = Facts(
        [
            ("When", one.when),
            ("Zone", one.tz),
            ("Task", Link(one.task, "jobs", {"task": one.task})),
            ("Queue", Link(one.queue, f"queues/{one.queue}")),
            ("Missed slots", one.missed),
            ("Overlap", one.overlap),
            ("From", one.origin),
            ("State", _state(one)),
            ("Last", one.last_slot),
            (
                "Last job",
                None if one.last_job is None else Link(str(one.last_job), f"jobs/{one.last_job}", code=True),
            ),
        ],
        "Schedule",
    )
    blocks = [
        Table((one.tz, "UTC", "Note~"), slots, "Next slots", "", "It fires no more."),
        Table(
            ("Slot", "What~", "At", "Job"), past, "Last slots", "the newest first", "It has not fired yet."
        ),
    ]
    more = (
        "schedule backfill",
        *(("schedule remove",) if one.origin == "operator" or not one.is_declared else ()),
    )
    offers = [*_offers(one), *(Offer(act, {"name": name}) for act in more)]
    crumbs = (Link("Schedules", "schedules"),)
    data = {"schedule": one, "next": ahead, "last": behind}
    return View(
        blocks,
        data,
        ("schedule", "next", name),
        name,
        crumbs,
        (facts, Text(one.payload, "Payload", one.task)),
        offers,
    )


_BECAME: dict[str, State] = {
    "slot": State("fired", "done"),
    "run": State("run by hand", "done"),
    "backfill": State("backfilled", "done"),
    "skipped": State("skipped", "retry"),
}


def _job(slot: Decided) -> Link | None:
    return None if slot.job is None else Link(str(slot.job), f"jobs/{slot.job}", code=True)


def _in_use() -> Procedure[bool]:
    return bool((yield from verbs.list_schedules()))


# Acts ---------------------------------------------------------------------------------------------------------------


def _run(given: Given) -> Procedure[ActResult]:
    _, job = yield from verbs.run_now(given["name"])
    return ActResult(f"Schedule {given['name']} enqueued job {job}.", {"id": job}, f"jobs/{job}")


def _preview_run(given: Given) -> Procedure[Preview]:
    one = yield from verbs.get(given["name"])
    return Preview(
        f"One job of {one.task} would be enqueued now in queue {one.queue}, beside the slots of {one.name}."
    )


def _pause(given: Given) -> Procedure[ActResult]:
    changed = yield from verbs.pause(given["name"])
    return ActResult(
        f"Schedule {given['name']} {'is paused' if changed else 'was paused already'}.", None, "schedules"
    )


def _resume(given: Given) -> Procedure[ActResult]:
    changed = yield from verbs.resume(given["name"])
    return ActResult(
        f"Schedule {given['name']} {'is resumed' if changed else 'was not paused'}.", None, "schedules"
    )


def _moment(given: Given, name: str) -> datetime:
    try:
        at = datetime.fromisoformat(given[name])
    except ValueError:
        at = None
    if at is None or at.tzinfo is None or not 1970 <= at.year <= 9000:
        raise ConfigurationError(
            f"{name} must be a moment such as 2026-05-01T00:00+02:00, not {given[name][:60]!r}"
        )
    return at.astimezone(UTC)


def _between(given: Given) -> tuple[datetime, datetime | None]:
    return _moment(given, "start"), _moment(given, "end") if given.get("end") else None


def _preview_fill(given: Given) -> Procedure[Preview]:
    found = yield from verbs.fill(given["name"], *_between(given), dry_run=True)
    between = (
        f", for slots from {moment(found.first)} to {moment(found.last)}"
        if found.first and found.last
        else ""
    )
    left = f" {several(found.decided, 'slot')} fired or were skipped before." if found.decided else ""
    return Preview(f"{several(found.fired, 'job')} would be enqueued{between}.{left}", found.fired)


def _fill(given: Given) -> Procedure[ActResult]:
    done = yield from verbs.fill(given["name"], *_between(given))
    return ActResult(
        f"{several(done.fired, 'job')} enqueued.", {"fired": done.fired}, f"schedules/{given['name']}"
    )


def _fill_words(given: Given) -> tuple[str, ...]:
    end = ("--to", given["end"]) if given.get("end") else ()
    return ("schedule", "backfill", given["name"], "--from", given.get("start", ""), *end, "--yes")


def _preview_remove(given: Given) -> Procedure[Preview]:
    one = yield from verbs.get(given["name"])
    warnings = (
        ["Its code is in a live worker: it can only be paused."]
        if one.is_declared and one.origin == "code"
        else []
    )
    said = (
        f"Schedule {one.name} ({one.when}) and what is known of its firings would be removed. Its jobs stay."
    )
    return Preview(said, 1, warnings=warnings)


def _remove(given: Given) -> Procedure[ActResult]:
    yield from verbs.remove(given["name"])
    return ActResult(f"Schedule {given['name']} is removed.", None, "schedules")


# Adding: with the code its arguments are checked ---------------------------------------------------------------------


def _when(given: Given) -> str | timedelta:
    cron, every = given.get("cron"), given.get("every")
    if bool(cron) == bool(every):
        raise ConfigurationError('say when: cron "0 3 * * *", or every 90s (one of the two)')
    if cron:
        return cron
    seconds = parse_duration(every or "")
    if seconds is None:
        raise ConfigurationError(f"every must be a span such as 90s, 15m or 2h, not {(every or '')[:40]!r}")
    return timedelta(seconds=seconds)


def _payload(given: Given) -> dict[str, Any]:
    try:
        found = json.loads(given.get("payload") or "{}")
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"the payload is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigurationError("the payload must be a JSON object of the arguments")
    return found


def _add_words(given: Given) -> list[str]:
    said = ["schedule", "add", given.get("name", "NAME"), "--task", given.get("task", "TASK")]
    for name in ("cron", "every", "tz", "payload", "missed", "overlap", "queue"):
        if given.get(name):
            said += [f"--{name}", given[name]]
    return said


_ADD = (
    Field("name", "Name", hint="Letters, digits and _ . -", shown=True),
    Field("task", "Task", shown=True),
    Field("cron", "Cron", required=False, hint='Such as "0 3 * * *" or @daily.', shown=True),
    Field("every", "Or every", required=False, hint="Such as 90s, 15m or 2h.", shown=True),
    Field("tz", "Time zone of cron", required=False, value="UTC", shown=True),
    Field("payload", "Arguments, as JSON", "json", required=False, value="{}", shown=True),
    Field(
        "missed",
        "Missed slots",
        "choice",
        MISSED,
        required=False,
        value="skip",
        shown=True,
    ),
    Field(
        "overlap",
        "While a job of it is there",
        "choice",
        OVERLAP,
        required=False,
        value="allow",
        shown=True,
    ),
    Field("queue", "Queue", required=False, hint="Empty: the task's.", shown=True),
)


def coded_acts(tasks: TaskSet) -> Sequence[Act]:
    known = tasks if tasks.known() else None

    def made(given: Given) -> Spec:
        options: Any = {"queue": given["queue"]} if given.get("queue") else {}
        job = make_job(known, given["task"], _payload(given), options)
        zone, missed, overlap = (
            given.get(name) or value
            for name, value in (("tz", "UTC"), ("missed", "skip"), ("overlap", "allow"))
        )
        return make_spec(given["name"], _when(given), job, zone, missed, overlap, ConfigurationError)

    def preview(given: Given) -> Procedure[Preview]:
        yield from ()
        spec = made(given)
        warnings = [] if known else ["The code is not at hand: whether the arguments fit is not checked."]
        return Preview(
            f"Schedule {spec.name} would enqueue {spec.row.task} in queue {spec.row.queue}: {spec.timing.describe()}.",
            warnings=warnings,
        )

    def add(given: Given) -> Procedure[ActResult]:
        spec = made(given)
        created = yield from verbs.add_spec(spec)
        one = yield from verbs.get(spec.name)
        state = "added" if created else "exists already"
        return ActResult(f"Schedule {spec.name} {state}. {one.when}.", one, f"schedules/{spec.name}")

    return (Act("schedule add", "Add a schedule", add, _ADD, _add_words, preview),)


PAGES = Pages(
    [
        Page(
            "schedules",
            "Schedules",
            _list,
            "Work",
            "schedules",
            "A schedule enqueues a job again and again, each slot once. "
            'Declare one: app.schedule("0 3 * * *", nightly.job()).',
            _in_use,
            begin=Offer("schedule add", {}),
            live=15,
        ),
        Page("schedules/{name}", "Schedule", _one, live=15),
    ],
    [
        Act(
            "schedule run", "Run now", _run, (_NAME,), lambda g: ("schedule", "run", g["name"]), _preview_run
        ),
        Act(
            "schedule pause",
            "Pause",
            _pause,
            (_NAME,),
            lambda g: ("schedule", "pause", g["name"]),
            at_once=True,
        ),
        Act(
            "schedule resume",
            "Resume",
            _resume,
            (_NAME,),
            lambda g: ("schedule", "resume", g["name"]),
            at_once=True,
        ),
        Act(
            "schedule backfill",
            "Backfill",
            _fill,
            (_NAME, _START, _END),
            _fill_words,
            _preview_fill,
        ),
        Act(
            "schedule remove",
            "Remove",
            _remove,
            (_NAME,),
            lambda g: ("schedule", "remove", g["name"]),
            _preview_remove,
            "admin",
            deletes=True,
        ),
    ],
    coded_acts,
)
