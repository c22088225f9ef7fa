"""Acts on subscriptions and projections from the dashboard: the verbs of `Subscriptions`, with previews."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from ...errors import ConfigurationError
from ...model.duration import parse_duration
from ...operate.procedure import Procedure, run
from ...operate.wording import several
from ...pages import Act, ActResult, Field, Given, Preview
from ...tasks.taskset import TaskSet
from . import builds, procedures, steering, store
from .declare import Declared, declared
from .look import place_of
from .lookups import To, find

_NAME = Field("name")
_PLACE = "A position such as 17, a time such as 2026-05-01T10:00+02:00, a span ago such as 2h"


def _pause(given: Given) -> Procedure[ActResult]:
    changed = yield from steering.pause(given["name"])
    return ActResult(
        f"Subscription {given['name']} {'is paused' if changed else 'was not running'}.", None, "events"
    )


def _resume(given: Given) -> Procedure[ActResult]:
    changed = yield from steering.resume(given["name"])
    return ActResult(
        f"Subscription {given['name']} {'is resumed' if changed else 'was not paused'}.", None, "events"
    )


def _skip(given: Given) -> Procedure[ActResult]:
    done = yield from steering.skip(
        given["name"], shard=_whole(given, "shard"), position=_whole(given, "position")
    )
    return ActResult(
        f"Subscription {given['name']} continues after position {done.position:,}.", done, "events"
    )


def _preview_skip(given: Given) -> Procedure[Preview]:
    row = yield from steering.stopped_shard(given["name"])
    return Preview(
        f"{row.name} would skip the event after position {row.position:,}, and continue.",
        fixed={"shard": str(row.shard), "position": str(row.position)},
    )


def _whole(given: Given, name: str) -> int | None:
    said = given.get(name, "")
    if said and not (said.isascii() and said.isdigit() and len(said) < 19):
        raise ConfigurationError(f"{name} must be a whole number, not {said[:40]!r}")
    return int(said) if said else None


def _cancel(given: Given) -> Procedure[ActResult]:
    done = yield from builds.cancel(given["name"])
    said = (
        "The rebuild is given up. The live tables stay as they are." if done else "It is not being rebuilt."
    )
    return ActResult(said, None, "projections")


def _words(verb: str, noun: str = "subscriptions") -> Any:
    return lambda given: (noun, verb, given["name"])


# Moving -------------------------------------------------------------------------------------------------------------


def _place(given: Given, name: str, words: Sequence[str]) -> To:
    said = given[name].strip()
    if said in words:
        return "start" if said == "start" else "end"
    if said.isascii() and said.isdigit() and len(said) < 19:
        return int(said)
    at = _moment(said) or _ago(said)
    if at is None or at.tzinfo is None or not 1970 <= at.year <= 9000:
        known = ", ".join(words)
        raise ConfigurationError(f"{name} is {said[:60]!r}, and not a place in the log. {_PLACE}, or {known}")
    return at.astimezone(UTC)


def _moment(said: str) -> datetime | None:
    try:
        return datetime.fromisoformat(said)
    except ValueError:
        return None


def _ago(said: str) -> datetime | None:
    seconds = parse_duration(said)
    try:
        return None if seconds is None else datetime.now(UTC) - timedelta(seconds=seconds)
    except OverflowError:
        return None


def _preview_reset(given: Given) -> Procedure[Preview]:
    listed = yield from find(given["name"])
    steering.check_reset(listed[0])
    target = yield from place_of(_place(given, "to", ("start", "end")))
    effect = steering.effect_of_reset(listed, target)
    warnings = []
    if listed[0].kind == "relay" and target < max(row.position for row in listed):
        warnings.append("It is a relay: what was sent would be sent again.")
    said = f"{given['name']} would continue after position {target:,}: {effect}."
    return Preview(said, warnings=warnings, fixed={"to": str(target)})


def _reset(given: Given) -> Procedure[ActResult]:
    target = yield from steering.reset(given["name"], _place(given, "to", ("start", "end")))
    page = f"events/subscriptions/{given['name']}"
    return ActResult(
        f"Subscription {given['name']} continues after position {target:,}.", {"position": target}, page
    )


def _range(given: Given) -> Procedure[tuple[int, int]]:
    since = yield from place_of(_place(given, "start", ("start",)))
    until = yield from place_of(_place(given, "end", ("end",)) if given.get("end") else "end")
    return since, until


def _preview_replay(given: Given) -> Procedure[Preview]:
    listed = yield from find(given["name"])
    steering.check_replayed(listed[0])
    since, until = yield from _range(given)
    count = max(until - since, 0)
    again = " Those that became jobs before become jobs again." if given.get("again") == "yes" else ""
    said = f"{several(count, 'event')} of the log would be read to {given['name']} once more, beside its position."
    # The log grows meanwhile: the confirmed act ends where the preview ended.
    return Preview(said + again, count, fixed={"start": str(since), "end": str(until)})


def _replay(given: Given) -> Procedure[ActResult]:
    since, until = yield from _range(given)
    begun = yield from steering.begin_replay(given["name"], since, until, again=given.get("again") == "yes")
    left = (
        f", {several(begun.left_out, 'event')} of it left out that became jobs before"
        if begun.left_out
        else ""
    )
    said = f"Replay {begun.name} began: after position {begun.since:,} up to {begun.until:,}{left}."
    return ActResult(said, {"replay": begun.name}, f"events/subscriptions/{begun.name}")


def _replay_words(given: Given) -> list[str]:
    end = ["--to", given["end"]] if given.get("end") else []
    again = ["--again"] if given.get("again") == "yes" else []
    return ["subscriptions", "replay", given["name"], "--from", given.get("start", ""), *end, *again, "--yes"]


# Failures ----------------------------------------------------------------------------------------------------


def _preview_retry(given: Given) -> Procedure[Preview]:
    found = yield from run(lambda: store.list_failures(given["name"]))
    return Preview(
        f"{several(len(found), 'event')} that {given['name']} passed would be done after all.", len(found)
    )


def _retry(given: Given) -> Procedure[ActResult]:
    found = yield from procedures.retry(given["name"])
    page = f"events/subscriptions/{given['name']}"
    return ActResult(
        f"{several(found, 'event')} of {given['name']} will be done after all.", {"retried": found}, page
    )


def _preview_forget(given: Given) -> Procedure[Preview]:
    found = yield from run(lambda: store.list_failures(given["name"]))
    return Preview(
        f"{several(len(found), 'event')} that {given['name']} passed would be given up.", len(found)
    )


def _forget(given: Given) -> Procedure[ActResult]:
    found = yield from steering.forget_failures(given["name"])
    page = f"events/subscriptions/{given['name']}"
    return ActResult(f"{several(found, 'event')} of {given['name']} given up.", {"forgotten": found}, page)


def _preview_remove(given: Given) -> Procedure[Preview]:
    listed = yield from find(given["name"])
    return Preview(f"{given['name']}, at position {listed[0].position:,}, would be removed.", len(listed))


def _remove(given: Given) -> Procedure[ActResult]:
    removed = yield from steering.remove(given["name"])
    return ActResult(f"Subscription {given['name']} is removed.", {"removed": removed}, "events")


def _sure(verb: str) -> Any:
    return lambda given: ("subscriptions", verb, given["name"], "--yes")


ACTS: tuple[Act, ...] = (
    Act("subscriptions pause", "Pause", _pause, (_NAME,), _words("pause"), at_once=True),
    Act("subscriptions resume", "Resume", _resume, (_NAME,), _words("resume"), at_once=True),
    Act(
        "subscriptions skip",
        "Skip the event",
        _skip,
        (_NAME, Field("shard", required=False), Field("position", required=False)),
        _words("skip"),
        _preview_skip,
        "admin",
        deletes=True,
    ),
    Act("projection cancel", "Give up the rebuild", _cancel, (_NAME,), _words("cancel", "projection")),
    Act(
        "subscriptions reset",
        "Put elsewhere",
        _reset,
        (_NAME, Field("to", "Go on after", hint=f"{_PLACE}, start or end.", shown=True)),
        lambda g: ("subscriptions", "reset", g["name"], "--to", g.get("to", ""), "--yes"),
        _preview_reset,
        "admin",
    ),
    Act(
        "subscriptions replay",
        "Replay",
        _replay,
        (
            _NAME,
            Field("start", "After", hint=f"{_PLACE}, or start.", shown=True),
            Field("end", "Up to", required=False, hint="Empty: the end of the log.", shown=True),
            Field(
                "again",
                "Also what became jobs before",
                "choice",
                ("no", "yes"),
                required=False,
                value="no",
                shown=True,
            ),
        ),
        _replay_words,
        _preview_replay,
        "admin",
    ),
    Act("subscriptions retry", "Do what was passed", _retry, (_NAME,), _words("retry"), _preview_retry),
    Act(
        "subscriptions forget-failures",
        "Give up what was passed",
        _forget,
        (_NAME,),
        _sure("forget-failures"),
        _preview_forget,
        "admin",
        deletes=True,
    ),
    Act(
        "subscriptions remove",
        "Remove",
        _remove,
        (_NAME,),
        _sure("remove"),
        _preview_remove,
        "admin",
        deletes=True,
    ),
)


# Acts that need the code ------------------------------------------------------------------------------------------------


def coded_acts(tasks: TaskSet) -> Sequence[Act]:
    """A rebuild reads by the patterns and writes the tables that the code declares."""

    def code(name: str) -> Declared:
        found = {d.name: d for d in declared(tasks) if d.apply is not None}
        if name not in found:
            known = ", ".join(sorted(found)) or "none; start holdfast web with -a MODULE:APP"
            raise ConfigurationError(f"the app has no projection {name!r} (known: {known})")
        return found[name]

    def preview(given: Given) -> Procedure[Preview]:
        one = code(given["name"])
        assert one.apply is not None
        if (yield from builds.progress(given["name"])) is not None:
            raise ConfigurationError(f"{given['name']} is being rebuilt. Give that up first, or let it end")
        log = yield from run(store.log_state)
        tables = ", ".join(one.apply.tables) or "no table"
        return Preview(
            f"Workers would read {several(log.last - log.start, 'event')} of the log into new tables beside {tables}, and "
            "swap them at the end. The old ones are kept."
        )

    def rebuild(given: Given) -> Procedure[ActResult]:
        one = code(given["name"])
        assert one.apply is not None
        begun = yield from builds.start(one.name, one.apply.tables, one.patterns, one.apply.version)
        return ActResult(f"{begun} is being built.", {"rebuild": begun}, "projections")

    return (
        Act(
            "projection rebuild",
            "Rebuild",
            rebuild,
            (_NAME,),
            lambda g: ("projection", "rebuild", g["name"]),
            preview,
            "admin",
        ),
    )
