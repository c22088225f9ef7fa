"""Candidates: the keys of an ordered queue that may have something to claim."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

MOST_KEYS = 50_000  # keys remembered; the net finds the others later


class Candidates:
    """Keys to look at, the highest priority first, then in the order they were met."""

    def __init__(self) -> None:
        self._by: dict[int, OrderedDict[str, None]] = {}
        self._known: set[str] = set()
        self._taken: dict[str, int] = {}  # the last ones, with their priorities
        self._emptied: set[str] = set()  # claimed from to their end, and not met since

    def emptied(self, keys: Iterable[str]) -> None:
        """A claim took all jobs of these keys. New jobs of these keys are met along the due jobs."""
        self._emptied.update(keys)

    def ended(self, key: str, priority: int, *, finished: bool) -> None:
        """The last job of a key that this worker held has ended."""
        if finished and key in self._emptied:
            self._emptied.discard(key)
        else:
            self.add(key, priority)

    def add(self, key: str, priority: int) -> None:
        self._emptied.discard(key)
        if key not in self._known and len(self._known) < MOST_KEYS:
            self._known.add(key)
            self._by.setdefault(priority, OrderedDict())[key] = None

    def keep(self, wanted: Callable[[str], bool]) -> None:
        """Forget the others."""
        self._emptied.clear()
        for keys in self._by.values():
            for key in [k for k in keys if not wanted(k)]:
                del keys[key]
                self._known.discard(key)

    def put_back(self, keys: Sequence[str]) -> None:
        """To the front with keys that were just taken: it was their turn."""
        for key in reversed(keys):
            priority = self._taken.get(key, 0)
            self.add(key, priority)
            if key in self._by.get(priority, ()):
                self._by[priority].move_to_end(key, last=False)

    def priority(self, key: str) -> int:
        """The priority of a key that was just taken."""
        return self._taken.get(key, 0)

    def take(self, count: int) -> list[str]:
        taken: list[str] = []
        self._taken = {}
        for priority in sorted(self._by, reverse=True):
            keys = self._by[priority]
            while keys and len(taken) < count:
                key, _ = keys.popitem(last=False)
                self._taken[key] = priority
                taken.append(key)
            if not keys:
                del self._by[priority]
        self._known.difference_update(taken)
        return taken

    def __len__(self) -> int:
        return len(self._known)
