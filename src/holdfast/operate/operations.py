"""Operations: acts over many jobs that continue without the process that began them. Workers run them, or the caller.

A batch locks the operation, changes jobs, and records where the next batch begins, all in one transaction and only with
the token of its claim. So after a crash it continues where it stopped, no job is changed twice, and a stop applies from
the next batch on.
"""

import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from .. import telemetry
from ..db.faults import BadRow
from ..errors import ConfigurationError, DatabaseUnavailable
from ..model.text import storable
from ..store import operations as store
from ..store.audit import audit
from ..store.dead import DeadFilter, DeadWindow, Died
from ..store.operations import STATES, Claimed, LeftOut, Operation
from ..store.queue_load import Count, prefer_indexes
from ..store.search import Found, JobFilter, Window
from ..store.statement import Flow
from .bulk import BATCH, Results, Selection, changed
from .dead import (
    DISCARD_DEAD,
    begin_dead,
    bury_verb,
    check_dead,
    dead_within,
    preview_dead,
    put_back,
    redrive_verb,
)
from .job_acts import DISCARD, RETRY, Verb, apply_to, asked_for, cancel_verb, within
from .preview import preview_all
from .procedure import Procedure, actor, run, wait
from .refusal import Refused, Why, why
from .search import begin, check_limit

SILENCE = 30.0  # seconds without a batch after which a runner has lost its operation
AGAIN = 60.0  # seconds until an interrupted one is tried again
_REASONS = 50  # that are kept of those left out

# By what the operation stores: the verb with its options.
VERBS: dict[str, Callable[[Mapping[str, Any]], Verb]] = {
    "jobs retry": lambda _: RETRY,
    "jobs cancel": lambda options: cancel_verb(options.get("reason", "")),
    "jobs discard": lambda _: DISCARD,
    "dead redrive": lambda options: redrive_verb(options.get("per_second"), options.get("act")),
    "dead discard": lambda _: DISCARD_DEAD,
    "undo": lambda options: bury_verb(UUID(options["act"])),
}


@dataclass(frozen=True, slots=True)
class OperationPage:
    operations: list[Operation]
    next: str | None  # pass it as `after` to continue; None: there are no more


# Begin, show, stop ------------------------------------------------------------------------------------------------


def begin_operation(verb: Verb, wanted: JobFilter | DeadFilter) -> Procedure[Operation]:
    """Record an act on all jobs that match now, and return at once: workers run it."""
    if verb.action not in VERBS:
        raise ConfigurationError(
            f"{verb.action!r} does not run in the background (these do: {', '.join(VERBS)})"
        )
    bounds: Window | DeadWindow
    if isinstance(wanted, DeadFilter):
        check_dead(wanted)
        bounds = yield from begin_dead(wanted)
        seen = yield from preview_dead(verb, wanted)
    else:
        wanted = yield from asked_for(verb, wanted)
        bounds = yield from begin(wanted)
        seen = yield from preview_all(verb, wanted)
    return (yield from begin_selected(verb, wanted.given(), bounds, seen.count))


def begin_selected(
    verb: Verb, given: Mapping[str, object], bounds: Sequence[object], total: Count
) -> Procedure[Operation]:
    who = yield from actor()
    made = uuid4()
    write = functools.partial(store.begin_operation, made, verb.action, given, verb.more, bounds, who, total)
    yield from run(write)
    telemetry.emit("operation.begun", operation=made, action=verb.action, actor=who.name)
    return (yield from find_operation(made))


def find_operation(operation: UUID) -> Procedure[Operation]:
    found = yield from run(lambda: store.show_operation(operation))
    if found is None:
        raise Refused(
            "no_operation", f"there is no operation {operation}, or it is no longer kept", id=operation
        )
    return found


def list_operations(
    *, states: Sequence[str] | None = None, after: str | None = None, limit: int = 50
) -> Procedure[OperationPage]:
    """The last that were begun first."""
    check_limit(limit)
    for state in states or ():
        if state not in STATES:
            raise ConfigurationError(
                f"there is no state {state!r} of operations (known: {', '.join(STATES)})"
            )
    place = _read_place(after) if after else None
    found = yield from run(lambda: store.list_operations(place, states, limit))
    last = found[-1] if len(found) == limit else None
    return OperationPage(found, f"{last.created_at.isoformat()}/{last.id}" if last else None)


def _read_place(text: str) -> store.OperationCursor:
    at, slash, operation = text.partition("/")
    try:
        if slash:
            return store.OperationCursor(datetime.fromisoformat(at), UUID(operation))
    except ValueError:
        pass
    raise ConfigurationError(
        f"{text!r} is not a place in the list. Use the one that the page before it ended with"
    )


def stop_operation(operation: UUID) -> Procedure[tuple[Operation, bool]]:
    """No further job is changed; finished batches stay. False: it had ended."""
    who = yield from actor()

    def stop() -> Flow[bool]:
        stopped = yield from store.stop_operation(operation, who.name)
        if stopped:
            yield from audit(who.within(operation), "operations stop", {"id": str(operation)}, 1)
        return stopped

    stopped = yield from run(stop)
    return (yield from find_operation(operation)), stopped


# Run ---------------------------------------------------------------------------------------------------------


def run_operation(operation: UUID) -> Procedure[Operation]:
    """Run it here, to its end."""
    who = yield from actor()
    yield from find_operation(operation)
    if (yield from carry_on(who.name, uuid4(), operation)) is None:
        found = yield from find_operation(operation)
        if found.state not in store.OPEN:
            raise Refused("ended", f"operation {operation} has ended: it is {found.state}", id=operation)
        raise Refused("has_runner", f"operation {operation} is run by {found.runner}", id=operation)
    yield from run(lambda: audit(who.within(operation), "operations run", {"id": str(operation)}, 1))
    return (yield from find_operation(operation))


def carry_on(
    runner: str,
    token: UUID,
    operation: UUID | None = None,
    pause: float = 0.0,
    left: UUID | None = None,
    on_claim: Callable[[], None] = lambda: None,
) -> Procedure[UUID | None]:
    """Take up an operation that has no runner, this one or the first, and run it to its end. None: there is none.

    `token` proves that we own it; a runner that gives up in the middle releases it by that, or takes it up again as `left`:
    an outage may have cut it off. `pause` lets other work run between two batches. `on_claim` is called once it is ours.
    """
    verbs = sorted(VERBS)
    claimed = yield from run(
        lambda: store.claim_operation(storable(runner, 200), token, SILENCE, operation, verbs, left)
    )
    if claimed is None:
        return None
    on_claim()
    try:
        if claimed.verb not in VERBS:  # of a newer release, and requested here
            yield from _give_back(claimed.id, token, f"this release has no verb {claimed.verb!r}")
        else:
            yield from _Work(claimed, token).to_its_end(pause)
    except DatabaseUnavailable:
        raise
    except Exception as error:  # noqa: BLE001 the operation records it
        yield from _give_back(claimed.id, token, f"{type(error).__name__}: {error}")
    return claimed.id


def _give_back(operation: UUID, token: UUID, fault: str) -> Procedure[None]:
    yield from run(lambda: store.release_operation(token, storable(fault, 1000), AGAIN))
    telemetry.emit("operation.stuck", operation=operation, error=storable(fault, 1000))


class _Work:
    def __init__(self, claimed: Claimed, token: UUID) -> None:
        self._id = claimed.id
        self._token = token
        self._rate: float | None = claimed.options.get("per_second")
        verb = VERBS[claimed.verb](claimed.options)
        self._action = verb.action
        self._selection, self._place = _selected(claimed)
        self._apply = apply_to(verb, self._selection.states)

    def to_its_end(self, pause: float) -> Procedure[None]:
        """A row that the database refuses to change is found by smaller and smaller batches, and skipped."""
        limit = BATCH
        while True:
            found, place = yield from self._selection.next(self._place, limit)
            try:
                going = yield from run(functools.partial(self._batch, found, place))
            except BadRow as error:
                if len(found) > 1:
                    limit = len(found) // 2
                    continue
                refused = why("bad_row", f"refused by the database: {error}")
                going = yield from run(functools.partial(self._batch, found, place, refused))
            if not going or place is None:
                break
            self._place, limit = place, min(2 * limit, BATCH)
            if pause:
                yield from wait(pause)
        telemetry.emit("operation.ended", operation=self._id, action=self._action, stopped=not going)

    def _batch(self, found: Sequence[Found], place: Any, refused: Why | None = None) -> Flow[bool]:
        """False: it was stopped, or another worker runs it now. `place` None: that was the last."""
        held = yield from store.hold_operation(self._id, self._token)
        if held is None:
            return False
        results: Results = {}
        left = Counter[Why]()
        if refused is not None:
            left[refused] += len(found)
        elif found:
            yield from prefer_indexes()
            before = math.ceil(held.ahead * self._rate) if self._rate else 0
            results, left = yield from self._apply(found, before)
        count = changed(results)
        ahead = held.ahead + count / self._rate if self._rate else 0.0
        total, why_not = Counter(held.results), _more(held.left, left)
        total.update(results)
        kept = {how: n for how, n in total.items() if n}
        counted = yield from store.move_operation(
            self._id, self._token, _text(place), count, len(found), kept, why_not, ahead
        )
        if not counted:
            raise ConfigurationError("its entry in the audit is gone: start the act again")
        if place is None:
            yield from store.end_operation(self._id, self._token, "done")
        return True


def _more(had: Sequence[LeftOut], more: Mapping[Why, int]) -> list[LeftOut]:
    counts = Counter({(one.code, one.text): one.count for one in had})
    for reason, count in more.items():
        key = (reason.code, reason.text)
        if key not in counts and len(counts) >= _REASONS:
            key = ("others", "for other reasons")
        counts[key] += count
    return [LeftOut(code, text, count) for (code, text), count in counts.items()]


def _text(place: Any) -> Any:
    return list(place) if isinstance(place, tuple) else place


def _selected(claimed: Claimed) -> tuple[Selection[Found], Any]:
    """The selection as it was when the operation began, and where to continue in it."""
    given, bounds, place = dict(claimed.selection), claimed.bounds, claimed.place
    if claimed.verb == "undo":
        return put_back(UUID(claimed.options["act"]), claimed.options["of_entry"]), _id(place)
    if claimed.verb.startswith("dead "):
        if "group" in given and "salted" not in given:
            raise ConfigurationError(
                "an earlier release began it, and named its group otherwise: begin it again"
            )
        window = DeadWindow(*map(_moment, bounds))
        at = None if place is None else Died(datetime.fromisoformat(place[0]), UUID(place[1]))
        return dead_within(DeadFilter(**given), window), at
    if "states" in given:
        given["states"] = tuple(given["states"])
    before, since, *ids = bounds
    of_jobs = Window(_moment(before), _moment(since), *map(_id, ids))
    return within(JobFilter(**given), of_jobs), _id(place)


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _id(text: str | None) -> UUID | None:
    return None if text is None else UUID(text)
