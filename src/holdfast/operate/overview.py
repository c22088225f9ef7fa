"""The overview, by bounded queries: it costs the same with ten jobs and with ten million."""

from dataclasses import dataclass

from ..store import jobs, queue_load
from ..store.doctor import unserved_queues
from ..store.pause import PausedTask, paused_tasks
from ..store.queue_load import CAP, Count, QueueLoad
from ..store.statement import Flow
from .procedure import Procedure, run, settings
from .queues import queue_loads


@dataclass(frozen=True, slots=True)
class Workers:
    alive: int
    draining: int
    late: int  # alive or draining, and without a heartbeat for too long


@dataclass(frozen=True, slots=True)
class Overview:
    queues: list[QueueLoad]
    paused_tasks: list[PausedTask]
    dead_letters: Count
    dead_letters_by_queue: dict[str, Count]  # also of queues that are gone
    workers: Workers
    finished_last_minute: int
    finished_is_estimate: bool
    schema_version: int | None
    server_version: str
    durability: str
    unserved: list[str]  # queues with due jobs that no live worker serves


def overview(cap: int = CAP, later: int | None = None) -> Procedure[Overview]:
    """A count stops at the cap; the one of jobs that are not due at `later`, if that is given."""
    late_after = (yield from settings()).dead_after
    return (yield from run(lambda: _overview(late_after, cap, later)))


def _overview(late_after: float, cap: int, later: int | None) -> Flow[Overview]:
    server = yield from jobs.describe_server()
    version = yield from jobs.schema_version()
    queues = yield from queue_loads(cap, later)
    paused = yield from paused_tasks()
    dead = yield from queue_load.dead_load(cap)
    workers = yield from queue_load.worker_load(late_after)
    finished, estimated = yield from queue_load.finished_per_minute()
    unserved = yield from unserved_queues(late_after, 0.0)
    total = sum(dead.values())
    return Overview(
        queues=queues,
        paused_tasks=paused,
        dead_letters=queue_load.capped(total, cap),
        dead_letters_by_queue={queue: Count(n, total > cap) for queue, n in dead.items()},
        workers=Workers(workers.get("alive", 0), workers.get("draining", 0), workers.get("late", 0)),
        finished_last_minute=finished,
        finished_is_estimate=estimated,
        schema_version=version.number,
        server_version=f"{server.version // 10000}.{server.version % 10000}",
        durability=server.durability,
        unserved=[queue.queue for queue in unserved],
    )
