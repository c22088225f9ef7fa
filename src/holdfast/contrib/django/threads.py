"""A thread per async handler for what it calls of Django, so that no handler waits for another.

Django's async code runs its sync parts by `sync_to_async`, which has one thread for the whole process unless a
ThreadSensitiveContext says which. A connection belongs to its thread. So each handler that calls Django has one of these
threads to itself, and the next handler has it after that, with its persistent connections.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext


class Threads:
    """`begin` and `end` are called in a handler's thread, around all that the handler does there."""

    def __init__(self, begin: Callable[[], None], end: Callable[[], None]) -> None:
        self._begin = begin
        self._end = end
        self._free: deque[ThreadPoolExecutor] = deque()

    @contextlib.asynccontextmanager
    async def of_handler(self) -> AsyncIterator[None]:
        """Inside, `sync_to_async` runs in a thread that is this handler's alone."""
        own = _Own(self._take, self._begin)
        context = ThreadSensitiveContext()
        SyncToAsync.context_to_thread_executor[context] = own
        token = SyncToAsync.thread_sensitive_context.set(context)
        try:
            yield
        finally:
            SyncToAsync.thread_sensitive_context.reset(token)
            SyncToAsync.context_to_thread_executor.pop(context, None)
            if (thread := own.thread) is not None:
                ended = thread.submit(self._end)
                ended.add_done_callback(lambda _: self._free.append(thread))  # not before it is free
                await asyncio.shield(asyncio.wrap_future(ended))

    def _take(self) -> ThreadPoolExecutor:
        try:
            return self._free.pop()  # the one that was used last
        except IndexError:
            return ThreadPoolExecutor(1, "holdfast-django")

    def close(self, leave: Callable[[], object]) -> None:
        """End the threads that nobody has, each after this call in it."""
        while self._free:
            thread = self._free.pop()
            thread.submit(leave)
            thread.shutdown(wait=True)


class _Own(Executor):
    """The thread of one handler, taken when it is needed: most async handlers need none."""

    def __init__(self, take: Callable[[], ThreadPoolExecutor], begin: Callable[[], None]) -> None:
        self._take = take
        self._begin = begin
        self.thread: ThreadPoolExecutor | None = None

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        if self.thread is not None:
            return self.thread.submit(function, *args, **kwargs)
        self.thread = self._take()
        return self.thread.submit(self._first, function, *args, **kwargs)

    def _first(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._begin()
        return function(*args, **kwargs)
