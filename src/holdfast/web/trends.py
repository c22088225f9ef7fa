"""Trends: the data of the small lines and the charts of the overview. One query serves all viewers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from holdfast.model.histogram import BUCKETS, Percentiles, percentiles
from holdfast.operate.operator import Operator
from holdfast.operate.procedure import Procedure
from holdfast.operate.stats import Waits
from holdfast.store.audit import AuditLine
from holdfast.store.samples import Trend
from holdfast.store.stats import Minute, Waited

if TYPE_CHECKING:
    from holdfast.web.site import Site

LASTS = 30.0  # seconds
OLD = 600.0  # seconds that it serves beyond that, while a new look is made
PATIENCE = 1.0  # seconds that the page waits for it
USUAL_LASTS = 600.0
SPANS = {"1h": 60, "6h": 360, "1d": 1440}  # minutes that the charts show
POINTS = 60  # of a chart, so that a step is a minute, 6 or 24
_LATELY = 5  # acts


@dataclass(frozen=True, slots=True)
class Trends:
    total: Sequence[Trend]
    queues: Mapping[str, Sequence[Trend]]
    lately: Sequence[AuditLine]
    usual_due: int | None  # at this time of day; None: there is no day to compare with


@dataclass(frozen=True, slots=True)
class Range:
    """The charts of one span of time."""

    minutes: Sequence[Minute]  # one for each step
    waits: Waits
    step: timedelta


async def trends_of(site: "Site", queues: Sequence[str]) -> Trends:
    found = await site.snapshots.soon("trends", LASTS, lambda: site.look(_trends(queues)), PATIENCE, OLD)
    usual = await site.snapshots.soon(
        "usual", USUAL_LASTS, lambda: site.look(Operator.usual.procedure()), 0.0, OLD
    )
    known = [one for one in usual or () if one.due is not None]
    total = sum(one.due or 0 for one in known) if known else None
    seen, lately = found or ((), ())
    return Trends(
        [one for one in seen if one.queue is None],
        {name: [one for one in seen if one.queue == name] for name in queues},
        lately,
        total,
    )


def _trends(queues: Sequence[str]) -> Procedure[tuple[Sequence[Trend], Sequence[AuditLine]]]:
    seen = yield from Operator.trend.procedure(queues)
    lately = yield from Operator.list_audit.procedure(limit=_LATELY)
    return seen, lately.entries


async def range_of(site: "Site", span: str) -> Range:
    return await site.snapshots.get(f"range:{span}", LASTS, lambda: site.look(_range(SPANS[span])), OLD)


def _range(back: int) -> Procedure[Range]:
    minutes = yield from Operator.minutes.procedure(back=back)
    waits = yield from Operator.waits.procedure(back=back)
    step = back // POINTS
    return Range(in_steps(minutes, step), waits, timedelta(minutes=step))


def in_steps(minutes: Sequence[Minute], step: int) -> list[Minute]:
    """Sums of `step` minutes each; the last step may have fewer."""
    if step == 1:
        return list(minutes)
    parts = [minutes[n : n + step] for n in range(0, len(minutes), step)]
    return [
        Minute(
            part[0].at, sum(m.completed for m in part), sum(m.failed for m in part), sum(m.dead for m in part)
        )
        for part in parts
    ]


# Waits --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line:
    """Percentiles of a queue, or of all the others together; None: nothing began in that step."""

    label: str
    points: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class WaitLines:
    times: Sequence[datetime]
    lines: Sequence[Line]  # the worst queue first


def wait_lines(found: Range) -> WaitLines:
    """The queue that waits the longest of late, against the rest: one percentile over all would hide it."""
    since, step = found.waits.since, found.step
    times = [since + n * step for n in range(POINTS + 1)]

    def of_step(one: Waited) -> int:
        return min(max((one.at - since) // step, 0), POINTS)

    worst = _worst([one for one in found.waits.waited if of_step(one) >= POINTS - 5])
    if worst is None:
        worst = _worst(found.waits.waited)
    if worst is None:
        return WaitLines(times, ())
    its = _by_step([one for one in found.waits.waited if one.queue == worst], of_step)
    rest = _by_step([one for one in found.waits.waited if one.queue != worst], of_step)
    lines = [Line(f"{worst} p95", [_of(its.get(n), 95) for n in range(POINTS + 1)])]
    if rest:
        lines.append(Line("others p95", [_of(rest.get(n), 95) for n in range(POINTS + 1)]))
        lines.append(Line("others p50", [_of(rest.get(n), 50) for n in range(POINTS + 1)]))
    else:
        lines.append(Line(f"{worst} p50", [_of(its.get(n), 50) for n in range(POINTS + 1)]))
    return WaitLines(times, lines)


def _worst(waited: Sequence[Waited]) -> str | None:
    by_queue = {one.queue: [w for w in waited if w.queue == one.queue] for one in waited}
    found = {queue: _together(of) for queue, of in by_queue.items()}
    seen = {queue: one.p95 for queue, one in found.items() if one is not None}
    return max(seen, key=lambda queue: (seen[queue], queue), default=None)


def _by_step(waited: Sequence[Waited], of_step: Callable[[Waited], int]) -> dict[int, Percentiles | None]:
    steps: dict[int, list[Waited]] = {}
    for one in waited:
        steps.setdefault(of_step(one), []).append(one)
    return {n: _together(of) for n, of in steps.items()}


def _together(waited: Sequence[Waited]) -> Percentiles | None:
    sums = [sum(one.counts[n] for one in waited) for n in range(BUCKETS)]
    return percentiles(sums, max((one.longest for one in waited), default=0.0))


def _of(found: Percentiles | None, which: int) -> float | None:
    return None if found is None else found.p95 if which == 95 else found.p50
