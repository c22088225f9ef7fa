"""The jobs that this worker holds, by the identity of the claimed job: a caller gets the one that its claim
brought, because the same job may be here in two generations. The renewing thread reads this, so every access is locked."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, Literal, Protocol
from uuid import UUID

from ..model.job import ClaimedJob, Grant, Owned
from ..model.outcome import Outcome
from ..model.state import LOST
from .handler import Handler
from .job import Job

Stop = Literal["lost", "cancel", "release", "timeout"]


def _nobody(_: Job) -> None:
    """Called when a job completes itself or reports progress: only a child process needs that."""


class Running:
    """One job this worker owns: waiting for a slot, running, or waiting to be settled.

    Attributes that most jobs never set are class attributes, so that a new job costs three writes."""

    job: Job | None = None
    task: asyncio.Task[Any] | None = None
    started_at: float = 0.0  # 0: not yet
    not_before: float = 0.0  # of a queue with a rate: when there is a token for its start
    stop: Stop | None = None
    is_async = is_driven = False  # driven: its handler hears of a cancel, and decides how it ends
    rested = 0.0  # seconds in which it held no slot
    in_process = False
    apart: "Processes | None" = None  # a suspect: runs in one of these
    settling = False
    on_change: Callable[[Job], None] = staticmethod(_nobody)
    on_interrupt: Callable[[], None] | None = None
    call: UUID | None = None  # the batch whose call it is in
    leave: "Callable[[Running], None] | None" = None  # in a batch: its task continues for the others
    lane: "Lane | None" = None  # in an ordered queue: where it waits for the job before it

    def __init__(self, claimed: ClaimedJob, claimed_at: float, renewed_at: float) -> None:
        self.claimed = claimed
        self.claimed_at = claimed_at
        self.renewed_at = renewed_at  # a moment at which this worker owned it

    def interrupt(self, reason: Stop) -> None:
        """Ask the handler to stop: an async one is cancelled, a sync one sees it at job.check(), a process is killed."""
        if self.stop is None or reason == LOST:
            self.stop = reason
        if self.job is not None:
            if reason == "cancel":
                self.job._cancelled = True
            else:
                self.job._lost = True
        if (wake := self.on_interrupt) is not None:
            wake()

    def cancel(self) -> None:
        """Cancel its handler, in the event loop. In a batch, only remove this job from it."""
        if self.leave is not None:
            self.leave(self)
        elif self.task is not None:
            self.task.cancel()

    @property
    def abandoned(self) -> bool:
        """Its task ended without an outcome: nothing runs the job, and nothing settles it."""
        return self.task is not None and self.task.done() and not self.settling

    @property
    def grant(self) -> Grant:
        return self.claimed.grant


class Lane(deque[Running]):
    """The jobs of one stream (a queue and a key) in their order: the first of them runs, or is about to."""

    def __init__(self, stream: tuple[str, str]) -> None:
        super().__init__()
        self.stream = stream


class Processes(Protocol):
    """Child processes that run jobs for this one."""

    async def execute(self, running: Running, handler: Handler) -> Outcome: ...


_payload: Callable[[ClaimedJob], str] = attrgetter("payload")


class InFlight:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By id(): each holds what was claimed, so that no other has the same.
        self._held: dict[int, Running] = {}
        self._bytes = 0  # of all their payloads

    def add(self, jobs: Sequence[ClaimedJob], asked_at: float) -> list[Running]:
        """`asked_at`: when the claim was sent, which may be long before its reply is read."""
        now = time.monotonic()
        added = [Running(claimed, now, asked_at) for claimed in jobs]
        with self._lock:
            self._held.update(zip(map(id, jobs), added, strict=True))
            self._bytes += sum(map(len, map(_payload, jobs)))
        return added

    def remove(self, jobs: Iterable[Owned]) -> list[Running | None]:
        """Returns those that were held, each at the place of its job."""
        with self._lock:
            pop = self._held.pop
            gone = [pop(key, None) for key in map(id, jobs)]
            self._bytes -= sum([len(running.claimed.payload) for running in gone if running is not None])
            return gone

    def idle_bytes(self, few: int) -> int:
        """Bytes of payloads whose jobs wait for a slot, or to be settled. 0 while all together have fewer."""
        if self._bytes < few:
            return 0
        return sum(len(r.claimed.payload) for r in self.select(lambda r: not r.started_at or r.settling))

    def still(self, jobs: Iterable[Owned]) -> list[Owned]:
        """Those of them that are still held."""
        with self._lock:
            return [job for job in jobs if id(job) in self._held]

    def get(self, job: Owned) -> Running | None:
        with self._lock:
            return self._held.get(id(job))

    def select(self, wanted: Callable[[Running], bool] = lambda _: True) -> list[Running]:
        with self._lock:
            return [r for r in self._held.values() if wanted(r)]

    def __len__(self) -> int:
        with self._lock:
            return len(self._held)
