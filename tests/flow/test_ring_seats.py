"""Seats in the ring: one each, the lowest that is free, free again the moment its worker says that it leaves."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from tests.conftest import QUICK

from holdfast import Holdfast, telemetry
from holdfast.model.bucket import BUCKETS
from holdfast.model.worker import WorkerIdentity
from holdfast.operate.operator import Operator
from holdfast.runtime import ring as runtime
from holdfast.runtime.ring import Ring
from holdfast.store import workers as store
from holdfast.testing import Kit


@pytest.fixture
def app() -> Holdfast:
    app = Holdfast("postgresql://unused.invalid/none")
    app.queue("orders", ordering="key")
    app.queue("mails", ordering="key")
    return app


@pytest.fixture
def kit(app: Holdfast, holdfast_kit: Callable[..., Kit]) -> Kit:
    """Nobody here has a heart that beats, and nobody is dead for that."""
    return holdfast_kit(app, replace(QUICK, dead_after=300.0, lease=600.0))


class Member:
    """A worker's place in the ring, without the rest of the worker."""

    def __init__(self, kit: Kit, queues: Sequence[str]) -> None:
        self._kit = kit
        self.identity = WorkerIdentity.create()
        self.ring = Ring(kit.database, lambda: queues, lambda: self.identity.id, self._changed)
        self.mine: dict[str, list[int] | None] = {}

    def _changed(self, queue: str, buckets: list[int] | None) -> None:
        self.mine[queue] = buckets

    def register(self) -> None:
        self._kit.database.run(
            lambda: store.register(self.identity, queues=["orders"], tasks=[], concurrency=1, release="r")
        )

    def drain(self) -> None:
        self._kit.database.run(lambda: store.drain(self.identity.id))

    def count(self, queue: str = "orders") -> int:
        mine = self.mine[queue]
        return BUCKETS if mine is None else len(mine)


@asynccontextmanager
async def members(kit: Kit, count: int, queues: Sequence[str] = ("orders",)) -> AsyncIterator[list[Member]]:
    found = [Member(kit, queues) for _ in range(count)]
    try:
        for member in found:
            member.register()
        yield found
    finally:
        for member in found:
            await member.ring.stop()


def seats(kit: Kit, queue: str = "orders") -> dict[str, int]:
    """Worker -> seat, of those that are alive."""
    (report,) = Operator(kit.database, "ann").rings(queue)
    return {worker.worker: worker.seat for worker in report.workers}


async def test_workers_that_sit_down_at_once_have_a_seat_each_after_one_look(akit: Kit) -> None:
    async with members(akit, 12) as found:
        await asyncio.gather(*(member.ring.begin() for member in found))
        assert sorted(seats(akit).values()) == list(range(12))
        await asyncio.gather(*(member.ring.tick() for member in found))
        covered = sorted(bucket for member in found for bucket in member.mine["orders"] or ())
        assert covered == list(range(BUCKETS))
        assert {member.count() for member in found} <= {85, 86}


async def test_a_worker_alone_looks_after_everything(akit: Kit) -> None:
    async with members(akit, 1) as (member,):
        await member.ring.begin()
        assert member.mine == {"orders": None}


async def test_those_that_start_together_know_of_each_other_within_a_tenth_of_a_look(
    akit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with members(akit, 2) as (first, second):
        await first.ring.begin()
        looks = [await first.ring.tick()]
        await second.ring.begin()
        looks.append(await first.ring.tick())
        assert (first.count(), second.count()) == (BUCKETS // 2, BUCKETS // 2)
        monkeypatch.setattr(runtime, "_START", 0.0)
        await first.ring.begin()
        looks.append(await first.ring.tick())
        assert looks == [QUICK.ring / 10, QUICK.ring / 10, QUICK.ring]


async def test_a_worker_of_several_ordered_queues_has_a_seat_in_each(akit: Kit) -> None:
    async with members(akit, 2) as both, members(akit, 1, ["mails", "orders"]) as (more,):
        for member in [*both, more]:
            await member.ring.begin()
        assert seats(akit)[more.identity.id] == 2
        assert seats(akit, "mails") == {more.identity.id: 0}
        assert more.mine["mails"] is None
        assert more.count() == BUCKETS // 3


async def test_the_seat_of_one_who_drains_is_free_at_once_and_who_takes_it_has_the_same_buckets(
    akit: Kit,
) -> None:
    async with members(akit, 3) as (first, second, third), members(akit, 1) as (new,):
        for member in (first, second, third, first, second):
            await member.ring.tick()
        before = second.mine["orders"]
        second.drain()
        await first.ring.tick()
        assert seats(akit) == {first.identity.id: 0, third.identity.id: 2}
        assert first.count() > BUCKETS // 3 + 100
        await new.ring.begin()
        assert seats(akit)[new.identity.id] == 1
        assert new.mine["orders"] == before
        await second.ring.tick()
        assert second.identity.id not in seats(akit)


async def test_one_that_was_fenced_sits_down_again_under_its_new_name(akit: Kit) -> None:
    async with members(akit, 2) as (first, second):
        for member in (first, second, first):
            await member.ring.tick()
        before = first.mine["orders"]
        akit.sql(
            "UPDATE holdfast.workers SET status = 'gone', ended = 'lost' WHERE id = %s", [first.identity.id]
        )
        first.identity = WorkerIdentity.create()
        await first.ring.tick()  # not in the registry yet
        assert first.identity.id not in seats(akit)
        assert first.mine["orders"] == before
        first.register()
        await first.ring.tick()
        assert seats(akit) == {first.identity.id: 0, second.identity.id: 1}


async def test_a_silent_worker_does_not_count_and_keeps_its_own_seat_when_it_comes_back(akit: Kit) -> None:
    async with members(akit, 3) as (first, second, third):
        for member in (first, second, third, second):
            await member.ring.tick()
        first.drain()
        akit.sql(
            "UPDATE holdfast.workers SET last_seen_at = holdfast.now() - interval '1 hour' WHERE id = %s",
            [second.identity.id],
        )
        await third.ring.tick()
        assert third.mine["orders"] is None
        await second.ring.tick()  # its heartbeat is late: a lower seat is free, and yet it stays
        assert second.count() < BUCKETS
        akit.sql("UPDATE holdfast.workers SET last_seen_at = holdfast.now()")
        assert seats(akit) == {second.identity.id: 1, third.identity.id: 2}


async def test_the_last_move_up_when_nobody_comes_for_the_empty_seats(
    akit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with members(akit, 6) as found:
        for member in found:
            await member.ring.tick()
        for leaver in (found[0], found[2]):
            leaver.drain()
        rest = [found[n] for n in (1, 3, 4, 5)]
        for member in rest:
            await member.ring.tick()
        (report,) = Operator(akit.database, "ann").rings("orders")
        assert report.empty_seats == [0, 2]  # in a deploy somebody comes
        monkeypatch.setattr(runtime, "_MOVE_UP", 0.0)
        for _ in range(3):
            for member in rest:
                await member.ring.tick()
        assert sorted(seats(akit).values()) == [0, 1, 2, 3]
        assert seats(akit)[found[1].identity.id] == 1
        assert {member.count() for member in rest} == {BUCKETS // 4}


async def test_seats_of_workers_that_came_and_went_are_not_kept(akit: Kit) -> None:
    for _ in range(10):
        async with members(akit, 3) as found:
            for member in found:
                await member.ring.begin()
                member.drain()
    assert akit.sql("SELECT count(*) AS n FROM holdfast.seats")[0]["n"] <= 1


async def test_a_database_that_is_away_changes_nothing(akit: Kit, events: list[telemetry.Event]) -> None:
    async with members(akit, 2) as (first, second):
        for member in (first, second, first):
            await member.ring.tick()
        before = first.mine["orders"]
        akit.sql("ALTER TABLE holdfast.seats RENAME TO away")
        await first.ring.begin()
        assert "ring.unknown" in [event.name for event in events]
        assert first.mine["orders"] == before
        akit.sql("ALTER TABLE holdfast.away RENAME TO seats")


async def test_a_worker_that_leaves_when_idle_takes_no_seat_and_leaves_nothing_to_a_dead_neighbour(
    app: Holdfast, akit: Kit
) -> None:
    ran = []

    @app.task(queue="orders")
    async def ship(number: int) -> None:
        ran.append(number)

    async with members(akit, 1) as (dead,):
        await dead.ring.begin()
        for number in range(20):
            await ship.using(partition_key=f"customer {number}").aenqueue(number)
        await akit.arun_worker()
        assert sorted(ran) == list(range(20))
        assert akit.sql("SELECT worker FROM holdfast.seats") == [{"worker": dead.identity.id}]
