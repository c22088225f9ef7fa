"""Hooks: entered and left where the handler's function runs, and what becomes of an attempt when one fails."""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from holdfast import (
    AsyncTransaction,
    Batch,
    ConfigurationError,
    Event,
    Holdfast,
    HookFailed,
    Job,
    Snooze,
    SyncWorkflow,
    Transaction,
    Workflow,
)
from holdfast.runtime.around import Around
from holdfast.testing import Kit

Notes = list[tuple[str, object]]
inside: contextvars.ContextVar[str] = contextvars.ContextVar("inside", default="outside")


def here() -> object:
    """The task of an async function, the thread of a plain one."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return threading.current_thread()


@pytest.fixture
def notes(app: Holdfast) -> Notes:
    """What entered, ran and left, each with the thread or task that it did so in."""
    found: Notes = []

    @app.around
    @contextlib.contextmanager
    def noting() -> Iterator[None]:
        found.append(("enter", here()))
        token = inside.set("inside")
        try:
            yield
        finally:
            inside.reset(token)
            found.append(("exit", here()))

    return found


def assert_around(notes: Notes, calls: int = 1) -> None:
    """Each call between its enter and its exit, all three in one place."""
    assert [name for name, _ in notes] == ["enter", "ran", "exit"] * calls
    for at in range(0, len(notes), 3):
        (place,) = {id(where) for _, where in notes[at : at + 3]}
        assert place is not None


def test_around_a_sync_handler_in_its_thread(app: Holdfast, kit: Kit, notes: Notes) -> None:
    @app.task
    def ship(order_id: int) -> str:
        notes.append(("ran", here()))
        return f"{order_id} {inside.get()}"

    assert ship.using().enqueue(order_id=7).created
    kit.run_worker()
    assert_around(notes)
    assert notes[0][1] is not threading.main_thread()
    assert [row["result"] for row in kit.jobs(ship)] == ["7 inside"]


@pytest.mark.parametrize("wants_job", [False, True])
def test_around_an_async_handler_in_its_task(app: Holdfast, kit: Kit, notes: Notes, wants_job: bool) -> None:
    async def run() -> str:
        notes.append(("ran", here()))
        return inside.get()

    @app.task
    async def plain() -> str:
        return await run()

    @app.task
    async def with_job(job: Job) -> str:
        return await run()

    (with_job if wants_job else plain).enqueue()
    kit.run_worker()
    assert_around(notes)
    assert [row["result"] for row in kit.jobs()] == ["inside"]


def test_the_async_form_is_taken_around_async_handlers_alone(app: Holdfast, kit: Kit) -> None:
    found: list[str] = []

    @contextlib.contextmanager
    def plain() -> Iterator[None]:
        found.append("plain")
        yield

    @contextlib.asynccontextmanager
    async def awaited() -> AsyncIterator[None]:
        await asyncio.sleep(0)
        found.append("async")
        yield
        await asyncio.sleep(0)
        found.append("async left")

    app.around(plain, in_async=awaited)

    @app.task
    def sync() -> None:
        found.append("sync handler")

    @app.task
    async def coroutine() -> None:
        found.append("async handler")

    sync.enqueue()
    kit.run_worker()
    coroutine.enqueue()
    kit.run_worker()
    assert found == ["plain", "sync handler", "async", "async handler", "async left"]


def test_the_first_hook_is_outermost(app: Holdfast, kit: Kit) -> None:
    found: list[str] = []

    def named(name: str) -> Any:
        @contextlib.contextmanager
        def hook() -> Iterator[None]:
            found.append(f"+{name}")
            yield
            found.append(f"-{name}")

        return hook

    app.around(named("a"))
    app.around(named("b"))

    @app.task
    def work() -> None: ...

    work.enqueue()
    kit.run_worker()
    assert found == ["+a", "+b", "-b", "-a"]


def test_around_the_one_call_of_a_batch(app: Holdfast, kit: Kit, notes: Notes) -> None:
    @app.batch_task(size=3, wait=5)
    def many(batch: Batch[int]) -> None:
        notes.append(("ran", here()))
        assert len(batch) == 3

    @app.batch_task(size=3, wait=5)
    async def amany(batch: Batch[int]) -> None:
        notes.append(("ran", here()))

    for task in (many, amany):
        app.enqueue_many([task.job(n) for n in range(3)])
        kit.run_worker()
    assert_around(notes, calls=2)
    assert {row["status"] for row in kit.jobs()} == {"completed"}


def test_around_a_handler_inside_of_its_transaction(app: Holdfast, kit: Kit, notes: Notes) -> None:
    kit.sql("CREATE TABLE orders (id int)")

    @app.task
    def write(tx: Transaction, order_id: int) -> None:
        notes.append(("ran", here()))
        tx.execute("INSERT INTO orders VALUES (%s)", [order_id])

    @app.task
    async def awrite(tx: AsyncTransaction, order_id: int) -> None:
        notes.append(("ran", here()))
        await tx.execute("INSERT INTO orders VALUES (%s)", [order_id])

    for number, task in enumerate((write, awrite)):
        task.enqueue(order_id=number)
        kit.run_worker()
    assert_around(notes, calls=2)
    assert kit.sql("SELECT id FROM orders ORDER BY id") == [{"id": 0}, {"id": 1}]


def test_a_hook_that_fails_on_its_way_out_takes_the_transaction_back(app: Holdfast, kit: Kit) -> None:
    kit.sql("CREATE TABLE orders (id int)")

    @app.around
    @contextlib.contextmanager
    def broken() -> Iterator[None]:
        yield
        raise OSError("no space")

    @app.task(max_attempts=1)
    def write(tx: Transaction) -> None:
        tx.execute("INSERT INTO orders VALUES (1)")

    write.enqueue()
    kit.run_worker()
    assert kit.sql("SELECT id FROM orders") == []
    (job,) = kit.jobs()
    assert job["status"] == "dead_letter"
    assert job["last_error"] == (
        "HookFailed: hook test_a_hook_that_fails_on_its_way_out_takes_the_transaction_back.<locals>.broken raised "
        "OSError: no space, after the handler had returned"
    )


async def test_around_the_steps_of_a_workflow(app: Holdfast, akit: Kit, notes: Notes) -> None:
    def step() -> str:
        notes.append(("ran", here()))
        return inside.get()

    async def astep() -> str:
        notes.append(("ran", here()))
        return inside.get()

    async def in_tx(tx: AsyncTransaction) -> str:
        notes.append(("ran", here()))
        return inside.get()

    def in_plain_tx(tx: Transaction) -> str:
        notes.append(("ran", here()))
        return inside.get()

    @app.workflow()
    async def checkout(wf: Workflow) -> list[str]:
        return [await wf.step(step), await wf.step(astep), await wf.transact(in_tx), inside.get()]

    @app.workflow()
    def plainly(wf: SyncWorkflow) -> list[str]:
        return [wf.step(step), wf.transact(in_plain_tx), inside.get()]

    akit.create_queues()
    run = await checkout.astart()
    await akit.arun_worker()
    assert await run.aresult(timeout=25) == ["inside", "inside", "inside", "outside"]
    other = await plainly.astart()
    await akit.arun_worker()
    assert await other.aresult(timeout=25) == ["inside", "inside", "outside"]
    assert_around(notes, calls=5)


def test_around_a_projection(app: Holdfast, kit: Kit, notes: Notes) -> None:
    @app.projection("totals", on=["order.*"])
    def totals(tx: Transaction, event: Event[Any]) -> None:
        notes.append(("ran", here()))

    app.publish("order.paid", {"id": 1})
    kit.run_projections()
    assert_around(notes)


def test_a_hook_that_fails_before_the_handler_is_an_attempt_that_failed(app: Holdfast, kit: Kit) -> None:
    ran: list[int] = []

    @app.around
    @contextlib.contextmanager
    def broken() -> Iterator[None]:
        raise ConnectionError("cache is away")
        yield

    @app.task(max_attempts=1)
    def work() -> None:
        ran.append(1)

    work.enqueue()
    kit.run_worker()
    (job,) = kit.jobs()
    assert (job["status"], job["attempts"], ran) == ("dead_letter", 1, [])
    where = "test_a_hook_that_fails_before_the_handler_is_an_attempt_that_failed.<locals>.broken"
    text = f"HookFailed: hook {where} raised ConnectionError: cache is away, before the handler was called"
    assert job["last_error"] == text
    (error,) = kit.sql("SELECT trace FROM holdfast.errors")
    assert 'raise ConnectionError("cache is away")' in error["trace"]


@contextlib.contextmanager
def silent() -> Iterator[None]:
    with contextlib.suppress(Exception):
        yield


@contextlib.contextmanager
def clumsy() -> Iterator[None]:
    try:
        yield
    finally:
        raise KeyError("left")


@contextlib.contextmanager
def patient() -> Iterator[None]:
    try:
        yield
    except ValueError:
        raise Snooze(3600) from None


def no_manager() -> Any:
    return 3


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(
    ("hook", "status", "text"),
    [
        (silent, "dead_letter", "ValueError: bad order"),
        (
            clumsy,
            "dead_letter",
            "HookFailed: hook clumsy raised KeyError: 'left', after the handler had raised ValueError: bad order",
        ),
        (patient, "scheduled", None),
        (
            no_manager,
            "dead_letter",
            (
                "HookFailed: hook no_manager returned int instead of a context manager. "
                "Put @contextlib.contextmanager above it"
            ),
        ),
    ],
    ids=["silent", "clumsy", "patient", "no_manager"],
)
def test_what_an_attempt_ends_with_that_a_hook_is_around(
    app: Holdfast, kit: Kit, hook: Any, status: str, text: str | None, is_async: bool
) -> None:
    app.around(hook)

    @app.task(max_attempts=1)
    def work() -> None:
        raise ValueError("bad order")

    @app.task(max_attempts=1)
    async def awork() -> None:
        raise ValueError("bad order")

    (awork if is_async else work).enqueue()
    kit.run_worker()
    (job,) = kit.jobs()
    assert (job["status"], job["last_error"]) == (status, text)


def test_what_is_no_hook_is_refused_where_it_is_given(app: Holdfast) -> None:
    def generator() -> Any:
        yield

    async def agenerator() -> Any:
        yield

    with pytest.raises(ConfigurationError) as refused:
        app.around(3)  # type: ignore[arg-type]
    assert str(refused.value) == "around() takes a function that returns a context manager, not int 3"
    with pytest.raises(
        ConfigurationError, match=r"generator is a generator\. Put @contextlib\.contextmanager"
    ):
        app.around(generator)
    with pytest.raises(
        ConfigurationError, match=r"in_async=: .*agenerator is an async generator\. Put @contextlib"
    ):
        app.around(silent, in_async=agenerator)


def test_without_hooks_a_handler_is_the_function_itself(app: Holdfast) -> None:
    @app.task
    async def work() -> None: ...

    (handler,) = app.tasks.handlers()
    assert handler.func is work.func
    assert handler.plain
    assert not Around()
    app.around(silent)
    (hooked,) = app.tasks.handlers()
    assert hooked.func is not work.func
    assert issubclass(HookFailed, Exception)
