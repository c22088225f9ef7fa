"""JobHandle: waiting, results, and what each end says."""

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from holdfast.errors import JobCancelled, JobFailed, ResultError, ResultExpired, ResultTimeout
from holdfast.model.job import Enqueued, JobStatus, NewRow
from holdfast.runtime.handler import PayloadError
from holdfast.store.show import Look
from holdfast.tasks.handle import JobHandle, raw_result

JOB_ID = UUID(int=9)
WAITING = JobStatus("waiting")


class Script:
    """A producer that tells the given statuses in turn; the last one stays."""

    def __init__(self, *statuses: JobStatus) -> None:
        self.statuses = list(statuses)
        self.asked = 0
        self.cancelled: list[UUID] = []

    def status(self, job_id: UUID, queue: str) -> JobStatus:
        assert job_id == JOB_ID
        self.asked += 1
        return self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]

    async def astatus(self, job_id: UUID, queue: str) -> JobStatus:
        return self.status(job_id, queue)

    def look(self, job_id: UUID) -> Look | None:
        return None

    async def alook(self, job_id: UUID) -> Look | None:
        return None

    def cancel(self, job_id: UUID, queue: str) -> bool:
        self.cancelled.append(job_id)
        return True

    async def acancel(self, job_id: UUID, queue: str) -> bool:
        self.cancelled.append(job_id)
        return False

    def enqueue(self, rows: Sequence[NewRow], conn: object | None) -> list[Enqueued]:
        raise NotImplementedError

    async def aenqueue(self, rows: Sequence[NewRow], conn: object | None) -> list[Enqueued]:
        raise NotImplementedError


class Clock:
    """Moves by what is slept."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    async def asleep(self, seconds: float) -> None:
        self.sleep(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()

    class Time:
        monotonic = made.monotonic
        sleep = made.sleep

    class Asyncio:
        sleep = made.asleep

    monkeypatch.setattr("holdfast.tasks.handle.time", Time)
    monkeypatch.setattr("holdfast.tasks.handle.asyncio", Asyncio)
    return made


def handle(producer: Script, decode: Callable[[str | None], Any] = raw_result) -> JobHandle[Any]:
    return JobHandle(JOB_ID, created=True, task="billing.f", queue="inbox", producer=producer, decode=decode)


async def both_ways(make: Callable[[], JobHandle[Any]], timeout: float | timedelta | None) -> list[Any]:
    """What result and aresult give: a value, or the error."""
    ends: list[Any] = []
    for verb in (JobHandle.result, JobHandle.aresult):
        try:
            got = verb(make(), timeout)
            ends.append(await got if asyncio.iscoroutine(got) else got)
        except ResultError as error:
            ends.append(error)
    return ends


async def test_waits_for_the_result(clock: Clock) -> None:
    done = JobStatus("completed", result='{"a":1}')
    assert await both_ways(lambda: handle(Script(WAITING, WAITING, done)), 5) == [{"a": 1}] * 2
    assert clock.slept == pytest.approx([0.02, 0.03] * 2)


async def test_no_result_is_none() -> None:
    assert await both_ways(lambda: handle(Script(JobStatus("completed"))), None) == [None, None]


async def test_pauses_grow_to_one_second_and_end_at_the_deadline(clock: Clock) -> None:
    script = Script(WAITING)
    with pytest.raises(ResultTimeout):
        handle(script).result(timeout=timedelta(seconds=10))
    assert clock.slept[:2] == pytest.approx([0.02, 0.03])
    assert max(clock.slept) == 1.0
    assert clock.now == pytest.approx(1010.0)
    assert script.asked == len(clock.slept) + 1


async def test_no_timeout_waits_on(clock: Clock) -> None:
    statuses = [WAITING] * 5000 + [JobStatus("completed", result="1")]
    assert await both_ways(lambda: handle(Script(*statuses)), None) == [1, 1]
    assert clock.now > 9000


async def test_zero_timeout_asks_once(clock: Clock) -> None:
    script = Script(WAITING)
    with pytest.raises(ResultTimeout):
        handle(script).result(0)
    assert (script.asked, clock.slept) == (1, [])


ENDS: list[tuple[JobStatus, type[ResultError], str]] = [
    (
        WAITING,
        ResultTimeout,
        (
            f"job {JOB_ID} (billing.f) is still waiting after 0.5 s. "
            "Is a worker running for its queue, and is the enqueue committed?"
        ),
    ),
    (JobStatus("cancelled"), JobCancelled, f"job {JOB_ID} (billing.f) was cancelled"),
    (
        JobStatus("cancelled", error="too late"),
        JobCancelled,
        f"job {JOB_ID} (billing.f) was cancelled: too late",
    ),
    (
        JobStatus("dead_letter", error="ValueError: no", attempts=5),
        JobFailed,
        f"job {JOB_ID} (billing.f) is a dead letter after 5 attempts: ValueError: no",
    ),
    (
        JobStatus("dead_letter", attempts=1),
        JobFailed,
        f"job {JOB_ID} (billing.f) is a dead letter after 1 attempt: no error recorded",
    ),
    (
        JobStatus("gone"),
        ResultExpired,
        (
            f"nothing is kept of job {JOB_ID} (billing.f): "
            "it finished longer ago than "
            "results are kept, its transaction was rolled back, or its queue or task has keep_completed=False"
        ),
    ),
]


@pytest.mark.parametrize(("status", "kind", "message"), ENDS, ids=range(len(ENDS)))
async def test_other_ends(clock: Clock, status: JobStatus, kind: type[ResultError], message: str) -> None:
    for error in await both_ways(lambda: handle(Script(status)), 0.5):
        assert type(error) is kind
        assert str(error) == message
        assert vars(error) == {"job_id": JOB_ID, "error": status.error}


async def test_a_result_that_no_longer_fits() -> None:
    def decode(text: str | None) -> Any:
        raise PayloadError("the stored result of billing.f does not fit str: not int 5")

    for error in await both_ways(lambda: handle(Script(JobStatus("completed", result="5")), decode), 1):
        assert str(error) == f"job {JOB_ID}: the stored result of billing.f does not fit str: not int 5"


def test_a_bad_timeout_is_refused_before_asking() -> None:
    script = Script(WAITING)
    with pytest.raises(ValueError, match="timeout must be a finite number of at least 0 seconds, not -1"):
        handle(script).result(-1)
    assert script.asked == 0


async def test_cancel() -> None:
    script = Script(WAITING)
    assert handle(script).cancel() is True
    assert await handle(script).acancel() is False
    assert script.cancelled == [JOB_ID, JOB_ID]


def test_properties_and_repr() -> None:
    made = handle(Script(WAITING))
    assert (made.id, made.created) == (JOB_ID, True)
    assert repr(made) == f"JobHandle(billing.f {JOB_ID}, created=True)"


async def test_aresult_leaves_the_loop_free() -> None:
    """The loop turns while a result is awaited."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(count())
    started = time.monotonic()
    with pytest.raises(ResultTimeout):
        await handle(Script(WAITING)).aresult(0.05)
    other.cancel()
    assert turns > 1
    assert time.monotonic() - started < 5


def test_names_of_other_libraries_say_what_to_write() -> None:
    handle: Any = JobHandle(JOB_ID, created=True, task="t", queue="inbox", producer=Script(WAITING))
    with pytest.raises(AttributeError, match=r"no get\. To wait for the result: handle\.result\(timeout=5\)"):
        _ = handle.get
    with pytest.raises(
        AttributeError, match=r"no status\. Read a snapshot of the job: app\.job\(handle\.id\)"
    ):
        _ = handle.status
    with pytest.raises(AttributeError, match="'JobHandle' object has no attribute 'colour'"):
        _ = handle.colour
