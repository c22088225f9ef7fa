"""Is anything wrong, and do we keep up? What needs somebody comes first."""

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from holdfast.operate.doctor.order import worst_first
from holdfast.operate.operator import Operator
from holdfast.operate.overview import Overview
from holdfast.operate.procedure import Procedure
from holdfast.operate.stats import Stats
from holdfast.pages import Asked, Counted, Page, View
from holdfast.store.queue_load import Count, QueueLoad, WorkerLine
from holdfast.store.stats import Minute
from holdfast.web.findings import shown_findings
from holdfast.web.views.drawn import Drawn, later

if TYPE_CHECKING:
    from holdfast.web.site import Site

_COUNTED = (("completed", "comp"), ("failed attempts", "retry"), ("dead", "dead"))
LASTS = 1.0  # seconds that one look serves everybody


@dataclass(frozen=True, slots=True)
class Numbers:
    """Everything on the page but the findings, as it was at one moment."""

    at: datetime
    found: Overview
    workers: list[WorkerLine]
    stats: Stats
    minutes: list[Minute]

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
        """The queue whose oldest due job waits for the longest."""
        return max(
            (load for load in self.found.queues if load.oldest_due_seconds is not None),
            key=lambda load: load.oldest_due_seconds or 0.0,
            default=None,
        )

    @property
    def failed_share(self) -> float | None:
        done = sum(line.completed for line in self.stats.queues)
        failed = sum(line.failed for line in self.stats.queues)
        return failed / (done + failed) if done + failed else None


def _sum(counts: Any) -> Count:
    found = list(counts)
    return Count(sum(one.count for one in found), any(one.capped for one in found))


def page(site: "Site") -> Page:
    def load(asked: Asked) -> Procedure[View]:
        numbers = yield from later(lambda: numbers_of(site))
        diagnosis = yield from later(site.diagnosis)
        findings = worst_first(diagnosis.findings)
        wrong = shown_findings([f for f in findings if f.level != "info"], site.shell)
        context = {
            "numbers": numbers,
            "findings": wrong,
            "checks": len(diagnosis.checks),
            "not_checked": diagnosis.not_checked,
            "looked": site.snapshots.age("doctor") or 0.0,
            "queues": queues_worst_first(numbers),
            "jobs_a_minute": Counted(
                _COUNTED, [(m.at, m[1:]) for m in numbers.minutes], "Jobs a minute", "the last hour, UTC"
            ),
        }
        data = {
            "at": numbers.at,
            "findings": findings,
            "overview": numbers.found,
            "workers": numbers.workers,
            "minutes": numbers.minutes,
        }
        return Drawn((), data, ("status",), template="overview.html", context=context)

    return Page("", "Overview", load, icon="overview")


async def numbers_of(site: "Site") -> Numbers:
    """Once a second for everybody."""
    return await site.snapshots.get("overview", LASTS, lambda: site.look(_numbers(site)))


async def numbers_soon(site: "Site", patience: float) -> Numbers | None:
    """The same, or the last that are known, for what is not worth to wait for."""
    return await site.snapshots.soon("overview", LASTS, lambda: site.look(_numbers(site)), patience)


def _numbers(site: "Site") -> Procedure[Numbers]:
    found = yield from Operator.overview.procedure()
    workers = yield from Operator.list_workers.procedure()
    stats = yield from Operator.stats.procedure(minutes=60)
    minutes = yield from Operator.minutes.procedure()
    return Numbers(site.now(), found, workers, stats, minutes)


@dataclass(frozen=True, slots=True)
class QueueRow:
    load: QueueLoad
    dead: Count
    done: float  # in a second
    failed: float | None  # of all attempts


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
            )
        )
    return sorted(rows, key=lambda r: (-(r.load.oldest_due_seconds or 0), -r.load.pending.count, r.load.name))
