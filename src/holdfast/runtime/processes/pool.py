"""The child processes of one worker: one per running job, reused for the next one."""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Self

from ... import telemetry
from ...errors import ConfigurationError
from ...model.clock import Clock
from ...model.outcome import ErrorText, Outcome, Snoozed
from ..child_ends import NotApart
from ..handler import FORGIVEN, Handler
from ..inflight import Running
from .assignment import Assignment, Launch, NotStarted
from .child_thread import PART, ChildThread
from .emitter import Emitter
from .memory import MB
from .reaper import Reaper

SPARE = 2  # idle children that are kept
_TRIES = 3
_TELL = 5.0  # for listeners, to receive the rest when the worker ends
_ROOM = 16 * MB  # what a reused child must have free for a handler with a memory_limit


class Pool:
    def __init__(
        self,
        launch: Launch,
        clock: Clock,
        *,
        size: int,
        check: Iterable[str] = (),
        patient: bool = True,
        spare: int | None = None,
    ) -> None:
        self._launch = launch
        self._clock = clock
        self._size = size
        self._check = frozenset(check)  # start a child at once, and check that it knows these tasks
        self._patient = patient  # a child that cannot start may do so later
        self._spare = spare  # idle children to keep
        self._reaper = Reaper()
        self._emitter = Emitter()
        self._lock = threading.Lock()
        self._threads: list[ChildThread] = []
        self._idle: list[ChildThread] = []

    async def __aenter__(self) -> Self:
        if self._check:
            try:
                await self._try_one()
            except BaseException:
                await self.close()
                raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self.close()

    async def _try_one(self) -> None:
        """A mistake in the app should be seen when the worker starts, not when the first job comes."""
        known = await asyncio.wrap_future(self._new_thread().tasks)
        where = self._launch.hello["app"]
        if isinstance(known, NotStarted):
            if known.trace:
                telemetry.log.error("a child process could not load the app\n%s", known.trace)
            raise ConfigurationError(f"tasks with process=True cannot run: {known.reason}")
        if missing := sorted(self._check - set(known)):
            raise ConfigurationError(
                f"tasks with process=True cannot run: a child process that imports {where['module']} does not know "
                f"{', '.join(missing)}. Declare them when the module is imported, not inside a function"
            )

    async def execute(self, running: Running, handler: Handler) -> Outcome:
        """Run the job in a child process."""
        end = NotStarted("no child process")
        for _ in range(_TRIES):
            done = await self._in_a_child(running, handler)
            if isinstance(done, Outcome):
                return done
            end = done
            if not end.again:
                break
        if running.apart is not None and not handler.process:
            return NotApart(end.reason)
        return self._not_started(running, handler, end)

    async def _in_a_child(self, running: Running, handler: Handler) -> Outcome | NotStarted:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Outcome | NotStarted] = loop.create_future()

        def settle(end: Outcome | NotStarted) -> None:
            if not done.done():
                done.set_result(end)

        def deliver(end: Outcome | NotStarted) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, end)

        frame = {
            "worker": running.job._worker if running.job is not None else "",
            "offset": self._clock.offset,
            "memory_limit": handler.memory_limit,
        }
        thread = self._assign(Assignment(running, handler, frame, deliver))
        running.on_interrupt = thread.wake
        if running.stop is not None:  # it was interrupted here
            thread.wake()
        try:
            return await done
        except asyncio.CancelledError:
            thread.end()
            raise
        finally:
            running.on_interrupt = None

    def _assign(self, job: Assignment) -> ChildThread:
        while (thread := self._idle_thread(job.handler.memory_limit)) is not None:
            if thread.assign(job):
                return thread
        return self._new_thread(job)

    def _idle_thread(self, limit: int | None) -> ChildThread | None:
        """The most recently used child that leaves the job enough memory; if there is none, room is made for a new one."""
        with self._lock:
            for thread in reversed(self._idle):
                if limit is None or thread.memory + _ROOM <= limit:
                    self._idle.remove(thread)
                    return thread
            too_big = self._idle.pop(0) if self._idle and len(self._threads) >= self._size else None
        if too_big is not None:
            too_big.end()
        return None

    def _new_thread(self, job: Assignment | None = None) -> ChildThread:
        with self._lock:
            thread = ChildThread(self._launch, self, job)
            self._threads.append(thread)
            if job is None:
                self._idle.append(thread)
        return thread

    def _not_started(self, running: Running, handler: Handler, end: NotStarted) -> Outcome:
        """Not the handler's failure. It is tried again; an attempt is spent only when that happens too often."""
        claimed = running.claimed
        telemetry.emit(
            "process.not_started",
            level=logging.WARNING,
            job=claimed.id,
            task=claimed.task,
            error=end.reason,
            trace=end.trace,
        )
        unspent = claimed.generation - claimed.attempt
        if self._patient and unspent < FORGIVEN:
            return Snoozed(min(2.0**unspent, 60.0))
        return handler.failed(ErrorText("ProcessNotStarted", end.reason, end.trace), claimed.attempt)

    async def close(self) -> None:
        """Dismiss every child; one that does not end is killed."""
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.end()
        # It continues when its waiter is cancelled. Without the shield it would not begin where no thread has taken it yet.
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self._end, threads))

    def _end(self, threads: list[ChildThread]) -> None:
        _join(threads)
        self._reaper.close()
        self._emitter.close(_TELL)

    # Called by the children's threads --------------------------------------------------------------------------------

    def started(self, pid: int) -> None:
        self._reaper.keep(pid)
        self.emit_later(partial(telemetry.emit, "process.started", level=logging.DEBUG, pid=pid))

    def emit_later(self, emit: Callable[[], None]) -> None:
        self._emitter.emit_later(emit)

    def flush(self, seconds: float) -> None:
        self._emitter.flush(seconds)

    def rests(self, thread: ChildThread) -> None:
        with self._lock:
            self._idle.append(thread)

    def may_leave(self, thread: ChildThread) -> bool:
        """An idle child above the limit."""
        with self._lock:
            if thread not in self._idle or len(self._idle) <= (SPARE if self._spare is None else self._spare):
                return False
            self._idle.remove(thread)
            return True

    def ended(self, thread: ChildThread, pid: int | None) -> None:
        with self._lock:
            for known in (self._threads, self._idle):
                with contextlib.suppress(ValueError):
                    known.remove(thread)
        if pid is not None:
            self._reaper.forget(pid)
            self.emit_later(partial(telemetry.emit, "process.ended", level=logging.DEBUG, pid=pid))


def _join(threads: list[ChildThread]) -> None:
    deadline = time.monotonic() + PART + 1.0
    for thread in threads:
        thread.join(deadline - time.monotonic())
