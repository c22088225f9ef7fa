"""Every scenario really runs, in tiny sizes, on a server that is not its own, and yields figures that can be true."""

import json
from collections.abc import Iterator

import psycopg
import pytest

from holdfast.bench.context import Bench, Sizes, dress
from holdfast.bench.raw import Engine
from holdfast.bench.report import Report, is_series
from holdfast.bench.scenarios import SCENARIOS, find
from holdfast.bench.scenarios.drain import VARIANTS
from holdfast.bench.scenarios.enqueue import by_function
from holdfast.bench.server import Server
from holdfast.bench.targets import verdicts
from holdfast.testing import Kit, TestServer

TINY = Sizes(
    jobs=300,
    concurrency=20,
    connections=3,
    batch=100,
    single=50,
    rate=50.0,
    seconds=0.5,
    idle=1.0,
    backlog=2000,
    deep=500,
    claimed=3000,
    horizon=400,
    history=1000,
    memory=400,
    runs=30,
)
WANTED = {
    "limit": {"batch-100", "batch-500", "batch-1000"},
    "drain": {
        "async-1",
        "async-1 worker CPU",
        "transaction-1",
        "transaction-by-hand",
        "batch-1",
        "ordered-2",
        "affinity-2",
    },
    "enqueue": {
        "one-by-one",
        "transaction",
        "transaction-sql",
        "transaction-bare",
        "bulk",
        "bulk-function",
        "copy",
        "copy-raw",
    },
    "events": {
        "transaction",
        "transaction-sql",
        "transaction-bare",
        "publish-many",
        "publish-many-raw",
        "copy",
        "copy-raw",
        "projection",
        "projection-by-hand",
        "consumer",
        "consumer-enqueue-many",
        "read-pages",
        "read-bare",
        "late-commit",
        "numbering",
        "publish to projection p50",
    },
    "boundaries": {
        "nats-1000",
        "nats-1000-raw",
        "nats-10",
        "nats-10-raw",
        "redis",
        "redis-raw",
        "publish to broker p50",
        "away, after a fifth",
        "away, at the end",
        "away, end / fifth",
        "webhooks-20ms",
        "webhooks-20ms-bare",
        "webhooks-instant",
        "webhooks-instant-bare",
        "webhooks-fan-out",
        "webhook alone p50",
        "webhook alone p99",
        "webhook beside dead p50",
        "webhook beside dead p99",
        "receiver",
        "receiver-empty",
    },
    "workflow": {
        "in-flight-1",
        "in-flight-1 p50",
        "in-flight-50",
        "in-flight-50 worker CPU",
        "WAL with full-page images",
        "commits",
        "sql-50",
        "signal to code, resting p50",
        "signal to code, suspended p50",
    },
    "web": {
        "GET /",
        "GET /jobs/{dead}",
        "GET /api/v1/jobs?state=dead_letter",
        "slowest page",
        "largest first load",
        "drain",
        "drain beside an overview",
        "overview, a look",
        "overview, of the drain",
        "streams-1",
        "streams-100",
        "bare page",
        "first load",
        "act: pause a queue",
        "act: cancel a job",
    },
    "steady": {"rate", "start p50", "start p95", "start p99", "settled p50", "settled p99"},
    "latency": {"start p50", "start p99", "settled p99", "start distribution"},
    "idle": {"workers-1", "workers-1 CPU", "workers-2"},
    "backlog": {"waiting-20", "waiting-2k", "waiting-2k claim p99", "key-deep-500"},
    "horizon": {"first fifth", "last fifth", "last / first", "rate over-time"},
    "history": {"none", "finished", "finished / none"},
    "wal": {"WAL with full-page images", "commits", "dead rows", "heap-only claims", "claim batch"},
    "memory": {"after a fifth", "at the end", "end / fifth", "blocks in use, end / fifth", "rss over-jobs"},
}
ONLY = (
    *("async-1", "transaction-1", "transaction-by-hand", "ordered-2", "affinity-2", "batch-1"),
    *("batch-100", "batch-500", "batch-1000"),
    *("waiting-20", "waiting-2k", "key-deep-500"),
    *("in-flight-1", "in-flight-50", "sql-50"),
    *("pages", "overview", "streams", "acts"),
)


@pytest.fixture(scope="module")
def server(holdfast_server: TestServer) -> Iterator[Server]:
    """Migrated once; every scenario works in databases of its own."""
    found = Server(holdfast_server.url("postgres"))
    found.prepare(dress)
    yield found
    found.close()


def databases(server: TestServer, of: Server) -> int:
    with psycopg.connect(server.url("postgres")) as conn:
        asked = "SELECT count(*) FROM pg_database WHERE starts_with(datname, %s)"
        ((count,),) = conn.execute(asked, [of.template]).fetchall()
    return int(count)


def test_every_scenario_is_tried() -> None:
    assert set(WANTED) == set(SCENARIOS)


@pytest.mark.parametrize("name", WANTED)
def test_a_scenario_yields_its_variants(name: str, server: Server) -> None:
    report = Report()
    bench = Bench(server, report, TINY, repeats=1, quick=True, only=ONLY)
    find(name)(bench)
    found = {r.variant: r for r in report.of(name)}
    assert WANTED[name] <= set(found)
    assert report.scenarios == [name]
    for result in found.values():
        assert all(value >= 0 for value in result.values), result
        assert is_series(result.variant) or len(result.values) == 1, result
    rates = [r.median for r in found.values() if r.unit == "jobs/s"]
    assert all(rate > 1 for rate in rates)
    json.dumps(report.as_json(), allow_nan=False)


@pytest.mark.long
def test_every_variant_of_a_drain_is_measured(server: Server) -> None:
    """With process handlers each slot loads the app in a process of its own."""
    report = Report()
    find("drain")(Bench(server, report, TINY, repeats=1, quick=True))
    rates = {r.variant: r.median for r in report.of("drain") if r.unit == "jobs/s"}
    assert set(rates) == {*(variant.name for variant in VARIANTS), "transaction-by-hand"}
    assert all(rate > 1 for rate in rates.values())


def test_a_ratio_between_two_ways_of_one_thing_is_near_enough(server: Server) -> None:
    """The claims of `limit` and of `drain` are of the same jobs: neither may be a thousand times the other."""
    report = Report()
    bench = Bench(server, report, TINY, repeats=1, only=("async-1", "batch-100"))
    find("limit")(bench)
    find("drain")(bench)
    limit, drain = report.median("limit", "batch-100"), report.median("drain", "async-1")
    assert limit is not None
    assert drain is not None
    assert 0.001 < drain / limit < 10


def test_a_drain_says_what_limits_leave_of_it(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """The figures depend on the machine; that they are measured and judged does not."""
    report = Report()
    only = ("async-1", "limited-1", "limited-keys-1")
    find("drain")(Bench(server, report, TINY, repeats=1, quick=True, only=only))
    judged = {v.name: v for v in verdicts(report)}
    for variant, name, wanted in (
        ("limited-1", "limits that do not bind, of none", ">= 0.7"),
        ("limited-keys-1", "limits of 1,000 keys, of none", ">= 0.3"),
    ):
        one, other = report.median("drain", variant), report.median("drain", "async-1")
        assert one
        assert other
        assert judged[name].value == pytest.approx(one / other)
        assert judged[name].wanted == wanted
    said = capsys.readouterr()
    assert (said.out + said.err).count(" of async-1") == 2


def test_nothing_is_left_on_the_server(holdfast_server: TestServer) -> None:
    server = Server(holdfast_server.url("postgres"))
    server.prepare(dress)
    with server.fresh():
        assert databases(holdfast_server, server) == 2
    Bench(server, Report(), TINY).kept("x", lambda _: None)
    assert databases(holdfast_server, server) == 2
    server.close()
    assert databases(holdfast_server, server) == 0


def test_a_worker_that_dies_is_told_and_not_waited_for(server: Server) -> None:
    from holdfast.bench.crew import crew, drain
    from holdfast.bench.fill import Load

    with server.fresh() as url, crew(url, queues=["inbox"]) as workers:
        workers.members[0]._process.kill()
        with pytest.raises((ChildProcessError, OSError)):
            drain(workers, Load(100))


def test_what_is_compared_with_copy_writes_as_many_jobs(kit: Kit) -> None:
    engine = Engine(kit.url)
    try:
        by_function(engine, 10)
    finally:
        engine.conn.close()
    assert sorted(row["payload"]["n"] for row in kit.jobs()) == [1] * 5 + [2] * 5


def test_jobs_of_a_load_have_the_buckets_that_enqueue_writes(kit: Kit) -> None:
    from holdfast.bench import fill

    fill.write(kit.url, fill.Load(20, keys=10), fill.Load(5))
    kit.app.send("nothing", {}, partition_key="key:3")
    rows = kit.sql("SELECT partition_key AS key, partition_bucket AS bucket FROM holdfast.work")
    assert {row["bucket"] for row in rows if row["key"] is None} == {0}
    assert len({row["bucket"] for row in rows if row["key"]} - {0}) > 5
    assert len({row["bucket"] for row in rows if row["key"] == "key:3"}) == 1
