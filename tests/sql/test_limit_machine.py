"""A random walk over everything that takes and gives back places: what a claim counts is never less than what runs."""

import random
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from tests.sql.support import (
    EVERY_OUTCOME,
    Conn,
    end,
    enqueue,
    later,
    make_queue,
    one,
    register,
    run,
    sweep_all,
)
from tests.sql.test_limit_rules import NOW, plain, shared

from holdfast.model.job import ClaimedJob
from holdfast.model.queue import QueueRules
from holdfast.store import claim as claims
from holdfast.store import limits as store
from holdfast.store import queues
from holdfast.store.limits import Asked
from holdfast.store.renew import renew
from holdfast.store.sweep import disown
from holdfast.testing import Kit

pytestmark = pytest.mark.versions

Connect = Callable[[], Conn]
KEYS = ("a", "b", "c")
STEPS = 150
_RUN = """
SELECT count(*) FROM holdfast.work w
WHERE w.queue = 'q' AND w.status = 'processing' AND (%s::text IS NULL OR w.partition_key = %s)
  AND NOT EXISTS (SELECT FROM holdfast.quarantine x WHERE x.id = w.id)
"""


class Walk:
    """Three workers on connections of their own, and somebody who changes the limits."""

    def __init__(self, seed: int, conn: Conn, connect: Connect, kit: Kit, *, by_key: bool) -> None:
        self.random = random.Random(seed)
        self.conn, self.kit, self.by_key = conn, kit, by_key
        self.workers = {register(conn): connect() for _ in range(3)}
        self.held: dict[str, list[ClaimedJob]] = {worker: [] for worker in self.workers}
        self.rules: dict[str, Any] = {}
        make_queue(conn, "q", **({"key_concurrency": 2, "concurrency": 5} if by_key else {"concurrency": 5}))
        self.change()

    def change(self) -> None:
        """Other limits; at times none at all."""
        self.rules = {"concurrency": self.random.choice([1, 3, 6, None])}
        if self.by_key:
            self.rules["key_concurrency"] = self.random.choice([1, 2, 3])
        run(self.conn, queues.set_rules("q", QueueRules(**self.rules)))

    def running(self, key: str | None = None) -> int:
        return int(one(self.conn, _RUN, key, key))

    def claim(self) -> None:
        worker, conn = self.random.choice(list(self.workers.items()))
        before = {key: self.running(key) for key in (None, *KEYS)}
        want = self.random.randint(1, 6)
        if self.by_key:
            taken = run(conn, shared("q", worker, [(key, want) for key in KEYS], want)).jobs
        elif self.rules["concurrency"] is None:
            taken = run(conn, claims.claim("q", worker, uuid4(), lease=60, limit=want, marks=NOW))
        else:
            taken = run(conn, plain("q", worker, want)).jobs
        self.held[worker] += taken
        if taken:
            self.within("concurrency", None, before[None])
        for key in {job.partition_key for job in taken if self.by_key}:
            self.within("key_concurrency", key, before[key])

    def within(self, rule: str, key: str | None, before: int) -> None:
        most = self.rules[rule]
        assert most is None or self.running(key) <= most, f"{rule} {most}, {before} ran before the claim"

    def settle(self) -> None:
        worker, conn = self.random.choice(list(self.workers.items()))
        for job in self.pick(self.held[worker]):
            end(conn, job.grant, self.random.choice(EVERY_OUTCOME), worker)
            self.held[worker].remove(job)

    def trim(self) -> None:
        """Of any claims: whoever believes that they are over may be wrong."""
        worker, conn = self.random.choice(list(self.workers.items()))
        run(conn, store.trim_claims("q", list({job.grant.token for job in self.pick(self.held[worker])})))
        run(
            conn,
            store.trim_claims(
                "q", [row[0] for row in conn.execute("SELECT token FROM holdfast.claims").fetchall()]
            ),
        )

    def renew(self) -> None:
        worker, conn = self.random.choice(list(self.workers.items()))
        run(conn, renew(worker, [job.grant for job in self.held[worker]], 60.0))

    def give_back(self) -> None:
        worker, conn = self.random.choice(list(self.workers.items()))
        if tokens := list({job.grant.token for job in self.pick(self.held[worker])}):
            run(conn, disown(worker, tokens))

    def die(self) -> None:
        """Its process is killed: all it held is swept, and another one comes."""
        worker, conn = self.random.choice(list(self.workers.items()))
        self.conn.execute("UPDATE holdfast.workers SET last_seen_at = '-infinity' WHERE id = %s", [worker])
        del self.workers[worker], self.held[worker]
        sweep_all(self.conn, dead_after=3600)
        self.held[new := register(self.conn)] = []
        self.workers[new] = conn

    def quarantine(self) -> None:
        if mine := [job for jobs in self.held.values() for job in jobs]:
            run(self.conn, claims.quarantine(self.random.choice(mine).id, "q", "bad"))

    def more(self) -> None:
        for key in KEYS:
            enqueue(self.conn, 3, queue="q", partition_key=key, max_attempts=50)
        later(self.kit, 60, self.conn, *self.workers.values())
        for worker in self.workers:
            self.conn.execute(
                "UPDATE holdfast.workers SET last_seen_at = holdfast.now() WHERE id = %s", [worker]
            )
        self.conn.execute("UPDATE holdfast.claims SET lease_expires_at = holdfast.now() + interval '1 hour'")

    def pick(self, jobs: list[ClaimedJob]) -> list[ClaimedJob]:
        return self.random.sample(jobs, self.random.randint(0, len(jobs)))

    def check(self) -> None:
        most = self.rules["concurrency"]
        exact = run(self.conn, store.allowance("q", KEYS if self.by_key else []))
        rough = run(self.conn, store.allowance("q", [], Asked("w", 1)))
        if most is not None:
            left = max(0, most - self.running())
            assert exact.total == left
            assert rough.total <= left
        if self.by_key:
            most = self.rules["key_concurrency"]
            assert exact.keys == [max(0, most - self.running(key)) for key in KEYS]


@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize("seed", [1, 2])
def test_what_a_claim_counts_is_what_runs(
    conn: Conn, connect: Connect, kit: Kit, seed: int, by_key: bool
) -> None:
    walk = Walk(seed, conn, connect, kit, by_key=by_key)
    walk.more()
    steps = [walk.claim] * 8 + [walk.settle] * 5 + [walk.trim, walk.renew, walk.give_back, walk.more] * 2
    steps += [walk.change, walk.die, walk.quarantine]
    for _ in range(STEPS):
        step = walk.random.choice(steps)
        step()
        walk.check()
    for worker, mine in walk.workers.items():
        for job in walk.held[worker]:
            end(mine, job.grant, EVERY_OUTCOME[0], worker)
        run(mine, renew(worker, [], 60.0))
    assert walk.running() == 0
    conn.execute("DELETE FROM holdfast.quarantine")
    sweep_all(conn, dead_after=3600)
    assert (
        one(conn, "SELECT count(*) FROM holdfast.claims c WHERE c.worker = ANY (%s)", list(walk.workers)) == 0
    )


def test_a_claim_that_is_being_renewed_is_trimmed_another_time(conn: Conn, connect: Connect) -> None:
    """Who waits there for several claims could wait for one who waits for it."""
    make_queue(conn, "q", concurrency=5)
    enqueue(conn, 4, queue="q")
    worker, other = register(conn), connect()
    jobs = run(conn, plain("q", worker, 4)).jobs
    for job in jobs:
        end(conn, job.grant, EVERY_OUTCOME[0], worker)
    other.execute("SET statement_timeout = '10s'")
    with conn.transaction():
        conn.execute("UPDATE holdfast.claims SET lease_expires_at = holdfast.now()")
        run(other, store.trim_claims("q", [jobs[0].grant.token]))
    assert one(conn, "SELECT count(*) FROM holdfast.claims") == 1
    run(other, store.trim_claims("q", [jobs[0].grant.token]))
    assert one(conn, "SELECT count(*) FROM holdfast.claims") == 0


def test_far_from_its_limit_a_queue_counts_what_its_claims_list(conn: Conn) -> None:
    """Also what is over and not trimmed yet: never less than what runs. Close to it, each job is looked up."""
    make_queue(conn, "q", concurrency=10)
    enqueue(conn, 10, queue="q")
    worker = register(conn)
    jobs = run(conn, plain("q", worker, 4)).jobs
    end(conn, jobs[0].grant, EVERY_OUTCOME[0], worker)
    assert [run(conn, store.allowance("q", [], Asked(worker, want))).total for want in (1, 3, 4)] == [6, 6, 7]
