"""The statements of received messages; queries.sql has the text."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from ...store.arrays import text_array
from ...store.statement import Row, Statement, count, named


class Target(NamedTuple):
    """What messages of a source become."""

    source: str
    task: str
    queue: str
    version: int
    priority: int
    max_attempts: int
    keep: float  # seconds that ids are remembered


class NewMessage(NamedTuple):
    """One message, checked; `fault`: why it becomes a dead letter instead of a job."""

    id: str
    digest: str
    payload: str
    key: str | None = None
    fault: str | None = None


class Written(NamedTuple):
    outcome: str  # 'new', 'parked', 'repeat', 'differs', or 'queue': there is no such queue
    job_id: UUID | None


class Received(NamedTuple):
    """A message that was received."""

    source: str
    message_id: str
    job_id: UUID
    received_at: datetime
    expires_at: datetime
    digest: str


def receive_many(target: Target, messages: Sequence[NewMessage]) -> Statement[list[Written]]:
    """All of them, in the caller's transaction; each id once."""
    ids, digests, payloads, keys, faults = zip(*messages, strict=True)
    params = (
        target.source,
        text_array(ids),
        text_array(digests),
        target.task,
        text_array(payloads),
        target.queue,
        text_array(keys) if any(key is not None for key in keys) else None,
        text_array(faults) if any(fault is not None for fault in faults) else None,
        target.version,
        target.priority,
        target.max_attempts,
        target.keep,
    )

    def decode(rows: Sequence[Row]) -> list[Written]:
        texts = rows[0][0]
        n = len(messages)
        jobs = [None if job is None else UUID(job) for job in texts[n:]]
        return [Written(outcome, job) for outcome, job in zip(texts[:n], jobs, strict=True)]

    return named("receive_many", params, decode)


def prune(days: int, most: int) -> Statement[int]:
    return named("prune_received", (days, most), count)


def list_received(source: str | None, limit: int, most: int) -> Statement[list[Received]]:
    return named("list_received", (source, limit, most), lambda rows: [Received(*r) for r in rows])


def show_received(source: str, message_id: str) -> Statement[Received | None]:
    return named("show_received", (source, message_id), lambda rows: Received(*rows[0]) if rows else None)
