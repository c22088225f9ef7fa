"""Batch tasks: one call for many jobs, an outcome for each, and what gathers is held like any other job."""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from pydantic import BaseModel
from tests.conftest import QUICK, await_until
from typing_extensions import TypedDict  # pydantic wants this one below 3.12

from holdfast import (
    Backoff,
    Batch,
    Cancel,
    DeadLetter,
    Holdfast,
    InvalidArguments,
    Job,
    Next,
    Outcome,
    Registry,
    Retry,
    Snooze,
    TaskDefinitionError,
    Transaction,
    telemetry,
)
from holdfast.model.outcome import Cancelled
from holdfast.operate.job_acts import cancel_verb
from holdfast.operate.operator import Operator
from holdfast.testing import Kit

Events = list[telemetry.Event]
LATER = Backoff(first=100, jitter=False)
# Jobs with middleware around them have a task each and meet in the call; without, all of them are in the call's task.
BOTH_WAYS = pytest.mark.parametrize("app", ["together", "each"], indirect=True)


async def passes(job: Job, call_next: Next) -> Outcome:
    return await call_next()


@pytest.fixture
def app(request: pytest.FixtureRequest) -> Holdfast:
    each = getattr(request, "param", "together") == "each"
    return Holdfast("postgresql://unused.invalid/none", middleware=[passes] if each else [])


@contextlib.asynccontextmanager
async def working(kit: Kit, **options: Any) -> AsyncIterator["asyncio.Task[None]"]:
    """A worker that runs until the block ends."""
    worker = asyncio.create_task(kit.arun_worker(until_idle=False, **options))
    try:
        yield worker
    finally:
        worker.cancel()
        await asyncio.wait([worker])
    with contextlib.suppress(asyncio.CancelledError):
        worker.result()


def states(kit: Kit) -> list[str]:
    return [row["status"] for row in kit.jobs()]


@dataclass
class Doc:
    doc_id: int
    title: str = ""


class Model(BaseModel):
    doc_id: int


class Typed(TypedDict):
    doc_id: int


# One call for many ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [1, 10])
def test_a_hundred_jobs_are_one_call_whatever_the_concurrency(
    app: Holdfast, kit: Kit, concurrency: int
) -> None:
    calls: list[list[Doc]] = []

    @app.batch_task(size=100, wait=30)
    async def index(batch: Batch[Doc]) -> None:
        calls.append(batch.values)

    docs = [Doc(n, f"title {n}") for n in range(100)]
    app.enqueue_many(index.job(doc) for doc in docs)
    kit.run_worker(concurrency=concurrency)
    assert calls == [docs]
    assert states(kit) == ["completed"] * 100


def test_a_sync_handler_is_called_in_a_thread(app: Holdfast, kit: Kit) -> None:
    threads: list[str] = []

    @app.batch_task(size=10)
    def index(batch: Batch[int]) -> None:
        threads.append(threading.current_thread().name)

    app.enqueue_many(index.job(n) for n in range(10))
    kit.run_worker()
    assert len(threads) == 1
    assert threads[0].startswith("holdfast-handler")
    assert states(kit) == ["completed"] * 10


async def test_a_batch_that_does_not_fill_goes_after_its_wait(app: Holdfast, akit: Kit) -> None:
    calls: list[list[int]] = []

    @app.batch_task(size=100, wait=0.3)
    async def index(batch: Batch[int]) -> None:
        calls.append(batch.values)

    async with working(akit):
        first = await index.aenqueue(1)
        await await_until(lambda: akit.job(first.id)["status"] == "processing", "it gathers")
        second = await index.aenqueue(2)
        await await_until(lambda: akit.job(second.id)["status"] == "completed", "the batch goes")
    assert [n for call in calls for n in call] == [1, 2]


def test_jobs_of_batches_that_wait_for_a_slot_are_counted_as_ahead(
    app: Holdfast, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However quick the calls are: what waits here dies with the worker."""
    monkeypatch.setattr("holdfast.runtime.slots.Slots._MOST_AHEAD", 100)
    held: list[int] = []

    @app.batch_task(size=10, wait=30)
    async def index(batch: Batch[int]) -> None:
        held.append(kit.sql("SELECT count(*) AS n FROM holdfast.work WHERE status = 'processing'")[0]["n"])

    app.enqueue_many(index.job(n) for n in range(1000))
    kit.run_worker(concurrency=1)
    assert sum(n > 0 for n in held) == 100
    assert max(held) <= 100 + 2 * 10 + 100, (
        "100 ahead, those in the slot and in an open batch, and some unsettled"
    )


async def test_what_gathers_takes_no_slot(app: Holdfast, akit: Kit) -> None:
    @app.batch_task(size=100, wait=60)
    async def index(batch: Batch[int]) -> None: ...

    @app.task
    async def other() -> None: ...

    async with working(akit, concurrency=1):
        gathering = await index.aenqueue(1)
        await await_until(lambda: akit.job(gathering.id)["status"] == "processing", "it gathers")
        for _ in range(3):
            job = await other.aenqueue()
            await await_until(lambda: akit.job(job.id)["status"] == "completed", "the others run")  # noqa: B023
        assert akit.job(gathering.id)["status"] == "processing"
    assert akit.job(gathering.id)["status"] == "pending"


def test_a_batch_takes_one_slot(app: Holdfast, kit: Kit) -> None:
    running: list[int] = []
    most: list[int] = []

    @app.batch_task(size=5, wait=30)
    async def index(batch: Batch[int]) -> None:
        running.append(1)
        await asyncio.sleep(0.02)
        most.append(len(running))
        running.pop()

    app.enqueue_many(index.job(n) for n in range(40))
    kit.run_worker(concurrency=2)
    assert len(most) == 8
    assert max(most) == 2


def test_tasks_and_versions_do_not_mix(app: Holdfast, kit: Kit) -> None:
    calls: list[tuple[str, list[int]]] = []

    @app.batch_task(size=100, wait=30, version=2, upgrade={1: lambda old: {"item": old["item"] + 100}})
    async def index(batch: Batch[int]) -> None:
        calls.append(("index", batch.values))

    @app.batch_task(size=100, wait=30)
    async def other(batch: Batch[int]) -> None:
        calls.append(("other", batch.values))

    for n in range(3):
        index.enqueue(n)
        other.enqueue(n)
        kit.sql("SELECT holdfast.enqueue('index', jsonb_build_object('item', %s::int), version => 1)", [n])
    kit.run_worker()
    assert sorted(calls) == [("index", [0, 1, 2]), ("index", [100, 101, 102]), ("other", [0, 1, 2])]


def test_items_are_typed_values(app: Holdfast, kit: Kit) -> None:
    seen: list[object] = []

    @app.batch_task(size=1)
    async def docs(batch: Batch[Doc]) -> None:
        seen.extend(batch.values)

    @app.batch_task(size=1)
    async def models(batch: Batch[Model]) -> None:
        seen.extend(batch.values)

    @app.batch_task(size=1)
    async def typed(batch: Batch[Typed]) -> None:
        seen.extend(batch.values)

    @app.batch_task(size=1)
    async def anything(batch: Batch) -> None:  # type: ignore[type-arg]
        seen.extend(batch.values)

    docs.enqueue(Doc(1))
    models.enqueue(Model(doc_id=2))
    typed.enqueue({"doc_id": 3})
    app.send("anything", {"item": [4]})
    kit.run_worker(concurrency=1)
    assert sorted(map(str, seen)) == sorted(map(str, [Doc(1), Model(doc_id=2), {"doc_id": 3}, [4]]))
    kit.assert_not_enqueued(docs, item=Doc(1))
    with pytest.raises(InvalidArguments, match="argument 'item' of docs must be"):
        docs.enqueue("x")  # type: ignore[arg-type]


# Outcomes ----------------------------------------------------------------------------------------------------------


@BOTH_WAYS
def test_each_job_ends_as_its_item_says(app: Holdfast, kit: Kit) -> None:
    @app.batch_task(size=8, wait=30, retry=LATER, max_attempts=2)
    async def index(batch: Batch[str]) -> None:
        items = {item.value: item for item in batch}
        items["complete"].complete({"pages": 3})
        items["fail"].fail("it is broken")
        try:
            raise KeyError("title")
        except KeyError as error:
            items["error"].fail(error)
        items["retry"].retry("busy", after=7)
        items["snooze"].snooze(50)
        items["dead"].dead_letter("never")
        items["cancel"].cancel("not needed")

    names = ["complete", "fail", "error", "retry", "snooze", "dead", "cancel", "nothing"]
    handles = {name: index.enqueue(name) for name in names}
    kit.run_worker()
    rows = {name: kit.job(handle.id) for name, handle in handles.items()}
    found = {name: (row["status"], row["attempts"], row["last_error"]) for name, row in rows.items()}
    assert found == {
        "complete": ("completed", 1, None),
        "fail": ("scheduled", 1, "Failed: it is broken"),
        "error": ("scheduled", 1, "KeyError: 'title'"),
        "retry": ("scheduled", 1, "Retry: busy"),
        "snooze": ("scheduled", 0, None),
        "dead": ("dead_letter", 1, "DeadLetter: never"),
        "cancel": ("cancelled", 1, "not needed"),
        "nothing": ("completed", 1, None),
    }
    assert handles["complete"].result(0) == {"pages": 3}
    (trace,) = kit.sql("SELECT trace FROM holdfast.errors WHERE kind = 'KeyError'")
    assert 'raise KeyError("title")' in trace["trace"]


@BOTH_WAYS
def test_an_error_of_the_call_fails_every_job_without_an_outcome_by_its_own_attempts(
    app: Holdfast, kit: Kit
) -> None:
    @app.batch_task(size=3, wait=30, retry=LATER)
    async def index(batch: Batch[int]) -> None:
        batch[0].complete("kept")
        raise ValueError("the index is down")

    first = index.enqueue(1)
    second = index.enqueue(2)
    last = index.using(max_attempts=1).enqueue(3)
    kit.run_worker()
    assert first.result(0) == "kept"
    row = kit.job(second.id)
    assert (row["status"], row["attempts"], row["last_error"]) == (
        "scheduled",
        1,
        "ValueError: the index is down",
    )
    assert kit.job(last.id)["status"] == "dead_letter"


@pytest.mark.parametrize(
    ("signal", "state", "attempts"),
    [
        (Retry("again", after=50), "scheduled", 1),
        (Snooze(50), "scheduled", 0),
        (DeadLetter("never"), "dead_letter", 1),
        (Cancel("no"), "cancelled", 1),
    ],
)
def test_a_signal_of_the_call_is_for_every_job_without_an_outcome(
    app: Holdfast, kit: Kit, signal: BaseException, state: str, attempts: int
) -> None:
    @app.batch_task(size=3, wait=30)
    def index(batch: Batch[int]) -> None:
        batch[2].complete()
        raise signal

    app.enqueue_many(index.job(n) for n in range(3))
    kit.run_worker()
    assert [(row["status"], row["attempts"]) for row in kit.jobs()] == [(state, attempts)] * 2 + [
        ("completed", 1)
    ]


def test_what_is_said_last_counts(app: Holdfast, kit: Kit) -> None:
    @app.batch_task(size=1)
    async def index(batch: Batch[int]) -> None:
        batch[0].dead_letter("no")
        batch[0].complete("yes")

    job = index.enqueue(1)
    kit.run_worker()
    assert job.result(0) == "yes"


@BOTH_WAYS
def test_a_payload_that_does_not_fit_is_not_in_the_batch(app: Holdfast, kit: Kit) -> None:
    calls: list[list[int]] = []

    @app.batch_task(size=3, wait=30)
    async def index(batch: Batch[int]) -> None:
        calls.append(batch.values)

    index.enqueue(1)
    app.send("index", {"item": "not a number"})
    index.enqueue(2)
    kit.run_worker()
    assert calls == [[1, 2]]
    assert states(kit) == ["completed", "held", "completed"]


@BOTH_WAYS
@pytest.mark.parametrize("is_async", [True, False])
def test_the_timeout_is_for_the_call(app: Holdfast, kit: Kit, is_async: bool) -> None:
    release = threading.Event()
    if is_async:

        @app.batch_task(size=2, wait=30, timeout=0.1, retry=LATER)
        async def index(batch: Batch[int]) -> None:
            batch[0].complete("in time")
            await asyncio.sleep(60)
    else:

        @app.batch_task(size=2, wait=30, timeout=0.1, retry=LATER, name="index")
        def blocking(batch: Batch[int]) -> None:
            batch[0].complete("in time")
            release.wait(100)

    app.enqueue_many([app_job(app, 1), app_job(app, 2)])
    kit.run_worker()
    release.set()
    assert [(row["status"], row["last_error"]) for row in kit.jobs()] == [
        ("completed", None),
        ("scheduled", "JobTimeout: ran longer than its timeout of 0.1 s"),
    ]


def app_job(app: Holdfast, n: int) -> Any:
    return app._raw("index", {"item": n}, {})


@BOTH_WAYS
def test_a_result_by_return_is_refused(app: Holdfast, kit: Kit) -> None:
    @app.batch_task(size=1, max_attempts=1)
    async def index(batch: Batch[int]):  # type: ignore[no-untyped-def]
        return [1]

    job = index.enqueue(1)
    kit.run_worker()
    assert kit.job(job.id)["last_error"] == (
        "TypeError: index returned list; a batch handler returns None, and gives a job its result with "
        "item.complete(result)"
    )


def test_each_item_has_its_job(app: Holdfast, kit: Kit) -> None:
    seen: list[tuple[object, ...]] = []

    @app.batch_task(size=2, wait=30, retry=Backoff(first=0, jitter=False))
    async def index(batch: Batch[int]) -> None:
        seen.extend((i.job.id, i.job.attempt, i.job.partition_key, i.job.fence, i.value) for i in batch)
        if batch[0].job.attempt == 1:
            raise ValueError("once more")

    jobs = [index.using(partition_key=f"doc:{n}").enqueue(n) for n in range(2)]
    kit.run_worker()
    firsts, seconds = seen[:2], seen[2:]
    assert sorted((str(s[0]), s[1], s[2], s[4]) for s in firsts) == sorted(
        (str(job.id), 1, f"doc:{n}", n) for n, job in enumerate(jobs)
    )
    fences = {s[0]: str(s[3]) for s in firsts}
    assert all(str(s[3]) > fences[s[0]] for s in seconds)


# Held while it gathers, and lost -----------------------------------------------------------------------------------


async def test_a_drain_hands_back_what_gathers_without_spending_an_attempt(app: Holdfast, akit: Kit) -> None:
    calls: list[int] = []

    @app.batch_task(size=100, wait=60)
    async def index(batch: Batch[int]) -> None:
        calls.append(len(batch))

    jobs = await app.aenqueue_many(index.job(n) for n in range(5))
    async with working(akit) as worker:
        await await_until(lambda: states(akit) == ["processing"] * 5, "they gather")
        Operator(akit.database, "ann").drain_workers(everyone=True)
        await asyncio.wait([worker], timeout=50)
        assert worker.done()
    assert calls == []
    assert [(akit.job(j.id)["status"], akit.job(j.id)["attempts"]) for j in jobs] == [("pending", 0)] * 5


async def test_what_gathers_keeps_its_lease(app: Holdfast, akit: Kit) -> None:
    @app.batch_task(size=100, wait=60)
    async def index(batch: Batch[int]) -> None: ...

    job = await index.aenqueue(1)
    async with working(akit):
        await await_until(lambda: akit.job(job.id)["status"] == "processing", "it gathers")
        before = akit.job(job.id)["lease_expires_at"]
        await await_until(lambda: akit.job(job.id)["lease_expires_at"] > before, "it is renewed")
        assert akit.job(job.id)["lease_generation"] == 1


async def test_a_job_that_is_cancelled_while_it_gathers_leaves_the_batch(app: Holdfast, akit: Kit) -> None:
    @app.batch_task(size=100, wait=60)
    async def index(batch: Batch[int]) -> None: ...

    one, two = await app.aenqueue_many(index.job(n) for n in range(2))
    async with working(akit):
        await await_until(lambda: states(akit) == ["processing"] * 2, "they gather")
        akit.sql("UPDATE holdfast.work SET cancel_requested_at = now() WHERE id = %s", [one.id])
        await await_until(lambda: akit.job(one.id)["status"] == "cancelled", "it leaves at once")
        assert akit.job(two.id)["status"] == "processing"


async def test_a_job_that_is_lost_while_it_gathers_is_not_in_the_call(
    app: Holdfast, akit: Kit, events: Events
) -> None:
    calls: list[list[int]] = []

    @app.batch_task(size=3, wait=60)
    async def index(batch: Batch[int]) -> None:
        calls.append(batch.values)

    one, _ = await app.aenqueue_many(index.job(n) for n in range(2))
    async with working(akit):
        await await_until(lambda: states(akit) == ["processing"] * 2, "they gather")
        # Nobody's token: what another owner would have left, without one that runs it.
        akit.sql("UPDATE holdfast.work SET claim_token = gen_random_uuid() WHERE id = %s", [one.id])
        await await_until(lambda: any(e.name == "job.lost" for e in events), "the worker learns it")
        await app.aenqueue_many(index.job(n) for n in (2, 3))
        await await_until(lambda: calls, "the batch fills without it")
    assert calls == [[1, 2, 3]]


@BOTH_WAYS
async def test_one_that_is_lost_or_cancelled_in_the_call_ends_by_itself_and_the_others_go_on(
    app: Holdfast, akit: Kit, events: Events
) -> None:
    began, gate = asyncio.Event(), asyncio.Event()
    told: list[tuple[int, str]] = []

    @app.batch_task(size=3, wait=60)
    async def index(batch: Batch[int]) -> None:
        began.set()
        await gate.wait()
        for item in batch:
            try:
                item.job.check()
            except BaseException as error:
                told.append((item.value, type(error).__name__))

    lost, cancelled, kept = await app.aenqueue_many(index.job(n) for n in range(3))
    async with working(akit):
        await await_until(began.is_set, "they run")
        akit.sql("UPDATE holdfast.work SET claim_token = gen_random_uuid() WHERE id = %s", [lost.id])
        akit.sql("UPDATE holdfast.work SET cancel_requested_at = now() WHERE id = %s", [cancelled.id])
        await await_until(lambda: akit.job(cancelled.id)["status"] == "cancelled", "the cancelled one ends")
        await await_until(
            lambda: [e.fields["job"] for e in events if e.name == "job.lost"] == [lost.id], "and the lost one"
        )
        assert akit.job(kept.id)["status"] == "processing"
        gate.set()
        await await_until(lambda: akit.job(kept.id)["status"] == "completed", "the call goes on for the rest")
    assert told == [(0, "LeaseLost"), (1, "Cancel")]
    assert akit.job(lost.id)["status"] == "processing"


@BOTH_WAYS
async def test_the_call_is_stopped_when_nobody_is_left_in_it(app: Holdfast, akit: Kit) -> None:
    began, stopped = asyncio.Event(), asyncio.Event()

    @app.batch_task(size=2, wait=60)
    async def index(batch: Batch[int]) -> None:
        began.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.set()
            raise

    jobs = await app.aenqueue_many(index.job(n) for n in range(2))
    async with working(akit):
        await await_until(began.is_set, "they run")
        Operator(akit.database, "ann").act_on(cancel_verb(), [job.id for job in jobs])
        await await_until(stopped.is_set, "the handler is cancelled")
        await await_until(lambda: states(akit) == ["cancelled"] * 2, "both are cancelled")


@BOTH_WAYS
@pytest.mark.parametrize("which", ["lost", "cancelled"])
async def test_what_check_raises_ends_one_job_and_hands_the_others_back(
    app: Holdfast, akit: Kit, which: str
) -> None:
    rounds: list[list[int]] = []
    gate = threading.Event()

    @app.batch_task(size=2, wait=0.05)
    def index(batch: Batch[int]) -> None:
        rounds.append(batch.values)
        while len(rounds) == 1 and not gate.wait(0.02):
            for item in batch:
                item.job.check()

    one, two = await app.aenqueue_many(index.job(n) for n in range(2))
    change = "claim_token = gen_random_uuid()" if which == "lost" else "cancel_requested_at = holdfast.now()"
    async with working(akit):
        await await_until(lambda: rounds, "they run")
        akit.sql(f"UPDATE holdfast.work SET {change} WHERE id = %s", [one.id])
        await await_until(lambda: akit.job(two.id)["status"] == "completed", "the other runs again")
        gate.set()
    assert akit.job(two.id)["attempts"] == 1
    assert rounds == [[0, 1], [1]]
    assert akit.job(one.id)["status"] == ("processing" if which == "lost" else "cancelled")


@BOTH_WAYS
async def test_a_drain_that_is_over_releases_the_jobs_of_a_call(app: Holdfast, akit: Kit) -> None:
    app.database.settings = replace(QUICK, drain=0.1)
    began = asyncio.Event()

    @app.batch_task(size=2, wait=60)
    async def index(batch: Batch[int]) -> None:
        batch[0].complete("done")
        began.set()
        await asyncio.sleep(60)

    await app.aenqueue_many(index.job(n) for n in range(2))
    async with working(akit):
        await await_until(began.is_set, "they run")
    assert [(row["status"], row["attempts"]) for row in akit.jobs()] == [("completed", 1), ("pending", 0)]


async def test_a_job_that_is_asked_for_after_the_news_knows_of_it(
    app: Holdfast, akit: Kit, events: Events
) -> None:
    """Nobody is told twice: the Job of an item is made when it is asked for, and the news may have come before."""
    began, gate = asyncio.Event(), asyncio.Event()
    seen: list[tuple[bool, bool]] = []

    @app.batch_task(size=2, wait=60)
    async def index(batch: Batch[int]) -> None:
        began.set()
        await gate.wait()
        seen.extend((item.job.lost, item.job is item.job) for item in batch)

    lost, kept = await app.aenqueue_many(index.job(n) for n in range(2))
    async with working(akit):
        await await_until(began.is_set, "they run")
        akit.sql("UPDATE holdfast.work SET claim_token = gen_random_uuid() WHERE id = %s", [lost.id])
        await await_until(lambda: [e for e in events if e.name == "job.lost"], "it is lost")
        gate.set()
        await await_until(lambda: akit.job(kept.id)["status"] == "completed", "the other ends")
    assert seen == [(True, True), (False, True)]


def test_threads_of_a_handler_that_ask_for_a_job_get_the_same(
    app: Holdfast, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or one of them would never hear that it is lost."""
    made = threading.Semaphore(0)
    both = threading.Event()

    def slowly(*args: Any) -> Job:
        made.release()
        both.wait(0.2)  # the other thread may come here, if nothing keeps it out
        return Job(*args)

    monkeypatch.setattr("holdfast.runtime.lazy_job.Job", slowly)
    found: list[Job] = []

    @app.batch_task(size=1)
    def index(batch: Batch[int]) -> None:
        threads = [threading.Thread(target=lambda: found.append(batch[0].job)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    index.enqueue(1)
    kit.run_worker()
    assert made.acquire(blocking=False)
    assert not made.acquire(blocking=False), "it was made twice"
    assert found[0] is found[1]


MINE: contextvars.ContextVar[str] = contextvars.ContextVar("mine", default="nobody's")


@BOTH_WAYS
def test_what_a_batch_handler_sets_in_its_context_the_next_does_not_see(app: Holdfast, kit: Kit) -> None:
    seen: list[str] = []

    @app.batch_task(size=1)
    async def index(batch: Batch[int]) -> None:
        seen.append(MINE.get())
        MINE.set("an earlier one's")

    @app.task
    async def other() -> None:
        seen.append(MINE.get())

    app.enqueue_many([index.job(1), index.job(2), other.job(), index.job(3)])
    kit.run_worker(concurrency=1)
    assert seen == ["nobody's"] * 4


async def test_a_due_batch_without_a_slot_is_handed_back(app: Holdfast, akit: Kit) -> None:
    gate = asyncio.Event()

    @app.task(priority=1)
    async def long() -> None:
        await gate.wait()

    @app.batch_task(size=2, wait=60)
    async def index(batch: Batch[int]) -> None: ...

    blocking = await long.aenqueue()
    async with working(akit, concurrency=1):
        await await_until(lambda: akit.job(blocking.id)["status"] == "processing", "the slot is taken")
        jobs = await app.aenqueue_many(index.job(n) for n in range(2))
        await await_until(
            lambda: {akit.job(j.id)["lease_generation"] for j in jobs} != {0}, "they are claimed ahead"
        )
        await await_until(
            lambda: [akit.job(j.id)["status"] for j in jobs] == ["pending"] * 2, "and handed back"
        )
        gate.set()
        await await_until(lambda: states(akit) == ["completed"] * 3, "all run in the end")


# Suspects -----------------------------------------------------------------------------------------------------------


def test_suspects_of_a_crash_are_not_merged_with_others(app: Holdfast, kit: Kit) -> None:
    calls: list[list[int]] = []

    @app.batch_task(size=10, wait=30)
    async def index(batch: Batch[int]) -> None:
        calls.append(batch.values)

    app.enqueue_many(index.job(n) for n in range(6))
    kit.sql("UPDATE holdfast.work SET suspect = 2 WHERE (payload->>'item')::int < 2")
    kit.run_worker()
    assert sorted(calls) == [[0], [1], [2, 3, 4, 5]]
    assert states(kit) == ["completed"] * 6


# Middleware --------------------------------------------------------------------------------------------------------


def middleware_kit(holdfast_kit: Any, *middleware: Any) -> tuple[Holdfast, Kit]:
    app = Holdfast("postgresql://unused.invalid/none", middleware=middleware)
    return app, holdfast_kit(app, QUICK)


def test_middleware_is_called_for_each_job_and_sees_its_outcome(holdfast_kit: Any) -> None:
    seen: list[tuple[str, str]] = []

    async def watch(job: Job, call_next: Next) -> Outcome:
        outcome = await call_next()
        seen.append((str(job.id), type(outcome).__name__))
        return outcome

    app, kit = middleware_kit(holdfast_kit, watch)

    @app.batch_task(size=2, wait=30, retry=LATER)
    async def index(batch: Batch[int]) -> None:
        batch[1].fail("no")

    one, two = app.enqueue_many(index.job(n) for n in range(2))
    kit.run_worker()
    assert sorted(seen) == sorted([(str(one.id), "Completed"), (str(two.id), "Failed")])


def test_middleware_that_lets_no_job_through_keeps_it_out_of_the_batch(holdfast_kit: Any) -> None:
    calls: list[list[int]] = []

    async def refuse(job: Job, call_next: Next) -> Outcome:
        return Cancelled("not today") if job.partition_key == "no" else await call_next()

    app, kit = middleware_kit(holdfast_kit, refuse)

    @app.batch_task(size=3, wait=30)
    async def index(batch: Batch[int]) -> None:
        calls.append(batch.values)

    index.using(partition_key="no").enqueue(0)
    index.enqueue(1)
    index.enqueue(2)
    kit.run_worker()
    assert calls == [[1, 2]]
    assert states(kit) == ["cancelled", "completed", "completed"]


def test_middleware_that_holds_a_lock_around_the_call_costs_the_company_not_the_jobs(
    holdfast_kit: Any, monkeypatch: pytest.MonkeyPatch, events: Events
) -> None:
    monkeypatch.setattr("holdfast.runtime.batch.call._LATE", 0.1)
    lock = asyncio.Lock()
    calls: list[list[int]] = []

    async def one_at_a_time(job: Job, call_next: Next) -> Outcome:
        async with lock:
            return await call_next()

    app, kit = middleware_kit(holdfast_kit, one_at_a_time)

    @app.batch_task(size=2, wait=0.05)
    async def index(batch: Batch[int]) -> None:
        calls.append(batch.values)

    app.enqueue_many(index.job(n) for n in range(2))
    kit.run_worker()
    assert calls == [[0], [1]]
    assert [(row["status"], row["attempts"]) for row in kit.jobs()] == [("completed", 1)] * 2
    assert [e.name for e in events].count("batch.left_behind") == 1


@BOTH_WAYS
def test_log_lines_of_the_call_say_how_many_jobs_it_is_for(app: Holdfast, kit: Kit) -> None:
    seen: list[dict[str, Any]] = []

    @app.batch_task(size=2, wait=30)
    def index(batch: Batch[int]) -> None:
        seen.append(dict(telemetry.job_context.get()))

    app.enqueue_many(index.job(n) for n in range(2))
    kit.run_worker()
    assert seen[0]["batch"] == 2
    assert seen[0]["task"] == "index"
    assert "job" not in seen[0]


# Declaration -------------------------------------------------------------------------------------------------------


def refused(declare: Any, **options: Any) -> str:
    with pytest.raises(TaskDefinitionError) as caught:
        Registry().batch_task(**options)(declare)
    return str(caught.value)


def test_a_bad_declaration_is_refused_with_the_line_to_write() -> None:
    def with_job(job: Job, batch: Batch[int]) -> None: ...
    def with_transaction(tx: Transaction, batch: Batch[int]) -> None: ...
    def two(batch: Batch[int], more: int) -> None: ...
    def no_batch(items: list[int]) -> None: ...
    def returns(batch: Batch[int]) -> list[int]: ...  # type: ignore[empty-body]
    async def none() -> None: ...
    def fine(batch: Batch[int]) -> None: ...

    assert refused(with_job) == (
        "with_job takes an injected Job; each item of a batch has its own: item.job. "
        "Write: def with_job(batch: Batch[...]) -> None"
    )
    assert refused(with_transaction) == (
        "with_transaction takes an injected Transaction, which a batch does not have: its jobs are settled one by one. "
        "Write: def with_transaction(batch: Batch[...]) -> None"
    )
    assert refused(two) == (
        "two must take one parameter, the batch. Write: def two(batch: Batch[...]) -> None"
    )
    assert refused(none) == (
        "none must take one parameter, the batch. Write: async def none(batch: Batch[...]) -> None"
    )
    assert refused(no_batch) == "no_batch must take a Batch. Write: def no_batch(batch: Batch[...]) -> None"
    assert refused(returns) == (
        "returns must return None; a job gets its result from item.complete(result). "
        "Write: def returns(batch: Batch[...]) -> None"
    )
    assert refused(fine, process=True) == (
        "a batch task cannot have process=True: a child process runs one job at a time. Leave process out"
    )
    assert refused(fine, size=0) == "size must be an integer from 1 to 1000, not int 0"
    assert refused(fine, wait=0) == "wait must be more than 0 seconds, not int 0"
    assert refused(fine, wait=61) == "wait must be at most 60 seconds, not 61"
    assert "has no option 'sise'" in refused(fine, sise=1)


def test_types_that_are_not_known_yet_are_looked_up_later(app: Holdfast, kit: Kit) -> None:
    seen: list[object] = []

    @app.batch_task(size=1)
    def index(batch: "Batch[FurtherDown]") -> None:
        seen.extend(batch.values)

    index.enqueue(FurtherDown(1))
    kit.run_worker()
    assert seen == [FurtherDown(1)]


@dataclass
class FurtherDown:
    n: int


def test_a_batch_task_cannot_be_called_here_and_now() -> None:
    @Registry().batch_task()
    def index(batch: Batch[int]) -> None: ...

    with pytest.raises(TypeError) as caught:
        index.call(1)
    assert str(caught.value) == (
        "index takes a batch of jobs, which call() cannot supply. Run it with holdfast.testing"
    )


def test_a_batch_task_needs_no_parentheses(app: Holdfast, kit: Kit) -> None:
    @dataclass
    class Local:
        """Known in this function alone, and the annotation is text: the frame of the caller is looked up."""

        n: int

    seen: list[int] = []

    @app.batch_task
    async def gathered(batch: "Batch[Local]") -> None:
        seen.extend(one.n for one in batch.values)

    app.enqueue_many(gathered.job(Local(n)) for n in range(3))
    kit.run_worker()
    assert sorted(seen) == [0, 1, 2]
