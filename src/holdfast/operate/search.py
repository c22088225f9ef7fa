"""Jobs that match a filter: a page of a list, a count, or the next batch of an act.

A search walks down the ids and reads a bounded number of rows at a time. If few match, it gives up after a while
and returns where to continue, so that it costs the same with ten thousand jobs and with ten million.
"""

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from ..errors import ConfigurationError
from ..model.state import SCHEDULED, STATES
from ..model.text import storable
from ..store import jobs
from ..store import search as store
from ..store.queue_load import CAP, Count, prefer_indexes
from ..store.search import Found, JobFilter, Search, Searcher, Window
from ..store.statement import Flow
from .procedure import Procedure, run
from .refusal import NoQueue

MOST_LINES = 1000  # lines in one page
PATIENCE = 2.0  # seconds that a search continues when few jobs match its filters
_LONGEST = 36_500 * 86_400.0
_MOST_ATTEMPTS = 2**31 - 1  # that a row can count


@dataclass(frozen=True, slots=True)
class Finding:
    found: list[Found]
    next: UUID | None  # continue below this id; None: there are no more
    cut: bool = False  # fewer than asked for because the search stopped early, not because there are no more

    def count(self) -> Count:
        return Count(min(len(self.found), CAP), self.cut or len(self.found) > CAP)


def check_limit(limit: int) -> None:
    if not 1 <= limit <= MOST_LINES:
        raise ConfigurationError(f"limit must be between 1 and {MOST_LINES}, not {limit}")


def check_filter(wanted: JobFilter, allowed: Sequence[str] = STATES) -> None:
    for state in wanted.states or ():
        if state not in allowed:
            raise ConfigurationError(f"there is no state {state!r} (known: {', '.join(allowed)})")
    if wanted.backing_off and wanted.states != (SCHEDULED,):
        given = ", ".join(wanted.states or ())
        raise ConfigurationError(f"only {SCHEDULED} jobs back off, not {given}. Leave the state out")
    names = ("queue", "task", "key", "tag", "error", "worker", "field")
    check_texts({name: getattr(wanted, name) for name in names})
    check_ages(wanted.older_than, wanted.newer_than)
    if wanted.min_attempts is not None and not 1 <= wanted.min_attempts <= _MOST_ATTEMPTS:
        raise ConfigurationError(
            f"min_attempts must be between 1 and {_MOST_ATTEMPTS}, not {wanted.min_attempts}"
        )
    if wanted.field is not None:
        _check_field(wanted, wanted.field)


def _check_field(wanted: JobFilter, said: str) -> None:
    """Payloads are searched only where other filters narrow the search: they are large, and no index has them."""
    path, _ = store.read_field(said)
    if "=" not in said or not all(path):
        raise ConfigurationError(
            f"field takes NAME=VALUE, or names from the outside in as customer.id=17, not {said[:80]!r}"
        )
    if wanted.queue is None and wanted.task is None and not wanted.states:
        raise ConfigurationError("field needs a queue, a task or a state beside it. Name one of them")


def check_queue(name: str | None) -> Procedure[None]:
    """A name that is no queue's is a typing mistake, which an empty result would hide."""
    if name is not None:
        known = yield from run(jobs.queue_names)
        if name not in known:
            raise NoQueue(name, known)


def no_queue_now(name: str | None) -> Procedure[str | None]:
    """For finished and dead jobs, which may outlive their queue: the warning for a queue that does not exist."""
    if name is None:
        return None
    known = yield from run(jobs.queue_names)
    return None if name in known else f"queue {name!r} does not exist (known: {', '.join(known) or 'none'})"


def check_texts(texts: dict[str, str | None]) -> None:
    """A value that no row can hold cannot be searched for."""
    for name, text in texts.items():
        if text is not None and storable(text, len(text) * 4) != text:
            raise ConfigurationError(
                f"{name} {text!r} is not valid text. Leave out NUL and broken characters"
            )


def check_ages(older_than: float | None, newer_than: float | None) -> None:
    for name, age in (("older_than", older_than), ("newer_than", newer_than)):
        if age is not None and not 0 <= age <= _LONGEST:
            raise ConfigurationError(f"{name} must be between 0 seconds and 100 years, not {age:g} seconds")
    if older_than is not None and newer_than is not None and older_than >= newer_than:
        raise ConfigurationError(
            f"nothing is older than {older_than:g} s and newer than {newer_than:g} s. Give newer_than the longer time"
        )


def begin(wanted: JobFilter) -> Procedure[Window]:
    """The window of an act: excludes jobs that are created after this moment."""
    window = yield from run(lambda: store.search_window(wanted.older_than, wanted.newer_than))
    return window._replace(below=_lower(window.below, window.now))


def find(
    wanted: JobFilter,
    *,
    limit: int,
    after: UUID | None = None,
    window: Window | None = None,
    patience: float | None = None,
) -> Procedure[Finding]:
    """The next jobs that match, from the newest id back. With `patience` 0, one step only; below a second, steps are
    short, so that it is kept."""
    if window is None:
        window = Window()
        if wanted.older_than is not None or wanted.newer_than is not None:
            window = yield from run(lambda: store.search_window(wanted.older_than, wanted.newer_than))
    rows = store.SHORT if patience is not None and 0 < patience < 1 else store.LOOK
    if wanted.masked is not None:
        rows = store.MASKED
    if wanted.field is not None:
        rows = store.PAYLOADS
    step = Search(wanted, window, _lower(after, window.below), limit, rows)
    searchers = store.searchers(wanted.states)
    found: list[Found] = []
    deadline = time.monotonic() + (PATIENCE if patience is None else patience)
    while True:
        part = yield from run(functools.partial(_step, step, searchers))
        found += part.found
        if not part.cut or time.monotonic() > deadline:
            return replace(part, found=found)
        step = step._replace(below=part.next, limit=limit - len(found))


def _lower(one: UUID | None, other: UUID | None) -> UUID | None:
    both = [i for i in (one, other) if i is not None]
    return min(both, default=None)


def _step(step: Search, searchers: Sequence[Searcher]) -> Flow[Finding]:
    """Merge the results of each search, down to where all of them have read."""
    yield from prefer_indexes()
    found: dict[UUID, Found] = {}
    reached: list[UUID] = []
    for search in searchers:
        fitting, reach = yield from search(step)
        found |= {job.id: job for job in fitting}
        if reach is not None:
            reached.append(reach)
    horizon = max(reached, default=None)
    seen = sorted((job for job in found.values() if horizon is None or job.id >= horizon), reverse=True)
    page = seen[: step.limit]
    more = page[-1].id if len(seen) > step.limit else horizon
    return Finding(page, more, cut=more is not None and len(page) < step.limit)
