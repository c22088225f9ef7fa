"""What this worker holds right now, by (id, generation). Read by the renewing thread, so every access is locked."""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID

from ..model.job import ClaimedJob, Grant
from .job import Job

Stop = Literal["lost", "cancel", "release", "timeout"]


def _nobody(_: Job) -> None:
    """Who is told when a job says something of itself: in the worker's own process nobody has to be."""


@dataclass(slots=True, eq=False)
class Running:
    """One job this worker owns: waiting for a slot, running, or waiting to be settled."""

    claimed: ClaimedJob
    claimed_at: float = field(default_factory=time.monotonic)
    renewed_at: float = field(default_factory=time.monotonic)  # a moment at which it was ours
    job: Job | None = None
    task: asyncio.Task[Any] | None = None
    started_at: float | None = None
    stop: Stop | None = None
    is_async: bool = False
    in_process: bool = False
    settling: bool = False
    tell: Callable[[Job], None] = _nobody
    on_interrupt: Callable[[], None] | None = None
    call: UUID | None = None  # of a batch: the call it is in

    def interrupt(self, reason: Stop) -> None:
        """Tell the handler to stop: an async one is cancelled, a sync one sees it at job.check(), a process is ended."""
        if self.stop is None or reason == "lost":
            self.stop = reason
        if self.job is not None:
            if reason == "cancel":
                self.job._cancelled.set()
            else:
                self.job._lost.set()
        if (wake := self.on_interrupt) is not None:
            wake()

    @property
    def grant(self) -> Grant:
        return self.claimed.grant


class InFlight:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[tuple[UUID, int], Running] = {}

    def add(self, claimed: ClaimedJob, asked_at: float) -> Running:
        """`asked_at`: when the claim was sent, which may be long before its answer is read."""
        running = Running(claimed, renewed_at=asked_at)
        with self._lock:
            self._held[claimed.grant.id, claimed.grant.generation] = running
        return running

    def remove(self, grant: Grant) -> None:
        with self._lock:
            self._held.pop((grant.id, grant.generation), None)

    def get(self, grant: Grant) -> Running | None:
        with self._lock:
            return self._held.get((grant.id, grant.generation))

    def select(self, wanted: Callable[[Running], bool] = lambda _: True) -> list[Running]:
        with self._lock:
            return [r for r in self._held.values() if wanted(r)]

    def __len__(self) -> int:
        with self._lock:
            return len(self._held)
