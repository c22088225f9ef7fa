"""Lanes: the jobs of one stream in this worker run one after the other.

A job starts when the one before it is finished in the database. If that one goes back instead (a retry, a release, a
lost lease, a block), the jobs behind it go back too, unstarted.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from ..model.queue import QueueRules
from ..model.state import FINAL
from .inflight import Lane, Running

_seq: Callable[[Running], int] = attrgetter("claimed.seq")
Stream = tuple[str, str]  # a queue and a key


class Ended(NamedTuple):
    """The consequences of the end of some jobs."""

    starts: list[Running]  # they may start now
    over: list[tuple[Running, bool]]  # streams that have no job left here; and whether they are finished
    back: list[Running]  # jobs behind one that is not finished, to be handed back


class Lanes:
    def __init__(self, rules: Mapping[str, QueueRules]) -> None:
        self._ordered = {queue for queue, rule in rules.items() if rule.ordered}
        self._lanes: dict[Stream, Lane] = {}

    def __len__(self) -> int:
        return len(self._lanes)

    def admit(self, batch: list[Running]) -> list[Running]:
        """Returns the jobs that may start; the others wait here for the one before them."""
        if not self._ordered:
            return batch
        start: list[Running] = []
        runs: dict[Stream, list[Running]] = {}
        # In claim order; but within a stream the sequence counts, whatever the priorities are.
        for running in batch:
            claimed = running.claimed
            key, queue = claimed.partition_key, claimed.queue
            if key is None or queue not in self._ordered:
                start.append(running)
                continue
            stream = (queue, key)
            run = runs.get(stream)
            if run is not None:
                run.append(running)
            else:
                runs[stream] = [running]
                if stream not in self._lanes:
                    start.append(running)
        heads: dict[Running, Running] = {}
        for stream, run in runs.items():
            first = run[0]
            run.sort(key=_seq)
            heads[first] = run[0]
            lane = self._lanes.get(stream)
            if lane is None:
                lane = self._lanes[stream] = Lane(stream)
            lane.extend(run)
            for running in run:
                running.lane = lane
        return [heads.get(running, running) for running in start]

    def ended(self, held: Sequence[Running | None], states: Sequence[str]) -> Ended:
        """Jobs have ended in the database, each in a state. None: it was not held here any more."""
        starts: list[Running] = []
        over: list[tuple[Running, bool]] = []
        back: list[Running] = []
        for running, state in zip(held, states, strict=True):
            if running is None:
                continue
            finished, lane = state in FINAL, running.lane
            if not lane:
                over.append((running, finished))
            elif lane[0] is not running:  # it left before its turn: lost, or handed back
                if running in lane:
                    lane.remove(running)
                over.append((running, False))
            else:
                lane.popleft()
                if lane and finished:
                    starts.append(lane[0])
                    continue
                del self._lanes[lane.stream]
                over.append((running, finished))
                back += lane
                lane.clear()
        return Ended(starts, over, back)

    def doubter(self, most: float) -> Callable[[Running], bool] | None:
        """Whether a job's lease was not renewed for longer than `most` seconds, because the process was stopped.

        Another worker may be far ahead of it: it waits until the next renewal has found out which worker owns it."""

        def in_doubt(running: Running) -> bool:
            return time.monotonic() - running.renewed_at > most and running.lane is not None

        return in_doubt if self._ordered else None

    def stale(self, seconds: float) -> list[Running]:
        """Remove and return jobs that have waited here for longer than that, and the jobs behind them."""
        long_ago = time.monotonic() - seconds
        stale: list[Running] = []
        for lane in self._lanes.values():
            first = next((n for n, r in enumerate(lane) if n and r.claimed_at < long_ago), len(lane))
            stale += list(lane)[first:]
            while len(lane) > first:
                lane.pop()
        return stale

    def waiting(self) -> list[Running]:
        """Jobs that may not start yet, and will not start in this worker."""
        waiting = [running for lane in self._lanes.values() for running in list(lane)[1:]]
        for lane in self._lanes.values():
            while len(lane) > 1:
                lane.pop()
        return waiting
