"""Schedules on the dashboard: what fires when, did it fire, and what can be done."""

from datetime import UTC, datetime

from ...errors import ConfigurationError
from ...operate.procedure import Procedure
from ...operate.wording import moment, several, span
from ...pages import (
    Act,
    Asked,
    Facts,
    Field,
    Given,
    Link,
    Offer,
    Page,
    Pages,
    Preview,
    Problem,
    Row,
    Said,
    State,
    Table,
    Text,
    View,
)
from . import verbs
from .verbs import Schedule

_NAME = Field("name")
_START = Field("start", "From", "time", hint="Such as 2026-05-01T00:00+02:00.", shown=True)
_END = Field("end", "To", "time", required=False, hint="Empty: until now.", shown=True)


def _list(asked: Asked) -> Procedure[View]:
    found = yield from verbs.list_schedules()
    heads = ("Schedule", "When~", "Task", "Next", "Last", "State")
    table = Table(heads, [_row(one) for one in found], "Schedules", f"{len(found)}")
    return View([table], found, ("schedule", "list"))


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
        return State("in no living worker's code", "retry")
    if one.problem is not None:
        return State("fails", "dead", Problem(one.problem))
    if one.last_slot is not None and one.last_job is None:
        return State("skipped last", "retry")
    return State("fires", "done")


def _offers(one: Schedule) -> tuple[Offer, ...]:
    turn = "schedule pause" if one.paused_seconds is None else "schedule resume"
    return Offer("schedule run", {"name": one.name}), Offer(turn, {"name": one.name})


def _one(asked: Asked) -> Procedure[View]:
    name = asked.path["name"]
    one = yield from verbs.get(name)
    ahead = yield from verbs.next_slots(name, 10)
    slots = [
        Row((slot.local.strftime("%a %Y-%m-%d %H:%M:%S %Z"), slot.at, slot.note or "")) for slot in ahead
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
    blocks = [Table((one.tz, "UTC", "Note~"), slots, "Next slots", "", "It fires no more.")]
    offers = [*_offers(one), Offer("schedule backfill", {"name": name})]
    crumbs = (Link("Schedules", "schedules"),)
    data = {"schedule": one, "next": ahead}
    return View(
        blocks, data, ("schedule", "next", name), name, crumbs, (facts, Text(one.payload, "Payload")), offers
    )


def _in_use() -> Procedure[bool]:
    return bool((yield from verbs.list_schedules()))


# Acts ---------------------------------------------------------------------------------------------------------------


def _run(given: Given) -> Procedure[Said]:
    _, job = yield from verbs.run_now(given["name"])
    return Said(f"Schedule {given['name']} enqueued job {job}.", {"id": job}, f"jobs/{job}")


def _preview_run(given: Given) -> Procedure[Preview]:
    one = yield from verbs.get(given["name"])
    return Preview(
        f"One job of {one.task} would be enqueued now in queue {one.queue}, beside the slots of {one.name}."
    )


def _pause(given: Given) -> Procedure[Said]:
    changed = yield from verbs.pause(given["name"])
    return Said(
        f"Schedule {given['name']} {'is paused' if changed else 'was paused already'}.", None, "schedules"
    )


def _resume(given: Given) -> Procedure[Said]:
    changed = yield from verbs.resume(given["name"])
    return Said(f"Schedule {given['name']} {'goes on' if changed else 'was not paused'}.", None, "schedules")


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


def _fill(given: Given) -> Procedure[Said]:
    done = yield from verbs.fill(given["name"], *_between(given))
    return Said(
        f"{several(done.fired, 'job')} enqueued.", {"fired": done.fired}, f"schedules/{given['name']}"
    )


def _fill_words(given: Given) -> tuple[str, ...]:
    end = ("--to", given["end"]) if given.get("end") else ()
    return ("schedule", "backfill", given["name"], "--from", given.get("start", ""), *end, "--yes")


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
        ),
        Page("schedules/{name}", "Schedule", _one),
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
    ],
)
