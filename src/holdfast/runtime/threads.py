"""Threads for sync handlers: reused, as many as are needed, and daemons, so that a handler that never returns cannot keep
the process from leaving."""

import asyncio
import contextlib
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_Work = tuple[Callable[[], None], contextvars.Context]


class Threads:
    def __init__(self) -> None:
        self._idle: queue.SimpleQueue[queue.SimpleQueue[_Work | None]] = queue.SimpleQueue()
        self._count = 0
        self._closed = False
        self.abandoned = 0  # threads whose handler nobody waits for any more

    async def run(self, function: Callable[[], T]) -> T:
        """Call it in a thread with this task's context. Cancelling the caller leaves the thread to end by itself."""
        loop = asyncio.get_running_loop()
        # An error travels as a value: asyncio refuses a StopIteration, and closes the waiting task on a GeneratorExit.
        done: asyncio.Future[tuple[T | None, BaseException | None]] = loop.create_future()

        def deliver(result: T | None, error: BaseException | None) -> None:
            if done.cancelled():
                self.abandoned -= 1
            elif not done.done():
                done.set_result((result, error))

        def work() -> None:
            try:
                result, error = function(), None
            except BaseException as caught:  # noqa: BLE001 whatever a handler raises is its outcome
                result, error = None, caught
            if not loop.is_closed():
                loop.call_soon_threadsafe(deliver, result, error)

        self._submit((work, contextvars.copy_context()))
        try:
            result, error = await done
        except asyncio.CancelledError:
            self.abandoned += 1
            raise
        if error is not None:
            raise error
        return result  # type: ignore[return-value]

    def close(self) -> None:
        """Let the threads end: idle ones now, busy ones when their handler returns."""
        self._closed = True
        with contextlib.suppress(queue.Empty):
            while True:
                self._idle.get_nowait().put(None)

    def _submit(self, work: _Work) -> None:
        try:
            box = self._idle.get_nowait()
        except queue.Empty:
            box = queue.SimpleQueue()
            self._count += 1
            threading.Thread(
                target=self._serve, args=(box,), name=f"holdfast-handler-{self._count}", daemon=True
            ).start()
        box.put(work)

    def _serve(self, box: "queue.SimpleQueue[_Work | None]") -> None:
        while (item := box.get()) is not None:
            work, context = item
            context.run(work)
            del item, work, context
            self._idle.put(box)
            if self._closed:
                self.close()
