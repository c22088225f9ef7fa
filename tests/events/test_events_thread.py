"""Publish, consume and project: one event end to end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.conftest import QUICK, await_until
from tests.flow.test_run import working

from holdfast import AsyncTransaction, Event, Holdfast, Transaction, event
from holdfast.testing import Kit


@event("order.paid", key="order:{order_id}")
@dataclass
class OrderPaid:
    order_id: int
    cents: int


class Shop:
    def __init__(self) -> None:
        self.app = app = Holdfast()
        self.seen: list[Event[OrderPaid]] = []

        @app.on(OrderPaid)
        async def send_receipt(event: Event[OrderPaid]) -> None:
            self.seen.append(event)

        @app.projection("order_totals", on=["order.*"])
        async def totals(tx: AsyncTransaction, event: Event[Any]) -> None:
            await tx.execute(
                "INSERT INTO order_totals AS t VALUES (%s, %s) ON CONFLICT (order_id) DO UPDATE "
                "SET cents = t.cents + excluded.cents",
                [event.data["order_id"], event.data["cents"]],
            )

        @app.projection("sums", on=OrderPaid)
        def sums(tx: Transaction, events: Sequence[Event[OrderPaid]]) -> None:
            tx.execute("UPDATE sums SET cents = cents + %s", [sum(e.data.cents for e in events)])

        self.send_receipt, self.totals, self.sums = send_receipt, totals, sums


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def kit(shop: Shop, holdfast_kit: Callable[..., Kit]) -> Kit:
    kit = holdfast_kit(shop.app, QUICK)
    kit.sql("CREATE TABLE order_totals (order_id int PRIMARY KEY, cents int)")
    kit.sql("CREATE TABLE sums (cents int); INSERT INTO sums VALUES (0)")
    return kit


def test_an_event_becomes_a_job_and_two_tables(shop: Shop, kit: Kit) -> None:
    kit.run_worker()  # makes the subscriptions
    with kit.connect() as conn:
        shop.app.publish(OrderPaid(1, 995), conn=conn)
        shop.app.publish("order.refunded", {"order_id": 1, "cents": -5}, key="order:1", conn=conn)
    kit.run_worker()
    assert [(e.data, e.key, e.position) for e in shop.seen] == [(OrderPaid(1, 995), "order:1", 1)]
    assert kit.sql("SELECT * FROM order_totals") == [{"order_id": 1, "cents": 990}]
    assert kit.sql("SELECT * FROM sums") == [{"cents": 995}]
    assert shop.totals.lag() == (0, 0.0)


def test_what_is_rolled_back_was_never_published(shop: Shop, kit: Kit) -> None:
    kit.run_worker()
    with kit.connect() as conn:
        shop.app.publish(OrderPaid(1, 995), conn=conn)
        conn.rollback()
    kit.run_worker()
    assert shop.seen == []
    assert shop.app.events.last_position() == 0


async def test_a_sleeping_worker_is_woken(shop: Shop, akit: Kit) -> None:
    akit.database.settings = replace(QUICK, poll=600.0, heartbeat=0.4, dead_after=10.0, lease=30.0)
    async with working(akit):
        await await_until(
            lambda: akit.sql("SELECT 1 FROM holdfast.sleepers WHERE queue = '+events'"), "it sleeps"
        )
        published = await shop.app.apublish(OrderPaid(1, 995))
        await shop.sums.aread_your_writes(published)
        assert akit.sql("SELECT * FROM sums") == [{"cents": 995}]
        await await_until(lambda: shop.seen, "the job ran")
