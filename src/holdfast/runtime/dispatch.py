"""The dispatcher: where claimed jobs wait, and how they are started in the free slots.

A job waits for a slot (ready), for its token where its queue has a rate (token_wait.py), for others of its batch
(batch/gather.py), or for the one before it where its queue is ordered (lanes.py).

Every job runs in a separate task. From Python 3.12 on that task begins inside the call that makes it, and runs until it
waits for the first time: a job that waits for nothing never reaches the event loop. So a job may have ended before the
next one is started, and the same loop uses its slot again. An event loop with its own task factory
makes its tasks itself. Before 3.12, the jobs that end in one turn of the event loop leave their slots to one such loop.

They begin in the context in which the dispatcher was made: a call may come from a job's task, which has its own context.
"""

import asyncio
import contextvars
import functools
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .batch.gather import Batches, Group
from .inflight import Running
from .lanes import Ended, Lanes
from .pace import Pace
from .slots import Slots
from .token_wait import TokenWait

# Jobs may end inside the calls that start them, before the event loop gets its turn: this many, for this many seconds.
_AT_ONCE = 200
_LONG = 0.01
_STALE = 2.0  # seconds that a job waits here for a slot, while every slot has a long job

_EAGER = sys.version_info >= (3, 12)  # a task begins inside of the call that makes it
Begin = Callable[..., "asyncio.Task[Any]"]  # (coroutine, name=)


def beginner(loop: asyncio.AbstractEventLoop) -> Begin:
    if loop.get_task_factory() is not None:
        return loop.create_task
    if sys.version_info >= (3, 12):
        return functools.partial(asyncio.Task, loop=loop, eager_start=True)
    return functools.partial(asyncio.Task, loop=loop)


class Attempts(Protocol):
    """What happens to a job that may start."""

    async def run(self, running: Running) -> None: ...

    def start_batch(self, group: Group, began: float, context: contextvars.Context) -> None: ...

    def end_unstarted(self, running: Running) -> None:
        """The job must not start any more."""

    def want_more(self) -> None:
        """Jobs have ended, and everything that could start was started."""


class Dispatcher:
    def __init__(
        self,
        slots: Slots,
        attempts: Attempts,
        closed: Callable[[], bool],
        batches: Batches,
        lanes: Lanes,
        pace: Pace,
        dead_after: float,
    ) -> None:
        self.ready: deque[Running] = deque()  # claimed, and waiting for a slot
        self.early = TokenWait(pace)  # claimed, and waiting for a token
        self.batches = batches
        self._lanes = lanes
        self._in_doubt = lanes.doubter(dead_after)
        self._slots = slots
        self._attempts = attempts
        self._closed = closed
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._begin = beginner(self._loop)
        self._context = contextvars.copy_context()
        self._starting = self._goes_on = False
        self._left = _AT_ONCE  # of this turn
        self._turn_began = 0.0

    @property
    def waiting(self) -> int:
        """Jobs that wait for a slot, alone or in a batch."""
        return len(self.ready) + self.batches.waiting

    def admit(self, claimed: list[Running], *, alone: bool = False) -> None:
        """Take over claimed jobs. `alone`: a batch task runs each in a batch of one."""
        admitted = self._lanes.admit(claimed)
        self.ready.extend(self.batches.alone(admitted) if alone else self.batches.gather(admitted))

    def start(self) -> None:
        """Start the batches that are due, then ready jobs, in the free slots."""
        if self._closed():
            return  # claimed while the signal came: the drain hands it back
        while self._slots.free > 0 and (group := self.batches.next()) is not None:
            self._attempts.start_batch(group, self._slots.started(), self._context)
        self.start_ready()

    def start_ready(self) -> None:
        """Start ready jobs. A job that ends while it is started leaves its slot to this same loop."""
        if not self._starting and not self._closed():
            self._context.run(self._start)

    def go_on(self) -> None:
        """A job has ended, in its task: its slot is free."""
        if self._starting or self._goes_on:
            return  # the loop that started it looks for the next, or one follows
        if _EAGER:
            self._go_on()
        else:
            self._goes_on = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._goes_on = False
        if self.ready or self.early.waiting:
            self.start_ready()
        self._attempts.want_more()

    def _start(self) -> None:
        self._starting = True
        ready, slots, begin = self.ready, self._slots, self._begin
        in_doubt, closed, run = self._in_doubt, self._closed, self._attempts.run
        room, left, turn_began = slots.free, self._left, self._turn_began
        early, waiting, later = self.early, self.early.waiting, list[Running]()
        try:
            while (ready or waiting) and room > 0 and left > 0 and not closed():
                due = early.next() if waiting else None
                if due is None and not ready:
                    break
                running = due or ready.popleft()
                if running.stop is not None:
                    self._attempts.end_unstarted(running)
                elif in_doubt is not None and in_doubt(running):
                    later.append(running)
                elif due is None and running.not_before and early.keep(running):
                    pass
                else:
                    before = slots.running
                    running.started_at = began = slots.started()  # now: its task may begin after this loop
                    task = begin(run(running), name=f"job {running.claimed.id_text}")
                    if not task.done():
                        running.task = task
                        room -= 1
                        continue
                    if not running.settling:  # no outcome: the renewal finds out by its task
                        running.task = task
                    if left == _AT_ONCE:
                        turn_began = self._turn_began = began
                        self._loop.call_soon(self._next_turn)
                    left = left - 1 if began - turn_began < _LONG else 0
                    if slots.running != before:
                        room = slots.free
        finally:
            self._starting = False
            self._left = left
            ready.extendleft(reversed(later))
            self._set_timer(room)

    def _set_timer(self, room: int) -> None:
        """Wakes for the next job that waits for its token. By time.monotonic(), whatever the loop's clock is."""
        if room <= 0 or not self.early.waiting:
            return  # any job that ends makes it continue
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(max(0.0, self.early.next_at - time.monotonic()), self.start_ready)

    def _next_turn(self) -> None:
        self._left = _AT_ONCE
        self._go_on()

    def ended(self, held: Sequence[Running | None], states: Sequence[str]) -> Ended:
        """Jobs have ended in the database. Returns the consequences for their streams."""
        return self._lanes.ended(held, states)

    def start_next(self, starts: list[Running]) -> None:
        """Start these before all others: the jobs before them in their streams have ended."""
        if starts:
            self.ready.extendleft(reversed(self.batches.gather(starts)))
            self.start()

    def drop(self, running: Running) -> bool:
        """The job is lost or cancelled. False: it waits for neither a batch nor a token; its start handles that."""
        return self.batches.drop(running) or self.early.drop(running)

    def stale(self, is_full: Callable[[], bool]) -> list[Running]:
        """The jobs to hand back, which are removed: a prefetched job must not wait here behind long ones while another
        worker is idle. `is_full`: the waiting jobs have reached the limit of bytes."""
        long_ago = time.monotonic() - _STALE
        if self._slots.blocked:
            if stale := self._stale_ready(long_ago) + self.early.stale(long_ago) + self.batches.stale(_STALE):
                self._slots.expect_long()
            return stale
        if self._slots.free > 0 and self._lanes and is_full():
            return self._lanes.stale(_STALE)  # their start is far, and their bytes keep others out
        return []

    def _stale_ready(self, long_ago: float) -> list[Running]:
        if not self.ready or self.ready[0].claimed_at >= long_ago:  # the others came later
            return []
        stale = [running for running in self.ready if running.claimed_at < long_ago]
        fresh = [running for running in self.ready if running.claimed_at >= long_ago]
        self.ready.clear()
        self.ready.extend(fresh)
        return stale

    def clear(self) -> list[Running]:
        """Remove and return all jobs that wait here."""
        everything = [*self._lanes.waiting(), *self.ready, *self.early.clear(), *self.batches.clear()]
        self.ready.clear()
        return everything
