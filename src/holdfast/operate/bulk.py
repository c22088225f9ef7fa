"""Acts on many: on named ones, all or none; or on all that are selected, in batches. Each act is counted,
audited and reported in the same way.

A batch commits together with its count in the audit. So an act that is interrupted has done and counted what it did.
"""

import functools
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from uuid import UUID

from .. import telemetry
from ..db.faults import BadRow, JobsBusy
from ..model.actor import Actor
from ..store.audit import audit_add, audit_begin
from ..store.queue_load import prefer_indexes
from ..store.statement import Flow
from .procedure import Procedure, actor, run, wait
from .refusal import Why, some, why

BATCH = 1000
WAIT = 5.0  # seconds to wait for named jobs that another session holds
_PAUSE = 0.05
T = TypeVar("T")
Item = TypeVar("Item")

Results = dict[str, int]  # how, and how many
Reasons = Counter[Why]  # why not, and how many
Tell = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Done:
    """The result of an act."""

    action: str
    count: int  # changed
    results: dict[str, int]  # how, and how many
    left: dict[Why, int]  # why not, and how many
    audit: int | None  # the entry in the audit; None: nothing was changed


@dataclass(frozen=True, slots=True)
class Selection(Generic[Item]):
    """A selection: how its members are found, a batch at a time from a place on, and in which states they still count."""

    states: Sequence[str]
    next: Callable[
        [Any, int], Procedure[tuple[list[Item], Any]]
    ]  # from a place on that many, and their end; None: no more
    given: Mapping[str, object]  # for the audit


# Named ones -------------------------------------------------------------------------------------------------------


class Busy(Exception):
    """Another session holds these jobs at this moment."""

    def __init__(self, job_ids: Sequence[UUID]) -> None:
        self.job_ids = job_ids


def patiently(make: Callable[[], Flow[T]]) -> Procedure[T]:
    """Wait for jobs that another session holds, and start over."""
    deadline = time.monotonic() + WAIT
    while True:
        try:
            return (yield from run(make))
        except Busy as busy:
            if time.monotonic() > deadline:
                names = some([str(i) for i in busy.job_ids])
                raise JobsBusy(
                    f"nothing was changed: another session holds {names} for more than {WAIT:g} s"
                ) from None
            yield from wait(_PAUSE)


def do_named(
    action: str,
    given: Mapping[str, object],
    apply: Callable[[], Flow[Results]],
    was: Mapping[str, object] | None = None,
) -> Procedure[Done]:
    """All of them in one transaction, or none. `apply` raises Busy for those that another session holds, and may fill `was`:
    their state before, for the audit."""
    who = yield from actor()

    def flow() -> Flow[Done]:
        results = yield from apply()
        entry = yield from _count(None, who, action, given, changed(results), was or None)
        return Done(action, changed(results), _some_of(results), {}, entry)

    done = yield from patiently(flow)
    _tell(done, who)
    return done


# All that are selected --------------------------------------------------------------------------------------------

Apply = Callable[[Sequence[Item], int], Flow[tuple[Results, Reasons]]]  # the int: how many were done before


@dataclass(slots=True)
class Noted:
    """What the last batch changed and its state before, if an undo needs it."""

    ids: Sequence[str] = ()
    before: Mapping[str, object] | None = None


def do_selected(
    action: str,
    selection: Selection[Item],
    apply: Apply[Item],
    on_batch: Tell = lambda _: None,
    more: Mapping[str, object] | None = None,
    noted: Noted | None = None,
) -> Procedure[Done]:
    """Batch by batch, each with its count in the audit. `on_batch` gets the number of changes so far. `noted` goes into the
    entry of an act that takes one batch."""
    who = yield from actor()
    work = Batches(action, {**selection.given, **(more or {})}, apply, who)
    place = None
    while True:
        is_first = place is None
        found, place = yield from selection.next(place, BATCH)
        work.noted = noted if is_first and place is None else None
        if found:
            yield from work.batch(found)
            on_batch(work.count)
        if place is None:
            break
    done = Done(action, work.count, _some_of(work.results), dict(work.left), work.entry)
    _tell(done, who)
    return done


@dataclass(slots=True)
class Batches(Generic[Item]):
    """An act in progress."""

    action: str
    given: Mapping[str, object]
    apply: Apply[Item]
    who: Actor
    entry: int | None = None
    noted: Noted | None = None  # of the one batch that there is
    results: Counter[str] = field(default_factory=Counter)
    left: Reasons = field(default_factory=Counter)

    @property
    def count(self) -> int:
        return changed(self.results)

    def batch(self, found: Sequence[Item]) -> Procedure[None]:
        """A row that the database refuses to change is found by halving, and skipped; the others are done."""
        try:
            results, left, self.entry = yield from run(functools.partial(self._flow, found))
        except BadRow as error:
            if len(found) == 1:
                self.left[why("bad_row", f"refused by the database: {error}")] += 1
                return
            self.noted = None  # there are several batches from here on
            yield from self.batch(found[: len(found) // 2])
            yield from self.batch(found[len(found) // 2 :])
            return
        self.results.update(results)
        self.left.update(left)

    def _flow(self, found: Sequence[Item]) -> Flow[tuple[Results, Reasons, int | None]]:
        yield from prefer_indexes()
        results, left = yield from self.apply(found, self.count)
        given, was = self.given, None
        if self.noted is not None and self.noted.ids:
            given, was = {**given, "ids": self.noted.ids}, self.noted.before
        entry = yield from _count(self.entry, self.who, self.action, given, changed(results), was)
        return results, left, entry


def _count(
    entry: int | None,
    who: Actor,
    action: str,
    given: Mapping[str, object],
    count: int,
    was: Mapping[str, object] | None = None,
) -> Flow[int | None]:
    """Add to the entry in the audit; the first change makes it."""
    if count:
        if entry is None:
            entry = yield from audit_begin(who, action, given, was)
        yield from audit_add(entry, count)
    return entry


def changed(results: Mapping[str, int]) -> int:
    return sum(
        count
        for name, count in results.items()
        if name not in ("unchanged", "asked_before", "same", "does_not_fit")
    )


def _some_of(results: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in results.items() if count}


def _tell(done: Done, who: Actor) -> None:
    telemetry.emit(
        "operator.acted", action=done.action, actor=who.name, count=done.count, left=sum(done.left.values())
    )
