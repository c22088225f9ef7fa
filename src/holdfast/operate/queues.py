"""The queues and what they hold."""

from dataclasses import dataclass

from ..db.database import Database
from ..errors import ConfigurationError
from ..store import jobs, operate
from ..store.operate import QueueLoad
from ..store.statement import Flow
from ..tasks.checks import queue_name


@dataclass(frozen=True, slots=True)
class QueueMade:
    name: str
    created: bool  # False: it was there
    lease: float | None  # None: what the worker is set to


def create_queue(database: Database, name: str, lease: float | None = None) -> QueueMade:
    """Make a queue. One that is there is left as it is; to ask for another lease than it has is an error."""
    queue_name(name, ConfigurationError)
    if lease is not None and not 0 < lease < 10**9:
        raise ConfigurationError(f"a lease must be more than 0 seconds, not {lease:g}")
    created = database.run(lambda: jobs.create_queue(name, lease))
    has = database.run(operate.queue_leases).get(name)
    if not created and lease is not None and lease != has:
        now = "the worker's own lease" if has is None else f"a lease of {has:g} s"
        raise ConfigurationError(
            f"queue {name!r} exists already, with {now}. To change it, update the column lease of holdfast.queues"
        )
    return QueueMade(name, created, has)


def list_queues(database: Database) -> list[QueueLoad]:
    return database.run(queue_loads)


def queue_loads() -> Flow[list[QueueLoad]]:
    yield from operate.prefer_indexes()
    loads = []
    for name in (yield from jobs.queue_names()):
        load = yield from operate.queue_load(name)
        loads.append(load)
    return loads
