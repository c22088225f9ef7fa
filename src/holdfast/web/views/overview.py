"""Is anything wrong, and do we keep up? What needs somebody comes first."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigurationError
from holdfast.operate.doctor.order import worst_first
from holdfast.operate.doctor.run import Diagnosis
from holdfast.operate.operator import Operator
from holdfast.operate.overview import Overview
from holdfast.operate.procedure import Procedure, run
from holdfast.operate.queues import queue_loads
from holdfast.operate.stats import Stats
from holdfast.pages import Counted, Page, PageRequest, View
from holdfast.store.queue_load import Count, QueueLoad, WorkerLine
from holdfast.store.samples import Latest, last_samples
from holdfast.store.stats import Minute
from holdfast.web.charts import Spark, spark, wait_chart
from holdfast.web.filters import text
from holdfast.web.findings import shown_findings
from holdfast.web.parts import Missing, in_time
from holdfast.web.reading import LONGEST
from holdfast.web.snapshots import SHARE
from holdfast.web.trends import SPANS, Range, Trends, range_of, trends_of, wait_lines
from holdfast.web.views.drawn import Drawn, later
from holdfast.web.zones import zone_name

if TYPE_CHECKING:
    from holdfast.web.site import Site

_COUNTED = (("completed", "comp"), ("failed attempts", "retry"), ("dead", "dead"))
_COUNTS = tuple(one.name for one in fields(QueueLoad) if one.type is Count)
_SAID = {"1h": "hour", "6h": "6 hours", "1d": "day"}
QUEUES = 12  # that the overview lists
LASTS = 1.0  # seconds for which one query serves all viewers
REST_LASTS = 5.0  # seconds for slow data: rates, dead letters, queues without a worker
FEW = 1_000  # due jobs of a queue that a query counts
FEW_LATER = 100  # and of those that are not due
MANY_LAST = 20.0  # seconds until what is more is counted again
RUNNING_SHARE = (
    0.003  # of the time, at most, that it takes to count what workers run: their claims are searched for it
)
OLD = 60.0  # seconds for which optional data serve
PATIENCE = 2.0  # seconds that the page waits for new numbers, where it has older ones
FIRST = LONGEST + 1.0  # and where it has none: longer than a statement may take


@dataclass(frozen=True, slots=True)
class Numbers:
    """Everything on the page but the findings, as it was at one moment."""

    at: datetime
    found: Overview
    workers: list[WorkerLine]
    stats: Stats
    minutes: list[Minute]
    sampled: Mapping[str, Latest] = field(default_factory=dict)  # by queue, of the last minutes

    @property
    def due(self) -> Count:
        return _sum(load.pending for load in self.found.queues)

    @property
    def running(self) -> Count:
        return _sum(load.processing for load in self.found.queues)

    @property
    def slots(self) -> int:
        return sum(worker.concurrency for worker in self.workers if worker.status == "alive")

    @property
    def worst(self) -> QueueLoad | None:
        """The queue in which a job that could run waits for the longest."""
        return max(
            (load for load in self.found.queues if self.oldest(load) is not None),
            key=lambda load: self.oldest(load) or 0.0,
            default=None,
        )

    def behind(self, load: QueueLoad) -> int:
        """Of its due jobs: those behind a job or a key that waits for something else, as of the last minute."""
        seen = self.sampled.get(load.name)
        return min(seen.behind, load.pending.count) if seen is not None else 0

    def oldest(self, load: QueueLoad) -> float | None:
        """For how long its oldest due job that could run has waited. Jobs behind a key that waits for an operator wait by
        design; if there are such jobs, it is the value of the last sample."""
        if not self.behind(load):
            return load.oldest_due_seconds
        return self.sampled[load.name].oldest

    @property
    def releases(self) -> list[str]:
        """Of the application, as its live workers say."""
        return sorted({worker.release for worker in self.workers if worker.release})

    @property
    def failed_share(self) -> float | None:
        done = sum(line.completed for line in self.stats.queues)
        failed = sum(line.failed for line in self.stats.queues)
        return failed / (done + failed) if done + failed else None


def _sum(counts: Any) -> Count:
    found = list(counts)
    return Count(sum(one.count for one in found), any(one.capped for one in found))


def page(site: "Site") -> Page:
    def load(asked: PageRequest) -> Procedure[View]:
        span = text(asked.query, "history") or "1h"
        if span not in SPANS:
            raise ConfigurationError(f"history={span[:40]!r} is not one of {', '.join(SPANS)}")
        seen, found, shown = yield from later(lambda: _parts(site, span))
        numbers: Numbers | None = site.snapshots.last("overview") if isinstance(seen, Missing) else seen
        diagnosis = None if isinstance(found, Missing) else found
        findings = worst_first(diagnosis.findings) if diagnosis is not None else []
        context: dict[str, Any] = {
            "numbers": numbers,
            "diagnosis": diagnosis,
            "missing": [one for one in (seen, found, shown) if isinstance(one, Missing)],
            "age": (site.now() - numbers.at).total_seconds() if numbers is not None else 0.0,
            "findings": shown_findings([f for f in findings if f.level != "info"], site.shell),
            "looked": site.snapshots.age("doctor") or 0.0,
            "range": None if isinstance(shown, Missing) else shown,
            "waits": None if isinstance(shown, Missing) else wait_chart(wait_lines(shown)),
            "spans": [(one, one == span) for one in SPANS],
            "jobs_a_minute": None if isinstance(shown, Missing) else _counted(shown, span),
            "was": site.baselines.keep(findings_of(diagnosis), site.now()),
        }
        data: dict[str, Any] = {"findings": findings, "missing": [one.sentence for one in context["missing"]]}
        if not isinstance(shown, Missing):
            data["marks"] = shown.waits.marks
        if numbers is not None:
            yield from _with_numbers(site, numbers, context, data)
        return Drawn((), data, ("status",), template="overview.html", context=context)

    return Page("", "Overview", load, icon="overview", takes=("history",))


async def _parts(site: "Site", span: str) -> tuple[Numbers | Missing, Diagnosis | Missing, Range | Missing]:
    """What takes too long, or waits for a lock, takes nothing else with it: then somebody is needed most."""
    patience = PATIENCE if site.snapshots.last("overview") is not None else FIRST
    return await asyncio.gather(
        in_time("The numbers", lambda: numbers_of(site), patience),
        in_time("What the doctor found", site.diagnosis, FIRST),
        in_time("The history", lambda: range_of(site, span), FIRST),
    )


def _with_numbers(
    site: "Site", numbers: Numbers, context: dict[str, Any], data: dict[str, Any]
) -> Procedure[None]:
    queues = queues_worst_first(numbers)
    trends = yield from later(lambda: trends_of(site, [row.load.name for row in queues[:QUEUES]]))
    context |= {
        "queues": queues,
        "sparks": {row.load.name: _due_spark(trends, row.load.name) for row in queues[:QUEUES]},
        "kpis": _sparks(numbers, trends),
        "trends": trends,
    }
    data |= {
        "at": numbers.at,
        "overview": numbers.found,
        "workers": numbers.workers,
        "minutes": numbers.minutes,
        "trend": trends.total,
        "usual_due": trends.usual_due,
    }


def findings_of(diagnosis: Diagnosis | None) -> Mapping[str, Sequence[object]]:
    """What makes a finding another one, by its code: how many there are of it, how bad, and about how many things."""
    found: dict[str, list[int]] = {}
    for one in diagnosis.findings if diagnosis is not None else ():
        if one.level != "info":
            line = found.setdefault(one.code, [0, 0, 0])
            line[one.level == "error"] += 1
            line[2] += len(one.details)
    return found


def _counted(shown: Range, span: str) -> Counted:
    marks = [
        (m.at, f"release {m.name}" if m.kind == "release" else f"breaker of {m.name} opened")
        for m in shown.waits.marks
    ]
    step = "" if shown.step == timedelta(minutes=1) else f", in steps of {shown.step.seconds // 60} minutes"
    return Counted(
        _COUNTED, [(m.at, m[1:]) for m in shown.minutes], "Jobs a minute" if not step else "Jobs",
        f"the last {_SAID[span]}{step}, {zone_name(shown.waits.since)}", marks=marks,
    )  # fmt: skip


def _due_spark(trends: Trends, queue: str) -> Spark | None:
    return spark([one.due for one in trends.queues.get(queue, ())])


def _sparks(numbers: Numbers, trends: Trends) -> dict[str, Spark | None]:
    """How the numbers of the strip went in the last hour; the minute that is not over yet is left out."""
    minutes = numbers.minutes[:-1]
    attempts = [one.completed + one.failed for one in minutes]
    shares = [one.failed / of if of else 0.0 for one, of in zip(minutes, attempts, strict=True)]
    return {
        "oldest": spark([one.oldest or 0.0 for one in trends.total]),
        "due": spark([one.due for one in trends.total]),
        "done": spark([one.completed for one in minutes]),
        "failed": spark(shares),
        "dead": spark([one.dead for one in minutes]),
    }


async def numbers_of(site: "Site", meanwhile: float = 0.0) -> Numbers:
    """Once a second for all viewers. Older data serve for `meanwhile` seconds more, while a new query runs."""
    return await site.snapshots.get("overview", LASTS, lambda: _look(site), meanwhile)


async def numbers_soon(site: "Site", patience: float) -> Numbers | None:
    """For what is not worth to wait for: what was read last, if that is not too long ago."""
    return await site.snapshots.soon("overview", LASTS, lambda: _look(site), patience, OLD)


async def _look(site: "Site") -> Numbers:
    """The state of queues is read every second, all else less often, and so are large counts."""
    rest = await site.snapshots.get("rest", REST_LASTS, lambda: site.look(_numbers(site)))
    seen = rest
    if (site.snapshots.age("rest") or 0.0) >= LASTS:
        quick = await site.snapshots.get("quick", LASTS, lambda: site.look(_quick(site, rest)), share=SHARE)
        seen = max(quick, rest, key=lambda numbers: numbers.at)
    running = await site.snapshots.get(
        "running",
        REST_LASTS,
        lambda: site.look(Operator.list_workers.procedure()),
        share=RUNNING_SHARE,
        longest=OLD,
    )
    seen = replace(seen, workers=with_running(seen.workers, running))
    if not is_cut(seen.found):
        return seen
    whole = await site.snapshots.soon(
        "counts", MANY_LAST, lambda: site.look(Operator.overview.procedure()), 0.0
    )
    return seen if whole is None else replace(seen, found=with_many(seen.found, whole))


def _quick(site: "Site", rest: Numbers) -> Procedure[Numbers]:
    """A queue that was empty when all were read is read again when all are read again: one takes the server some
    milliseconds, mostly of planning, and of many queues few have jobs. So are workers: to count
    what they run, their claims are searched."""
    empty = {
        load.name: load for load in rest.found.queues if not any(getattr(load, n).count for n in _COUNTS)
    }
    queues = yield from run(lambda: queue_loads(FEW, FEW_LATER, empty))
    return replace(rest, at=site.now(), found=replace(rest.found, queues=queues))


def with_running(workers: Sequence[WorkerLine], counted: Sequence[WorkerLine]) -> list[WorkerLine]:
    known = {one.id: one for one in counted}
    seen = ((one, known.get(one.id, one)) for one in workers)
    return [replace(one, running=then.running, load=then.load) for one, then in seen]


def is_cut(found: Overview) -> bool:
    return found.dead_letters.capped or any(
        getattr(load, name).capped for load in found.queues for name in _COUNTS
    )


def with_many(found: Overview, whole: Overview) -> Overview:
    """Each count that stopped at FEW, as it was when it was last counted further."""
    known = {load.name: load for load in whole.queues}
    queues = [_with_more(load, known[load.name]) if load.name in known else load for load in found.queues]
    dead = _more(found.dead_letters, whole.dead_letters)
    of_queues = whole.dead_letters_by_queue if found.dead_letters.capped else found.dead_letters_by_queue
    return replace(found, queues=queues, dead_letters=dead, dead_letters_by_queue=of_queues)


def _with_more(load: QueueLoad, whole: QueueLoad) -> QueueLoad:
    counts: dict[str, Any] = {name: _more(getattr(load, name), getattr(whole, name)) for name in _COUNTS}
    return replace(load, **counts)


def _more(few: Count, many: Count) -> Count:
    return many if few.capped and many.count >= few.count else few


def _numbers(site: "Site") -> Procedure[Numbers]:
    found = yield from Operator.overview.procedure(cap=FEW, later=FEW_LATER)
    workers = yield from Operator.list_workers.procedure(running=False)
    stats = yield from Operator.stats.procedure(minutes=60, storage=False)
    minutes = yield from Operator.minutes.procedure()
    sampled = yield from run(last_samples)
    return Numbers(site.now(), found, workers, stats, minutes, {one.queue: one for one in sampled})


@dataclass(frozen=True, slots=True)
class QueueRow:
    load: QueueLoad
    dead: Count
    done: float  # in a second
    failed: float | None  # of all attempts
    oldest: float | None  # seconds that a job waits that could run
    behind: int  # due jobs that wait for another one


def queues_worst_first(numbers: Numbers) -> list[QueueRow]:
    done = {line.queue: line for line in numbers.stats.queues}
    rows = []
    for load in numbers.found.queues:
        line = done.get(load.name)
        attempts = (line.completed + line.failed) if line else 0
        rows.append(
            QueueRow(
                load,
                numbers.found.dead_letters_by_queue.get(load.name, Count(0)),
                line.completed_per_minute / 60 if line else 0.0,
                line.failed / attempts if line and attempts else None,
                numbers.oldest(load),
                numbers.behind(load),
            )
        )
    return sorted(rows, key=lambda r: (-(r.oldest or 0), -r.load.pending.count, r.load.name))
