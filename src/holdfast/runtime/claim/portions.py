"""How much a claim of a queue asks for: jobs, and bytes of payload.

A claim whose reply did not arrive in time would not arrive the next time either. So the next one asks for half as much of
both, down to one job, and each that arrives lets the next one ask for a quarter more. Where payloads are long, a claim asks
for no more jobs than come to its bytes, by what came last: the server measures every long payload that it is asked for.
"""

import contextlib
from collections.abc import Iterator, Sequence

from ...db.faults import LockTimeout
from ...errors import DatabaseUnavailable
from ...model.job import ClaimedJob

_LEAST = 1 / 4096


class Portions:
    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._shares: dict[str, float] = {}  # share of what is wanted; 1 where none is noted
        self._means: dict[str, float] = {}  # bytes of a payload, recently
        self.bytes = most_bytes  # that are enough for the claim that is made now

    @contextlib.contextmanager
    def of(self, queue: str, want: int, waiting: int = 0) -> Iterator[int]:
        """How many jobs to ask for. `waiting` bytes are here already. It is fewer the next time if no reply arrives."""
        share = self._shares.get(queue, 1.0)
        self.bytes = max(1, int((self._most_bytes - waiting) * share))
        expected = int(2 * self._most_bytes / self._means.get(queue, 1.0))
        try:
            yield max(1, int(min(want, expected) * share))
        except (DatabaseUnavailable, LockTimeout):  # no reply arrived, or the server gave up sending it
            self._shares[queue] = max(_LEAST, share / 2)
            raise
        finally:
            self.bytes = self._most_bytes

    def came(self, queue: str, jobs: Sequence[ClaimedJob]) -> int:
        """They have arrived. Returns their bytes."""
        if not jobs:
            return 0
        if (share := self._shares.pop(queue, 1.0)) < 0.8:
            self._shares[queue] = share * 1.25
        total = sum(len(job.payload) for job in jobs)
        mean = max(1.0, total / len(jobs))
        known = self._means.get(queue, mean)
        self._means[queue] = mean if mean > known else known + 0.3 * (mean - known)
        return total
