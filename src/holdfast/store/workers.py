"""The worker registry."""

from collections.abc import Sequence

from ..model.worker import WorkerIdentity
from ..sql import query
from .statement import Statement, nothing


def register(
    worker: WorkerIdentity, *, queues: Sequence[str], tasks: Sequence[str], concurrency: int, release: str
) -> Statement[None]:
    return Statement(
        "register",
        query("register"),
        (worker.id, worker.host, worker.pid, list(queues), list(tasks), concurrency, release),
        nothing,
    )


def drain(worker: str) -> Statement[bool]:
    return Statement("drain", query("drain"), (worker,), bool)


def leave(worker: str) -> Statement[bool]:
    return Statement("leave", query("leave"), (worker,), bool)
