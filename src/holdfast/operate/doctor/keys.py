"""The keys of ordered queues: what is blocked or parked, and lets nothing of its key run."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from ...model.state import BLOCKED
from ...store import keys as store
from ...store.keys import StuckKey
from ..advice import Advice, advise
from ..wording import cut, listed, moment, several, them
from .finding import Check, Finding, Patient

MOST_KEYS = 1000  # keys that are looked at
_NAMED = 20  # keys that a command names; of more it means all


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
        )


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


def _count(found: Sequence[StuckKey]) -> str:
    return f"{several(len(found), 'key')}{' or more' if len(found) >= MOST_KEYS else ''}"


CHECKS = (Check("keys", "no key is blocked or parked", ("blocked_keys", "parked_keys"), check_keys),)
