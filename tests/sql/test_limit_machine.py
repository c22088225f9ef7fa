"""A random walk over everything that takes and gives back places: what a claim counts is never less than what runs."""

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import Any
from uuid import uuid4

import pytest
from psycopg import sql
from tests.conftest import within as patience
from tests.sql.support import (
    BOOM,
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
from tests.sql.test_limit_rules import NOW, plain

from holdfast.model.job import ClaimedJob
from holdfast.model.outcome import Completed, Failed, Held, Outcome, Released, Snoozed
from holdfast.model.queue import QueueRules
from holdfast.store import claim as claims
from holdfast.store import limits as store
from holdfast.store import queues
from holdfast.store.limits import Allowance, Asked, Limited
from holdfast.store.renew import renew
from holdfast.store.statement import Flow, Statement
from holdfast.store.streams import claim_streams
from holdfast.store.sweep import disown
from holdfast.testing import Kit

pytestmark = [pytest.mark.versions, pytest.mark.slow]

Connect = Callable[[], Conn]
KEYS = ("a", "b", "c", "d", "e", "f")
STEPS = 150
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"concurrency": 5},
    "keys": {"key_concurrency": 2, "concurrency": 5},
    "fair": {"fair": True, "concurrency": 5},
    "ordered": {"ordering": "key", "concurrency": 5},
}
_RUN = """
SELECT count(*) FROM holdfast.work w
WHERE w.queue = 'q' AND w.status = 'processing' AND (%s::text IS NULL OR w.partition_key = %s)
  AND NOT EXISTS (SELECT FROM holdfast.quarantine x WHERE x.id = w.id)
"""


def claiming(kind: str, queue: str, asked: Asked) -> Flow[Limited]:
    """A claim as a worker makes it: beyond its free slots only what can be spared."""
    want = asked.want or 1

    def take(allowed: Allowance) -> Statement[list[ClaimedJob]]:
        most, token = min(want, allowed.total), uuid4()
        if kind == "plain":
            return claims.claim(queue, asked.worker, token, lease=60, limit=most, marks=NOW, limited=1)
        if kind == "ordered":
            return claim_streams(
                queue,
                asked.worker,
                token,
                lease=60,
                keys=KEYS[:most],
                run=max(most // len(KEYS), 1),
                limited=2,
            )
        shares = [(key, min(want, places)) for key, places in zip(KEYS, allowed.keys, strict=True)]
        return store.claim_shares(queue, asked.worker, token, lease=60, shares=shares, limit=most, limited=2)

    return store.within(queue, () if kind == "plain" else KEYS, take, asked)


class Walk:
    """Three workers on connections of their own, and somebody who changes the limits."""

    def __init__(self, seed: int, conn: Conn, connect: Connect, kit: Kit, kind: str) -> None:
        self.random = random.Random(seed)
        self.conn, self.kit, self.kind, self.by_key = conn, kit, kind, kind == "keys"
        # In an ordered queue a held job keeps all behind it waiting: nothing would run soon.
        self.outcomes: list[Outcome] = [
            o for o in EVERY_OUTCOME if kind != "ordered" or not isinstance(o, Held)
        ]
        self.workers = {register(conn): connect() for _ in range(3)}
        self.held: dict[str, list[ClaimedJob]] = {worker: [] for worker in self.workers}
        self.rules: dict[str, Any] = {}
        make_queue(conn, "q", **KINDS[kind])
        self.change()

    def change(self) -> None:
        """Other limits; at times none at all."""
        self.rules = {"concurrency": self.random.choice([1, 3, 6, 20, 50, None])}
        if self.by_key:
            self.rules["key_concurrency"] = self.random.choice([1, 2, 3, 8])
        run(self.conn, queues.set_rules("q", QueueRules(**{**KINDS[self.kind], **self.rules})))

    def running(self, key: str | None = None) -> int:
        return int(one(self.conn, _RUN, key, key))

    def claim(self) -> None:
        worker, conn = self.random.choice(list(self.workers.items()))
        before = {key: self.running(key) for key in (None, *KEYS)}
        want = self.random.choice([1, 2, 6, 15, 30])
        asked = Asked(worker, want, self.random.choice([None, 0, 1, want // 2, want]))
        if self.kind == "plain" and self.rules["concurrency"] is None:
            taken = run(conn, claims.claim("q", worker, uuid4(), lease=60, limit=want, marks=NOW))
        else:
            taken = run(conn, claiming(self.kind, "q", asked)).jobs
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
            end(conn, job.grant, self.random.choice(self.outcomes), worker)
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
            enqueue(self.conn, 4, queue="q", partition_key=key, max_attempts=50)
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
        if most is not None:
            left = max(0, most - self.running())
            assert exact.total == left
            for want in (1, 4, 20):
                rough = run(self.conn, store.allowance("q", [], Asked(next(iter(self.workers)), want)))
                assert rough.total <= left
                assert (
                    rough.total == left or rough.total >= 2 * want
                )  # it says too little only where that is enough
                assert rough.spare <= left // 2
        if self.by_key:
            most = self.rules["key_concurrency"]
            assert exact.keys == [max(0, most - self.running(key)) for key in KEYS]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [1, 2])
def test_what_a_claim_counts_is_what_runs(
    conn: Conn, connect: Connect, kit: Kit, seed: int, kind: str
) -> None:
    walk = Walk(seed, conn, connect, kit, kind)
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


_LOG = """
CREATE TABLE public.log (n bigserial PRIMARY KEY, step int);
CREATE FUNCTION public.log() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    runs boolean := TG_OP <> 'DELETE' AND NEW.status = 'processing';
    ran  boolean := OLD.status = 'processing';
BEGIN
    IF runs <> ran THEN
        INSERT INTO public.log (step) VALUES (CASE WHEN runs THEN 1 ELSE -1 END);
    END IF;
    RETURN NULL;
END $$;
"""
_ENDS = [Completed("1"), Completed("1"), Completed("1"), Failed(BOOM, 0.0), Released("stop"), Snoozed(0.0)]


@pytest.mark.parametrize("kind", ["plain", "keys", "fair"])
def test_four_who_claim_and_settle_at_once_never_exceed_the_limit(
    conn: Conn, connect: Connect, kind: str
) -> None:
    """Each claims until there is no place, then ends some of what it has. Every step of the count is written down."""
    make_queue(
        conn, "q", **{**KINDS[kind], "concurrency": 20, **({"key_concurrency": 8} if kind == "keys" else {})}
    )
    for key in KEYS:
        enqueue(conn, 50, queue="q", partition_key=key, max_attempts=50)
    conn.execute(_LOG)
    table = one(conn, "SELECT relation FROM holdfast.queues WHERE name = 'q'")
    conn.execute(
        sql.SQL(
            "CREATE TRIGGER log AFTER UPDATE OR DELETE ON holdfast.{} FOR EACH ROW EXECUTE FUNCTION public.log()"
        ).format(sql.Identifier(table))
    )
    until = time.monotonic() + patience(60)

    def work(seed: int, worker: str, mine: Conn) -> None:
        chance, held = random.Random(seed), list[ClaimedJob]()
        while held or one(
            mine, "SELECT EXISTS (SELECT FROM holdfast.work WHERE queue = 'q' AND status = 'pending')"
        ):
            assert time.monotonic() < until, "it takes too long"
            done = run(mine, claiming(kind, "q", Asked(worker, 6, chance.choice([None, 0, 3, 6]))))
            held += done.jobs
            if done.jobs or done.busy:
                continue
            for job in held[: len(held) // 2 + 1]:
                end(mine, job.grant, chance.choice(_ENDS), worker)
            held = held[len(held) // 2 + 1 :]
            run(mine, store.trim_claims("q", list({job.grant.token for job in held})))

    workers = [(seed, register(conn), connect()) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(work, *worker) for worker in workers]:
            future.result()
    steps = [step for (step,) in conn.execute("SELECT step FROM public.log ORDER BY n").fetchall()]
    assert (max(accumulate(steps)), sum(steps)) == (20, 0)


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
