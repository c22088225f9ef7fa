"""Holds: keys from which nothing is claimed until a certain time, and the one job that may be tried then.

A hold is made, renewed and lifted in the caller's transaction. No claim that begins after its commit takes a job of the
key; jobs that were claimed before continue. With `trial`, one job of the key is claimed at the end of the hold, over all
workers, and the rest waits until the hold is lifted or renewed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from ..errors import ConfigurationError
from ..model.job import ClaimedJob
from ..sql import query_in
from .queue_load import Count
from .statement import Flow, Row, Statement, count, ids, named, nothing
from .wake import wake

LONGEST = 100 * 365 * 86_400.0  # seconds
JOBS = 1000  # of a key are counted so far


@dataclass(frozen=True, slots=True)
class Hold:
    queue: str
    key: str
    until: datetime  # the year 9999: until it is lifted
    since: datetime
    reason: str | None
    trial: bool
    trial_job: UUID | None
    trial_state: str | None  # running, returned or over; None: none was claimed since the hold was renewed
    jobs: Count  # of the key


def hold_keys(
    queue: str,
    keys: Sequence[str],
    seconds: float | None,
    *,
    reason: str | None = None,
    trial: bool = False,
    at_least: bool = False,
) -> Flow[list[str]]:
    """Nothing is claimed from the keys for this long; None: until they are lifted. An existing hold is replaced, with
    `at_least` only if it ends earlier. Returns the keys whose hold this is now."""
    if seconds is not None and not 0 < seconds <= LONGEST:
        raise ConfigurationError(
            f"a key cannot be held for {seconds!r} seconds. Give more than 0, up to a hundred years, "
            "or no end at all: until it is lifted"
        )
    if not (yield from named("holds_keys", (queue,), bool)):
        raise ConfigurationError(
            f"there is no queue {queue!r} that is fair or ordered by key: the keys of others cannot be held. "
            "Make the queue fair or ordered, or pause all of it"
        )
    params = (queue, list(keys), seconds, reason, trial, at_least)
    held: list[str] = yield from named("hold_keys", params, ids)
    return held


def lift_keys(queue: str, keys: Sequence[str], *, trial: UUID | None = None) -> Flow[list[str]]:
    """Jobs of the keys may be claimed again, and sleeping workers are woken. `trial`: the claim of the job that was tried;
    then a hold that was made or renewed since stays. Returns the keys that were held."""
    lifted: list[str] = yield from named("lift_keys", (queue, list(keys), trial), ids)
    if lifted:
        yield from wake([queue])
    return lifted


def list_holds(
    queue: str | None = None, key: str | None = None, *, limit: int = 50, over: bool = False
) -> Statement[list[Hold]]:
    """Those that end first before the others. `over`: also those that have ended."""

    def decode(rows: Sequence[Row]) -> list[Hold]:
        return [Hold(*[*r[:8], Count(min(r[8], JOBS), r[8] > JOBS)]) for r in rows]

    return named("list_holds", (queue, key, limit, JOBS + 1, over), decode)


class Undecided(NamedTuple):
    queue: str
    key: str
    until: datetime
    reason: str | None
    trial_job: UUID


def undecided_trials(limit: int) -> Statement[list[Undecided]]:
    """Holds whose trial ended without a decision: nothing more of their keys runs."""
    return named("undecided_trials", (limit,), lambda rows: [Undecided(*r) for r in rows])


# Questions of a worker ------------------------------------------------------------------------------------------------


class News(NamedTuple):
    now: datetime
    any: bool
    next_in: float | None  # seconds until the next hold ends
    trials: bool  # a hold with a trial has come to its end
    ended: list[str]  # keys whose hold is over


def hold_news(queue: str, since: datetime | None, most: int) -> Statement[News]:
    return named("hold_news", (queue, since, most), lambda rows: News(*rows[0]))


class DueTrial(NamedTuple):
    until: datetime
    key: str
    token: UUID | None  # of the trial before
    open: bool  # one may be claimed


def due_trials(
    queue: str, after: tuple[datetime, str] | None, limit: int, *, ordered: bool, suspects: bool
) -> Statement[list[DueTrial]]:
    params = (queue, *(after or (None, None)), limit, ordered, suspects)
    return Statement(
        "due_trials", query_in("due_trials", queue), params, lambda rows: [DueTrial(*r) for r in rows]
    )


def lock_trials(queue: str, due: Sequence[DueTrial]) -> Statement[list[str]]:
    return named("lock_trials", (queue, [d.key for d in due], [d.token for d in due]), ids)


def mark_trials(queue: str, jobs: Sequence[ClaimedJob], token: UUID) -> Statement[None]:
    return named(
        "mark_trials", (queue, [job.partition_key for job in jobs], [job.id for job in jobs], token), nothing
    )


def prune_holds(limit: int) -> Statement[int]:
    return named("prune_holds", (limit,), count)
