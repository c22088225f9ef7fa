"""Guards of subscriptions, each with a test that only it can pass."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from tests.conftest import QUICK, within
from tests.flow.test_run import working

from holdfast import Event, Holdfast, Transaction
from holdfast.shapes.events import store
from holdfast.shapes.events.builds import restart
from holdfast.shapes.events.procedures import Subscriptions
from holdfast.shapes.events.store import LogPosition, Owned, Owner
from holdfast.testing import Kit


def rows(kit: Kit, what: str) -> list[tuple[Any, ...]]:
    return [
        tuple(row.values()) for row in kit.sql(f"SELECT {what} FROM holdfast.subscriptions ORDER BY shard")
    ]


def subscribed(kit: Kit, shards: int = 1) -> list[Owned]:
    """A projection with five events before it, owned."""
    kit.sql("SELECT count(*) FROM holdfast.publish_many(%s, %s)", [["t"] * 5, ["{}"] * 5])
    run = kit.database.run
    run(store.turn_page)
    run(lambda: store.subscribe("totals", "projection", ["*"], "start", shards))
    owner = Owner([("totals", ["*"])], uuid4(), "w", 600.0, 0.0)
    owned: list[Owned] = run(lambda: store.own(owner))
    return sorted(owned, key=lambda o: o.shard)


def test_a_rebase_makes_owners_begin_anew(kit: Kit) -> None:
    """They have the era of before, which their events would carry."""
    (owned,) = subscribed(kit)
    kit.database.run(store.rebase)
    assert rows(kit, "owner, token, generation") == [(None, None, owned.generation + 1)]
    assert not kit.database.run(lambda: store.advance(owned, 5, 5, 60.0))
    (again,) = kit.database.run(lambda: store.own(Owner([("totals", ["*"])], uuid4(), "w", 600.0, 0.0)))
    assert again.era == owned.era + 1


def test_a_reset_takes_the_barrier_away(kit: Kit) -> None:
    """Else a subscription that is put beyond it would wait there for ever."""
    subscribed(kit, shards=2)
    kit.database.run(lambda: store.want_shards("totals", 1, 1))
    assert kit.database.run(lambda: store.begin_reshard("totals")) == 0
    kit.database.run(lambda: store.reset("totals", LogPosition(3, 3, 0, 5), again=False))
    assert rows(kit, "position, barrier") == [(3, None), (3, None)]


def test_a_shard_beyond_the_barrier_lets_the_others_go_on(kit: Kit) -> None:
    subscribed(kit, shards=2)
    kit.database.run(lambda: store.want_shards("totals", 1, 1))
    kit.database.run(lambda: store.begin_reshard("totals"))
    kit.sql("UPDATE holdfast.subscriptions SET position = 3 WHERE shard = 1")
    assert kit.database.run(lambda: store.finish_reshard("totals")) is False
    assert rows(kit, "shard, position, barrier") == [(0, 0, None), (1, 3, None)]


def test_what_begins_anew_is_of_the_version_of_its_code(app: Holdfast, kit: Kit) -> None:
    subscribed(kit)
    kit.sql("CREATE TABLE totals (n int)")
    assert Subscriptions(kit.database, "me").run(restart("totals", ["totals"], 7)) == 1
    assert rows(kit, "version, position") == [(7, 0)]


@pytest.fixture
def slow(app: Holdfast, holdfast_kit: Callable[..., Kit]) -> Kit:
    """Its services look again after minutes."""
    return holdfast_kit(app, replace(QUICK, heartbeat=300.0, dead_after=600.0, lease=900.0))


async def test_pages_are_turned_again_after_the_connection_was_lost(app: Holdfast, slow: Kit) -> None:
    """At once, and not when the service looks for the next time."""
    slow.sql("CREATE TABLE seen (n int)")

    @app.projection("seen", on=["*"])
    def seen(tx: Transaction, event: Event[Any]) -> None:
        tx.execute("INSERT INTO seen VALUES (%s)", [event.data["n"]])

    async with working(slow):
        first = await app.apublish("counted", {"n": 1})
        await seen.aread_your_writes(first, timeout=within(20))
        killed = slow.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
            "AND application_name = 'holdfast subscriptions'"
        )
        assert len(killed) == 1
        second = await app.apublish("counted", {"n": 2})
        await seen.aread_your_writes(second, timeout=within(20))
    await slow.database.aclose()
    assert [row["n"] for row in slow.sql("SELECT n FROM seen ORDER BY n")] == [1, 2]
