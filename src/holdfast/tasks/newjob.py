"""NewJob: a job that is not enqueued yet. To be enqueued in bulk, as a follow-up or in a group."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar
from uuid import UUID

from ..errors import InvalidOption
from ..model.job import NewRow
from ..runtime.job import Job
from ..store.chains import specs
from .handle import JobHandle, raw_result
from .payload import shown

R_co = TypeVar("R_co", covariant=True)

MOST_FOLLOW_UPS = 100  # of one job
MOST_LEVELS = 20
FOLLOW_UP_BYTES = 256 * 1024


class NewJob(Generic[R_co]):
    """A job that is not enqueued yet: `app.enqueue_many(send_receipt.job(order_id=i) for i in ids)`."""

    __slots__ = ("conn", "decode", "row")

    def __init__(
        self, row: NewRow, conn: object | None = None, decode: Callable[[str | None], Any] = raw_result
    ) -> None:
        self.row = row
        self.conn = conn
        self.decode = decode

    @property
    def task(self) -> str:
        """The name of its task."""
        return self.row.task

    def __repr__(self) -> str:
        return f"NewJob({self.row.task} in {self.row.queue})"


def follow_ups(value: object) -> tuple[NewRow, ...]:
    """`then=`: one job or several, checked so that they can be enqueued at any later time."""
    jobs = [value] if isinstance(value, NewJob) else value
    if isinstance(jobs, str | bytes) or not isinstance(jobs, Sequence):
        raise InvalidOption(
            f"then must be what task.job(...) returns, or a list of that, not {shown(value)}. "
            "Write then=send_receipt.job(order_id=1)"
        )
    rows = tuple(_row(job) for job in jobs)
    if len(rows) > MOST_FOLLOW_UPS:
        raise InvalidOption(
            f"then has {len(rows)} jobs, more than the limit of {MOST_FOLLOW_UPS}. "
            "Let one follow-up enqueue the others with enqueue_many"
        )
    if (levels := max(map(_levels, rows), default=0)) > MOST_LEVELS:
        raise InvalidOption(
            f"then is a chain of {levels} jobs, more than the limit of {MOST_LEVELS}. "
            "Let the last of them enqueue the rest"
        )
    size = len((specs(rows) or "").encode())
    if size > FOLLOW_UP_BYTES:
        raise InvalidOption(
            f"then is {size:,} bytes with everything that follows, more than the limit of {FOLLOW_UP_BYTES:,}. "
            "Store the data elsewhere and pass a reference"
        )
    return rows


def _row(job: object) -> NewRow:
    if not isinstance(job, NewJob):
        raise InvalidOption(
            f"each job of then must be what task.job(...) returns, not {shown(job)}. Write then=[send_receipt.job(1)]"
        )
    if job.conn is not None:
        raise InvalidOption(
            f"a follow-up of {job.task} was made with using(conn=...): it is enqueued when the job before it completes. "
            "Leave conn out"
        )
    if job.row.parent is not None:
        raise InvalidOption(
            f"a follow-up of {job.task} was made with using(parent=...): its parent is the job that it follows. "
            "Leave parent out"
        )
    return job.row


def _levels(row: NewRow) -> int:
    return 1 + max(map(_levels, row.follow_ups), default=0)


def parent(value: object) -> UUID:
    """`parent=`: the job, its handle or its id."""
    found = value.id if isinstance(value, Job | JobHandle) else value
    if not isinstance(found, UUID):
        raise InvalidOption(f"parent must be a job, its handle or its id (a UUID), not {shown(value)}")
    return found
