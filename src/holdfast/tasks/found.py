"""FoundJob: a job looked up by its id, as it stood at one moment."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Generic, TypeVar
from uuid import UUID

from ..errors import InvalidOption, ResultError
from ..model.state import COMPLETED, FINAL
from ..runtime.handler import PayloadError
from ..store.show import Attempt, Look, Progress
from .handle import JobHandle, raw_result
from .payload import shown
from .producer import Producer

R_co = TypeVar("R_co", covariant=True)


class FoundJob(Generic[R_co]):
    """A snapshot of a job, found by its id: `job = await app.ajob(job_id)`, then `job.state`, `job.result`."""

    __slots__ = ("_decode", "_look", "_producer")

    def __init__(
        self, look: Look, producer: Producer, decode: Callable[[str | None], Any] = raw_result
    ) -> None:
        self._look = look
        self._producer = producer
        self._decode = decode

    @property
    def id(self) -> UUID:
        return self._look.id

    @property
    def task(self) -> str:
        """The name of its task."""
        return self._look.task

    @property
    def queue(self) -> str:
        return self._look.queue

    @property
    def state(self) -> str:
        """pending, scheduled, processing, held, blocked, quarantined, completed, cancelled or dead_letter."""
        return self._look.state

    @property
    def is_finished(self) -> bool:
        """It will not run again automatically: completed, cancelled or a dead letter."""
        return self._look.state in FINAL

    @property
    def attempts(self) -> int:
        """How many attempts were spent."""
        return self._look.attempts

    @property
    def created_at(self) -> datetime:
        return self._look.created_at

    @property
    def finished_at(self) -> datetime | None:
        return self._look.finished_at

    @property
    def progress(self) -> Progress | None:
        """The last job.progress() of its handler: `fraction`, `message`, `at`. None once it has completed."""
        return self._look.progress

    @property
    def result(self) -> R_co | None:
        """The handler's return value; None while the job is not completed, or if it returned nothing."""
        if self._look.state != COMPLETED:
            return None
        try:
            value: R_co = self._decode(self._look.result)
        except PayloadError as error:
            raise ResultError(f"job {self.id}: {error}") from error
        return value

    @property
    def error(self) -> str | None:
        """The last error, or why it was cancelled."""
        return self._look.error

    @property
    def errors(self) -> list[Attempt]:
        """Its failed attempts, the oldest first: `attempt`, `at`, `worker`, `kind`, `message`, `trace`."""
        return self._look.errors

    @property
    def handle(self) -> JobHandle[R_co]:
        """The handle that enqueue returned: `await job.handle.aresult(timeout=5)` waits for the result."""
        return JobHandle(
            self.id,
            created=False,
            task=self.task,
            queue=self.queue,
            producer=self._producer,
            decode=self._decode,
        )

    def cancel(self) -> bool:
        """Request cancellation; False if the job is already finished: `job.cancel()`."""
        return self._producer.cancel(self.id, self.queue)

    async def acancel(self) -> bool:
        """Request cancellation; False if the job is already finished: `await job.acancel()`."""
        return await self._producer.acancel(self.id, self.queue)

    def __repr__(self) -> str:
        return f"FoundJob({self.task} {self.id}, {self.state})"


def job_id_of(value: UUID | str) -> UUID:
    """A job's id, as such or as text."""
    if isinstance(value, UUID):
        return value
    try:
        return UUID(value)
    except (ValueError, AttributeError, TypeError):
        raise InvalidOption(f"a job is looked up by its id, a UUID, not {shown(value)}") from None
