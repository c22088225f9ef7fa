"""JobHandle: what enqueue returns. It knows the job's id and asks the database for the rest."""

import asyncio
import json
import math
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import UUID

from ..errors import JobCancelled, JobFailed, ResultError, ResultExpired, ResultTimeout
from ..model.duration import Duration, seconds
from ..model.job import JobStatus
from ..model.state import CANCELLED, COMPLETED, DEAD_LETTER, WAITING
from ..runtime.handler import PayloadError
from .producer import Producer

R_co = TypeVar("R_co", covariant=True)

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0
_SNAPSHOT = "Read a snapshot of the job: app.job(handle.id), or await app.ajob(handle.id)"
_WAIT = "To wait for the result: handle.result(timeout=5), or in async code: await handle.aresult(timeout=5)"
_ELSEWHERE = {  # how other libraries call it
    **dict.fromkeys(("get", "wait", "join", "return_value"), _WAIT),
    **dict.fromkeys(("state", "status", "ready", "successful", "failed", "refresh", "get_status"), _SNAPSHOT),
    "revoke": "To cancel the job: handle.cancel()",
}


def raw_result(text: str | None) -> Any:
    """A result without a handler's types: plain JSON."""
    return None if text is None else json.loads(text)


class JobHandle(Generic[R_co]):
    """A job that was enqueued: `handle = send_receipt.enqueue(order_id=1); handle.result(timeout=5)`."""

    __slots__ = ("_created", "_decode", "_id", "_producer", "_queue", "_task")

    def __init__(
        self,
        job_id: UUID,
        *,
        created: bool,
        task: str,
        queue: str,
        producer: Producer,
        decode: Callable[[str | None], Any] = raw_result,
    ) -> None:
        self._id: UUID | str = job_id  # or its text, until it is asked for
        self._created = created
        self._task = task
        self._queue = queue
        self._producer = producer
        self._decode = decode

    @property
    def id(self) -> UUID:
        """The job's id, the same in every attempt."""
        if isinstance(self._id, str):
            self._id = UUID(self._id)
        return self._id

    @property
    def created(self) -> bool:
        """False if a job with the same idempotency key existed, or one waited under the same replace key."""
        return self._created

    def result(self, timeout: Duration | None = None) -> R_co:
        """Wait for the job and return its result: `handle.result(timeout=5)`.

        Raises JobFailed, JobCancelled, ResultTimeout or ResultExpired. Inside the transaction that enqueued the job it waits
        in vain: no worker sees the job before the commit.
        """
        pauses = growing_pauses(timeout)
        while (status := self._producer.status(self.id, self._queue)).state == WAITING:
            pause = next(pauses, None)
            if pause is None:
                raise self._late(timeout, status)
            time.sleep(pause)
        return self._value(status)

    async def aresult(self, timeout: Duration | None = None) -> R_co:
        """Wait for the job and return its result: `await handle.aresult(timeout=5)`."""
        pauses = growing_pauses(timeout)
        while (status := await self._producer.astatus(self.id, self._queue)).state == WAITING:
            pause = next(pauses, None)
            if pause is None:
                raise self._late(timeout, status)
            await asyncio.sleep(pause)
        return self._value(status)

    def cancel(self) -> bool:
        """Request cancellation; False if the job is already finished: `handle.cancel()`."""
        return self._producer.cancel(self.id, self._queue)

    async def acancel(self) -> bool:
        """Request cancellation; False if the job is already finished: `await handle.acancel()`."""
        return await self._producer.acancel(self.id, self._queue)

    if not TYPE_CHECKING:  # a type checker refuses it by itself

        def __getattr__(self, name):
            if name in _ELSEWHERE:
                raise AttributeError(f"the handle of a job has no {name}. {_ELSEWHERE[name]}")
            raise AttributeError(f"'JobHandle' object has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"JobHandle({self._task} {self._id}, created={self._created})"

    def _value(self, status: JobStatus) -> R_co:
        if status.state == COMPLETED:
            try:
                value: R_co = self._decode(status.result)
            except PayloadError as error:
                raise ResultError(f"job {self._id}: {error}") from error
            return value
        raise self._failure(status)

    def _failure(self, status: JobStatus) -> ResultError:
        job = f"job {self._id} ({self._task})"
        if status.state == CANCELLED:
            reason = f": {status.error}" if status.error else ""
            return self._marked(JobCancelled(f"{job} was cancelled{reason}"), status)
        if status.state == DEAD_LETTER:
            spent = "1 attempt" if status.attempts == 1 else f"{status.attempts} attempts"
            text = f"{job} is a dead letter after {spent}: {status.error or 'no error recorded'}"
            return self._marked(JobFailed(text), status)
        return self._marked(
            ResultExpired(
                f"nothing is kept of {job}: it finished longer ago than results are kept, "
                "its transaction was rolled back, or its queue or task has keep_completed=False"
            ),
            status,
        )

    def _late(self, timeout: Duration | None, status: JobStatus) -> ResultError:
        return self._marked(
            ResultTimeout(
                f"job {self._id} ({self._task}) is still {status.state} after {seconds(timeout or 0):g} s. "
                "Is a worker running for its queue, and is the enqueue committed?"
            ),
            status,
        )

    def _marked(self, error: ResultError, status: JobStatus) -> ResultError:
        error.job_id, error.error = self.id, status.error
        return error


def handle_of(
    id_text: str,
    created: bool,
    task: str,
    queue: str,
    producer: Producer,
    decode: Callable[[str | None], Any],
) -> JobHandle[Any]:
    """Of a job that was written just now. Many are made at once, and the id of most is never asked for."""
    made = JobHandle.__new__(JobHandle)
    made._id, made._created, made._task, made._queue = id_text, created, task, queue
    made._producer, made._decode = producer, decode
    return made


def growing_pauses(timeout: Duration | None) -> Iterator[float]:
    """Growing pauses until the deadline, counted from now; the last one ends on it."""
    return _until(math.inf if timeout is None else time.monotonic() + seconds(timeout, "timeout"))


def _until(deadline: float) -> Iterator[float]:
    pause = _FIRST_PAUSE
    while (left := deadline - time.monotonic()) > 0:
        yield min(pause, left)
        pause = min(pause * 1.5, _LONGEST_PAUSE)
