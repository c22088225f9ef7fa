"""The figures we want to reach, each computed from results of one run: ratios where a ratio says more than a rate."""

from collections.abc import Callable
from dataclasses import dataclass

from .report import Report, Result, figure

PYTHON_PEERS = ("pgqueuer", "awa", "procrastinate", "dbos", "chancy", "absurd")
OURS = "holdfast"
DROPPED = "holdfast-dropped"  # the same with keep_completed=False
GRAPHILE = "graphile-worker"


@dataclass(frozen=True, slots=True)
class Verdict:
    name: str
    wanted: str
    value: float | None  # None: not measured in this run
    reached: bool

    @property
    def text(self) -> str:
        return "-" if self.value is None else figure(self.value)

    @property
    def word(self) -> str:
        if self.value is None:
            return "not measured"
        return "reached" if self.reached else "not reached"


@dataclass(frozen=True, slots=True)
class Target:
    name: str
    measure: Callable[[Report], float | None]
    least: float | None = None
    most: float | None = None
    below: float | None = None
    unit: str = ""

    def judge(self, report: Report) -> Verdict:
        value = self.measure(report)
        unit = f" {self.unit}" if self.unit else ""
        wanted = (
            f">= {self.least:,g}{unit}"
            if self.least is not None
            else f"<= {self.most:,g}{unit}"
            if self.most is not None
            else f"< {self.below:,g}{unit}"
        )
        reached = (
            value is not None
            and (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )
        return Verdict(self.name, wanted, value, reached)


def ratio(above: float | None, below: float | None) -> float | None:
    return None if above is None or not below else above / below


def of(one: tuple[str, str], other: tuple[str, str]) -> Callable[[Report], float | None]:
    """The median of one result by that of another."""
    return lambda report: ratio(report.median(*one), report.median(*other))


def worst_round(one: tuple[str, str], other: tuple[str, str]) -> Callable[[Report], float | None]:
    """One result by another, round by round, and the least of these. A stall in one round of ten is in no median."""

    def least(report: Report) -> float | None:
        above, below = report.find(*one), report.find(*other)
        if above is None or below is None:
            return None
        return min((a / b for a, b in zip(above.values, below.values, strict=False) if b), default=None)

    return least


def at(scenario: str, variant: str) -> Callable[[Report], float | None]:
    return lambda report: report.median(scenario, variant)


def best(report: Report, scenario: str, prefix: str) -> float | None:
    found = [r.median for r in report.of(scenario) if r.variant.startswith(prefix)]
    return max(found, default=None)


def share_of_limit(report: Report) -> float | None:
    """Of the best batch size: what the database can do is the most that it was seen to do."""
    return ratio(report.median("drain", "async-1"), best(report, "limit", "batch-"))


def shares_of_limit(report: Report) -> list[tuple[str, float]]:
    """Every drain as a share of what the database can do."""
    most = best(report, "limit", "batch-")
    found = [r for r in report.of("drain") if r.unit == "jobs/s"]
    return [(r.variant, r.median / most) for r in found] if most else []


def largest_by_smallest(report: Report) -> float | None:
    """Of the backlogs in the order they were measured in: the last by the first."""
    rates = [
        r.median for r in report.of("backlog") if r.variant.startswith("waiting-") and r.unit == "jobs/s"
    ]
    return ratio(rates[-1], rates[0]) if len(rates) > 1 else None


def worst_of(report: Report, scenario: str, variants: tuple[str, ...]) -> float | None:
    found = [m for v in variants if (m := report.median(scenario, v)) is not None]
    return max(found, default=None)


# Peers: a variant begins with the name of the peer; the unit says what was measured.


def peer_of(result: Result) -> str:
    return result.variant.split()[0]


def peer_results(report: Report, unit: str, ending: str = "") -> dict[str, float]:
    """Peer -> median, without our own."""
    found = [r for r in report.of("peers") if r.unit == unit and r.variant.endswith(ending)]
    return {peer_of(r): r.median for r in found if not peer_of(r).startswith(OURS)}


def own_result(report: Report, unit: str, ending: str, otherwise: tuple[str, str]) -> float | None:
    """Measured in the same way as the peers where it was, else by our own scenario."""
    found = [r for r in report.of("peers") if r.unit == unit and r.variant.endswith(ending)]
    ours = [r.median for r in found if peer_of(r) == OURS]
    return ours[0] if ours else report.median(*otherwise)


def against_peers(names: tuple[str, ...] | None) -> Callable[[Report], float | None]:
    def measure(report: Report) -> float | None:
        rates = peer_results(report, "jobs/s")
        chosen = [rate for peer, rate in rates.items() if names is None or peer.startswith(names)]
        return ratio(own_result(report, "jobs/s", "", ("drain", "async-1")), max(chosen, default=None))

    return measure


def latency_against_peers(share: str) -> Callable[[Report], float | None]:
    """Holdfast's result by the best of the peers'."""

    def measure(report: Report) -> float | None:
        best_peer = min(peer_results(report, "ms", share).values(), default=None)
        return ratio(own_result(report, "ms", share, ("latency", f"start {share}")), best_peer)

    return measure


def workflows_against_peers(in_flight: int, unit: str) -> Callable[[Report], float | None]:
    """Of runs in flight, Holdfast's by the best of the peers': the highest rate, or the shortest time."""
    ending = f" in-flight-{in_flight}" + (" p50" if unit == "ms" else "")
    best_of = min if unit == "ms" else max

    def measure(report: Report) -> float | None:
        found = [r for r in report.of("workflow-peers") if r.unit == unit and r.variant.endswith(ending)]
        theirs = [r.median for r in found if peer_of(r) != OURS]
        return ratio(report.median("workflow-peers", OURS + ending), best_of(theirs, default=None))

    return measure


TARGETS = [
    Target("drain, one process, of `limit`", share_of_limit, least=0.6),
    Target("drain against Graphile Worker", against_peers((GRAPHILE,)), least=1.5, unit="x"),
    Target(
        "the same with `keep_completed=False`",
        of(("peers", f"{DROPPED} drain"), ("peers", f"{GRAPHILE} drain")),
        least=2,
        unit="x",
    ),
    Target("drain against the best peer", against_peers(None), least=1.3, unit="x"),
    Target("drain against the best Python peer", against_peers(PYTHON_PEERS), least=4, unit="x"),
    Target("two processes, of one", of(("drain", "async-2"), ("drain", "async-1")), least=1.15, unit="x"),
    Target("handlers in threads", at("drain", "sync-1"), least=25_000, unit="jobs/s"),
    Target("worker CPU per job", at("drain", "async-1 worker CPU"), most=8, unit="us"),
    Target("server CPU per job", at("drain", "async-1 server CPU"), most=12, unit="us"),
    Target("ordered by key, of unordered", of(("drain", "ordered-1"), ("drain", "async-1")), least=0.8),
    Target(
        "ordered by key, two processes of one, worst round",
        worst_round(("drain", "ordered-2"), ("drain", "ordered-1")),
        least=1,
    ),
    Target("affinity by key, of none", of(("drain", "affinity-1"), ("drain", "async-1")), least=0.9),
    Target(
        "affinity by key, two processes, of none",
        of(("drain", "affinity-2"), ("drain", "async-2")),
        least=0.9,
    ),
    Target("limits that do not bind, of none", of(("drain", "limited-1"), ("drain", "async-1")), least=0.7),
    Target("limits of 1,000 keys, of none", of(("drain", "limited-keys-1"), ("drain", "async-1")), least=0.3),
    Target(
        "handlers with a transaction, of the same by hand",
        of(("drain", "transaction-1"), ("drain", "transaction-by-hand")),
        least=0.8,
    ),
    Target(
        "enqueue with a commit for each, of the bare INSERT",
        of(("enqueue", "one-by-one"), ("enqueue", "one-by-one-bare")),
        least=0.85,
    ),
    Target(
        "enqueue in a transaction, by the bare INSERT",
        of(("enqueue", "transaction"), ("enqueue", "transaction-bare")),
        most=1.15,
        unit="x",
    ),
    Target(
        "the same in SQL",
        of(("enqueue", "transaction-sql"), ("enqueue", "transaction-bare")),
        most=1.15,
        unit="x",
    ),
    Target(
        "bulk through the function, of COPY",
        of(("enqueue", "bulk-function"), ("enqueue", "copy-raw")),
        least=0.4,
    ),
    Target(
        "bulk through Python, of COPY from Python", of(("enqueue", "bulk"), ("enqueue", "copy")), least=0.6
    ),
    Target("bulk through our COPY, of COPY", of(("enqueue", "bulk-copy"), ("enqueue", "copy")), least=0.8),
    Target(
        "publish in a transaction, by the bare INSERT",
        of(("events", "transaction-sql"), ("events", "transaction-bare")),
        most=1.35,
        unit="x",
    ),
    Target("publish_many, of COPY", of(("events", "publish-many-raw"), ("events", "copy-raw")), least=0.6),
    Target(
        "publish_many from Python, of COPY from Python",
        of(("events", "publish-many"), ("events", "copy")),
        least=0.6,
    ),
    Target(
        "a projection, of the same by hand",
        of(("events", "projection"), ("events", "projection-by-hand")),
        least=0.6,
    ),
    Target(
        "events that become jobs, of enqueue_many",
        of(("events", "consumer"), ("events", "consumer-enqueue-many")),
        least=0.7,
    ),
    Target(
        "16 readers, by 16 SELECTs", of(("events", "read-pages"), ("events", "read-bare")), most=1.5, unit="x"
    ),
    Target("publish to projection p50", at("events", "publish to projection p50"), most=8, unit="ms"),
    Target("reading a commit that came late", at("events", "late-commit"), most=10, unit="ms"),
    Target("WAL of numbering, per event", at("events", "numbering"), most=60, unit="bytes"),
    Target(
        "relay to NATS over 1,000 keys, of the raw client",
        of(("boundaries", "nats-1000"), ("boundaries", "nats-1000-raw")),
        least=0.6,
    ),
    Target(
        "relay to NATS over 10 keys, of the raw client",
        of(("boundaries", "nats-10"), ("boundaries", "nats-10-raw")),
        least=0.35,
    ),
    Target(
        "relay to Redis, of a raw XADD pipeline",
        of(("boundaries", "redis"), ("boundaries", "redis-raw")),
        least=1.0,
    ),
    Target(
        "relay to RabbitMQ, of the raw client",
        of(("boundaries", "rabbitmq"), ("boundaries", "rabbitmq-raw")),
        least=0.6,
    ),
    Target(
        "relay to a mock of Kafka, of the raw client",
        of(("boundaries", "kafka"), ("boundaries", "kafka-raw")),
        least=0.6,
    ),
    Target("publish to broker p50", at("boundaries", "publish to broker p50"), most=12, unit="ms"),
    Target(
        "webhooks to a receiver of 20 ms, of the bare client",
        of(("boundaries", "webhooks-20ms"), ("boundaries", "webhooks-20ms-bare")),
        least=0.7,
    ),
    Target(
        "webhooks to an instant receiver, of the bare client",
        of(("boundaries", "webhooks-instant"), ("boundaries", "webhooks-instant-bare")),
        least=0.4,
    ),
    Target(
        "p99 of webhooks beside a dead endpoint, by without it",
        of(("boundaries", "webhook beside dead p99"), ("boundaries", "webhook alone p99")),
        most=2,
        unit="x",
    ),
    Target(
        "receiver of new messages, of an empty ASGI app",
        of(("boundaries", "receiver"), ("boundaries", "receiver-empty")),
        least=0.3,
    ),
    Target(
        "memory with a destination away, end by after a fifth",
        at("boundaries", "away, end / fifth"),
        most=1.1,
        unit="x",
    ),
    Target(
        "workflows, 500 in flight, of the same statements",
        of(("workflow", "in-flight-500"), ("workflow", "sql-500")),
        least=0.35,
    ),
    Target(
        "workflows, 50 in flight, by the best peer", workflows_against_peers(50, "steps/s"), least=5, unit="x"
    ),
    Target("500 in flight, by the best peer", workflows_against_peers(500, "steps/s"), least=8, unit="x"),
    Target("p50 of 1 in flight, by the best peer's", workflows_against_peers(1, "ms"), most=0.8, unit="x"),
    Target("commits of a run of 5 steps, 50 in flight", at("workflow", "commits"), most=0.6),
    Target("server CPU of such a run", at("workflow", "in-flight-50 server CPU"), most=1000, unit="us"),
    Target("statements of a recorded step", at("workflow", "statements of a step"), most=1),
    Target("WAL of such a run, its history folded", at("workflow", "WAL"), most=6144, unit="bytes"),
    Target("signal to code, resting", at("workflow", "signal to code, resting p50"), below=15, unit="ms"),
    Target("signal to code, suspended", at("workflow", "signal to code, suspended p50"), below=50, unit="ms"),
    Target("slowest page of the dashboard", at("web", "slowest page"), below=100, unit="ms"),
    Target("largest first load of a page", at("web", "largest first load"), below=60, unit="kB"),
    Target("an open overview, of a drain", at("web", "overview, of the drain"), most=1, unit="%"),
    Target("100 streams, of one core", at("web", "streams-100"), most=2, unit="%"),
    Target("largest backlog, of the smallest", largest_by_smallest, least=0.9),
    Target("horizon: last fifth by first", at("horizon", "last / first"), least=0.9),
    Target("beside history, of none", at("history", "finished / none"), least=0.95),
    Target("idle wake-up p50", at("latency", "start p50"), most=2.5, unit="ms"),
    Target("latency p50, by the best peer's", latency_against_peers("p50"), below=1, unit="x"),
    Target("latency p99, by the best peer's", latency_against_peers("p99"), below=1, unit="x"),
    Target(
        "statements of an idle worker",
        lambda report: worst_of(report, "idle", ("workers-1", "workers-2")),
        most=0.5,
        unit="per second",
    ),
    Target("claims that are heap-only updates", at("wal", "heap-only claims"), least=99, unit="%"),
    Target("WAL per job, enqueue to archive", at("wal", "WAL"), most=1300, unit="bytes"),
    Target("memory at the end by after a fifth", at("memory", "end / fifth"), most=1.05, unit="x"),
]


def verdicts(report: Report) -> list[Verdict]:
    return [target.judge(report) for target in TARGETS]
