"""What is ready to run, and how it is started in the free slots.

Every job runs in a task of its own. From Python 3.12 on that task begins inside of the call that makes it and goes on up to
the first thing it waits for: a job that waits for nothing never meets the event loop. So a job may have ended before the
next one is looked at, and the loop that starts them is the one that uses its slot again. A loop with a task factory of its
own makes its tasks itself.

They begin in the context that this was made in: the call may come out of a job's task, whose context variables are its own.
"""

import asyncio
import contextvars
import functools
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from .early import Early
from .inflight import Running
from .pace import Pace
from .slots import Slots

# What may end inside of the calls that start it before the event loop has its turn: so many jobs, for so many seconds.
_AT_ONCE = 50
_LONG = 0.01

Begin = Callable[..., "asyncio.Task[Any]"]  # (coroutine, name=)


def beginner(loop: asyncio.AbstractEventLoop) -> Begin:
    if loop.get_task_factory() is not None:
        return loop.create_task
    if sys.version_info >= (3, 12):
        return functools.partial(asyncio.Task, loop=loop, eager_start=True)
    return functools.partial(asyncio.Task, loop=loop)


class Starter:
    def __init__(
        self,
        slots: Slots,
        run: Callable[[Running], Coroutine[Any, Any, None]],
        in_doubt: Callable[[Running], bool] | None,
        stopped: Callable[[Running], None],  # is told of those that must not start any more
        closed: Callable[[], bool],
        pace: Pace | None = None,
    ) -> None:
        self.ready: deque[Running] = deque()  # claimed, and waiting for a slot
        self._slots = slots
        self._run = run
        self._in_doubt = in_doubt
        self._stopped = stopped
        self._closed = closed
        self.early = Early(Pace({}) if pace is None else pace)  # claimed, and waiting for a token
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._begin = beginner(self._loop)
        self.context = contextvars.copy_context()
        self._starting = False
        self._left = _AT_ONCE  # of this turn
        self._turn_began = 0.0

    def start(self) -> None:
        """Start what is ready in the free slots. A job that ends while it is started leaves its slot to this same loop."""
        if not self._starting and not self._closed():
            self.context.run(self._start)

    def _start(self) -> None:
        self._starting = True
        ready, slots, begin = self.ready, self._slots, self._begin
        in_doubt, closed = self._in_doubt, self._closed
        room = slots.free
        early, later = self.early, list[Running]()
        try:
            while (ready or early) and room > 0 and self._left > 0 and not closed():
                due = early.next() if early else None
                if due is None and not ready:
                    break
                running = due or ready.popleft()
                if running.stop is not None:
                    self._stopped(running)
                elif in_doubt is not None and in_doubt(running):
                    later.append(running)
                elif due is None and running.not_before and early.keep(running):
                    pass
                else:
                    running.started_at = slots.started()  # now: its task may begin after this loop
                    task = begin(self._run(running), name=f"job {running.claimed.id_text}")
                    running.task = task
                    if task.done():
                        self._ended_at_once(running.started_at)
                        room = slots.free
                    else:
                        room -= 1
        finally:
            self._starting = False
            ready.extendleft(reversed(later))
            if room > 0 and early:  # else whatever ends makes it go on
                self._set_timer(early.next_at)

    def _set_timer(self, moment: float) -> None:
        """By time.monotonic(), whatever the loop's clock is."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(max(0.0, moment - time.monotonic()), self.start)

    def _ended_at_once(self, began: float) -> None:
        if self._left == _AT_ONCE:
            self._turn_began = began
            self._loop.call_soon(self._next_turn)
        self._left = self._left - 1 if began - self._turn_began < _LONG else 0

    def _next_turn(self) -> None:
        self._left = _AT_ONCE
        if self.ready or self.early:
            self.start()

    def clear(self) -> list[Running]:
        """Everything that waits here. It is no longer here."""
        everything = [*self.ready, *self.early.clear()]
        self.ready.clear()
        return everything

    def stale(self, seconds: float) -> list[Running]:
        """Those that have waited here for longer than that; they leave."""
        long_ago = time.monotonic() - seconds
        return self._stale_ready(long_ago) + self.early.stale(long_ago)

    def _stale_ready(self, long_ago: float) -> list[Running]:
        if not self.ready or self.ready[0].claimed_at >= long_ago:  # the others came later
            return []
        stale = [running for running in self.ready if running.claimed_at < long_ago]
        fresh = [running for running in self.ready if running.claimed_at >= long_ago]
        self.ready.clear()
        self.ready.extend(fresh)
        return stale
