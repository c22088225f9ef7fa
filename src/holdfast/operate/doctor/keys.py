"""Keys that are blocked, parked or held after a trial, so that none of their jobs runs."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby

from ...model.state import BLOCKED
from ...store import keys as store
from ...store.holds import undecided_trials
from ...store.keys import StuckKey
from ..advice import Advice, advise
from ..wording import cut, listed, moment, several, them
from .finding import Check, Finding, Patient

MOST_KEYS = 1000  # keys that are read
_NAMED = 20  # keys that a command names; if there are more, it means all


def check_keys(p: Patient) -> Iterator[Finding]:
    aside = p.probe.look(store.aside_heads(None, MOST_KEYS))
    if blocked := [k for k in aside if k.why == BLOCKED]:
        what = f"{_count(blocked)} blocked by a dead letter: nothing of {them(blocked)} runs until somebody decides"
        yield Finding(
            "blocked_keys",
            "warning",
            what,
            _release(blocked, "retry"),
            listed(_lines(blocked)),
            _release(blocked, "skip"),
            lasts=_lasts(blocked),
        )
    if parked := p.probe.look(store.parked_heads(None, MOST_KEYS)):
        what = f"{_count(parked)} parked because of a dead letter: nothing of {them(parked)} runs until somebody decides"
        yield Finding(
            "parked_keys",
            "warning",
            what,
            _release(parked, "retry"),
            listed(_lines(parked)),
            _release(parked, "skip"),
            lasts=_lasts(parked),
        )
    if undecided := p.probe.look(undecided_trials(MOST_KEYS)):
        what = (
            f"{_count(undecided)} held after a trial that nobody decided on: nothing of {them(undecided)} runs "
            "until the hold is lifted"
        )
        details = [
            f"queue {h.queue}: key {cut(h.key)} held until {moment(h.until)} ({cut(h.reason) or 'no reason given'}), "
            f"tried with {h.trial_job}"
            for h in undecided
        ]
        by_queue = groupby(sorted((h.queue, h.key) for h in undecided), key=lambda pair: pair[0])
        fix = [advise("lift_keys", queue=queue, keys=[key for _, key in of]) for queue, of in by_queue]
        yield Finding("undecided_trials", "warning", what, fix, listed(details))


def _lasts(found: Sequence[StuckKey]) -> float:
    return max((datetime.now(UTC) - min(k.since for k in found)).total_seconds(), 0.0)


def _lines(found: Sequence[StuckKey]) -> list[str]:
    oldest = sorted(found, key=lambda k: k.since)
    return [
        f"queue {k.queue}: key {cut(k.key)} since {moment(k.since)}, by {k.job_id} ({cut(k.task) or 'no more'}), "
        f"{several(k.behind.count, 'job')}{'+' if k.behind.capped else ''} behind it: {cut(k.note)}"
        for k in oldest
    ]


def _release(found: Sequence[StuckKey], how: str) -> list[Advice]:
    """For each queue; of many keys: all that there are."""
    advice = []
    for queue, group in groupby(sorted(found, key=lambda k: (k.queue, k.key)), key=lambda k: k.queue):
        names = [k.key for k in group]
        keys = None if len(names) > _NAMED else names
        advice.append(advise("release_keys", queue=queue, keys=keys, how=how))
    return advice


def _count(found: Sequence[object]) -> str:
    return f"{several(len(found), 'key')}{' or more' if len(found) >= MOST_KEYS else ''}"


CHECKS = (
    Check(
        "keys",
        "no key is blocked, parked or held after its trial",
        ("blocked_keys", "parked_keys", "undecided_trials"),
        check_keys,
    ),
)
