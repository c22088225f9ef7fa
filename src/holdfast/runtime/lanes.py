"""Lanes: the jobs of one stream that this worker holds run one after the other.

A job starts when the one before it is finished in the database. When that one goes back instead (a retry, a release, a
lost lease, a block), what is behind it goes back too, unstarted: its turn has not come.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping

from ..model.queue import QueueRules
from .inflight import Running

_FINISHED = ("completed", "cancelled", "dead_letter")
Stream = tuple[str, str]


class Lanes:
    def __init__(self, rules: Mapping[str, QueueRules]) -> None:
        self._ordered = {queue for queue, rule in rules.items() if rule.ordered}
        self._lanes: dict[Stream, deque[Running]] = {}  # the first of each runs, or is about to

    def __len__(self) -> int:
        return len(self._lanes)

    def stream(self, running: Running) -> Stream | None:
        key, queue = running.claimed.partition_key, running.claimed.queue
        return (queue, key) if key is not None and queue in self._ordered else None

    def admit(self, batch: list[Running]) -> list[Running]:
        """Those that may start; the others wait here for the one before them."""
        if not self._ordered:
            return batch
        start: list[Running] = []
        runs: dict[Stream, list[Running]] = {}
        # In claim order; but within a stream the sequence counts, whatever the priorities are.
        for running in batch:
            stream = self.stream(running)
            if stream is None:
                start.append(running)
            elif stream in runs:
                runs[stream].append(running)
            else:
                runs[stream] = [running]
                if stream not in self._lanes:
                    start.append(running)
        heads: dict[Running, Running] = {}
        for stream, run in runs.items():
            first = run[0]
            run.sort(key=lambda r: r.claimed.seq)
            heads[first] = run[0]
            self._lanes.setdefault(stream, deque()).extend(run)
        return [heads.get(running, running) for running in start]

    def ended(self, running: Running, state: str) -> tuple[Running | None, list[Running]]:
        """(the next to start, those to hand back)."""
        stream = self.stream(running)
        lane = self._lanes.get(stream) if stream is not None else None
        if stream is None or not lane:
            return None, []
        if lane[0] is not running:  # it left before its turn: lost, or handed back
            if running in lane:
                lane.remove(running)
            return None, []
        lane.popleft()
        if lane and state in _FINISHED:
            return lane[0], []
        del self._lanes[stream]
        return None, list(lane)

    def doubter(self, most: float) -> Callable[[Running], bool] | None:
        """Tells a job of a stream whose lease was not renewed for longer than `most` seconds: the process stood still.

        Another worker may be far ahead of it: it waits until the next renewal has found out whose it is."""

        def in_doubt(running: Running) -> bool:
            return time.monotonic() - running.renewed_at > most and self.stream(running) is not None

        return in_doubt if self._ordered else None

    def stale(self, seconds: float) -> list[Running]:
        """Those that have waited here for longer than that, and what is behind them; they leave."""
        long_ago = time.monotonic() - seconds
        stale: list[Running] = []
        for lane in self._lanes.values():
            first = next((n for n, r in enumerate(lane) if n and r.claimed_at < long_ago), len(lane))
            stale += list(lane)[first:]
            while len(lane) > first:
                lane.pop()
        return stale

    def waiting(self) -> list[Running]:
        """Those whose turn has not come, and who will not get one."""
        waiting = [running for lane in self._lanes.values() for running in list(lane)[1:]]
        for lane in self._lanes.values():
            while len(lane) > 1:
                lane.pop()
        return waiting
