"""History: the state of the queues, minute by minute, and the usual state at this time of day."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ConfigurationError
from ..model.duration import Duration, seconds
from ..store import samples as store
from ..store.samples import Sample, Trend, Usual
from .procedure import Procedure, run
from .search import check_queue

KEPT = 30 * 86_400.0
_POINTS = 240  # steps of one queue
_LINES = 50_000


@dataclass(frozen=True, slots=True)
class History:
    step_minutes: int
    samples: list[Sample]  # by time and queue; a step without rows was not sampled: no worker ran


def samples(
    *, queue: str | None = None, since: Duration = 3600.0, step_minutes: int | None = None
) -> Procedure[History]:
    """The queues' samples within this time, in steps: without `step_minutes`, in at most 240 of them."""
    try:
        back = seconds(since, "since")
    except (TypeError, ValueError) as error:
        raise ConfigurationError(str(error)) from None
    if not 60 <= back <= KEPT:
        raise ConfigurationError(f"since must be between 1 minute and 30 days, not {back:,.0f} seconds")
    step = step_minutes or math.ceil(back / 60 / _POINTS)
    if not 1 <= step <= 1440:
        raise ConfigurationError(f"step_minutes must be between 1 and 1440, not {step}")
    yield from check_queue(queue)
    return History(step, (yield from run(lambda: store.samples(queue, back, step, _LINES))))


def trend(queues: Sequence[str], *, since: float = 3600.0) -> Procedure[list[Trend]]:
    """Each minute of all queues together, and of those that are named, the oldest first."""
    return (yield from run(lambda: store.sample_trend(queues, since)))


def usual() -> Procedure[list[Usual]]:
    """By queue, the usual values at this time of day, beside the current ones."""
    return (yield from run(store.usual_load))
