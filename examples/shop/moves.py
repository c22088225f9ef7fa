"""Parcels leave in order while workers come and go: which worker owns which keys, and what that costs."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg

from examples.shop import app as shop
from examples.shop.show import Screen
from examples.stage import Fleet, worker
from holdfast.operate.operator import Operator

CUSTOMERS = 60
PARCELS_PER_SECOND = 60
JOINER = "worker-4"

Owners = dict[int, str]  # bucket -> the name of the worker that owns it


@dataclass(frozen=True)
class Moved:
    """What became of the parcels."""

    enqueued: int
    shipped: int
    out_of_order: int
    attempts: int  # spent beyond the first of each job

    def broken(self) -> list[str]:
        promises = [
            (self.shipped == self.enqueued, f"{self.enqueued - self.shipped} parcels were not shipped"),
            (self.out_of_order == 0, f"{self.out_of_order} parcels left out of order"),
            (self.attempts == 0, f"{self.attempts} attempts were spent on workers that came and went"),
        ]
        return [words for kept, words in promises if not kept]


class Moves:
    def __init__(self, conn: psycopg.Connection[Any], fleet: Fleet, screen: Screen) -> None:
        self._conn = conn
        self._fleet = fleet
        self._screen = screen
        self._began = time.monotonic()
        self._enqueued = 0

    def to_the_end(self) -> Moved:
        self._screen.say("parcels, in order for each customer; the ring says which worker owns which")
        first, *others = self._alive()
        before = self._until_shared({first, *others})

        self._fleet.start(JOINER, worker("examples.shop.app:app"))
        before = self._say_moved(f"join: {JOINER} starts", before, {first, *others, JOINER})

        self._fleet.tell(first, by_signal=True)
        before = self._say_moved(f"leave: {first} gets SIGTERM", before, {*others, JOINER})

        (joined,) = (w.worker for w in self._seats() if self._fleet.pids()[w.pid] == JOINER)
        Operator(shop.app.database, "demo").drain_workers(ids=[joined])
        self._fleet.tell(JOINER, by_signal=False)
        self._say_moved(f"drain: holdfast workers drain {joined.rpartition(':')[2][:8]}", before, set(others))

        self._until(lambda: self._fleet.state(first) == self._fleet.state(JOINER) == "left")
        enqueued, self._enqueued = self._enqueued, -1
        self._until(lambda: self._number("SELECT count(*) FROM holdfast.work") == 0)
        return self._say_counts(enqueued)

    def _alive(self) -> list[str]:
        return [name for name in self._fleet.pids().values() if self._fleet.state(name) == "alive"]

    def _until_shared(self, names: set[str]) -> Owners:
        """Until these workers and no others own the parcels; parcels keep coming meanwhile."""
        pids = self._fleet.pids()
        self._until(lambda: {pids.get(w.pid) for w in self._seats()} == names)
        return {
            bucket: pids[w.pid]
            for w in self._seats()
            for first, last in w.ranges
            for bucket in range(first, last + 1)
        }

    def _seats(self) -> Any:
        (report,) = Operator(shop.app.database, "demo").rings("parcels")
        return report.workers

    def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._send_what_is_due()
            self._fleet.check()
            time.sleep(0.05)

    def _send_what_is_due(self) -> None:
        due = int((time.monotonic() - self._began) * PARCELS_PER_SECOND)
        while 0 <= self._enqueued < due:
            number, customer = divmod(self._enqueued, CUSTOMERS)
            key = f"customer {customer}"
            shop.ship.using(conn=self._conn, partition_key=key).enqueue(customer=key, number=number)
            self._enqueued += 1

    def _say_moved(self, what: str, before: Owners, names: set[str]) -> Owners:
        after = self._until_shared(names)
        moved = Counter((before[b], after[b]) for b in before if before[b] != after[b])
        ways = ", ".join(f"{old} -> {new} {count}" for (old, new), count in sorted(moved.items()))
        self._screen.say(f"{what}: {sum(moved.values())} of {len(before)} buckets moved ({ways})", "bold")
        return after

    def _say_counts(self, enqueued: int) -> Moved:
        moved = Moved(
            enqueued,
            self._number("SELECT count(*) FROM parcels"),
            self._number(
                "SELECT count(*) FROM (SELECT number, row_number() OVER (PARTITION BY customer ORDER BY n) - 1 AS turn"
                " FROM parcels) p WHERE number <> turn"
            ),
            self._number(
                "SELECT coalesce(sum(attempts - 1), 0) FROM holdfast.archive WHERE queue = 'parcels'"
            ),
        )
        self._screen.say(
            f"{moved.shipped} of {moved.enqueued} parcels shipped, {moved.out_of_order} out of order, "
            f"{moved.attempts} attempts spent on the moves",
            "bold red" if moved.broken() else "bold green",
        )
        return moved

    def _number(self, query: str) -> int:
        row = self._conn.execute(query.encode()).fetchone()
        return int(row[0]) if row else 0
