"""What the test kit has for events: what was published, projections until all is read, a clock that moves the log."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from holdfast import AsyncTransaction, Event, Holdfast, InvalidEvent, Transaction, event
from holdfast.testing import Kit


@event("order.paid", key="order:{order_id}")
@dataclass
class OrderPaid:
    order_id: int
    cents: int
    rate: Decimal = Decimal(1)


def test_published_returns_the_events_whose_type_and_fields_fit(app: Holdfast, kit: Kit) -> None:
    assert kit.published("order.paid") == []
    app.publish(OrderPaid(1, 5))
    app.publish(OrderPaid(2, 5, Decimal("1.5")))
    app.publish("order.refunded", {"order_id": 1}, key="order:1", headers={"tenant": "acme"})
    assert [e.data["order_id"] for e in kit.published("order.paid")] == [1, 2]
    assert [e.data["order_id"] for e in kit.published(OrderPaid, cents=5)] == [1, 2]
    (found,) = kit.published("order.paid", order_id=2, rate=Decimal("1.5"))
    assert (found.type, found.key, found.position) == ("order.paid", "order:2", 2)
    assert [e.type for e in kit.published("order.*", order_id=1)] == ["order.paid", "order.refunded"]
    assert kit.published("order.refunded")[0].headers == {"tenant": "acme"}
    assert kit.published("order.paid", order_id=9) == []
    assert kit.published("order.paid", nope=None) == []  # a field that is not there is not None


def test_what_is_not_committed_is_not_published(app: Holdfast, kit: Kit) -> None:
    with kit.connect() as conn:
        app.publish(OrderPaid(1, 5), conn=conn)
        assert kit.published(OrderPaid) == []
        conn.rollback()
    assert kit.published(OrderPaid) == []


def test_what_is_refused_is_not_published(app: Holdfast, kit: Kit) -> None:
    with pytest.raises(InvalidEvent, match="event 2"):
        app.publish_many([OrderPaid(1, 5), ("order paid!", {})])
    assert kit.published("*") == []


def test_an_assertion_says_what_was_published(app: Holdfast, kit: Kit) -> None:
    with pytest.raises(AssertionError) as nothing:
        kit.assert_published("order.paid", order_id=1)
    assert str(nothing.value) == (
        'no event order.paid with {"order_id": 1} was published; of this type:\n  none\npublished types: no events at all'
    )
    app.publish(OrderPaid(2, 5))
    app.publish("mail.sent", {})
    with pytest.raises(AssertionError) as other:
        kit.assert_published(OrderPaid, order_id=1)
    assert str(other.value) == (
        'no event order.paid with {"order_id": 1} was published; of this type:\n'
        '  {"rate": "1", "cents": 5, "order_id": 2}\npublished types: mail.sent, order.paid'
    )
    assert kit.assert_published(OrderPaid, order_id=2).position == 1
    kit.assert_not_published("order.paid", order_id=1)
    with pytest.raises(AssertionError, match=r"of type order\.paid was published"):
        kit.assert_not_published("order.*")
    with pytest.raises(TypeError, match="is no event type"):
        kit.published(int)


def test_run_projections_reads_all_and_runs_no_job(app: Holdfast, kit: Kit) -> None:
    ran: list[int] = []

    @app.projection("totals", on=["order.*"])
    def totals(tx: Transaction, event: Event[Any]) -> None:
        tx.execute("INSERT INTO totals VALUES (%s, %s)", [event.position, event.data["cents"]])

    @app.projection("counts", on=["order.*"])
    async def counts(tx: AsyncTransaction, events: Sequence[Event[Any]]) -> None:
        await tx.execute("INSERT INTO totals SELECT -1, %s", [len(events)])

    @app.on(OrderPaid, start="start")
    def mail(event: Event[OrderPaid]) -> None:
        ran.append(event.data.order_id)

    kit.sql("CREATE TABLE totals (position int, cents int)")
    app.publish_many([OrderPaid(n, n) for n in range(1, 51)])
    kit.run_projections()
    assert kit.sql("SELECT count(*) AS n, sum(cents) AS cents FROM totals WHERE position > 0") == [
        {"n": 50, "cents": 1275}
    ]
    assert kit.sql("SELECT sum(cents) AS n FROM totals WHERE position < 0") == [{"n": 50}]
    assert ran == []
    assert len(kit.jobs("mail")) == 50
    kit.run_projections()  # nothing twice
    assert kit.sql("SELECT count(*) AS n FROM totals WHERE position > 0") == [{"n": 50}]
    assert len(kit.jobs("mail")) == 50
    kit.run_worker()
    assert sorted(ran) == list(range(1, 51))


async def test_run_projections_on_an_event_loop(app: Holdfast, akit: Kit) -> None:
    seen: list[int] = []

    @app.projection("totals", on=["*"])
    async def totals(tx: AsyncTransaction, event: Event[Any]) -> None:
        seen.append(event.position)

    await app.apublish(OrderPaid(1, 1))
    await akit.arun_projections()
    assert seen == [1]


def test_run_projections_waits_for_one_that_another_worker_owns(app: Holdfast, kit: Kit) -> None:
    seen: list[int] = []

    @app.projection("totals", on=["*"])
    def totals(tx: Transaction, event: Event[Any]) -> None:
        seen.append(event.position)

    kit.run_projections()
    kit.sql(
        "UPDATE holdfast.subscriptions SET owner = 'another', token = gen_random_uuid(),"
        " lease_expires_at = holdfast.now() + interval '1 s' RETURNING name"
    )
    app.publish(OrderPaid(1, 1))
    kit.run_projections()
    assert seen == [1]


@pytest.mark.parametrize("attempts", [1, 5])
def test_a_projection_that_fails_raises_with_its_error(app: Holdfast, kit: Kit, attempts: int) -> None:
    @app.projection("totals", on=["*"], max_attempts=attempts)
    def totals(tx: Transaction, event: Event[Any]) -> None:
        if event.data["order_id"] == 7:
            raise ValueError("no such order")

    app.publish_many([OrderPaid(n, 1) for n in range(20)])
    with pytest.raises(
        AssertionError, match=r"^totals: event 8 \(order\.paid, key 'order:7'\) failed: .*no such order"
    ):
        kit.run_projections()
    (row,) = kit.sql("SELECT status, position FROM holdfast.subscriptions")
    assert (row["status"], row["position"]) == ("paused" if attempts == 1 else "active", 7)


def test_a_projection_that_skips_goes_on(app: Holdfast, kit: Kit) -> None:
    seen: list[int] = []

    @app.projection("totals", on=["*"], max_attempts=1, poison="skip")
    def totals(tx: Transaction, event: Event[Any]) -> None:
        if event.data["order_id"] == 2:
            raise ValueError("no such order")
        seen.append(event.data["order_id"])

    app.publish_many([OrderPaid(n, 1) for n in range(4)])
    kit.run_projections()
    assert sorted(set(seen)) == [0, 1, 3]
    assert kit.sql("SELECT position FROM holdfast.event_failures") == [{"position": 3}]


def test_the_clock_moves_event_time_lag_and_retention(app: Holdfast, kit: Kit) -> None:
    @app.projection("totals", on=["*"])
    def totals(tx: Transaction, event: Event[Any]) -> None: ...

    app.publish(OrderPaid(1, 1))
    kit.run_projections()
    kit.clock.advance(timedelta(days=3))
    app.publish(OrderPaid(2, 1))
    first, second = kit.published(OrderPaid)
    assert timedelta(days=2, hours=23) < second.time - first.time < timedelta(days=3, hours=1)
    assert second.time > datetime.now(UTC) + timedelta(days=2)
    kit.clock.advance(3600)
    events, seconds = totals.lag()
    assert (events, 3600 <= seconds < 7200) == (1, True)
    kit.clock.advance(timedelta(days=6))
    kit.sql("SELECT holdfast.empty_event_slots()")
    assert [e.data["order_id"] for e in kit.published(OrderPaid)] == [2]  # the first day is past its 7 days
