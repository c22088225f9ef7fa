"""Threads for sync handlers: reused, as many as are needed, and daemons, so that a handler that never returns cannot keep
the process from leaving.

One thread is woken at a time. A thread that takes a call and sees more wakes the next one before it runs its own. So calls
that take no time are run by one thread after the other without a switch for each, and calls that wait run side by side.
A loop is woken once for all that ended meanwhile.

Every change is made under one lock: nothing here relies on what a global interpreter lock would make atomic.
"""

import asyncio
import contextlib
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")
_End = tuple[Any, BaseException | None]


class _Mailbox:
    """What has ended of the calls of one event loop. Under the lock of the threads."""

    def __init__(self) -> None:
        self.ended: list[tuple[asyncio.Future[_End], _End]] = []
        self.told = False  # the loop is on its way to it


_Call = tuple[
    Callable[[], Any], contextvars.Context, "asyncio.Future[_End]", asyncio.AbstractEventLoop, _Mailbox
]


class Threads:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: deque[_Call] = deque()
        self._idle: list[threading.Lock] = []  # of each waiting thread, what wakes it; the last came last
        self._waking = False  # a thread was woken or started, and has not checked yet
        self._count = 0  # threads
        self._named = 0
        self._closed = False
        self._mailboxes: WeakKeyDictionary[asyncio.AbstractEventLoop, _Mailbox] = WeakKeyDictionary()
        self.abandoned = 0  # threads whose handler nobody awaits any more

    async def run(self, function: Callable[[], T]) -> T:
        """Call it in a thread with this task's context. Cancelling the caller leaves the thread to end by itself."""
        loop = asyncio.get_running_loop()
        # An error travels as a value: asyncio refuses a StopIteration, and closes the waiting task on a GeneratorExit.
        done: asyncio.Future[_End] = loop.create_future()
        self._submit(function, contextvars.copy_context(), done, loop)
        try:
            result, error = await done
        except asyncio.CancelledError:
            if done.cancelled():  # else it had ended a moment before
                self._abandon(1)
            raise
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    def close(self) -> None:
        """Let the threads end: idle ones now, busy ones after their calls."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for alarm in idle:
            alarm.release()

    def _submit(
        self,
        function: Callable[[], Any],
        context: contextvars.Context,
        done: "asyncio.Future[_End]",
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        with self._lock:
            mailbox = self._mailboxes.get(loop)
            if mailbox is None:
                mailbox = self._mailboxes[loop] = _Mailbox()
            call = (function, context, done, loop, mailbox)
            self._calls.append(call)
            wake = self._next()
        if wake is None:
            return
        try:
            wake()
        except RuntimeError:  # no more threads are to be had
            with self._lock:
                others = [other for other in self._calls if other is not call]
                is_taken = len(others) == len(self._calls)
                self._calls = deque(others)
            if not is_taken:
                raise

    def _next(self) -> Callable[[], None] | None:
        """Returns a function that brings one more thread, if one is needed. Under the lock, to be called without it."""
        if self._waking or not self._calls:
            return None
        self._waking = True
        if self._idle:
            return self._idle.pop().release
        # Every thread runs a call: there are never more of them than calls.
        self._count += 1
        self._named += 1
        return self._start

    def _start(self) -> None:
        thread = threading.Thread(target=self._serve, name=f"holdfast-handler-{self._named}", daemon=True)
        try:
            thread.start()
        except BaseException:
            with self._lock:
                self._waking = False
                self._count -= 1
            raise

    def _serve(self) -> None:
        alarm = threading.Lock()
        alarm.acquire()
        last: tuple[_Call, _End] | None = None
        while True:
            with self._lock:
                if last is None:
                    self._waking = False  # this one was woken, and checks now
                tell = last is not None and self._post(*last)
                call = self._calls.popleft() if self._calls else None
                wake = self._next()
                is_over = call is None and self._closed
                if is_over:
                    self._count -= 1
                elif call is None:
                    self._idle.append(alarm)
            if last is not None and tell:
                self._tell(last[0])
            if wake is not None:
                with contextlib.suppress(RuntimeError):  # no thread is to be had: this one comes back
                    wake()
            last = None
            if call is not None:
                last, call = (call, _end_of(call)), None
            elif is_over:
                return
            else:
                alarm.acquire()

    def _post(self, call: _Call, end: _End) -> bool:
        """Leave it for the loop. Whether the loop must be woken. Under the lock."""
        mailbox = call[4]
        mailbox.ended.append((call[2], end))
        tell, mailbox.told = not mailbox.told, True
        return tell

    def _tell(self, call: _Call) -> None:
        loop, mailbox = call[3:]
        try:
            loop.call_soon_threadsafe(self._deliver, mailbox)
        except RuntimeError:  # the loop is closed, and nobody waits
            self._collect(mailbox)

    def _deliver(self, mailbox: _Mailbox) -> None:
        """In the loop that waits."""
        for done, end in self._collect(mailbox):
            if done.cancelled():
                self._abandon(-1)
            else:
                done.set_result(end)

    def _collect(self, mailbox: _Mailbox) -> list[tuple["asyncio.Future[_End]", _End]]:
        with self._lock:
            ended, mailbox.ended, mailbox.told = mailbox.ended, [], False
        return ended

    def _abandon(self, count: int) -> None:
        with self._lock:
            self.abandoned += count


def _end_of(call: _Call) -> _End:
    function, context, done, _, _ = call
    if done.cancelled():  # nobody awaits it any more: it does not begin
        return None, None
    try:
        return context.run(function), None
    except BaseException as caught:  # noqa: BLE001 whatever a handler raises is its outcome
        return None, caught
