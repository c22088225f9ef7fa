"""The worker registry."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..model.worker import WorkerIdentity
from .statement import Flow, Row, Statement, ids, named, nothing


def register(
    worker: WorkerIdentity,
    *,
    queues: Sequence[str],
    tasks: Sequence[str],
    concurrency: int,
    release: str,
    signatures: Mapping[str, str] | None = None,
    metadata: Mapping[str, object] | None = None,
) -> Statement[None]:
    """`signatures`: of each "task/version" that it takes; None: not reported."""
    takes = None if signatures is None else json.dumps(signatures)
    return named(
        "register",
        (
            worker.id,
            worker.host,
            worker.pid,
            list(queues),
            list(tasks),
            concurrency,
            release,
            takes,
            json.dumps(metadata or {}),
        ),
        nothing,
    )


def report_death(host: str, pid: int, how: str) -> Statement[None]:
    return named("report_death", (host, pid, how), nothing)


def drain(worker: str) -> Statement[bool]:
    return named("drain", (worker,), bool)


@dataclass(frozen=True, slots=True)
class FoundWorker:
    id: str
    host: str
    status: str
    prefix: str | None  # the text that found it


def find_workers(
    prefixes: Sequence[str], host: str | None, everyone: bool, limit: int
) -> Statement[list[FoundWorker]]:
    def decode(rows: Sequence[Row]) -> list[FoundWorker]:
        return [FoundWorker(*r) for r in rows]

    params = (list(prefixes), host, everyone, limit)
    return named("find_workers", params, decode)


def drain_workers(workers: Sequence[str]) -> Statement[list[str]]:
    """Ask these to drain; returns those that were alive."""
    return named("drain_workers", (list(workers),), ids)


def workers_left(workers: Sequence[str]) -> Statement[list[str]]:
    return named("workers_left", (list(workers),), ids)


def leave(worker: str) -> Statement[bool]:
    return named("leave", (worker,), bool)


class Seat(NamedTuple):
    queue: str
    seat: int
    worker: str
    host: str
    pid: int

    @property
    def text(self) -> str:
        return f"{self.queue} {self.seat} {self.worker}"


def masked_names() -> Statement[frozenset[str]]:
    """The names that the code of workers masks, also of workers that are gone."""
    return named("masked_names", (), lambda rows: frozenset(row[0] for row in rows))


def ring_seats(queues: Sequence[str], dead_after: float, asking: str | None = None) -> Statement[list[Seat]]:
    def decode(rows: Sequence[Row]) -> list[Seat]:
        return [Seat(*r) for r in rows]

    return named("ring_seats", (list(queues), dead_after, asking), decode)


def sit_down(queue: str, worker: str) -> Flow[int | None]:
    """Take the lowest free seat, in place of the one it has. None: the worker is not alive."""
    yield from named("lock_seats", (), nothing)
    yield from named("free_seats", (queue, worker), nothing)
    taken = yield from named("take_seat", (queue, worker), ids)
    return taken[0] if taken else None
