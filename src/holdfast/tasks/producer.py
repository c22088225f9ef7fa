"""What a bound task needs of its app to write and watch jobs. app.py supplies the real one."""

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from ..model.job import Enqueued, Fate, NewRow


class Producer(Protocol):
    """Sync and async twins of four verbs; `conn` is the caller's connection or None for our own pool."""

    def enqueue(self, rows: Sequence[NewRow], conn: object | None) -> list[Enqueued]: ...

    async def aenqueue(self, rows: Sequence[NewRow], conn: object | None) -> list[Enqueued]: ...

    def fate(self, job_id: UUID, queue: str) -> Fate: ...

    async def afate(self, job_id: UUID, queue: str) -> Fate: ...

    def cancel(self, job_id: UUID, queue: str) -> bool: ...

    async def acancel(self, job_id: UUID, queue: str) -> bool: ...
