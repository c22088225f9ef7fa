"""Ordered queues for the SQL tests: made with a policy, and keys that are blocked or parked for real."""

from typing import Any
from uuid import UUID, uuid4

from tests.sql.support import BOOM, Conn, end, enqueue, register, run

from holdfast.model.job import ClaimedJob
from holdfast.model.outcome import DeadLettered, Outcome
from holdfast.model.queue import OnDeadLetter, QueueRules
from holdfast.store import queues
from holdfast.store.streams import claim_streams

QUEUE = "orders"
DIES = DeadLettered(BOOM)


def ordered(conn: Conn, policy: OnDeadLetter = "skip", queue: str = QUEUE) -> None:
    assert run(conn, queues.create_queue(queue, rules=QueueRules("key", policy)))


def put_key(conn: Conn, key: str, count: int = 1, queue: str = QUEUE, **options: Any) -> list[UUID]:
    return enqueue(conn, count, queue=queue, partition_key=key, **options)


def take_key(conn: Conn, worker: str, *keys: str, most: int = 1, queue: str = QUEUE) -> list[ClaimedJob]:
    return run(conn, claim_streams(queue, worker, uuid4(), lease=60.0, keys=keys, run=most))


def fail_key(conn: Conn, key: str, outcome: Outcome = DIES, queue: str = QUEUE) -> UUID:
    """The first job of the key is tried once, and ends so."""
    worker = register(conn)
    (job,) = take_key(conn, worker, key, queue=queue)
    end(conn, job.grant, outcome, worker)
    return job.id
