"""Which claims are used up, by the database's own counts: their rows may be deleted without reading each of their jobs.

Only jobs that one statement ended as a whole are counted (settle_done): each job once, under its token. A job that ends in
another way, or in doubt, is missing in the count, and then the jobs of its claim are read. The same applies after a standby
was promoted, and where commits are asynchronous: the server may not have the last settles. The renewal thread reads this.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

from ..model.job import ClaimedJob
from ..store.renew import Ended

_timeline: Callable[[ClaimedJob], int] = attrgetter("timeline")
_token: Callable[[ClaimedJob], str] = attrgetter("token_text")


class Endings:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._timeline = 0
        self._counts: Counter[str] = Counter()  # by token

    def add(self, jobs: Sequence[ClaimedJob]) -> None:
        """They have ended in the database, as the last of their claims or not."""
        timelines = set(map(_timeline, jobs))
        counted = Counter(map(_token, jobs))
        with self._lock:
            if max(timelines) > self._timeline:
                self._counts.clear()
                self._timeline = max(timelines)
            if timelines == {self._timeline}:
                self._counts.update(counted)

    def counted(self) -> Ended:
        with self._lock:
            return Ended(self._timeline, dict(self._counts))

    def forget(self, tokens: Iterable[str]) -> None:
        with self._lock:
            for token in tokens:
                self._counts.pop(token, None)
