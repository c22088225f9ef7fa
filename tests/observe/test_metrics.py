"""What Prometheus reads, from a real worker on a real database."""

import itertools
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import prometheus_client
import psycopg
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families
from tests.conftest import wait_until
from tests.crash.proxy import Proxy
from tests.observe.support import Port, ready, with_port

from holdfast import Backoff, Cancel, DeadLetter, Holdfast, Job, Snooze, telemetry
from holdfast.db import migrate
from holdfast.model.queue import OnDeadLetter
from holdfast.model.release import own_version
from holdfast.model.state import TABLE
from holdfast.observe import snapshot
from holdfast.observe.metrics import Counts
from holdfast.observe.snapshot import Snapshot, look
from holdfast.store.statement import Flow
from holdfast.testing import Kit

ROOT = Path(__file__).resolve().parents[2]
MakeKit = Callable[..., Kit]
OFTEN, NEVER_AGAIN = 0.05, 3600.0
GHOST = """
WITH token AS (SELECT gen_random_uuid() AS token),
     job AS (UPDATE holdfast.work SET status = 'processing', claim_token = (SELECT token FROM token) RETURNING id)
INSERT INTO holdfast.claims (token, queue, worker, claimed_at, lease_expires_at, job_ids)
SELECT token, 'inbox', 'ghost', now(), now() + interval '1 hour', ARRAY(SELECT id FROM job) FROM token
"""


def _until(port: Port, number: float, name: str, **labels: str) -> None:
    wait_until(lambda: port.value(name, **labels) == number, f"{name} {labels} is {number}")


def test_every_outcome_is_counted_by_queue_and_task(app: Holdfast, holdfast_kit: MakeKit) -> None:
    @app.task
    async def good() -> None: ...

    @app.task(retry=Backoff(first=3600, cap=3600))
    def fails() -> None:
        raise ValueError("no")

    @app.task
    def ends(how: str) -> None:
        raise {"dead": DeadLetter("why"), "cancel": Cancel(), "snooze": Snooze(3600)}[how]

    @app.task
    def loses(job: Job) -> None:
        if job.generation == 1:
            kit.sql("UPDATE holdfast.claims SET revoked_at = now() WHERE %s = ANY (job_ids)", [job.id])
            while True:
                job.check()
                time.sleep(0.01)

    kit = holdfast_kit(app, with_port())
    with ready(kit) as port:
        for _ in range(3):
            good.enqueue()
        fails.using(max_attempts=1).enqueue()
        fails.enqueue()
        for how in ("dead", "cancel", "snooze"):
            ends.enqueue(how)
        loses.enqueue()
        app.send("nobody.knows.this", {})
        expected = {
            ("good", "completed"): 3,
            ("fails", "dead_letter"): 1,
            ("fails", "retry"): 1,
            ("ends", "dead_letter"): 1,
            ("ends", "cancelled"): 1,
            ("ends", "snoozed"): 1,
            ("loses", "lost"): 1,
            ("loses", "completed"): 1,  # after a sweep
            ("other", "held"): 1,
        }
        for (task, outcome), number in expected.items():
            _until(port, number, "jobs_settled_total", queue="inbox", task=task, outcome=outcome)
        assert port.value("job_run_seconds_count", queue="inbox", task="good") == 3
        assert port.value("job_run_seconds_count", queue="inbox", task="ends") == 3
        assert port.value("job_run_seconds_count", queue="inbox", task="loses") == 1  # not of the lost one
        assert port.value("job_run_seconds_count", queue="inbox", task="other") is None
        assert port.value("job_wait_seconds_count", queue="inbox") == 11
        assert port.value("jobs_started_total", task="good") == 3
        # From a task's first job on: a rate sees a series rise only from a 0 that was there before.
        assert port.value("jobs_settled_total", queue="inbox", task="good", outcome="dead_letter") == 0


def test_tasks_that_the_worker_does_not_know_are_one_series() -> None:
    counts = Counts(["known"])
    for number in range(100):
        fields = {"queue": "inbox", "task": f"made.up.{number}", "generation": 1}
        counts.on_event(telemetry.Event("job.held", fields))
        counts.on_event(telemetry.Event("job.started", fields))
    (family,) = [f for f in counts.registry.collect() if f.name == "holdfast_jobs_settled"]
    assert {s.labels["task"] for s in family.samples} == {"other"}
    assert sum(s.value for s in family.samples if s.name.endswith("_total")) == 100


@pytest.mark.parametrize(
    ("event", "fields", "name", "labels"),
    [
        ("claim.failed", {"error": "x"}, "claim_failures_total", {}),
        ("worker.gone", {"worker": "w"}, "workers_lost_total", {}),
        ("worker.fenced", {"worker": "w", "now": "v"}, "worker_fenced_total", {}),
        ("loop.blocked", {"seconds": 6}, "loop_blocked_total", {}),
        ("job.quarantined", {"job": 1}, "jobs_quarantined_total", {}),
        ("settle.refused", {"job": 1}, "settle_refused_total", {}),
        ("job.swept", {"job": 1, "state": "pending"}, "jobs_swept_total", {"state": "pending"}),
        ("service.failed", {"service": "sweep"}, "service_failures_total", {"service": "sweep"}),
        (
            "job.failed",
            {"queue": "q", "task": "t", "state": "cancelled"},
            "jobs_settled_total",
            {"queue": "q", "task": "t", "outcome": "cancelled"},
        ),
    ],
)
def test_events_that_become_counters(
    event: str, fields: dict[str, object], name: str, labels: dict[str, str]
) -> None:
    counts = Counts(["t"])
    before = counts.registry.get_sample_value(f"holdfast_{name}", labels) or 0
    counts.on_event(telemetry.Event(event, dict(fields)))
    assert counts.registry.get_sample_value(f"holdfast_{name}", labels) == before + 1


def test_the_events_that_are_counted_are_emitted_somewhere() -> None:
    """A renamed event would be a counter that stays at 0."""
    source = "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "src/holdfast/runtime").glob("*.py"))
    named = {row.event for row in TABLE.values()}  # the table that the emitters read too
    for name in Counts([])._actions:
        assert name in named or f'"{name}"' in source, name


def _info(port: Port) -> dict[str, str]:
    me = port.worker.identity
    said = {"worker": me.id, "host": me.host, "pid": str(me.pid)}
    return {**said, "release": "2026.5", "holdfast": own_version()}


def test_how_the_system_stands(app: Holdfast, holdfast_kit: MakeKit) -> None:
    gate, entered = threading.Event(), threading.Event()

    @app.task
    def running() -> None:
        entered.set()
        gate.wait(100)

    @app.task(queue="bulk")
    async def later() -> None: ...

    kit = holdfast_kit(app, with_port(metrics_snapshot=OFTEN, release="2026.5"))
    for name in ("bulk", "other"):
        kit.sql("SELECT holdfast.create_queue(%s)", [name])
    kit.sql("UPDATE holdfast.queues SET paused_at = now() WHERE name = 'bulk'")
    kit.sql("INSERT INTO holdfast.paused_tasks VALUES ('some.task', now())")
    later.enqueue()
    later.using(run_after=3600).enqueue()
    app.send("nobody", {}, queue="other")
    for queue, number in (("other", 2), ("was_dropped", 3)):
        kit.sql(
            """INSERT INTO holdfast.dead_letters
               SELECT gen_random_uuid(), gen_random_uuid(), n, 1, now(), now(), now(), now(), 1, 1, 1, 0, 0, %s, 't', NULL,
                      '{}'
               FROM generate_series(1, %s) n""",
            [queue, number],
        )
    with ready(kit, queues=["inbox", "bulk"], concurrency=7) as port:
        running.enqueue()
        entered.wait(100)
        seen: list[tuple[str, dict[str, str], int]] = [
            ("queue_jobs", {"queue": "inbox", "state": "processing"}, 1),
            ("queue_jobs", {"queue": "inbox", "state": "pending"}, 0),
            ("queue_jobs", {"queue": "bulk", "state": "pending"}, 1),
            ("queue_jobs", {"queue": "bulk", "state": "scheduled"}, 1),
            ("queue_jobs", {"queue": "other", "state": "pending"}, 1),
            ("queue_paused", {"queue": "bulk"}, 1),
            ("queue_paused", {"queue": "inbox"}, 0),
            ("queue_workers", {"queue": "bulk"}, 1),
            ("queue_workers", {"queue": "other"}, 0),
            ("dead_letters", {"queue": "inbox"}, 0),
            ("dead_letters", {"queue": "other"}, 2),
            ("dead_letters", {"queue": "(dropped)"}, 3),
            ("workers", {"status": "alive"}, 1),
            ("workers", {"status": "late"}, 0),
            ("workers_concurrency", {}, 7),
            ("worker_concurrency", {}, 7),
            ("worker_running", {}, 1),
            ("worker_ready", {}, 1),
            ("worker_info", _info(port), 1),
            ("paused_tasks", {}, 1),
            ("expired_claims", {}, 0),
            ("schema_version", {}, migrate.required_version()),
        ]
        for name, labels, number in seen:
            _until(port, number, name, **labels)
        wait_until(lambda: (port.value("queue_oldest_due_seconds", queue="other") or 0) > 0.1, "it waits")
        assert port.value("queue_oldest_due_seconds", queue="inbox") == 0
        gate.set()


def test_claims_past_their_lease_show_until_somebody_takes_their_jobs(
    app: Holdfast, holdfast_kit: MakeKit
) -> None:
    kit = holdfast_kit(app, with_port(metrics_snapshot=OFTEN))
    app.send("of.a.ghost", {}, run_after=3600)
    with ready(kit) as port, psycopg.connect(kit.url) as stranger:
        kit.sql(GHOST)
        stranger.execute("SELECT * FROM holdfast.work FOR UPDATE")  # a sweep passes over it
        kit.sql(
            "UPDATE holdfast.claims SET lease_expires_at = now() - interval '1 minute' WHERE worker = 'ghost'"
        )
        wait_until(lambda: port.value("expired_claims") == 1, "an expired claim")
        stranger.rollback()
        wait_until(lambda: port.value("expired_claims") == 0, "swept")
        assert port.value("jobs_swept_total", state="pending") == 1


def test_a_silent_worker_is_late_and_serves_nobody(kit: Kit) -> None:
    kit.sql(
        """INSERT INTO holdfast.workers
               (id, host, pid, status, last_seen_at, started_at, queues, tasks, concurrency, release)
           SELECT status || silent, 'h', 1, status, now() - make_interval(secs => silent), now(), '{inbox}', '{}', 3, '1'
           FROM unnest(ARRAY['alive', 'draining', 'gone']) status, unnest(ARRAY[0, 3600]) silent"""
    )
    seen = kit.database.run(lambda: look(60))
    assert seen.workers == {"alive": (1, 3), "draining": (1, 3), "late": (2, 6)}
    assert seen.staff == {"inbox": (False, 1)}


def test_blocked_jobs_and_parked_keys_have_their_numbers(app: Holdfast, holdfast_kit: MakeKit) -> None:
    for name, policy in (("orders", "block"), ("mail", "park")):
        app.queue(name, ordering="key", on_dead_letter=cast(OnDeadLetter, policy))

    @app.task(max_attempts=1)
    def fails() -> None:
        raise ValueError("no")

    kit = holdfast_kit(app, with_port(metrics_snapshot=OFTEN))
    for queue in ("orders", "mail"):
        for _ in range(2):
            fails.using(queue=queue, partition_key="k").enqueue()
    with ready(kit) as port:
        for name, labels in (
            ("queue_jobs", {"queue": "orders", "state": "blocked"}),
            ("queue_parked_keys", {"queue": "mail"}),
        ):
            wait_until(lambda n=name, of=labels: port.value(n, **of) == 1, f"{name} is 1")  # type: ignore[misc]
        assert port.value("queue_jobs", queue="orders", state="held") == 0
        assert port.value("queue_parked_keys", queue="orders") == 0


def test_scrapes_ask_the_database_nothing(app: Holdfast, holdfast_kit: MakeKit) -> None:
    kit = holdfast_kit(app, with_port(metrics_snapshot=NEVER_AGAIN))
    looks = "SELECT pid, state_change, xact_start FROM pg_stat_activity WHERE application_name = 'holdfast snapshot'"
    looks += " AND datname = current_database()"
    names = "SELECT array_agg(DISTINCT application_name) AS names FROM pg_stat_activity WHERE datname = current_database()"
    with ready(kit) as port:
        before, connected = kit.sql(looks), kit.sql(names)
        assert len(before) == 1
        app.send("enqueued.later", {}, run_after=3600)
        for _ in range(30):
            assert port.value("queue_jobs", queue="inbox", state="scheduled") == 0  # as it was seen
        for path in ("/livez", "/readyz", "/startupz"):
            port.get(path)
        assert kit.sql(looks) == before  # that session ran nothing since, and nobody else came
        assert kit.sql(names) == connected


def test_the_snapshot_is_taken_at_most_so_often(
    app: Holdfast, holdfast_kit: MakeKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[float] = []

    def noted(late_after: float) -> Flow[Snapshot]:
        taken.append(time.monotonic())
        return look(late_after)

    monkeypatch.setattr(snapshot, "look", noted)
    with ready(holdfast_kit(app, with_port(metrics_snapshot=0.3))) as port:
        while len(taken) < 4:
            port.samples()
    gaps = [after - before for before, after in itertools.pairwise(taken)]
    assert min(gaps) >= 0.3


def test_a_scrape_does_not_wait_for_a_database_that_hangs(app: Holdfast, holdfast_kit: MakeKit) -> None:
    kit = holdfast_kit(app, with_port(metrics_snapshot=OFTEN))
    waiting = """SELECT count(*) AS n FROM pg_stat_activity
                 WHERE application_name = 'holdfast snapshot' AND wait_event_type = 'Lock'"""
    with ready(kit) as port:
        with psycopg.connect(kit.url) as stranger:
            stranger.execute("LOCK TABLE holdfast.dead_letters IN ACCESS EXCLUSIVE MODE")
            wait_until(lambda: kit.sql(waiting) == [{"n": 1}], "the look hangs")
            assert port.value("queue_jobs", queue="inbox", state="pending") == 0
            assert kit.sql(waiting) == [{"n": 1}]
        wait_until(lambda: (port.value("snapshot_age_seconds") or 9) < 0.2, "it goes on")


def test_without_a_database_the_last_look_stays_and_ages(app: Holdfast, dsn: str) -> None:
    proxy = Proxy(dsn)
    kit = Kit(app, proxy.url, with_port(statement_timeout=1.0, connect_timeout=1.0, metrics_snapshot=0.1))
    try:
        app.send("scheduled", {}, run_after=3600)
        with ready(kit) as port:
            labels = {"queue": "inbox", "state": "scheduled"}
            wait_until(lambda: port.value("queue_jobs", **labels) == 1, "seen")
            proxy.refuse()
            wait_until(lambda: (port.value("service_failures_total", service="snapshot") or 0) > 0, "away")
            wait_until(lambda: (port.value("claim_failures_total") or 0) > 0, "claims fail")
            first = port.value("snapshot_age_seconds")
            wait_until(lambda: (port.value("snapshot_age_seconds") or 0) > (first or 0) + 0.3, "it ages")
            assert port.value("queue_jobs", **labels) == 1
            assert port.value("worker_ready") == 0
            proxy.heal()
            wait_until(lambda: (port.value("snapshot_age_seconds") or 9) < 0.3, "a fresh look")
    finally:
        kit.close()
        proxy.close()


def test_counts_stop_at_the_cap(app: Holdfast, holdfast_kit: MakeKit) -> None:
    kit = holdfast_kit(app, with_port(metrics_snapshot=NEVER_AGAIN))
    kit.sql(
        """INSERT INTO holdfast.work (id, queue, task, payload, available_at)
           SELECT gen_random_uuid(), 'inbox', 't', '{}', now() + interval '1 hour' FROM generate_series(1, 10050)"""
    )
    with ready(kit) as port:
        assert port.value("queue_jobs", queue="inbox", state="scheduled") == 10_000


def test_the_formats(app: Holdfast, holdfast_kit: MakeKit) -> None:
    with ready(holdfast_kit(app, with_port())) as port:
        plain = port.get("/metrics")
        assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert list(text_string_to_metric_families(plain.text))
        newer = port.get("/metrics", accept="application/openmetrics-text; version=1.0.0")
        assert newer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
        assert list(open_metrics(newer.text))  # type: ignore[no-untyped-call]
        for version in ("x.y", "99", "1.0.0.0.0", ""):
            odd = port.get("/metrics", accept=f"application/openmetrics-text; version={version}")
            assert odd.status_code == 200
        assert "_created" not in plain.text + newer.text


def test_the_documented_metrics_are_the_exposed_ones(app: Holdfast, holdfast_kit: MakeKit) -> None:
    text = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    documented = dict(re.findall(r"^\| `(holdfast_\w+)` \| (\w+) \|", text, re.MULTILINE))
    with ready(holdfast_kit(app, with_port())) as port:
        exposed = _families(port)
    assert documented == exposed


def _families(port: Port) -> dict[str, str]:
    """Name, as it is queried, and kind."""
    found = {}
    for family in text_string_to_metric_families(port.get("/metrics").text):
        found[f"{family.name}_total" if family.type == "counter" else family.name] = family.type
    return found


def test_every_name_has_our_prefix_and_a_base_unit(app: Holdfast, holdfast_kit: MakeKit) -> None:
    with ready(holdfast_kit(app, with_port())) as port:
        for name, kind in _families(port).items():
            assert name.startswith("holdfast_")
            assert not re.search(r"_(ms|millis|minutes|percent)", name)
            assert name.endswith("_total") == (kind == "counter")


def test_nothing_goes_into_the_registry_of_the_application(app: Holdfast, holdfast_kit: MakeKit) -> None:
    with ready(holdfast_kit(app, with_port())):
        assert b"holdfast" not in prometheus_client.generate_latest()


def test_prometheus_is_loaded_only_for_a_port_and_opentelemetry_never(kit: Kit) -> None:
    code = """
import asyncio, json, sys
from holdfast import Holdfast
app = Holdfast()
@app.task
async def good() -> None: ...
good.enqueue()
async def main():
    async with app:
        await app.run_worker(until_idle=True)
asyncio.run(main())
print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})))
"""
    for port, loaded in ((None, False), ("0", True)):
        env = {"HOLDFAST_DATABASE_URL": kit.url, "PATH": "/usr/bin", "HOLDFAST_HEALTH_PORT": port or "none"}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=ROOT, check=False
        )
        assert done.returncode == 0, done.stderr
        modules = json.loads(done.stdout)
        assert ("prometheus_client" in modules) == loaded
        assert "opentelemetry" not in modules
    assert [row["status"] for row in kit.jobs("good")] == ["completed"] * 2
