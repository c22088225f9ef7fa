"""Task, NewJob and what enqueue asks of its producer."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from holdfast.db.transaction import AsyncTransaction, Transaction
from holdfast.errors import (
    IdempotencyConflict,
    InvalidArguments,
    InvalidOption,
    InvalidPayload,
    UnboundTask,
    UnknownQueue,
)
from holdfast.model.backoff import Backoff
from holdfast.model.job import Enqueued, JobStatus, NewRow
from holdfast.registry import Registry
from holdfast.runtime.job import Job
from holdfast.store.show import Look
from holdfast.tasks.options import task_settings
from holdfast.tasks.task import aenqueue_all, enqueue_all, raw_job
from holdfast.tasks.writer import conflict_in

JOB_ID = UUID(int=5)


class Recorder:
    """A producer that keeps what it is given and answers as told."""

    def __init__(self, *answers: Enqueued) -> None:
        self.answers = list(answers)
        self.calls: list[tuple[str, list[NewRow], object | None]] = []

    def _answer(self, verb: str, rows: Sequence[NewRow], conn: object | None) -> list[Enqueued]:
        self.calls.append((verb, list(rows), conn))
        return self.answers or [Enqueued(str(UUID(int=n)), created=True) for n in range(1, len(rows) + 1)]

    def enqueue(self, rows: Sequence[NewRow], conn: object | None) -> list[Enqueued]:
        return self._answer("enqueue", rows, conn)

    async def aenqueue(self, rows: Sequence[NewRow], conn: object | None) -> list[Enqueued]:
        return self._answer("aenqueue", rows, conn)

    def status(self, job_id: UUID, queue: str) -> JobStatus:
        return JobStatus("completed", result='"done"')

    async def astatus(self, job_id: UUID, queue: str) -> JobStatus:
        return self.status(job_id, queue)

    def look(self, job_id: UUID) -> Look | None:
        return None

    async def alook(self, job_id: UUID) -> Look | None:
        return None

    def cancel(self, job_id: UUID, queue: str) -> bool:
        return True

    async def acancel(self, job_id: UUID, queue: str) -> bool:
        return True


billing = Registry("billing")
RETRY = Backoff(first=1)


@billing.task(
    queue="mail", max_attempts=7, priority=3, version=2, upgrade={1: dict}, lease=90, timeout=60, retry=RETRY
)
async def send_receipt(job: Job, order_id: int, note: str = "") -> str:
    return f"{order_id}{note}"


@billing.task
def add(a: int, b: int = 1) -> int:
    return a + b


@billing.task
async def aadd(a: int, b: int = 1) -> int:
    return a + b


@billing.task
def sync_tx(tx: Transaction, a: int) -> None: ...


@billing.task
async def both(job: Job, tx: AsyncTransaction, a: int) -> None: ...


@pytest.fixture
def producer() -> Recorder:
    made = Recorder()
    billing._bind(made, "app")
    return made


def test_enqueue_writes_one_row(producer: Recorder) -> None:
    handle = send_receipt.enqueue(1, note="x")
    expected = NewRow(
        task="billing.send_receipt",
        payload='{"order_id":1,"note":"x"}',
        queue="mail",
        version=2,
        priority=3,
        max_attempts=7,
    )
    assert producer.calls == [("enqueue", [expected], None)]
    assert (handle.id, handle.created) == (UUID(int=1), True)
    assert handle.result() == "done"


async def test_aenqueue_writes_one_row(producer: Recorder) -> None:
    conn = object()
    handle = await send_receipt.using(conn=conn).aenqueue(order_id=1)
    verb, rows, given = producer.calls[0]
    assert (verb, rows[0].payload, given) == ("aenqueue", '{"order_id":1}', conn)
    assert await handle.aresult() == "done"


def test_using_merges_and_later_wins(producer: Recorder) -> None:
    conn = object()
    first = send_receipt.using(queue="bulk", priority=9, conn=conn, run_after=timedelta(minutes=1))
    second = first.using(
        priority=-1,
        max_attempts=2,
        partition_key="order:1",
        idempotency_key="k",
        tags=["a", "b"],
        metadata={"m": 1},
    )
    second.enqueue(order_id=1)
    first.enqueue(order_id=1)
    send_receipt.enqueue(order_id=1)
    rows = [call[1][0] for call in producer.calls]
    assert rows[0] == NewRow(
        task="billing.send_receipt",
        payload='{"order_id":1}',
        queue="bulk",
        version=2,
        partition_key="order:1",
        priority=-1,
        max_attempts=2,
        delay=60.0,
        idempotency_key="k",
        idempotency_lifetime=604_800.0,
        tags=("a", "b"),
        metadata='{"m":1}',
    )
    assert (rows[1].priority, rows[1].idempotency_key, rows[1].idempotency_lifetime) == (9, None, None)
    assert (rows[2].queue, rows[2].priority, rows[2].delay) == ("mail", 3, 0.0)
    assert [call[2] for call in producer.calls] == [conn, conn, None]


def test_run_after_is_a_delay_or_a_moment() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    assert (add.using(run_after=30).job(1).row.delay, add.using(run_after=30).job(1).row.run_at) == (
        30.0,
        None,
    )
    assert (add.using(run_after=moment).job(1).row.delay, add.using(run_after=moment).job(1).row.run_at) == (
        0.0,
        moment,
    )


def test_options_are_checked_at_using() -> None:
    with pytest.raises(InvalidOption, match="Did you mean 'priority'"):
        add.using(prioritty=1)  # type: ignore[call-arg]
    assert add.using(idempotency_key="k", idempotency_lifetime=5).job(1).row.idempotency_lifetime == 5.0
    with pytest.raises(InvalidOption) as caught:
        add.using(idempotency_lifetime=5).job(1)
    assert str(caught.value) == (
        "idempotency_lifetime needs idempotency_key. Add the key, or leave the lifetime out"
    )


def test_wrong_arguments_write_nothing(producer: Recorder) -> None:
    with pytest.raises(InvalidArguments):
        send_receipt.enqueue("1")  # type: ignore[arg-type]
    assert producer.calls == []


def test_a_task_of_no_app_says_how_to_include_it() -> None:
    registry = Registry("shop")
    odd = Registry("shop-eu")
    bare = Registry()

    def f() -> None: ...

    for owner, message in (
        (
            registry,
            (
                "task 'shop.f' belongs to Registry(\"shop\"), which no app includes. "
                "Add it: Holdfast(..., include=[shop])"
            ),
        ),
        (
            odd,
            (
                "task 'shop-eu.f' belongs to Registry(\"shop-eu\"), which no app includes. "
                "Add it: Holdfast(..., include=[...])"
            ),
        ),
        (bare, "task 'f' belongs to Registry(), which no app includes. Add it: Holdfast(..., include=[...])"),
    ):
        with pytest.raises(UnboundTask) as caught:
            owner.task(f).enqueue()
        assert str(caught.value) == message


async def test_aenqueue_of_no_app() -> None:
    registry = Registry("shop")

    @registry.task
    def f() -> None: ...

    with pytest.raises(UnboundTask):
        await f.aenqueue()


def test_a_found_job_is_not_created() -> None:
    billing._bind(Recorder(Enqueued(str(JOB_ID), created=False)), "app")
    handle = add.using(idempotency_key="k").enqueue(1)
    assert (handle.id, handle.created) == (JOB_ID, False)


def test_another_payload_under_the_same_key_is_a_conflict() -> None:
    row = send_receipt.using(idempotency_key="order:1").job(1).row
    error = conflict_in([row], [Enqueued(str(JOB_ID), created=False, conflict="payload")])
    assert isinstance(error, IdempotencyConflict)
    assert str(error) == (
        f"idempotency key 'order:1' of queue 'mail' was used by job {JOB_ID} with another payload. "
        "Use a new key for new work, or the same payload to get that job back"
    )
    assert vars(error) == {"job_id": JOB_ID, "key": "order:1", "queue": "mail"}


def test_many_jobs_are_one_call() -> None:
    producer = Recorder()
    conn = object()
    handles = enqueue_all(producer, (add.job(n) for n in range(3)), conn)
    assert [handle.id for handle in handles] == [UUID(int=1), UUID(int=2), UUID(int=3)]
    assert len(producer.calls) == 1
    assert producer.calls[0][2] is conn
    assert enqueue_all(producer, [], None) == []
    assert len(producer.calls) == 1


async def test_many_jobs_async() -> None:
    producer = Recorder()
    assert len(await aenqueue_all(producer, [add.job(1), add.job(2)], None)) == 2
    assert [call[0] for call in producer.calls] == ["aenqueue"]
    assert await aenqueue_all(producer, [], None) == []


def test_a_conflict_among_many_says_that_nothing_was_written() -> None:
    rows = [add.job(1).row, add.using(idempotency_key="k").job(1).row]
    error = conflict_in(
        rows, [Enqueued(None, created=False), Enqueued(str(JOB_ID), created=False, conflict="payload")]
    )
    assert isinstance(error, IdempotencyConflict)
    assert str(error).endswith("to get that job back. Nothing of this call of 2 jobs was written")


def test_what_is_wrong_with_a_row_comes_before_a_key_that_is_taken() -> None:
    rows = [add.using(idempotency_key="k").job(1).row, add.job(1).row]
    answers = [
        Enqueued(str(JOB_ID), created=False, conflict="payload"),
        Enqueued(None, created=False, conflict="queue"),
    ]
    assert isinstance(conflict_in(rows, answers), UnknownQueue)


def test_many_jobs_refuses_what_is_no_job() -> None:
    with pytest.raises(TypeError) as caught:
        enqueue_all(Recorder(), [add], None)  # type: ignore[arg-type]
    assert str(caught.value) == "enqueue_many takes what task.job(...) returns, not Task Task('billing.add')"


def test_many_jobs_refuses_a_conn_it_would_not_use() -> None:
    conn = object()
    job = add.using(conn=conn).job(1)
    assert len(enqueue_all(Recorder(), [job], conn)) == 1
    with pytest.raises(InvalidOption) as caught:
        enqueue_all(Recorder(), [job], None)
    assert str(caught.value) == (
        "a job of billing.add was made with using(conn=...), which enqueue_many does not read. "
        "Pass it there: enqueue_many(jobs, conn=conn)"
    )


def test_raw_jobs() -> None:
    assert raw_job("billing.x", {"a": 1}, {}).row == NewRow(task="billing.x", payload='{"a":1}')
    known = raw_job(
        "billing.x", {}, {"priority": 1, "conn": 7}, task_settings({"queue": "mail", "version": 2})
    )
    assert (known.row.queue, known.row.version, known.row.priority, known.conn) == ("mail", 2, 1, 7)
    assert known.task == "billing.x"
    assert known.decode('{"x":1}') == {"x": 1}


@pytest.mark.parametrize(
    ("task", "payload", "kind", "message"),
    [
        ("a b", {}, InvalidOption, "task must be 1 to 200 letters, digits, '_', '.' or '-', not str 'a b'"),
        (
            "a",
            [1],
            InvalidPayload,
            "payload must be a mapping of parameter names to JSON values, not list [1]",
        ),
        ("a", {1: 2}, InvalidPayload, "a key of the payload is int 1; JSON keys are strings. Use str(1)"),
    ],
)
def test_raw_jobs_are_checked(task: str, payload: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        raw_job(task, payload, {})
    assert str(caught.value) == message


async def test_call_runs_the_function() -> None:
    assert add.call(1, b=2) == 3
    assert await aadd.acall(1) == 2


async def test_call_refusals() -> None:
    with pytest.raises(TypeError) as caught:
        aadd.call(1)
    assert str(caught.value) == "billing.aadd is async. Use: await aadd.acall(...)"
    with pytest.raises(TypeError) as caught:
        await add.acall(1)
    assert str(caught.value) == "billing.add is sync. Use: add.call(...)"
    with pytest.raises(TypeError) as caught:
        sync_tx.call(1)
    assert str(caught.value) == (
        "billing.sync_tx takes an injected Transaction, which call() cannot supply. "
        "Run it with holdfast.testing, or call its func with your own"
    )
    with pytest.raises(TypeError) as caught:
        await both.acall(1)
    assert str(caught.value) == (
        "billing.both takes an injected Job and AsyncTransaction, which acall() cannot supply. "
        "Run it with holdfast.testing, or call its func with your own"
    )


def test_properties_and_repr() -> None:
    assert send_receipt.name == "billing.send_receipt"
    assert send_receipt.func.__name__ == "send_receipt"
    assert send_receipt.job(1).task == "billing.send_receipt"
    assert repr(send_receipt) == "Task('billing.send_receipt')"
    assert repr(send_receipt.job(1)) == "NewJob(billing.send_receipt in mail)"


def test_handler() -> None:
    handler = send_receipt.handler()
    assert handler.name == "billing.send_receipt"
    assert handler.versions == {1, 2}
    assert handler.func is send_receipt.func
    assert (handler.is_async, handler.wants_job, handler.transaction) == (True, True, "none")
    assert (handler.queue, handler.lease, handler.timeout, handler.backoff) == ("mail", 90.0, 60.0, RETRY)
    assert handler.decode(1, '{"order_id":1}') == {"order_id": 1}
    assert handler.encode("x") == '"x"'
    assert sync_tx.handler().transaction == "sync"
    assert both.handler().transaction == "async"
