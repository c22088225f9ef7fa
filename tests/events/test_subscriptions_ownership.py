"""Who runs a subscription: one worker at a time, under lease and generation; workers share them."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from tests.conftest import QUICK, await_until, raw, wait_until
from tests.flow.test_run import working
from tests.sql.support import run as run_statement

from holdfast import Event, Holdfast, Transaction
from holdfast.shapes.events import store
from holdfast.shapes.events.store import Owned, Owner
from holdfast.testing import Kit

OWNERS = "SELECT owner, count(*) AS n FROM holdfast.subscriptions WHERE owner IS NOT NULL GROUP BY owner"


class Pretender:
    """An owner without a worker: the statements of one, in the order of a test."""

    def __init__(self, kit: Kit, names: tuple[str, ...] = ("mine",), lease: float = 60.0) -> None:
        self._kit = kit
        self.owner = Owner([(name, ["*"]) for name in names], uuid4(), f"worker-{uuid4()}", lease, 0.0)

    def own(self) -> list[Owned]:
        return self._kit.database.run(lambda: store.own(self.owner))

    def owned(self) -> dict[tuple[str, int, int], bool]:
        return self._kit.database.run(lambda: store.owned(self.owner))

    def advance(self, o: Owned, to: int) -> bool:
        return self._kit.database.run(lambda: store.advance(o, to, to, 60.0))


def subscribe(kit: Kit, *names: str) -> None:
    for name in names:
        kit.database.run(lambda name=name: store.subscribe(name, "jobs", ["*"], "start"))  # type: ignore[misc]


def expire_lease(kit: Kit) -> None:
    kit.sql("UPDATE holdfast.subscriptions SET lease_expires_at = holdfast.now() - interval '1 hour'")


def test_one_owner_at_a_time(kit: Kit) -> None:
    subscribe(kit, "mine")
    first, second = Pretender(kit), Pretender(kit)
    (mine,) = first.own()
    assert (mine.name, mine.generation, mine.position) == ("mine", 1, 0)
    assert second.own() == []
    (again,) = first.own()
    assert again.generation == 1, "renewed, not taken anew"
    expire_lease(kit)
    (taken,) = second.own()
    assert taken.generation == 2
    assert first.own() == []
    assert first.owned() == {}


@pytest.mark.parametrize("what", ["generation", "token", "position", "paused"])
def test_only_the_owner_moves_it_and_only_from_where_it_read(kit: Kit, what: str) -> None:
    subscribe(kit, "mine")
    first = Pretender(kit)
    (mine,) = first.own()
    stale = {
        "generation": replace(mine, generation=0),
        "token": replace(mine, token=uuid4()),
        "position": replace(mine, position=5),
        "paused": mine,
    }[what]
    if what == "paused":  # an operator's hand, without a new generation
        kit.sql("UPDATE holdfast.subscriptions SET status = 'paused'")
    assert not first.advance(stale, 7)
    assert not kit.database.run(lambda: store.hold(stale))
    assert kit.database.run(lambda: store.advance_jobs(stale, 7, 7, 60.0, [(1, 8)])) is None
    if what != "paused":
        assert kit.database.run(lambda: store.hold(mine))
        assert kit.database.run(lambda: store.advance_jobs(mine, 7, 7, 60.0, [(1, 8)])) == []


def test_a_row_that_a_batch_holds_is_neither_taken_nor_lost(kit: Kit) -> None:
    """The lease ends while the transaction of the batch is open: nobody can take it, and its commit renews the lease."""
    subscribe(kit, "mine")
    first, second = Pretender(kit), Pretender(kit)
    (mine,) = first.own()
    expire_lease(kit)
    with raw(kit.url) as conn:
        conn.execute("SELECT 1 FROM holdfast.subscriptions WHERE name = 'mine' FOR UPDATE")
        assert second.own() == []
        assert first.own() == []  # its own row is held by its own batch
        assert first.owned() == {mine.key: False}
        conn.execute(
            "UPDATE holdfast.subscriptions SET lease_expires_at = holdfast.now() + interval '1 minute'"
        )
    assert second.own() == []
    assert [o.generation for o in first.own()] == [1]


def slow_app(seconds: float, seen: list[int], begun: threading.Event) -> Holdfast:
    app = Holdfast("postgresql://unused.invalid/none")

    @app.projection("slow", on=["*"])
    def slow(tx: Transaction, event: Event[Any]) -> None:
        begun.set()
        time.sleep(seconds)
        tx.execute("INSERT INTO effects VALUES (%s)", [event.position])
        seen.append(event.position)

    return app


async def test_a_batch_of_three_leases_is_not_fenced_by_its_own_slowness(
    holdfast_kit: Callable[..., Kit],
) -> None:
    seen: list[int] = []
    begun = threading.Event()
    app = slow_app(3 * QUICK.dead_after, seen, begun)
    kit = holdfast_kit(app, QUICK)
    kit.sql("CREATE TABLE effects (position bigint)")
    async with working(kit):
        await await_until(lambda: kit.sql(OWNERS), "it is owned")
        async with working(kit):
            await app.apublish("thing.done", {})
            await await_until(lambda: kit.sql("SELECT 1 FROM effects"), "the effect is committed")
            await await_until(
                lambda: kit.sql("SELECT 1 FROM holdfast.subscriptions WHERE position = 1"), "and the position"
            )
    assert seen == [1], "nobody else began it meanwhile"
    assert kit.sql("SELECT position FROM effects") == [{"position": 1}]
    await kit.database.aclose()


def many(app: Holdfast, count: int, seen: list[tuple[int, int]]) -> None:
    def make(number: int) -> None:
        @app.on("*", name=f"consumer_{number}")
        async def consume(event: Event[Any]) -> None:
            seen.append((number, event.position))

    for number in range(count):
        make(number)


def shares(kit: Kit) -> list[int]:
    return sorted(row["n"] for row in kit.sql(OWNERS))


async def test_workers_share_what_they_declare_and_a_stop_hands_over_at_once(
    app: Holdfast, akit: Kit
) -> None:
    """Nothing here waits for a lease or for many heartbeats: both are longer than the test may take."""
    seen: list[tuple[int, int]] = []
    many(app, 5, seen)
    akit.database.settings = replace(QUICK, heartbeat=0.3, dead_after=600.0, lease=900.0)
    async with working(akit):
        await await_until(lambda: shares(akit) == [5], "one has all")
        async with working(akit):
            await await_until(lambda: shares(akit) == [2, 3], "two share")
            generations = akit.sql("SELECT name, generation FROM holdfast.subscriptions ORDER BY 1")
            await app.apublish("thing.done", {})
            await await_until(lambda: len(seen) == 5, "all of them consume")
            # however long they run: nothing moves that is shared out
            for _ in range(5):
                before = akit.sql("SELECT max(lease_expires_at) AS at FROM holdfast.subscriptions")
                await await_until(
                    lambda before=before: akit.sql(  # type: ignore[misc]
                        "SELECT 1 FROM holdfast.subscriptions HAVING min(lease_expires_at) > %s",
                        [before[0]["at"]],
                    ),
                    "all are renewed",
                )
            assert akit.sql("SELECT name, generation FROM holdfast.subscriptions ORDER BY 1") == generations
            async with working(akit):
                await await_until(lambda: shares(akit) == [1, 2, 2], "three share")
            await await_until(lambda: shares(akit) == [2, 3], "and two again")
        await await_until(lambda: shares(akit) == [5], "the one that stays has all again")
        await app.apublish("thing.done", {})
        await await_until(lambda: len(seen) == 10, "all of them consume")
    assert sorted(seen) == sorted((number, position) for number in range(5) for position in (1, 2))
    assert akit.sql(OWNERS) == []
    await akit.database.aclose()


async def test_a_stop_hands_over_at_once_to_one_that_sleeps(app: Holdfast, akit: Kit) -> None:
    """Neither its heartbeat nor its look at the log comes round within the test: it is woken."""
    seen: list[tuple[int, int]] = []
    many(app, 1, seen)
    akit.database.settings = replace(QUICK, heartbeat=0.3, dead_after=600.0, lease=900.0, poll=600.0)
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(_stoppable(akit))
        await await_until(lambda: shares(akit) == [1], "the first has it")
        akit.database.settings = replace(QUICK, heartbeat=300.0, dead_after=600.0, lease=900.0, poll=600.0)
        await stack.enter_async_context(_stoppable(akit))
        asleep = "SELECT count(*) AS n FROM holdfast.sleepers WHERE queue = '+events'"
        await await_until(lambda: akit.sql(asleep) == [{"n": 2}], "both sleep")
        (owner,) = akit.sql(OWNERS)
        first.set()
        await await_until(
            lambda: [row["owner"] for row in akit.sql(OWNERS)] not in ([], [owner["owner"]]),
            "the other has it",
        )
    await akit.database.aclose()


@contextlib.asynccontextmanager
async def _stoppable(kit: Kit) -> AsyncIterator[asyncio.Event]:
    """A worker that runs until the event is set."""
    stop = asyncio.Event()

    async def run() -> None:
        async with working(kit):
            await stop.wait()

    task = asyncio.create_task(run())
    try:
        yield stop
    finally:
        stop.set()
        await task


def worker(kit: Kit, owner: Owner) -> None:
    kit.sql(
        "INSERT INTO holdfast.workers (id, host, pid, last_seen_at, started_at, queues, tasks, concurrency, release) "
        "VALUES (%s, 'h', 1, holdfast.now(), holdfast.now(), '{}', '{}', 1, 'x')",
        [owner.worker],
    )


def patient(kit: Kit, *names: str) -> Pretender:
    """One that keeps to its share, and is in the registry."""
    made = Pretender(kit, names)
    made.owner = replace(made.owner, patience=3600.0)
    worker(kit, made.owner)
    return made


def test_a_share_counts_only_what_a_worker_may_run(kit: Kit) -> None:
    """One declares a and b, the other a to d: the second leaves a and b to the first, and has c and d."""
    subscribe(kit, *"abcd")
    some, every = patient(kit, "a", "b"), patient(kit, *"abcd")
    assert {o.name for o in every.own()} == set("abcd"), "as long as it is alone"
    assert some.own() == []
    leaving = {name for (name, _, _), leave in every.owned().items() if leave}
    assert len(leaving) == 1
    assert leaving < {"a", "b"}, "of the rest nobody else could take over"


def test_what_nobody_takes_is_taken_by_anybody_after_a_while(kit: Kit) -> None:
    subscribe(kit, *"abcd")
    first, second = patient(kit, *"abcd"), patient(kit, *"abcd")
    second.own()
    kit.database.run(lambda: store.release(second.owner.token, ""))
    assert len(first.own()) == 2
    assert len(first.own()) == 2, "it keeps to its share"
    kit.sql(
        "UPDATE holdfast.subscriptions SET lease_expires_at = holdfast.now() - interval '2 hours' WHERE owner IS NULL"
    )
    assert len(first.own()) == 4


def test_one_that_is_not_heard_of_has_no_share(kit: Kit) -> None:
    subscribe(kit, *"abcd")
    first, second = patient(kit, *"abcd"), patient(kit, *"abcd")
    second.own()
    kit.sql(
        "UPDATE holdfast.workers SET last_seen_at = holdfast.now() - interval '1 hour' WHERE id = %s",
        [second.owner.worker],
    )
    expire_lease(kit)
    kit.sql("UPDATE holdfast.subscriptions SET lease_expires_at = holdfast.now()")
    assert len(first.own()) == 4


def test_changed_patterns_fence_the_owner_and_are_left_to_the_code_that_has_them(kit: Kit) -> None:
    """An owner that went on by the old patterns would pass events that the new ones want."""
    subscribe(kit, "mine")
    old = Pretender(kit)
    (mine,) = old.own()
    new = Pretender(kit)
    new.owner = replace(new.owner, declared=[("mine", ["order.*"])])
    assert kit.database.run(lambda: store.subscribe("mine", "jobs", ["order.*"], "start")) is False
    assert not old.advance(mine, 5)
    assert old.own() == []
    assert [o.patterns for o in new.own()] == [["order.*"]]
    # A worker of the old code that says it again does not take it back, unless the new code is gone.
    kit.database.run(lambda: store.subscribe("mine", "jobs", ["*"], "start", begins=False, lease=60.0))
    assert kit.sql("SELECT patterns FROM holdfast.subscriptions") == [{"patterns": ["order.*"]}]
    expire_lease(kit)
    kit.database.run(lambda: store.subscribe("mine", "jobs", ["*"], "start", begins=False, lease=60.0))
    assert [o.patterns for o in old.own()] == [["*"]]


def test_a_release_frees_what_is_its_own_only(kit: Kit) -> None:
    subscribe(kit, "a", "b")
    first, second = Pretender(kit, ("a",)), Pretender(kit, ("b",))
    (a,) = first.own()
    second.own()
    owners = "SELECT name, owner FROM holdfast.subscriptions ORDER BY 1"
    before = [{"name": "a", "owner": first.owner.worker}, {"name": "b", "owner": second.owner.worker}]
    kit.database.run(lambda: store.release(second.owner.token, second.owner.worker, a))
    assert kit.sql(owners) == before
    kit.database.run(lambda: store.release(first.owner.token, first.owner.worker))
    assert kit.sql(owners) == [{"name": "a", "owner": None}, before[1]]
    assert not first.advance(a, 1)


def test_one_that_stops_has_no_share(kit: Kit) -> None:
    subscribe(kit, *"abcd")
    first, second = patient(kit, *"abcd"), patient(kit, *"abcd")
    second.own()
    kit.database.run(lambda: store.release(second.owner.token, second.owner.worker))
    assert len(first.own()) == 4


def test_what_no_other_could_take_is_kept(kit: Kit) -> None:
    """The first has one more than its share. The one that could take it has its own, and the one that has not cannot."""
    subscribe(kit, *"abcuvwz")
    first, both, other = patient(kit, *"abc"), patient(kit, *"abcuvwz"), patient(kit, *"uvwz")
    assert len(first.own()) == 3
    assert {o.name for o in both.own()} == set("uvwz")
    assert other.own() == []
    assert set(first.owned().values()) == {False}


def test_two_that_want_different_numbers_of_shards_do_not_mix_them(kit: Kit) -> None:
    with raw(kit.url) as first, raw(kit.url, autocommit=True) as second:
        done: list[bool] = []

        def subscribe_with(conn: Any, shards: int) -> bool:
            return bool(run_statement(conn, store.subscribe("new", "projection", ["*"], "start", shards)))

        assert subscribe_with(first, 2)
        waiting = threading.Thread(target=lambda: done.append(subscribe_with(second, 4)))
        waiting.start()
        pid = second.info.backend_pid
        wait_until(
            lambda: kit.sql("SELECT 1 FROM pg_locks WHERE pid = %s AND NOT granted", [pid]), "it waits"
        )
        first.commit()
        waiting.join(60)
    assert done == [False]
    rows = kit.sql("SELECT shard, shards FROM holdfast.subscriptions ORDER BY shard")
    assert [(row["shard"], row["shards"]) for row in rows] == [(0, 2), (1, 2)]
