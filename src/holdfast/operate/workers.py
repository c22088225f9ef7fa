"""Workers: who is there, since when heard of, and how much each runs."""

from ..db.database import Database
from ..store import operate
from ..store.operate import WorkerLine

MOST = 1000


def list_workers(database: Database, *, with_gone: bool = False) -> list[WorkerLine]:
    """Living workers, the last heard of first; those that are gone only when asked for."""
    return database.run(lambda: operate.list_workers(with_gone, MOST))
