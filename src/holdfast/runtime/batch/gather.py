"""Batches that gather: claimed jobs of batch tasks that wait for more.

A gathering job takes no slot, so claims continue while a batch fills. It is held like any other: renewed, handed back by a
drain, and removed from its batch when it is lost or cancelled. A batch is due when it is full, `wait` seconds after its
first job, or when it is the largest and the gathering payloads have reached the limit of bytes; then it waits for a
slot as a job does. A batch has jobs of one task and version only.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ..handler import Handler, Handlers
from ..inflight import Running

_MOST_WANTED = 500  # jobs wanted at once, beyond the free slots


@dataclass(slots=True, eq=False)
class Group:
    handler: Handler
    size: int
    due_at: float
    bytes: int = 0
    members: list[Running] = field(default_factory=list)


class Batches:
    def __init__(self, handlers: Handlers, wake_in: Callable[[float], object], most_bytes: int) -> None:
        self._handlers = handlers
        self._most_bytes = most_bytes  # of payloads that gather
        self._wake_in = wake_in
        self._open: dict[tuple[str, int], Group] = {}
        self._due: deque[Group] = deque()
        self._only_ours = False
        found = ((task, handlers.find(task, version)) for task, version in handlers.known())
        self._tasks = frozenset(task for task, handler in found if handler is not None and handler.gather)

    def __len__(self) -> int:
        return len(self._open) + len(self._due)

    @property
    def due(self) -> int:
        """Batches that wait for a slot."""
        self._ripen()
        return len(self._due)

    @property
    def waiting(self) -> int:
        """Jobs of the batches that wait for a slot."""
        return sum([len(group.members) for group in self._due]) if self._due else 0

    @property
    def wish(self) -> int:
        """How many jobs the open batches lack, while claims bring jobs for batches only: others would wait for a slot."""
        if not self._only_ours:
            return 0
        return min(sum(group.size - len(group.members) for group in self._open.values()), _MOST_WANTED)

    def gather(self, claimed: list[Running]) -> list[Running]:
        """Take the jobs of batch tasks. Returns the others."""
        tasks = self._tasks
        if not tasks:
            return claimed
        others = [
            running for running in claimed if running.claimed.task not in tasks or not self._take(running)
        ]
        self._only_ours = bool(claimed) and not others
        while self._open and sum(group.bytes for group in self._open.values()) >= self._most_bytes:
            self._fall_due(max(self._open, key=lambda key: self._open[key].bytes))
        return others

    def _take(self, running: Running) -> bool:
        key = (running.claimed.task, running.claimed.version)
        handler = self._handlers.find(*key)
        if handler is None or handler.gather is None or running.claimed.cancel_requested or running.apart:
            return False
        group = self._open.get(key)
        if group is None:
            rule = handler.gather
            group = self._open[key] = Group(handler, rule.size, time.monotonic() + rule.wait)
            self._wake_in(rule.wait)
        group.members.append(running)
        group.bytes += len(running.claimed.payload)
        if len(group.members) >= group.size:
            self._fall_due(key)
        return True

    def alone(self, suspects: Sequence[Running]) -> list[Running]:
        """A suspect starts at once, in a separate batch, so that a crash can be attributed to it. Returns the jobs that
        are not for a batch."""
        before, self._open, self._only_ours = self._open, {}, False
        others = [running for running in suspects if not self._take(running)]
        self.hurry()
        self._open = before
        return others

    def hurry(self) -> None:
        """No more jobs will come: start every batch as it is."""
        for key in list(self._open):
            self._fall_due(key)

    def next(self) -> Group | None:
        """The batch to start now, if one is due."""
        self._ripen()
        return self._due.popleft() if self._due else None

    def _ripen(self) -> None:
        now = time.monotonic()
        for key in [key for key, group in self._open.items() if group.due_at <= now]:
            self._fall_due(key)

    def _fall_due(self, key: tuple[str, int]) -> None:
        group = self._open.pop(key)
        group.due_at = min(group.due_at, time.monotonic())
        self._due.append(group)

    def drop(self, running: Running) -> bool:
        """The job is lost or cancelled. False: it is not waiting here."""
        for group in (*self._open.values(), *self._due):
            if running in group.members:
                group.members.remove(running)
                group.bytes -= len(running.claimed.payload)
                self._forget_empty()
                return True
        return False

    def stale(self, seconds: float) -> list[Running]:
        """Remove and return members of batches that have been due for longer than that without a slot."""
        old = [group for group in self._due if time.monotonic() - group.due_at > seconds]
        for group in old:
            self._due.remove(group)
        return _members(old)

    def clear(self) -> list[Running]:
        """Remove and return everything that waits here."""
        everything = _members([*self._open.values(), *self._due])
        self._open.clear()
        self._due.clear()
        return everything

    def _forget_empty(self) -> None:
        self._open = {key: group for key, group in self._open.items() if group.members}
        self._due = deque(group for group in self._due if group.members)


def _members(groups: Iterable[Group]) -> list[Running]:
    return [running for group in groups for running in group.members]
