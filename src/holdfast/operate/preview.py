"""What an act would change: how many jobs, in which states, and some of them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from ..store.queue_load import CAP, Count
from ..store.search import Found, JobFilter
from ..store.show import JobLine
from .bulk import patiently
from .job_acts import Verb, able_ones, asked_for
from .jobs import lines_of
from .procedure import Procedure
from .search import find

SAMPLE = 10  # jobs that a dry run shows
EACH = 1000  # jobs of each state that are counted when there are too many to count them all
_SHARE = 0.4  # seconds to count them


@dataclass(frozen=True, slots=True)
class Preview:
    """What an act would change. Nothing is changed."""

    action: str
    count: Count
    by_state: dict[str, int]
    at_least: list[str]  # states that have, or may have, more jobs than were counted
    sample: list[JobLine]
    dry_run: bool = True


def preview_of(verb: Verb, job_ids: Iterable[UUID]) -> Procedure[Preview]:
    """Refuse what act_on would refuse, and change nothing."""
    wanted = sorted(set(job_ids))
    locked = yield from patiently(lambda: able_ones(verb, wanted))
    lines = yield from lines_of(wanted[:SAMPLE])
    return Preview(verb.action, Count(len(locked)), dict(Counter(job.state for job in locked)), [], lines)


def preview_all(verb: Verb, wanted: JobFilter) -> Procedure[Preview]:
    """How many there are, up to a cap, and some of them."""
    wanted = yield from asked_for(verb, wanted)
    finding = yield from find(wanted, limit=CAP + 1)
    count = finding.count()
    states = wanted.states or ()
    if not count.capped or len(states) == 1:
        return (yield from preview_found(verb.action, finding.found, count))
    # The jobs that were found are only the newest, and may all be in one state.
    each: dict[str, Count] = {}
    for state in states:
        each[state] = yield from _count_state(replace(wanted, states=(state,)))
    return (yield from preview_found(verb.action, finding.found, count, each))


def _count_state(wanted: JobFilter) -> Procedure[Count]:
    finding = yield from find(wanted, limit=EACH + 1, patience=_SHARE)
    return Count(min(len(finding.found), EACH), finding.cut or len(finding.found) > EACH)


def preview_found(
    action: str,
    found: Sequence[Found],
    count: Count,
    each: Mapping[str, Count] | None = None,
) -> Procedure[Preview]:
    if each is None:
        counted = Counter(job.state for job in found[: count.count])
        each = {state: Count(n, count.capped) for state, n in counted.items()}
    by_state = {state: n.count for state, n in each.items() if n.count or n.capped}
    at_least = [state for state, n in each.items() if n.capped]
    named = [job.id for job in found[:SAMPLE]]
    lines = {line.id: line for line in (yield from lines_of(named))}
    sample = [lines[i] for i in named if i in lines]
    return Preview(action, count, by_state, at_least, sample)
