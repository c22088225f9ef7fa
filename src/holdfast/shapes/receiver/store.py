"""The statements of received messages; queries.sql has the text."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from ...store.arrays import text_array
from ...store.statement import Row, Statement, count, named


class Target(NamedTuple):
    """The jobs of a source's messages."""

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
    metadata: str | None = None  # of the job: the trace that it belongs to


class Written(NamedTuple):
    outcome: str  # 'new', 'parked', 'repeat', 'differs', or 'queue': there is no such queue
    job_id: str | None


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
    ids, digests, payloads, keys, faults, metadatas = zip(*messages, strict=True)
    params = (
        target.source,
        text_array(ids),
        text_array(digests),
        target.task,
        text_array(payloads),
        target.queue,
        _texts(keys),
        _texts(faults),
        str(target.version),
        str(target.priority),
        str(target.max_attempts),
        repr(target.keep),
        _texts(metadatas),
    )

    def decode(rows: Sequence[Row]) -> list[Written]:
        texts = rows[0][0]
        n = len(messages)
        return list(map(Written, texts[:n], texts[n:]))

    return named("receive_many", params, decode, texts=True)


def _texts(values: Sequence[str | None]) -> str | None:
    return text_array(values) if any(value is not None for value in values) else None


def prune(days: int, most: int) -> Statement[int]:
    return named("prune_received", (days, most), count)


def list_received(source: str | None, limit: int, most: int) -> Statement[list[Received]]:
    return named("list_received", (source, limit, most), lambda rows: [Received(*r) for r in rows])


def show_received(source: str, message_id: str) -> Statement[Received | None]:
    return named("show_received", (source, message_id), lambda rows: Received(*rows[0]) if rows else None)


class Noted(NamedTuple):
    """A worker's report about a source in its code."""

    name: str
    broker: bool
    task: str
    keep: float
    has_read: bool = False  # the broker has replied since the last note
    waiting: int | None = None
    problem: str | None = None


class Health(NamedTuple):
    """A source, for the doctor and the metrics. `parked`: of the newest dead letters."""

    name: str
    broker: bool
    task: str
    keep: float
    unseen: float  # seconds since a worker had it
    unread: float  # seconds since its broker replied to one
    waiting: int | None
    problem: str | None
    parked: int


NEWEST = 10_000  # dead letters that are read


def note_sources(found: Sequence[Noted]) -> Statement[None]:
    params = (
        [s.name for s in found],
        [s.broker for s in found],
        [s.task for s in found],
        [s.keep for s in found],
        [s.has_read for s in found],
        [-1 if s.waiting is None else s.waiting for s in found],
        [s.problem or "" for s in found],
    )
    return named("note_sources", params, lambda _: None)


def prune_sources(days: int, most: int) -> Statement[int]:
    return named("prune_sources", (days, most), count)


def source_health() -> Statement[list[Health]]:
    return named("source_health", (NEWEST,), lambda rows: [Health(*row) for row in rows])


def queue_depth(queue: str, most: int) -> Statement[int]:
    return named("queue_depth", (queue, most), count)
