"""Queues with affinity: a key's jobs go to one worker, and nothing waits for it longer than it has to."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest
from tests.conftest import QUICK, await_until

from holdfast import Holdfast
from holdfast.model.bucket import BUCKETS, bucket
from holdfast.model.queue import QueueRules
from holdfast.model.ring import buckets_of
from holdfast.model.worker import WorkerIdentity
from holdfast.operate.operator import Operator
from holdfast.runtime import ring
from holdfast.runtime.claim import affine, queues
from holdfast.runtime.claim.affine import AffineClaimer
from holdfast.runtime.claim.claimer import Ask, Shared
from holdfast.runtime.claim.held import HeldJobs
from holdfast.runtime.claim.plain import PlainClaimer
from holdfast.runtime.worker import Worker
from holdfast.store import workers as store
from holdfast.testing import Kit

KEYS = [f"customer:{n}" for n in range(40)]
TAKEOVER = 60.0
RULES = QueueRules(affinity="key")
MINE = [key for key in KEYS if bucket(key) % 2 == 0]
THEIRS = [key for key in KEYS if bucket(key) % 2 == 1]
EVEN, ODD = list(range(0, BUCKETS, 2)), list(range(1, BUCKETS, 2))


@pytest.fixture
def kit(app: Holdfast, holdfast_kit: Callable[..., Kit]) -> Kit:
    app.queue("mail", affinity="key")

    @app.task(queue="mail", name="post")
    async def post(gate: str = "") -> None:
        while gate and gate not in opened:  # noqa: ASYNC110 the test opens it
            await asyncio.sleep(0.005)

    return holdfast_kit(app, replace(QUICK, ring=0.05, takeover=TAKEOVER, dead_after=10, lease=20))


opened: set[str] = set()


@asynccontextmanager
async def fleet(app: Holdfast, count: int, concurrency: int = 4) -> AsyncIterator[list[Worker]]:
    workers: list[Worker] = []
    running = [
        asyncio.create_task(app._serve(["mail"], concurrency, on_start=workers.append)) for _ in range(count)
    ]
    try:
        await await_until(lambda: len(workers) == count, "all have started")
        yield workers
    finally:
        for worker in workers:
            worker.stop()
        await asyncio.gather(*running)


async def until_shared(workers: Sequence[Worker]) -> None:
    await await_until(
        lambda: sum(sum(b.bit_count() for b in _bits(w)) for w in workers) == BUCKETS,
        "they share the buckets",
    )


def _bits(worker: Worker) -> bytes:
    claimer = worker._queues["mail"]
    return b"" if not isinstance(claimer, AffineClaimer) or claimer._mine is None else claimer._mine


def put(kit: Kit, keys: Sequence[str | None], *, gate: str = "", priority: int = 0, ago: float = 0.0) -> None:
    kit.sql(
        "SELECT holdfast.enqueue('post', jsonb_build_object('gate', %s::text), queue => 'mail', partition_key => k,"
        " priority => %s) FROM unnest(%s::text[]) AS u(k)",
        [gate, priority, list(keys)],
    )
    if ago:
        kit.sql(
            "UPDATE holdfast.work SET available_at = available_at - %s WHERE available_at > holdfast.now() - interval '1 s'",
            [timedelta(seconds=ago)],
        )


def finished(kit: Kit) -> bool:
    return not kit.sql("SELECT 1 AS one FROM holdfast.work LIMIT 1")


def ran_on(kit: Kit) -> dict[str | None, set[str]]:
    found: dict[str | None, set[str]] = {}
    for row in kit.sql("SELECT partition_key AS key, claimed_by AS worker FROM holdfast.archive"):
        found.setdefault(row["key"], set()).add(row["worker"])
    return found


class Claims:
    """The claims of a live worker that owns some buckets."""

    def __init__(self, app: Holdfast, kit: Kit, buckets: Sequence[int], rules: QueueRules) -> None:
        self._worker = WorkerIdentity.create()
        kit.database.run(
            lambda: store.register(self._worker, queues=["mail"], tasks=["post"], concurrency=9, release="r")
        )
        self.session = kit.database.session("test")
        shared = Shared(self.session, HeldJobs(self.session, app.tasks), lambda _: uuid4(), TAKEOVER)
        self.of = AffineClaimer("mail", rules, 60, shared)
        self.of.look_after(buckets)

    async def keys(self, want: int, free: int | None = None, *, again: bool = True) -> list[str | None]:
        """Of what it claims. `again`: as if it were time to look at jobs of others, and through all that is due."""
        if again:
            self.of._others_at = self.of._marks.full_at = 0.0
        jobs = await self.of.claim(Ask(self._worker.id, want, want if free is None else free))
        return [job.partition_key for job in jobs]

    @property
    def has_more_to_pass(self) -> bool:
        return self.of._round is not None or (self.of._passed is not None and bool(self.of._passed.bounds))


@asynccontextmanager
async def claiming(
    app: Holdfast, kit: Kit, buckets: Sequence[int] = EVEN, rules: QueueRules = RULES
) -> AsyncIterator[Claims]:
    claims = Claims(app, kit, buckets, rules)
    try:
        yield claims
    finally:
        await claims.session.close()


async def test_a_worker_takes_its_own_first_and_others_jobs_when_they_are_late(
    app: Holdfast, akit: Kit
) -> None:
    put(akit, [*MINE, *THEIRS, None, None])
    async with claiming(app, akit) as mine:
        assert sorted(await mine.keys(100), key=str) == sorted([*MINE, None, None], key=str)
        assert await mine.keys(100) == []
        akit.clock.advance(TAKEOVER - 1)
        assert await mine.keys(100) == []
        akit.clock.advance(2)
        assert await mine.keys(100, free=0) == []
        assert len(await mine.keys(100, free=3)) == 3  # into free slots alone
        assert (
            len(await mine.keys(100, again=False)) == len(THEIRS) - 3
        )  # there was more, so it goes on at once
        put(akit, THEIRS[:1])
        akit.clock.advance(TAKEOVER + 1)
        assert await mine.keys(100) == THEIRS[:1]


async def test_one_with_enough_to_do_takes_what_waits_much_longer_and_what_is_late_and_urgent(
    app: Holdfast, akit: Kit
) -> None:
    """So also the jobs of a worker that hangs have their turn while all the others have a backlog."""
    old, less_old, urgent, idle = THEIRS[:4]
    put(akit, [old], ago=4 * TAKEOVER)
    put(akit, [less_old], ago=2.5 * TAKEOVER)
    put(akit, [urgent], ago=1.5 * TAKEOVER, priority=5)
    put(akit, [idle], ago=9 * TAKEOVER, priority=-5)
    put(akit, MINE, ago=2 * TAKEOVER)
    put(akit, [MINE[0]] * 3, ago=0.5 * TAKEOVER, priority=9)
    async with claiming(app, akit) as mine:
        assert await mine.keys(4) == [MINE[0]] * 3 + MINE[:1]
        assert await mine.keys(4) == [urgent, old, *MINE[1:3]]
        assert await mine.keys(4) == MINE[3:7]
        assert await mine.keys(100) == MINE[7:]
        assert await mine.keys(100) == [less_old, idle]  # now it has nothing to do


async def test_jobs_of_others_are_passed_once_in_bounded_steps(
    app: Holdfast, akit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(affine, "_ROWS", 10)
    monkeypatch.setattr(affine, "_PATIENCE", 60.0)
    put(akit, THEIRS[:1] * 95, ago=30)
    put(akit, MINE[:2], ago=20)
    put(akit, THEIRS[:1] * 15, ago=10)
    async with claiming(app, akit) as mine:
        assert await mine.keys(5) == MINE[:2]
        (latest,) = akit.sql("SELECT max(available_at) AS at FROM holdfast.work")
        while mine.has_more_to_pass:
            assert await mine.keys(5, again=False) == []
        mark = mine.of._marks.at[0]
        assert mark is not None
        assert mark.at > latest["at"]  # the next one passes none of them again
        put(akit, MINE[2:3], ago=25)  # it comes late, before the mark
        mine.of._marks.full_at = time.monotonic() + 600
        assert await mine.keys(5, again=False) == []
        assert await mine.keys(5) == MINE[2:3]


async def test_a_job_whose_transaction_was_long_is_found_as_soon_as_nothing_else_is(
    app: Holdfast, akit: Kit
) -> None:
    put(akit, MINE[:2], ago=20)
    async with claiming(app, akit) as mine:
        assert await mine.keys(5) == MINE[:2]
        put(akit, MINE[2:3], ago=25)  # before the mark
        marks = mine.of._marks
        marks.full_at, marks._scanned_at = time.monotonic() + 600, 0.0
        assert await mine.keys(5, again=False) == []
        assert await mine.keys(5, again=False) == MINE[2:3]


async def test_nobody_without_buckets_or_alone_leaves_anything(app: Holdfast, akit: Kit) -> None:
    put(akit, [*KEYS, None])
    async with claiming(app, akit, []) as mine:
        assert await mine.keys(100) == [None]
        mine.of.look_after(None)
        assert sorted(await mine.keys(100), key=str) == sorted(KEYS)


async def test_a_limit_of_the_queue_holds_and_keys_stay(app: Holdfast, akit: Kit) -> None:
    Operator(akit.database, "ann").set_queue("mail", limits={"concurrency": 3})
    rules = QueueRules(affinity="key", concurrency=3)
    put(akit, KEYS)
    async with claiming(app, akit, EVEN, rules) as even, claiming(app, akit, ODD, rules) as odd:
        assert await even.keys(2) == MINE[:2]
        assert await odd.keys(5) == THEIRS[:1]
        assert await even.keys(5) == await odd.keys(5) == []
        akit.sql(
            "UPDATE holdfast.work SET available_at = available_at - interval '1 hour' WHERE partition_key = %s",
            THEIRS[5:6],
        )
        akit.sql("DELETE FROM holdfast.work WHERE status = 'processing'")
        akit.sql("DELETE FROM holdfast.claims")
        assert (await even.keys(9))[0] == THEIRS[
            5
        ]  # though the limit leaves it more of its own than it may take


async def test_three_workers_of_a_steady_fleet_keep_their_keys_and_share_what_has_none(
    app: Holdfast, akit: Kit
) -> None:
    async with fleet(app, 3) as workers:
        await until_shared(workers)
        for _ in range(10):
            await asyncio.to_thread(put, akit, [*KEYS, None])
            await await_until(lambda: finished(akit), "every job is finished")
    ran = ran_on(akit)
    assert ran.pop(None)
    assert sum(len(on) == 1 for on in ran.values()) >= 0.95 * len(KEYS)
    assert len(set.union(*ran.values())) == 3


async def test_a_worker_whose_slots_are_full_gets_help_and_one_that_drains_hands_over(
    app: Holdfast, akit: Kit
) -> None:
    async with fleet(app, 2, concurrency=1) as workers:
        await until_shared(workers)
        seat = {row["worker"]: row["seat"] for row in akit.sql("SELECT worker, seat FROM holdfast.seats")}
        first = workers[0].identity.id
        held = [key for key in KEYS if bucket(key) in buckets_of(seat[first], [0, 1])]
        await asyncio.to_thread(put, akit, held[:1], gate="full")
        await await_until(lambda: workers[0].slots.free == 0, "its only slot is taken")
        await asyncio.to_thread(put, akit, held[1:3])
        akit.sql(
            "UPDATE holdfast.work SET available_at = available_at - interval '1 hour' WHERE status = 'pending'"
        )
        await await_until(lambda: set(held[1:3]) <= set(ran_on(akit)), "the other one took them")
        assert all(ran_on(akit)[key] == {workers[1].identity.id} for key in held[1:3])
        workers[0].stop()
        await asyncio.to_thread(put, akit, held[3:6])
        await await_until(lambda: set(held[3:6]) <= set(ran_on(akit)), "its keys are the other one's")
        opened.add("full")


async def test_affinity_is_switched_on_and_off_while_workers_run(
    app: Holdfast, akit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "_RULES", 0.1)
    monkeypatch.setattr(ring, "_NONE", 0.1)
    operator = Operator(akit.database, "ann")
    async with fleet(app, 2) as workers:
        await until_shared(workers)
        stop = asyncio.Event()

        async def produce() -> None:
            while not stop.is_set():
                await asyncio.to_thread(put, akit, KEYS[:10])

        producing = asyncio.create_task(produce())
        await asyncio.to_thread(operator.set_queue, "mail", limits={"affinity": "none"})
        await await_until(
            lambda: all(type(w._queues["mail"]) is PlainClaimer for w in workers), "every key is anybody's"
        )
        await asyncio.to_thread(operator.set_queue, "mail", limits={"affinity": "key"})
        await until_shared(workers)
        stop.set()
        await producing
        await await_until(lambda: finished(akit), "nothing is lost")
        akit.sql("DELETE FROM holdfast.archive")
        await asyncio.to_thread(put, akit, KEYS * 3)
        await await_until(lambda: finished(akit), "every job is finished")
    assert all(len(on) == 1 for on in ran_on(akit).values())
