"""Rows for the operators' tests: dead letters, an archive, a job in every state."""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

import pytest
from tests.sql.support import BOOM, Conn, end, enqueue, take_one

from holdfast.model.outcome import Cancelled, Completed, DeadLettered, Held
from holdfast.store import acts
from holdfast.store.acts import JobLocation, Locked
from holdfast.store.statement import Flow


def bury(conn: Conn, worker: str, **options: Any) -> UUID:
    """One dead letter."""
    (job_id,) = enqueue(conn, **options)
    assert end(conn, take_one(conn, worker).grant, DeadLettered(BOOM), worker) == "dead_letter"
    return job_id


def bury_many(
    conn: Conn,
    count: int,
    queue: str = "inbox",
    task: str = "work",
    error: str = "'ValueError: boom'",
    ago: str = "0",
) -> None:
    """Dead letters, seven at a time at the same moment; `error` is SQL over `n`, `ago` seconds."""
    conn.execute(
        f"""
        INSERT INTO holdfast.dead_letters
            (id, claim_token, seq, lease_generation, available_at, created_at, claimed_at, died_at, attempts,
             max_attempts, version, crashes, priority, queue, task, payload, last_error)
        SELECT holdfast.uuid7(), gen_random_uuid(), nextval('holdfast.work_seq'), 5, at, at, at,
               at - n / 7 * interval '1 ms' - interval '{ago} seconds', 5, 5, 1, 0, 0, %s, %s, '{{}}', {error}
        FROM generate_series(1, %s) n, LATERAL (SELECT holdfast.now() AS at) t
        """.encode(),
        [queue, task, count],
    )


def archive_many(conn: Conn, count: int, ago: str = "interval '1 second'", size: int = 800) -> None:
    conn.execute(
        f"""
        INSERT INTO holdfast.archive
            (slot, id, claim_token, seq, lease_generation, available_at, created_at, claimed_at, completed_at,
             attempts, max_attempts, version, crashes, priority, queue, status, task, payload)
        SELECT holdfast.archive_slot(at), holdfast.uuid7(), gen_random_uuid(), n, 1, at, at, at, at,
               1, 5, 1, 0, 0, 'inbox', 'completed', 'work', jsonb_build_object('text', repeat('x', {size}))
        FROM generate_series(1, {count}) n, LATERAL (SELECT holdfast.now() - {ago} AS at) t
        """.encode()
    )


def one_of_each(conn: Conn, worker: str) -> dict[str, UUID]:
    """A job in every state."""
    found = {}
    for state, outcome in (
        ("completed", Completed("1")),
        ("cancelled", Cancelled("no")),
        ("dead_letter", DeadLettered(BOOM)),
        ("held", Held("unknown")),
    ):
        (found[state],) = enqueue(conn)
        end(conn, take_one(conn, worker).grant, outcome, worker)
    (found["processing"],) = enqueue(conn)
    take_one(conn, worker)
    (found["quarantined"],) = enqueue(conn)
    conn.execute("INSERT INTO holdfast.quarantine VALUES (%s, 'inbox', 'bad')", [found["quarantined"]])
    (found["scheduled"],) = enqueue(conn, delay=60.0)
    (found["pending"],) = enqueue(conn)
    return found


def count_looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows with every try of an act to lock jobs."""
    seen: list[int] = []
    lock = acts.lock

    def counted(wanted: Iterable[JobLocation]) -> Flow[list[Locked]]:
        seen.append(1)
        return lock(wanted)

    monkeypatch.setattr(acts, "lock", counted)
    return seen
