"""The last guard around a slot, and what is around a handler: backoffs, upgrades, models, items, odd callables."""

import asyncio
import functools
import sys
from collections.abc import Callable, Generator
from typing import Any

import pytest
from pydantic import BaseModel, field_validator
from tests.conftest import QUICK

from holdfast import Backoff, Batch, Holdfast, Job, Snooze, TaskDefinitionError
from holdfast.runtime.batch.handler_call import call_handler
from holdfast.runtime.execute import Executor
from holdfast.runtime.inflight import Running
from holdfast.runtime.threads import Threads
from holdfast.testing import Kit

HOUR = Backoff(first=3600, jitter=False)


class Mistake(BaseException):
    """One of the engine's own, which no handler raised."""


@pytest.mark.parametrize("form", ["alone", "batch", "batch-each"])
def test_a_mistake_of_the_engine_frees_the_slot_and_settles_the_job(
    holdfast_kit: Callable[..., Kit], monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    async def passes(job: Job, call_next: Any) -> Any:
        return await call_next()

    app = Holdfast("postgresql://unused.invalid/none", middleware=[passes] if form == "batch-each" else [])
    kit = holdfast_kit(app, QUICK)
    if form == "alone":

        @app.task(name="bad")
        async def bad(item: int) -> None: ...

    else:

        @app.batch_task(name="bad", size=1, wait="1ms")
        async def bad_batch(batch: Batch[int]) -> None: ...

    @app.task
    async def after() -> str:
        return "alive"

    right = Executor.prepare

    def prepare(self: Executor, running: Running) -> Any:
        if running.claimed.task == "bad":
            raise Mistake("ours")
        return right(self, running)

    monkeypatch.setattr(Executor, "prepare", prepare)
    job = app.send("bad", {"item": 1}).id
    later = after.enqueue()
    kit.run_worker(concurrency=1)
    row = kit.job(job)
    assert (row["status"], row["attempts"], row["last_error"]) == ("scheduled", 1, "Mistake: ours")
    assert later.result(timeout=5) == "alive"


def test_a_signal_with_a_wrong_argument_waits_as_its_task_says(app: Holdfast, kit: Kit) -> None:
    """It is a failure of the handler, not a mistake of the engine, which would be tried again within seconds."""

    @app.task(retry=HOUR)
    async def snooze() -> None:
        raise Snooze("soon")

    job = snooze.enqueue()
    kit.run_worker()
    (waits,) = kit.sql(
        "SELECT extract(epoch FROM available_at - holdfast.now()) AS seconds FROM holdfast.work"
    )
    assert waits["seconds"] > 3000
    assert "Snooze(after=)" in kit.job(job.id)["last_error"]


@pytest.mark.parametrize("form", ["alone", "batch"])
def test_a_job_whose_task_is_cancelled_before_it_begins_is_given_back(
    holdfast_kit: Callable[..., Kit], form: str
) -> None:
    """Where tasks do not begin at once, somebody may cancel one in between. No code of its own has run then."""
    met: list[asyncio.Task[Any]] = []

    def cancel_the_others() -> None:
        if not met:
            met.extend(t for t in asyncio.all_tasks() if t.get_name().startswith("job "))
            for task in met:
                if task is not asyncio.current_task():
                    task.cancel()

    async def layer(job: Job, call_next: Any) -> Any:
        cancel_the_others()
        return await call_next()

    app = Holdfast("postgresql://unused.invalid/none", middleware=[layer])
    kit = holdfast_kit(app, QUICK)

    if form == "alone":

        @app.task(name="one")
        async def one(item: int) -> None: ...

    else:

        @app.batch_task(name="one", size=3, wait="1ms")
        async def one_batch(batch: Batch[int]) -> None: ...

    jobs = [app.send("one", {"item": n}).id for n in range(3)]
    kit.run_worker(concurrency=3)
    assert [kit.job(job)["status"] for job in jobs] == ["completed"] * 3
    assert [kit.job(job)["attempts"] for job in jobs] == [1] * 3, "being given back spends no attempt"
    assert len(met) == 3 or (sys.version_info >= (3, 12) and form == "alone")


@pytest.mark.parametrize("delay", ["raises", "soon", float("nan"), -1, None, 10**400, "1h"])
def test_a_backoff_of_the_users_own_may_be_wrong(app: Holdfast, kit: Kit, delay: Any) -> None:
    class Own(Backoff):
        def delay(self, attempt: int, random_: Any = None) -> Any:
            if delay == "raises":
                raise KeyboardInterrupt
            return delay

    @app.task(retry=Own(), max_attempts=1)
    async def fails() -> None:
        raise ValueError("wrong")

    job = fails.enqueue().id
    kit.run_worker(concurrency=1)
    row = kit.job(job)
    assert (row["status"], row["last_error"]) == ("dead_letter", "ValueError: wrong")


def test_a_payload_may_end_a_job_in_any_way_too(app: Holdfast, kit: Kit) -> None:
    class Order(BaseModel):
        number: int

        @field_validator("number")
        @classmethod
        def leave(cls, number: int) -> int:
            raise SystemExit("not in this validator")

    def upgrade(payload: dict[str, Any]) -> dict[str, Any]:
        raise KeyboardInterrupt

    @app.task
    async def ship(order: Order) -> None: ...

    @app.task(version=2, upgrade={1: upgrade})
    async def bill(number: int) -> None: ...

    app.send("ship", {"order": {"number": 1}})
    kit.sql("SELECT holdfast.enqueue('bill', '{\"number\": 1}')")
    kit.run_worker(concurrency=1)
    rows = {row["task"]: (row["status"], row["attempts"]) for row in kit.jobs()}
    assert rows == {"ship": ("held", 0), "bill": ("held", 0)}, "they wait for a signature that fits"
    reasons = {
        row["task"]: row["reason"]
        for row in kit.sql(
            "SELECT w.task, m.reason FROM holdfast.misfits m JOIN holdfast.work w ON w.id = m.job_id"
        )
    }
    assert reasons == {"ship": "SystemExit: not in this validator", "bill": "KeyboardInterrupt"}


def test_a_wrong_argument_for_one_item_fails_that_item(app: Holdfast, kit: Kit) -> None:
    class Mute:
        def __str__(self) -> str:
            raise RuntimeError("no words")

    @app.batch_task(size=5, wait="1ms", retry=HOUR)
    async def sort(batch: Batch[str]) -> None:
        wrong: Any = Mute()
        for item in batch:
            match item.value:
                case "snooze":
                    item.snooze("soon")
                case "retry":
                    item.retry(after=10**400)
                case "dead":
                    item.dead_letter(wrong)
                case "fail":
                    item.fail(wrong)

    app.enqueue_many(sort.job(word) for word in ("snooze", "retry", "dead", "fail", "fine"))
    kit.run_worker(concurrency=1)
    rows = {row["payload"]["item"]: (row["status"], row["last_error"]) for row in kit.jobs()}
    assert rows["snooze"] == (
        "scheduled",
        """ValueError: Snooze(after=) must be a duration like "90s", "15m" or "1h30m", not 'soon'""",
    )
    assert rows["retry"][1].startswith(
        "ValueError: Retry(after=) must be a finite number of at least 0 seconds"
    )
    assert rows["dead"] == (
        "dead_letter",
        "DeadLetter: <DeadLetter(reason=) has no text: __str__ raised RuntimeError>",
    )
    assert rows["fail"] == (
        "scheduled",
        "Failed: <item.fail(error) has no text: __str__ raised RuntimeError>",
    )
    assert rows["fine"] == ("completed", None)


async def test_a_batch_call_that_raises_asks_the_error_nothing(app: Holdfast) -> None:
    """Whatever its attributes raise would pass by every job of the batch, and end the event loop."""
    asked: list[str] = []

    class Curious(Exception):
        def __getattribute__(self, name: str) -> Any:
            asked.append(name)
            return super().__getattribute__(name)

    @app.batch_task(name="sort", timeout="10m")
    async def sort(batch: Batch[str]) -> None:
        raise Curious

    handler = app.tasks.find("sort", 1)
    assert handler is not None
    assert callable(await call_handler(Batch([]), handler, Threads()))
    assert asked == []


# Handlers that are odd ----------------------------------------------------------------------------------------------


class Yields:
    """Awaited, it gives the event loop something that is no future."""

    def __init__(self, what: object) -> None:
        self.what = what

    def __await__(self) -> Generator[Any, Any, None]:
        yield self.what


class AsyncCallable:
    __name__ = "async_callable"

    async def __call__(self) -> int:
        return 1


class Method:
    async def run(self) -> int:
        return 1

    def plain(self) -> int:
        return 1


async def _one(n: int = 1) -> int:
    return n


def _wrapped(func: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    return call


async def cancels_itself() -> int:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    return 1


async def cancels_itself_and_waits() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


async def yields_a_number() -> None:
    await Yields(7)


async def yields_a_future_of_another_loop() -> None:
    loop = asyncio.new_event_loop()
    try:
        await Yields(loop.create_future())
    finally:
        loop.close()


async def awaits_itself() -> None:
    task: Any = asyncio.current_task()
    await task


async def leaves_a_failing_task() -> int:
    async def fail() -> None:
        raise ValueError("left")

    task = asyncio.create_task(fail())
    await asyncio.wait([task])
    assert task.exception() is not None
    return 1


ODD: dict[str, Callable[..., Any]] = {
    "a callable object": AsyncCallable(),
    "a bound method": Method().run,
    "a plain bound method": Method().plain,
    "a partial": functools.partial(_one, 3),
    "a wrapper": _wrapped(_one),
    "a cached function": functools.lru_cache(lambda: 1),
    "a class": Method,
    "a builtin": dict,
    "a lambda": lambda: 1,
    **{
        f.__name__: f
        for f in (
            cancels_itself,
            cancels_itself_and_waits,
            yields_a_number,
            yields_a_future_of_another_loop,
            awaits_itself,
            leaves_a_failing_task,
        )
    },
}


@pytest.mark.filterwarnings("ignore:coroutine")
def test_a_handler_that_is_odd_is_refused_or_ends(app: Holdfast, kit: Kit) -> None:
    declared = {}
    for n, (name, func) in enumerate(ODD.items()):
        try:
            declared[name] = app.task(name=f"odd{n}", max_attempts=2, retry=HOUR)(func)
        except TaskDefinitionError:
            continue

    @app.task
    async def after() -> str:
        return "alive"

    jobs = {name: task.enqueue().id for name, task in declared.items()}
    later = after.enqueue()
    kit.run_worker(concurrency=1)
    assert later.result(timeout=5) == "alive"
    ends = {name: (kit.job(job)["status"], kit.job(job)["attempts"]) for name, job in jobs.items()}
    assert set(ends.values()) == {("completed", 1), ("scheduled", 1)}, ends
    assert ends["cancels_itself"] == ("completed", 1)
    for name in ("cancels_itself_and_waits", "yields_a_number", "awaits_itself"):
        assert ends[name] == ("scheduled", 1), name
