"""What the SQL tests share: plain sessions, and the verbs of the store in one line each."""

import json
from collections.abc import Sequence
from typing import Any, TypeVar
from uuid import UUID, uuid4

import psycopg
from tests.conftest import wait_until

from holdfast.db.connect import CONFIGURE, configuration
from holdfast.db.executors import drive
from holdfast.model.job import ClaimedJob, Enqueued, Grant, NewRow
from holdfast.model.outcome import (
    Cancelled,
    Completed,
    DeadLettered,
    ErrorText,
    Failed,
    Held,
    Outcome,
    Released,
    Settled,
    Settlement,
    Snoozed,
)
from holdfast.model.queue import QueueRules
from holdfast.model.worker import WorkerIdentity
from holdfast.store import jobs, queues, sweep, workers
from holdfast.store.claim import claim
from holdfast.store.settle import settle
from holdfast.store.statement import Flow, Statement
from holdfast.testing import Kit

T = TypeVar("T")
Conn = psycopg.Connection[Any]

DAY = 86_400
NOBODY = UUID(int=0)
BOOM = ErrorText("ValueError", "boom", "Traceback ...")
EVERY_OUTCOME: list[Outcome] = [
    Completed("1"),
    Cancelled("no"),
    Failed(BOOM, 1.0),
    DeadLettered(BOOM),
    Snoozed(5.0),
    Released("stop"),
    Held("unknown"),
]


PATIENCE = 300.0  # seconds that a test may leave a transaction open, on a machine that has other things to do


def run(conn: Conn, what: Statement[T] | Flow[T]) -> T:
    """A statement by itself, a flow in one transaction; inside an open transaction, as part of it."""
    if isinstance(what, Statement):
        return drive(conn, what)
    with conn.transaction():
        return drive(conn, what)


def make_queue(conn: Conn, name: str, **rules: Any) -> None:
    run(conn, queues.create_queue(name, rules=QueueRules(**rules)))


def configure(conn: Conn, kit: Kit) -> None:
    """Set a session up as our own are: isolation, plans, and the test's clock."""
    with psycopg.RawCursor(conn) as cursor:
        cursor.execute(CONFIGURE.encode(), configuration(conn, kit.clock, PATIENCE, engine=False))


def later(kit: Kit, seconds: float, *conns: Conn) -> None:
    """Move the clock, also for these sessions."""
    kit.clock.advance(seconds)
    for conn in conns:
        configure(conn, kit)


def one(conn: Conn, query: str, *params: object) -> Any:
    """The first column of the only row."""
    row = conn.execute(query.encode(), params or None).fetchone()
    assert row is not None, query
    return row[0]


def enqueue(conn: Conn, count: int = 1, **options: Any) -> list[UUID]:
    """Enqueue jobs that differ in their payload; their ids, in order."""
    task = options.pop("task", "work")
    rows = [NewRow(task, json.dumps({"n": n}), **options) for n in range(count)]
    answers = run(conn, jobs.enqueue(rows))
    assert all(a.created and a.id is not None for a in answers)
    return [a.id for a in answers if a.id is not None]


def keyed(key: str, payload: object = None, *, queue: str = "inbox", life: float = 3600.0) -> NewRow:
    """A job with an idempotency key."""
    return NewRow(
        "work",
        json.dumps({"a": 1} if payload is None else payload),
        queue=queue,
        idempotency_key=key,
        idempotency_lifetime=life,
    )


def put(conn: Conn, *rows: NewRow) -> list[Enqueued]:
    return run(conn, jobs.enqueue(rows))


def register(conn: Conn, host: str = "host") -> str:
    """A live worker; its identity."""
    worker = WorkerIdentity(host, 1, uuid4().hex)
    run(conn, workers.register(worker, queues=["inbox"], tasks=["work"], concurrency=10, release="test"))
    return worker.id


def take(
    conn: Conn,
    worker: str,
    limit: int = 100,
    *,
    queue: str = "inbox",
    lease: float = 60.0,
    token: UUID | None = None,
    priorities: Sequence[int] = (0,),
) -> list[ClaimedJob]:
    marks = [(p, None) for p in priorities]
    return run(conn, claim(queue, worker, token or uuid4(), lease=lease, limit=limit, marks=marks))


def take_one(conn: Conn, worker: str, *, lease: float = 60.0) -> ClaimedJob:
    (job,) = take(conn, worker, 1, lease=lease)
    return job


def end(conn: Conn, grant: Grant, outcome: Outcome, worker: str = "w") -> str:
    """Settle one job; where it went."""
    (answer,) = run(conn, settle([Settlement(grant, outcome)], worker))
    return answer.state


def sweep_all(conn: Conn, *, dead_after: float = 3600.0, max_crashes: int = 3) -> list[Settled]:
    """One sweep, statement by statement, as the sweeper does it."""
    run(conn, sweep.fence_workers(dead_after))
    run(conn, sweep.revoke_expired(500))
    back: list[Settled] = []
    for revoked in run(conn, sweep.revoked_claims(500)):
        taken = run(conn, sweep.sweep_take(revoked, revoked.job_ids, max_crashes))
        back += taken
        run(conn, sweep.sweep_finish(revoked.tokens))
    return back


def status(conn: Conn, job_id: UUID) -> str:
    """Where a job is, as people see it."""
    row = conn.execute("SELECT status FROM holdfast.jobs WHERE id = %s", [job_id]).fetchone()
    return str(row[0]) if row else "missing"


def row_of(conn: Conn, job_id: UUID) -> dict[str, Any]:
    """The live row, with everything that a stale owner could change."""
    found: dict[str, Any] | None = one(
        conn, "SELECT (SELECT to_jsonb(w) FROM holdfast.work w WHERE w.id = %s)", job_id
    )
    return found or {}


def load(conn: Conn, count: int, **columns: str) -> None:
    """Many rows straight into `work`, without enqueue(); `columns` are SQL expressions over `n`."""
    values = {
        "id": "holdfast.uuid7()",
        "queue": "'inbox'",
        "task": "'work'",
        "payload": "'{}'::jsonb",
        "available_at": "holdfast.now() - interval '1 hour' + n * interval '1 ms'",
        "created_at": "holdfast.now() - interval '1 hour'",
        "claimed_at": "holdfast.now() - interval '1 hour'",
        "claim_token": f"'{NOBODY}'::uuid",
        **columns,
    }
    conn.execute(
        f"INSERT INTO holdfast.work ({', '.join(values)}) "
        f"SELECT {', '.join(values.values())} FROM generate_series(1, {count}) AS n".encode()
    )


def until_blocked(watch: Conn, *sessions: Conn) -> None:
    """Wait until each of these sessions waits for a lock."""
    pids = [s.info.backend_pid for s in sessions]

    def blocked() -> bool:
        query = "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY(%s) AND wait_event_type = 'Lock'"
        return bool(one(watch, query, pids) == len(pids))

    wait_until(blocked, "a session waits for a lock")
