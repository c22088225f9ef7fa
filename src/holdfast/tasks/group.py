"""Groups: jobs that are enqueued together, with what follows when all of them have ended."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal
from uuid import UUID

from ..errors import InvalidOption, ResultExpired
from ..model.job import Enqueued
from ..store.chains import GroupStatus
from .handle import JobHandle
from .newjob import NewJob, follow_ups
from .payload import shown
from .producer import GroupProducer
from .task import handles_of, listed
from .tracing import sending

When = Literal["completed", "finished"]
MOST_MEMBERS = 100_000


class GroupHandle:
    """A group that was enqueued: `group = app.group([resize.job(n) for n in pages], then=report.job())`."""

    __slots__ = ("_id", "_jobs", "_producer")

    def __init__(self, group_id: UUID, jobs: Sequence[JobHandle[Any]], producer: GroupProducer) -> None:
        self._id = group_id
        self._jobs = tuple(jobs)
        self._producer = producer

    @property
    def id(self) -> UUID:
        """The group's id: `holdfast group show ID`."""
        return self._id

    @property
    def jobs(self) -> tuple[JobHandle[Any], ...]:
        """The members, in the order in which they were given."""
        return self._jobs

    def status(self) -> GroupStatus:
        """How many have ended, and whether the callback is enqueued: `group.status().open`."""
        return self._found(self._producer.group_status(self._id))

    async def astatus(self) -> GroupStatus:
        """How many have ended, and whether the callback is enqueued: `(await group.astatus()).open`."""
        return self._found(await self._producer.agroup_status(self._id))

    def __repr__(self) -> str:
        return f"GroupHandle({self._id}, {len(self._jobs)} jobs)"

    def _found(self, status: GroupStatus | None) -> GroupStatus:
        if status is None:
            raise ResultExpired(
                f"nothing is kept of group {self._id}: it finished longer ago than results are kept, "
                "or its transaction was rolled back"
            )
        return status


class NewGroup:
    """A group that is not enqueued yet, checked."""

    def __init__(self, jobs: Iterable[NewJob[Any]], then: object, conn: object | None, when: str) -> None:
        if when not in ("completed", "finished"):
            raise InvalidOption(f"when must be 'completed' or 'finished', not {shown(when)}")
        self.jobs = listed(jobs, conn, "group")
        self.when = when
        self.callback = () if then is None else follow_ups(then)
        if len(self.jobs) > MOST_MEMBERS:
            raise InvalidOption(
                f"a group of {len(self.jobs):,} jobs is more than the limit of {MOST_MEMBERS:,}. Make several groups"
            )
        for job in self.jobs:
            for name, key in (
                ("idempotency_key", job.row.idempotency_key),
                ("replace_key", job.row.replace_key),
            ):
                if key is not None:
                    raise InvalidOption(
                        f"a job of {job.task} in a group has {name}={key!r}: it might be a job that exists already, "
                        "and is not in the group. Leave the key out"
                    )

    def enqueue(self, producer: GroupProducer, conn: object | None) -> GroupHandle:
        with sending([job.row for job in self.jobs]) as batch:
            callback = batch.carrying(self.callback)
            return self._handle(producer, producer.enqueue_group(batch.rows, callback, self.when, conn))

    async def aenqueue(self, producer: GroupProducer, conn: object | None) -> GroupHandle:
        with sending([job.row for job in self.jobs]) as batch:
            callback = batch.carrying(self.callback)
            written = await producer.aenqueue_group(batch.rows, callback, self.when, conn)
            return self._handle(producer, written)

    def _handle(self, producer: GroupProducer, written: Sequence[Enqueued]) -> GroupHandle:
        group, *members = written
        assert group.id is not None
        return GroupHandle(group.id, handles_of(producer, self.jobs, members), producer)
