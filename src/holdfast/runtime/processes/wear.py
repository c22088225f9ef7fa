"""When a child process has served long enough: after a number of jobs, or earlier when it keeps growing."""

from .memory import MB

_LOOK = 50  # jobs from one look to the next
_GROWTH = 2 * MB  # more than that between two looks, and it is a leak


class Wear:
    """A child whose handlers leak 40 KB a job is replaced at its second look. With less it takes 40 MB more in 1,000 jobs.
    What the first jobs load (modules, models, connections) is no leak: before the first look nothing is compared."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._jobs = 0
        self._before = 0

    def is_out(self, memory: int) -> bool:
        """A job has ended, and left the process with that many bytes."""
        self._jobs += 1
        if self._jobs >= self._most:
            return True
        if self._jobs % _LOOK:
            return False
        before, self._before = self._before, memory
        return before > 0 and memory - before > _GROWTH
