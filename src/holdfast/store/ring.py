"""The ring as people see it: which queues have one, and how much of each key's work one worker did."""

from collections.abc import Sequence
from dataclasses import dataclass

from .queue_load import prefer_indexes
from .statement import Flow, Row, Statement, named


@dataclass(frozen=True, slots=True)
class KeyAffinity:
    key: str
    jobs: int
    kept: int  # by the worker that did most of them
    workers: int
    worker: str


@dataclass(frozen=True, slots=True)
class Affinity:
    jobs: int
    kept: int
    keys: int
    share: float | None  # None: nothing was finished
    worst: list[KeyAffinity]


def ring_queues() -> Statement[dict[str, bool]]:
    return named("ring_queues", (), lambda rows: {r[0]: r[1] for r in rows})


def affinity(queue: str, seconds: float, most: int, limit: int) -> Flow[Affinity]:
    def decode(rows: Sequence[Row]) -> Affinity:
        jobs, kept, keys = rows[0][5:] if rows else (0, 0, 0)
        worst = [KeyAffinity(*r[:5]) for r in rows if r[1] > r[2]]
        return Affinity(jobs, kept, keys, kept / jobs if jobs else None, worst)

    yield from prefer_indexes()
    found = yield from named("affinity", (queue, seconds, most, limit), decode)
    return found
