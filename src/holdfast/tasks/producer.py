"""What a bound task needs of its app to write and watch jobs. app.py supplies the real one."""

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from ..db.database import Database
from ..model.job import Enqueued, JobStatus, NewRow
from ..store.chains import GroupStatus
from ..store.show import Look


class Producer(Protocol):
    """Sync and async twins of each verb; `conn` is the caller's connection or None for our own pool."""

    def enqueue(self, rows: Sequence[NewRow], conn: object | None) -> list[Enqueued]: ...

    async def aenqueue(self, rows: Sequence[NewRow], conn: object | None) -> list[Enqueued]: ...

    def status(self, job_id: UUID, queue: str) -> JobStatus: ...

    async def astatus(self, job_id: UUID, queue: str) -> JobStatus: ...

    def look(self, job_id: UUID) -> Look | None: ...

    async def alook(self, job_id: UUID) -> Look | None: ...

    def cancel(self, job_id: UUID, queue: str) -> bool: ...

    async def acancel(self, job_id: UUID, queue: str) -> bool: ...


class AppProducer(Producer, Protocol):
    """A Producer that has a separate database: the app's."""

    @property
    def database(self) -> Database: ...

    def ready(self, wanted: set[str]) -> None: ...

    async def aready(self, wanted: set[str]) -> None: ...


class GroupProducer(Producer, Protocol):
    """A Producer that also makes groups."""

    def enqueue_group(
        self, rows: Sequence[NewRow], callback: Sequence[NewRow], when: str, conn: object | None
    ) -> list[Enqueued]: ...

    async def aenqueue_group(
        self, rows: Sequence[NewRow], callback: Sequence[NewRow], when: str, conn: object | None
    ) -> list[Enqueued]: ...

    def group_status(self, group_id: UUID) -> GroupStatus | None: ...

    async def agroup_status(self, group_id: UUID) -> GroupStatus | None: ...
