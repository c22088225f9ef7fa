"""Suspects: jobs that were in a process when it died. One group at a time, and quiet around it.

A worker with a free slot takes one group and claims nothing else for it. The group starts when the worker's other jobs have
ended, so that a job that kills its process is found out alone; after ten seconds it starts beside them, and what still has
no slot goes back. The quiet ends with the group, or after a minute: a long innocent job must not idle a whole worker.
"""

import time
from collections import deque
from collections.abc import Iterable, Sequence

from ..model.job import Owned
from .inflight import Running

_WAIT = 10.0
_QUIET = 60.0


class Suspects:
    def __init__(self, every: float) -> None:
        self._every = every
        self._look_at = 0.0
        self._start_by = 0.0
        self._group: set[tuple[str, int]] = set()
        self.waiting: deque[Running] = deque()

    def look_again(self) -> None:
        self._look_at = 0.0

    def due(self, free: int) -> bool:
        """Time to look for a group: none is here, and there is a slot for one."""
        if self._group or free <= 0 or time.monotonic() < self._look_at:
            return False
        self._look_at = time.monotonic() + self._every
        return True

    def took(self, group: Sequence[Running]) -> None:
        self.waiting.extend(group)
        self._group = {(r.claimed.id_text, r.claimed.generation) for r in group}
        self._start_by = time.monotonic() + _WAIT

    @property
    def busy(self) -> bool:
        return bool(self._group)

    @property
    def quiet(self) -> bool:
        return bool(self._group) and time.monotonic() < self._start_by + _QUIET

    def leave(self, *, alone: bool, free: int) -> tuple[list[Running], list[Running]]:
        """(those to start now, those to hand back)."""
        if not self.waiting or not (alone or time.monotonic() > self._start_by):
            return [], []
        group = list(self.waiting)
        self.waiting.clear()
        return group[: max(0, free)], group[max(0, free) :]

    def ended(self, jobs: Iterable[Owned]) -> bool:
        """True when the last of the group is among these."""
        if not self._group:
            return False
        self._group -= {(job.id_text, job.generation) for job in jobs}
        return not self._group
