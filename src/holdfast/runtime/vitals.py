"""The vital signs of this process: memory, load, how late its event loop is, open connections."""

import os
import resource
import sys
import threading
import time
from pathlib import Path

from ..db.database import Database
from ..model.vitals import Vitals

REPORTED = 10.0  # seconds between two reports of a worker that has work
ASLEEP = 60.0  # and of one that has none
_STATM = Path("/proc/self/statm")


class Measured:
    """Kept by the thread that renews; it asks the worker's loop for a sign of life, and notes how long that took."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._worst = 0.0
        self._taken_at = -ASLEEP
        self.last: Vitals | None = None

    def lagged(self, seconds: float) -> None:
        with self._lock:
            self._worst = max(self._worst, seconds)

    def due(self, every: float) -> bool:
        return time.monotonic() - self._taken_at >= every

    def take(self) -> Vitals:
        with self._lock:
            worst, self._worst = self._worst, 0.0
        self._taken_at = time.monotonic()
        self.last = Vitals(memory(), load(), round(worst, 4), self._database.connections)
        return self.last


def memory() -> int | None:
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    except (OSError, ValueError, IndexError):  # no Linux: the most that it ever was
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most * (1 if sys.platform == "darwin" else 1024) or None


def load() -> float | None:
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None
