"""Prometheus metrics: counters and histograms of this process, gauges of this worker, gauges from the latest snapshot.

A scrape computes nothing but text: it never asks the database and never waits. Tasks that this worker does not know are
counted together as `other`, so the number of series does not grow with what people enqueue.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..model.release import own_version
from ..model.state import (
    COMPLETED,
    DEAD_LETTER,
    FAILED,
    JOB_QUARANTINED,
    JOB_STARTED,
    LOST,
    OTHER,
    OUTCOMES,
    PARKED,
    PENDING,
    QUEUE_JOBS,
    RETRY,
    SUSPENDED,
    TABLE,
)
from ..model.vitals import Vitals
from ..shape import Counted, CountedEnds, Measures
from ..store.queue_load import CAP
from ..telemetry import Event
from .health import Health
from .server import Reply
from .snapshot import Snapshot, Snapshots

_DROPPED = "(dropped)"  # no queue can be called this
_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14400, 86400)
# The label of a settled job, by event. Empty: the state that the event names.
_LABELS = {row.event: row.label for row in (*OUTCOMES.values(), TABLE[FAILED])}
_EXPECTED = (COMPLETED, RETRY, DEAD_LETTER, LOST)  # shown as 0 from a task's first job on
_HANDLED = frozenset(row.label for row in TABLE.values() if row.handled)  # by the handler itself
_QUEUED = tuple(row.word for row in TABLE.values() if row.metric == QUEUE_JOBS)


class Counts:
    """Fed by telemetry events, in whichever thread emits them."""

    def __init__(
        self,
        tasks: Iterable[str],
        counters: Mapping[str, Counted] | None = None,
        ends: Sequence[tuple[CountedEnds, frozenset[str]]] = (),
    ) -> None:
        self._tasks = frozenset(tasks)
        self._seen: set[tuple[str, str]] = set()
        self.registry = CollectorRegistry()
        self._settled = self._counter(
            "jobs_settled", "Attempts that ended here, by outcome.", "queue", "task", "outcome"
        )
        self._run = self._histogram(
            "job_run_seconds", "From the start of an attempt until it is settled.", "queue", "task"
        )
        self._wait = self._histogram(
            "job_wait_seconds", "From the moment a job is due until an attempt starts.", "queue"
        )
        self._ends = [self._ended(counted, names) for counted, names in ends]
        self._started = self._counter("jobs_started", "Attempts started here.", "task")
        self._swept = self._counter("jobs_swept", "Jobs taken back from workers that are gone.", "state")
        self._services = self._counter(
            "service_failures", "Failures of a background loop, at most one counted per second.", "service"
        )
        for state in (PENDING, DEAD_LETTER):
            self._swept.labels(state)
        for service in ("renew", "settle", "sweep", "snapshot"):
            self._services.labels(service)
        simple = {
            "claim.failed": self._counter("claim_failures", "Claims that failed and are tried again."),
            "worker.gone": self._counter("workers_lost", "Workers found silent and fenced by this one."),
            "worker.fenced": self._counter("worker_fenced", "Times this worker was fenced and started over."),
            "loop.blocked": self._counter("loop_blocked", "Times a handler blocked the event loop."),
            JOB_QUARANTINED: self._counter("jobs_quarantined", "Rows set aside because they make statements fail."),
            "breaker.opened": self._counter("breakers_opened", "Times a failure that was settled here opened a breaker."),
            "settle.refused": self._counter("settle_refused", "Outcomes that the database refused."),
        }  # fmt: skip
        self._actions: dict[str, Callable[[Event], None]] = {
            JOB_STARTED: lambda event: self._started.labels(self._task(event)).inc(),
            "job.swept": lambda event: self._swept.labels(event.fields["state"]).inc(),
            "service.failed": lambda event: self._services.labels(event.fields["service"]).inc(),
            **dict.fromkeys(_LABELS, self._on_settled),
            **{name: _increment(counter) for name, counter in simple.items()},
            **{name: self._counted(counted) for name, counted in (counters or {}).items()},
        }

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, namespace="holdfast", registry=self.registry)

    def _counted(self, counted: Counted) -> Callable[[Event], None]:
        """For a shape."""
        counter = self._counter(counted.name, counted.text, *counted.labels)

        def on_event(event: Event) -> None:
            labels = [str(event.fields[name]) for name in counted.labels]
            amount = 1 if counted.amount is None else event.fields[counted.amount]
            (counter.labels(*labels) if labels else counter).inc(amount)

        return on_event

    def _ended(self, counted: CountedEnds, names: frozenset[str]) -> Callable[[str, str], None]:
        """For a shape, by task and outcome; all of them from 0 on."""
        counter = self._counter(counted.name, counted.text, counted.task, "outcome")
        for name in sorted(names):
            for word in counted.outcomes.values():
                counter.labels(name, word)

        def on_end(task: str, outcome: str) -> None:
            if task in names and outcome in counted.outcomes:
                counter.labels(task, counted.outcomes[outcome]).inc()

        return on_end

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(name, text, labels, namespace="holdfast", registry=self.registry, buckets=_BUCKETS)

    def on_event(self, event: Event) -> None:
        action = self._actions.get(event.name)
        if action is not None:
            action(event)

    def _task(self, event: Event) -> str:
        task: str = event.fields.get("task", OTHER)
        return task if task in self._tasks else OTHER

    def _on_settled(self, event: Event) -> None:
        fields, task = event.fields, self._task(event)
        queue: str = fields["queue"]
        outcome = _LABELS[event.name] or fields.get("state", OTHER)
        if (queue, task) not in self._seen:  # rates need a 0 before the first count
            self._seen.add((queue, task))
            for expected in _EXPECTED:
                self._settled.labels(queue, task, expected)
        self._settled.labels(queue, task, outcome).inc()
        for on_end in self._ends:
            on_end(task, outcome)
        if "waited" in fields:
            self._wait.labels(queue).observe(fields["waited"])
        if "seconds" in fields and outcome in _HANDLED:
            self._run.labels(queue, task).observe(fields["seconds"])


def _increment(counter: Counter) -> Callable[[Event], None]:
    return lambda _: counter.inc()


class Metrics(Collector):
    """Everything on /metrics."""

    def __init__(
        self,
        tasks: Iterable[str],
        health: Health,
        snapshots: Snapshots,
        measures: Sequence[Measures] = (),
        ends: Sequence[tuple[CountedEnds, frozenset[str]]] = (),
    ) -> None:
        counters = {name: counted for m in measures for name, counted in m.counters.items()}
        self._counts = Counts(tasks, counters, ends)
        self._measures = measures
        self._health = health
        self._snapshots = snapshots

    def on_event(self, event: Event) -> None:
        self._counts.on_event(event)

    def reply(self, accept: str) -> Reply:
        try:
            return self._encoded(accept)
        except (ValueError, TypeError):  # a version that is none
            return self._encoded("")

    def _encoded(self, accept: str) -> Reply:
        encode, content_type = choose_encoder(accept)
        return Reply(200, encode(self), content_type)

    def collect(self) -> Iterator[Metric]:
        for family in self._counts.registry.collect():
            family.samples = [s for s in family.samples if not s.name.endswith("_created")]
            yield family
        yield from self._of_worker()
        yield _gauge("snapshot_age_seconds", "Since the database was last looked at.", self._snapshots.age)
        if self._snapshots.latest is not None:
            yield from _of_system(self._snapshots.latest)
            yield from self._of_shapes(self._snapshots.latest)

    def _of_shapes(self, seen: Snapshot) -> Iterator[Metric]:
        """The same from every worker, too."""
        for measures, found in zip(self._measures, seen.measured, strict=False):
            for gauge in measures.gauges(found):
                family = _labelled(gauge.name, gauge.text, *gauge.labels)
                for values, number in gauge.samples:
                    family.add_metric(values, float(number))
                yield family

    def _of_worker(self) -> Iterator[Metric]:
        worker, health = self._health.worker, self._health
        yield _gauge("worker_ready", "1: what /readyz says is yes.", not health.ready().reasons)
        yield _gauge("worker_draining", "1: no more claims, and soon gone.", health.draining)
        yield _gauge("worker_tick_age_seconds", "Since the claim loop last came round.", health.tick_age)
        if worker is not None:
            slots, identity = worker.slots, worker.identity
            yield _gauge("worker_running", "Attempts that run here.", slots.running)
            yield _gauge("worker_concurrency", "Attempts that may run here at once.", slots.concurrency)
            yield from _vitals(worker.measured.last)
            names = ("worker", "host", "pid", "release", "holdfast")
            info = GaugeMetricFamily("holdfast_worker_info", "This worker.", labels=names)
            said = (identity.id, identity.host, str(identity.pid), worker.release, own_version())
            info.add_metric(said, 1)
            yield info


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"holdfast_{name}", text, float(value))


def _labelled(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"holdfast_{name}", text, labels=labels)


def _vitals(found: Vitals | None) -> Iterator[Metric]:
    """As its last heartbeat reported it."""
    if found is None:
        return
    yield _gauge(
        "worker_loop_lag_seconds", "The worst delay of its event loop since the last report.", found.lag
    )
    yield _gauge("worker_connections", "Connections to the database that are open here.", found.connections)
    if found.memory is not None:
        yield _gauge("worker_memory_bytes", "Memory of its process that is resident.", found.memory)
    if found.load is not None:
        yield _gauge("worker_load", "Load of its machine over the last minute.", found.load)


def _of_system(seen: Snapshot) -> Iterator[Metric]:
    """The same from every worker: take the maximum over them, never the sum."""
    jobs = _labelled(QUEUE_JOBS, f"Jobs in the queue, each count up to {CAP}.", "queue", "state")
    oldest = _labelled("queue_oldest_due_seconds", "How long the oldest due job has waited.", "queue")
    paused = _labelled("queue_paused", "1: nothing is claimed from the queue.", "queue")
    staff = _labelled("queue_workers", "Live workers that take jobs from the queue.", "queue")
    dead = _labelled(TABLE[DEAD_LETTER].metric, f"Dead letters, of the newest {CAP}.", "queue")
    parked = _labelled(
        TABLE[PARKED].metric, f"Keys of an ordered queue that are parked, up to {CAP}.", "queue"
    )
    for load in seen.queues:
        parked.add_metric((load.name,), load.parked.count)
        for state in (*_QUEUED, SUSPENDED):
            jobs.add_metric((load.name, state), getattr(load, state).count)
        oldest.add_metric((load.name,), load.oldest_due_seconds or 0.0)
        dead.add_metric((load.name,), seen.dead_letters.get(load.name, 0))
    for name, queue in seen.staff.items():
        paused.add_metric((name,), queue.paused)
        staff.add_metric((name,), queue.workers)
    dead.add_metric((_DROPPED,), _of_dropped_queues(seen))
    yield from (jobs, oldest, paused, staff, dead, parked)
    workers = _labelled(
        "workers", "Workers that have not left; `late` ones are silent for too long.", "status"
    )
    for status in ("alive", "draining", "late"):
        workers.add_metric((status,), seen.workers[status].workers if status in seen.workers else 0)
    yield workers
    alive = seen.workers.get("alive")
    yield _gauge(
        "workers_concurrency", "Jobs that live workers may run at once.", alive.concurrency if alive else 0
    )
    yield _gauge("paused_tasks", "Tasks of which nothing is claimed.", seen.paused_tasks)
    yield _gauge("expired_claims", "Claims past their lease that still have jobs.", seen.expired_claims)
    yield _gauge("schema_version", "The newest migration of the database.", seen.schema_version.number or 0)


def _of_dropped_queues(seen: Snapshot) -> int:
    known = {load.name for load in seen.queues}
    return sum(number for queue, number in seen.dead_letters.items() if queue not in known)
