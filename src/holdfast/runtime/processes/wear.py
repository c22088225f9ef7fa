"""When a child process has served long enough: after a number of jobs, or earlier when it keeps growing."""

from .memory import MB

_LOOK = 50  # jobs from one reading to the next
_GROWTH = 2 * MB  # more growth than that between two readings is a leak


class Wear:
    """A child whose handlers leak 40 KB a job is replaced at its second reading. With less it grows by 40 MB in 1,000 jobs.
    What the first jobs load (modules, models, connections) is no leak: before the first reading nothing is compared."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._jobs = 0
        self._before = 0

    def is_out(self, memory: int) -> bool:
        """A job has ended, and the process has that many bytes now."""
        self._jobs += 1
        if self._jobs >= self._most:
            return True
        if self._jobs % _LOOK:
            return False
        before, self._before = self._before, memory
        return before > 0 and memory - before > _GROWTH
