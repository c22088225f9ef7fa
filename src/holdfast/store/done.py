"""The quick way to settle: jobs that completed, have no result, and on which nothing hangs. One statement, by itself."""

import json
from collections.abc import Callable, Sequence
from operator import attrgetter, itemgetter
from typing import Any

from ..model.job import ClaimedJob
from ..model.outcome import NOTHING, Settlement
from ..sql import query_in
from .arrays import plain_array, uuid_array
from .statement import Row, Statement

_grant: Callable[[Settlement], Any] = itemgetter(0)
_outcome, _watch = itemgetter(1), itemgetter(2)
_queue, _id, _generation, _token, _rest = map(
    attrgetter, ("queue", "id_text", "generation", "token_text", "rest")
)


def is_plain(batch: Sequence[Settlement]) -> bool:
    """Whether all of them may go the quick way together. A guess: what does not fit, the statement leaves out."""
    grants = list(map(_grant, batch))
    return (
        list(map(_outcome, batch)).count(NOTHING) == len(batch)
        and set(map(type, grants)) == {ClaimedJob}
        and len(set(map(_queue, grants))) == 1
        and not any(map(_rest, grants))
        and not any(map(_watch, batch))
    )


def by_attempt(batch: list[Settlement]) -> tuple[list[Settlement], list[Settlement]]:
    """Those in their first attempt, and the others: an earlier one may have left steps or progress, which only the usual
    way removes."""
    if set(map(_generation, map(_grant, batch))) == {1}:
        return batch, []
    first = [settlement for settlement in batch if settlement.grant.generation == 1]
    return first, [settlement for settlement in batch if settlement.grant.generation != 1]


def settle_done(batch: Sequence[Settlement], worker: str) -> Statement[set[tuple[str, int]] | None]:
    """End the attempts of a plain batch. Answers id and generation of those that it ended; None: all. Raises
    LockNotAvailable, with nothing done, when somebody holds one of them."""
    grants = list(map(_grant, batch))
    queue = grants[0].queue

    def decode(rows: Sequence[Row]) -> set[tuple[str, int]] | None:
        ((count, done),) = rows
        return None if count == len(grants) else {(job, at) for job, at in json.loads(done or "[]")}

    params = (
        queue,
        uuid_array(list(map(_id, grants))),
        plain_array(map(str, map(_generation, grants))),
        uuid_array(list(map(_token, grants))),
        worker,
        len(grants),
    )
    # Not kept: a plan that is made while the queue is empty would go through all of it once it is not.
    return Statement("settle_done", query_in("settle_done", queue), params, decode, prepared=False)
