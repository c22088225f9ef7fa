"""Threads for sync handlers: reused, as many as are needed, and daemons, so that a handler that never returns cannot keep
the process from leaving."""

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_Work = tuple[Callable[[], None], contextvars.Context]


class Threads:
    def __init__(self) -> None:
        self._idle: queue.SimpleQueue[queue.SimpleQueue[_Work]] = queue.SimpleQueue()
        self._count = 0

    async def run(self, function: Callable[[], T]) -> T:
        """Call it in a thread with this task's context. Cancelling the caller leaves the thread to end by itself."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def deliver(result: T | None, error: BaseException | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(result)  # type: ignore[arg-type]
            elif isinstance(error, StopIteration):
                done.set_exception(RuntimeError("the handler raised StopIteration"))
            else:
                done.set_exception(error)

        def work() -> None:
            try:
                result, error = function(), None
            except BaseException as caught:  # noqa: BLE001 whatever a handler raises is its outcome
                result, error = None, caught
            if not loop.is_closed():
                loop.call_soon_threadsafe(deliver, result, error)

        self._submit((work, contextvars.copy_context()))
        return await done

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

    def _serve(self, box: "queue.SimpleQueue[_Work]") -> None:
        while True:
            work, context = box.get()
            context.run(work)
            del work, context
            self._idle.put(box)
