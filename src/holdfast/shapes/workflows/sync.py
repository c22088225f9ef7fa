"""Workflows that are plain functions: they run in a thread, and every call of `wf` blocks it.

The calls are made in the event loop, by the run's task there; so every rule of async workflows applies here. A
wait that suspends the run unwinds the thread: the call raises Evicted.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Future
from datetime import datetime
from random import Random
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, overload
from uuid import UUID

from ...db.transaction import Transaction
from ...model.backoff import Backoff
from ...model.duration import Duration
from ...tasks.task import Task
from .bodies import threads
from .calls import Steps
from .faults import EXITS, Evicted, UnscopedTask, left
from .messages import Received, Signal
from .steps import Step
from .workflow import Workflow

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")


class SyncSteps:
    """wf.using(...) of a plain workflow: options of the next calls. Every call blocks."""

    def __init__(self, line: "_Line", steps: Steps) -> None:
        self._line = line
        self._steps = steps

    def step(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function once, and return its recorded result from then on: `truck = wf.step(book, order_id)`."""
        return self._line.wait(lambda: self._steps.step(fn, *args, **kwargs))

    def transact(
        self, fn: Callable[Concatenate[Transaction, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """fn's writes and the record commit together, exactly once: `wf.transact(reserve_stock, order_id)` calls
        `def reserve_stock(tx: Transaction, order_id: int)`."""
        return self._line.wait(lambda: self._steps._transact_blocking(fn, *args, **kwargs))

    def call(self, task: Task[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """A job of the task's own queue: `size = wf.call(thumbnail, path)`."""
        return self._line.wait(lambda: self._steps.call(task, *args, **kwargs))

    def map(self, task: Task[[A], T], items: Iterable[A], /, *, limit: int | None = None) -> list[T]:
        """A job for each item, at most `limit` of them at once: `sizes = wf.map(thumbnail, paths, limit=100)`."""
        given = list(items)  # here, and not in the event loop
        return self._line.wait(lambda: self._steps.map(task, given, limit=limit))

    def later(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Step[T]:
        """A step for gather(): its key is taken now, and it runs there."""
        return self._line.at_once(lambda: self._steps.step(fn, *args, **kwargs))


class SyncWorkflow(SyncSteps):
    """A run, as its plain function sees it: `def ship(wf: SyncWorkflow, order_id: int) -> str`. Every call blocks."""

    def __init__(self, workflow: Workflow, line: "_Line") -> None:
        super().__init__(line, workflow)
        self._workflow = workflow

    @property
    def id(self) -> str:
        """What it was started with."""
        return self._workflow.id

    @property
    def run_id(self) -> UUID:
        """The id of its job."""
        return self._workflow.run_id

    @property
    def version(self) -> int:
        """Of the workflow, as the run was started."""
        return self._workflow.version

    def using(
        self,
        *,
        name: str | None = None,
        retry: Backoff | None = None,
        max_attempts: int | None = None,
        timeout: Duration | None = None,
        deadline: Duration | None = None,
        queue: str | None = None,
        on_cancel: Literal["cancel", "shield"] | None = None,
    ) -> SyncSteps:
        """Options of the next calls: `wf.using(max_attempts=8, timeout=30).step(charge, order_id)`. See Workflow.using()."""
        steps = self._workflow.using(
            name=name,
            retry=retry,
            max_attempts=max_attempts,
            timeout=timeout,
            deadline=deadline,
            queue=queue,
            on_cancel=on_cancel,
        )
        return SyncSteps(self._line, steps)

    def gather(self, *calls: Step[T]) -> list[T]:
        """All of them together: `a, b = wf.gather(wf.later(one), wf.later(two))`."""
        return self._line.wait(lambda: self._workflow.gather(*calls))

    def sleep(self, duration: Duration) -> None:
        """Durable: `wf.sleep(3600)` holds no worker and survives every restart."""
        self._line.wait(lambda: self._workflow.sleep(duration))

    def sleep_until(self, at: datetime) -> None:
        """Until a time, with a time zone: `wf.sleep_until(due)`."""
        self._line.wait(lambda: self._workflow.sleep_until(at))

    @overload
    def signal(self, signal: Signal[T], *, timeout: None = None) -> T: ...
    @overload
    def signal(self, signal: Signal[T], *, timeout: Duration) -> Received[T]: ...
    def signal(self, signal: Signal[T], *, timeout: Duration | None = None) -> T | Received[T]:
        """The oldest signal of its name that was not taken yet; waits for one."""
        if timeout is None:
            return self._line.wait(lambda: self._workflow.signal(signal))
        return self._line.wait(lambda: self._workflow.signal(signal, timeout=timeout))

    def on_failure(self, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Push a compensation, before the step that it undoes: `wf.on_failure(refund, order_id)`."""
        push: Any = self._workflow.on_failure
        self._line.at_once(lambda: push(fn, *args, **kwargs))

    def compensate(self) -> None:
        """Run and empty the stack, last first. Happens automatically when the run fails or is cancelled."""
        self._line.wait(self._workflow.compensate)

    def now(self) -> datetime:
        """The time of the last record: the same in every replay."""
        return self._line.at_once(self._workflow.now)

    def random(self) -> Random:
        """A random generator, seeded by the run and the place of this call."""
        return self._line.at_once(self._workflow.random)

    def uuid(self) -> UUID:
        """A UUID made from the run and the place of this call."""
        return self._line.at_once(self._workflow.uuid)

    def set_state(self, state: object) -> None:
        """The value that run.state() returns: `wf.set_state({"paid": True})`. See Workflow.set_state()."""
        self._line.at_once(lambda: self._workflow.set_state(state))

    def patched(self, name: str) -> bool:
        """Whether this run takes the new path: see Workflow.patched()."""
        return self._line.at_once(lambda: self._workflow.patched(name))

    @overload
    def publish(
        self, event: object, /, *, key: str | None = ..., headers: Mapping[str, str] | None = ...
    ) -> None: ...
    @overload
    def publish(
        self,
        event: str | type,
        data: Mapping[str, Any],
        /,
        *,
        version: int | None = ...,
        key: str | None = ...,
        headers: Mapping[str, str] | None = ...,
    ) -> None: ...
    def publish(self, event: Any, data: Any = None, /, **options: Any) -> None:
        """Append one event to the log, once: `wf.publish(OrderPaid(9182, 995))`. It is written when this returns."""
        publish: Any = self._workflow.publish
        self._line.wait(lambda: publish(event, data, **options))


class _Line:
    """From the thread of a run to the event loop, where its calls are made."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.inbox: asyncio.Queue[tuple[Callable[[], Any], Future[Any]]] = asyncio.Queue()
        self._lock = threading.Lock()
        self._open: Future[Any] | None = None
        self._stopped = False
        self.thread = 0

    def wait(self, make: Callable[[], Awaitable[T]]) -> T:
        """Its result, once it is there."""
        found: T = self._ask(make)
        return found

    def at_once(self, make: Callable[[], T]) -> T:
        async def made() -> T:
            return make()

        found: T = self._ask(made)
        return found

    def _ask(self, make: Callable[[], Any]) -> Any:
        if threading.get_ident() != self.thread:
            raise UnscopedTask(
                "wf was called from a thread that is not the workflow's own, or inside a step. Call it in the workflow's "
                "function alone; for steps beside each other there is wf.gather(wf.later(...), ...)"
            )
        answer: Future[Any] = Future()
        with self._lock:
            if self._stopped:
                raise Evicted
            self._open = answer
        self._loop.call_soon_threadsafe(self.inbox.put_nowait, (make, answer))
        return answer.result()

    def stop(self) -> None:
        """Every call raises Evicted from now on, also the one that waits."""
        with self._lock:
            self._stopped = True
            if self._open is not None and not self._open.done():
                self._open.set_exception(Evicted())


async def run_in_thread(fn: Callable[..., Any], workflow: Workflow, arguments: dict[str, Any]) -> Any:
    """The function in a thread, its calls here."""
    loop = asyncio.get_running_loop()
    line = _Line(loop)
    workflow._core.defers = False  # its thread takes a while to come to the next call
    sync = SyncWorkflow(workflow, line)

    def body() -> Any:
        line.thread = threading.get_ident()
        try:
            return fn(sync, **arguments)
        except EXITS as error:
            raise left("the workflow", error) from error

    thread = loop.create_task(threads.run(body))
    try:
        while True:
            asked = loop.create_task(line.inbox.get())
            try:
                await asyncio.wait({asked, thread}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not asked.done():
                    asked.cancel()
            if not asked.done() or asked.cancelled():
                return thread.result()
            make, answer = asked.result()
            await _answer(make, answer)
    except asyncio.CancelledError:
        line.stop()
        await asyncio.wait({thread})
        thread.exception()  # nobody needs it, and asyncio would report it as unhandled
        raise


async def _answer(make: Callable[[], Any], answer: "Future[Any]") -> None:
    try:
        value = await make()
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 it is raised where the call was made
        if not answer.done():
            answer.set_exception(error)
    else:
        if not answer.done():
            answer.set_result(value)
