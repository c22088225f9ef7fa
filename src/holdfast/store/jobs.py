"""Enqueue, and what a producer may ask of its jobs afterwards."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from ..model.job import Enqueued, JobStatus, NewRow
from ..model.outcome import Settled
from ..model.state import CANCELLED, GONE
from .arrays import text_array
from .chains import follow, specs
from .statement import Flow, Row, Statement, ids, named

T = TypeVar("T")


def enqueue(rows: Sequence[NewRow]) -> Statement[list[Enqueued]]:
    """All of them or none, in the caller's transaction."""
    if len(rows) == 1 and _is_plain(rows[0]):
        return _enqueue_one(rows[0])
    names: Sequence[str] = NewRow._fields
    of: dict[str, Sequence[Any]] = (
        dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(names, ())
    )
    params = (
        _column(of["task"]),
        text_array(of["payload"]),
        _column(of["queue"]),
        _column(of["version"]),
        _column(of["partition_key"]),
        _column(of["priority"]),
        _column(of["max_attempts"]),
        _column(of["run_at"]),
        _column(of["delay"]),
        _column(of["idempotency_key"]),
        _column(of["idempotency_lifetime"]),
        [json.dumps(list(tags)) if tags else None for tags in _column(of["tags"])],
        _column(of["metadata"]),
        [specs(follow_ups) for follow_ups in _column(of["follow_ups"])],
        _column(of["parent"]),
        [None],  # members come with their group: chains.enqueue_group
        _column(of["replace_key"]),
    )
    return named("enqueue", params, partial(_all_enqueued, len(rows)))


def _column(values: Sequence[T]) -> list[T]:
    """One value where all are the same."""
    return [values[0]] if values and values.count(values[0]) == len(values) else list(values)


def _is_plain(row: NewRow) -> bool:
    return row.idempotency_key is None and row.replace_key is None and not row.follow_ups


def _enqueue_one(row: NewRow) -> Statement[list[Enqueued]]:
    """As texts, which every driver can send. A third of the price of lists of one, to the client and to the server."""
    params = (
        row.task,
        row.payload,
        row.queue,
        row.partition_key,
        str(row.priority),
        None if row.run_at is None else row.run_at.isoformat(),
        repr(row.delay),
        str(row.max_attempts),
        str(row.version),
        text_array(row.tags) if row.tags else None,
        row.metadata,
        None if row.parent is None else str(row.parent),
    )
    return named("enqueue_one", params, _enqueued, texts=True)


def _all_enqueued(n: int, rows: Sequence[Row]) -> list[Enqueued]:
    texts = rows[0][0] if n else []
    if len(texts) == n:
        return [Enqueued(text, True) for text in texts]
    return [
        Enqueued(text or None, created == "true", conflict)
        for text, created, conflict in zip(texts[:n], texts[n : 2 * n], texts[2 * n :], strict=True)
    ]


def _enqueued(rows: Sequence[Row]) -> list[Enqueued]:
    return [Enqueued(text or None, created == "true", conflict) for ((text, created, conflict),) in rows]


def job_status(job_id: UUID, queue: str) -> Statement[JobStatus]:
    def decode(rows: Sequence[Row]) -> JobStatus:
        return JobStatus(*rows[0]) if rows else JobStatus(GONE)

    return named("job_status", (job_id, queue), decode)


def cancel(job_id: UUID, queue: str, reason: str = "") -> Flow[bool]:
    """End a waiting job at once, ask a running one to stop. False: there is no such live job."""
    # Locked first: a job that starts and is released between two looks would be missed by both.
    running = yield from named("lock_live", (queue, job_id), ids)
    if not running:
        return False
    if running[0]:
        yield from request_cancel(queue, [job_id])
    else:
        yield from cancel_waiting(queue, [job_id], reason)
    return True


def request_cancel(queue: str, job_ids: Sequence[UUID]) -> Statement[list[UUID]]:
    """Ask running jobs to stop; returns those that were not asked before. Lock them first."""
    return named("request_cancel", (queue, list(job_ids)), ids)


def cancel_waiting(queue: str, job_ids: Sequence[UUID], reason: str = "") -> Flow[list[UUID]]:
    """End jobs that are not running; lock them first."""

    def decode(rows: Sequence[Row]) -> list[Settled]:
        return [Settled(job_id, CANCELLED, group=group) for job_id, group in rows]

    params = (queue, list(job_ids), reason)
    ended = yield from named("cancel_waiting", params, decode)
    yield from follow(ended)
    return [job.id for job in ended]


def locate(job_id: UUID) -> Statement[str | None]:
    return named("locate", (job_id,), lambda rows: rows[0][0] if rows else None)


def queue_names() -> Statement[list[str]]:
    return named("queue_names", (), ids)


@dataclass(frozen=True, slots=True)
class Server:
    version: int
    has_schema: bool
    fsync: str
    synchronous_commit: str
    standbys: str

    @property
    def durability(self) -> str:
        """What a committed enqueue is worth on this server, in one line."""
        if self.fsync == "off":
            return "fsync is off: a crash of the server or the machine may lose or corrupt everything"
        if self.synchronous_commit == "off":
            return "synchronous_commit is off: a crash of the server may lose the last commits"
        if self.standbys != "-" and self.synchronous_commit in ("on", "remote_apply", "remote_write"):
            there = "received by" if self.synchronous_commit == "remote_write" else "on disk on"
            return (
                f"a commit is on disk here and {there} a standby ({self.synchronous_commit}, {self.standbys})"
            )
        return "a commit is on disk before it returns; failover to an asynchronous standby may lose the last ones"


def describe_server() -> Statement[Server]:
    return named("describe_server", (), lambda rows: Server(*rows[0]))


class SchemaVersion(NamedTuple):
    number: int | None  # the newest migration applied; None: none is
    needs_code: int | None  # the newest migration that code must know to run on this database


def schema_version() -> Statement[SchemaVersion]:
    return named("schema_version", (), lambda rows: SchemaVersion(*rows[0]))
