"""Jobs of queues with a rate that were claimed before their token, each until its moment has come.

Jobs under the same rates stand in one line, in the order of their tokens. Only the first of a line is asked whether
it may start: the others could not be earlier. A line whose queue has used up its rate waits with the other lines of that
queue, and they take turns. So each start costs one question or two, however many jobs wait.
"""

import heapq
import itertools
import math
import time
from collections import deque
from collections.abc import Iterator

from .inflight import Running
from .pace import Meters, Pace

_LEAST = 1e-5  # seconds until the next question: sums of floats may be a little too early, again and again


class Line:
    """Jobs of one queue; where keys have rates, of one key."""

    def __init__(self, meters: Meters) -> None:
        self.meters = meters
        self.jobs: list[
            tuple[float, int, Running]
        ] = []  # a heap: when the token is there, and the order of arrival


class TokenWait:
    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self.waiting: dict[
            Running, None
        ] = {}  # in the order of arrival; a line may still have some that left
        self._lines: dict[Meters, Line] = {}
        self._moments: list[
            tuple[float, int, Line | str]
        ] = []  # a heap: when to ask a line, or the lines of a queue
        self._of_queue: dict[str, deque[Line]] = {}  # lines that wait until their queue may start one
        self._awaited: set[str] = set()  # those of them that have a moment
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self.waiting)

    def __iter__(self) -> Iterator[Running]:
        return iter(list(self.waiting))

    def keep(self, running: Running) -> bool:
        """False: it may start now, and counts as started. True: it stays here until then."""
        meters = self._pace.meters(running) if self._lines else None
        line = self._lines.get(meters) if meters else None
        if line is None:
            if (wait := self._pace.early(running)) <= 0:
                return False
            meters = self._pace.meters(running)
            line = self._lines[meters] = Line(meters)
            self._put(line, wait)
        heapq.heappush(line.jobs, (running.not_before, next(self._numbers), running))
        self.waiting[running] = None
        return True

    def next(self) -> Running | None:
        """One that may start now, and counts as started; or one that is to stop. None: not yet."""
        while self._moments and self._moments[0][0] <= time.monotonic():
            _, _, due = heapq.heappop(self._moments)
            found = self._first_of_queue(due) if isinstance(due, str) else self._first_of(due)
            if found is not None:
                return found
        return None

    def _first_of_queue(self, queue: str) -> Running | None:
        self._awaited.discard(queue)
        lines = self._of_queue[queue]
        found = self._first_of(lines.popleft(), front=True)
        if lines:
            self._await(queue)
        else:
            del self._of_queue[queue]
        return found

    def _first_of(self, line: Line, *, front: bool = False) -> Running | None:
        """The first job of a line, if it may start. Then the line waits for its next one."""
        jobs = line.jobs
        while jobs:
            running = jobs[0][2]
            if running not in self.waiting:
                heapq.heappop(jobs)
                continue
            wait = 0.0 if running.stop is not None else self._pace.early(running)
            if wait > 0:
                self._put(line, wait, front=front)
                return None
            heapq.heappop(jobs)
            del self.waiting[running]
            if jobs:
                self._put(line, jobs[0][0] - time.monotonic())
            else:
                del self._lines[line.meters]
            return running
        del self._lines[line.meters]
        return None

    def _put(self, line: Line, wait: float, *, front: bool = False) -> None:
        """A line is asked again after that many seconds; one that its queue holds up waits with the others of the queue."""
        queue = line.meters[0]
        closed = self._pace.closed_for(queue)
        if closed <= 0 or closed < wait:
            self._ask_in(wait, line)
        else:
            lines = self._of_queue.setdefault(queue, deque())
            if front:
                lines.appendleft(line)
            else:
                lines.append(line)
            self._await(queue)

    def _await(self, queue: str) -> None:
        """Its lines continue when it may start a job."""
        if queue not in self._awaited:
            self._awaited.add(queue)
            self._ask_in(self._pace.closed_for(queue), queue)

    def _ask_in(self, wait: float, what: Line | str) -> None:
        moment = time.monotonic() + (max(wait, _LEAST) if wait > 0 else 0.0)
        heapq.heappush(self._moments, (moment, next(self._numbers), what))

    @property
    def next_at(self) -> float:
        """When to ask again."""
        return self._moments[0][0] if self._moments else math.inf

    def drop(self, running: Running) -> bool:
        """It is lost or cancelled. False: it is not waiting here."""
        if running not in self.waiting:
            return False
        del self.waiting[running]
        return True

    def stale(self, long_ago: float) -> list[Running]:
        """Remove and return those that were claimed before that time."""
        return [running for running in self if running.claimed_at < long_ago and self.drop(running)]

    def clear(self) -> list[Running]:
        """Remove and return everything that waits here."""
        return [running for running in self if self.drop(running)]
