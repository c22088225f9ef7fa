"""How far a subscription is behind: events exactly, and seconds."""

from typing import Any

import pytest

from holdfast import Event, Holdfast
from holdfast.shapes.events.procedures import Subscriptions
from holdfast.testing import Kit

LAG = "SELECT events, seconds FROM holdfast.subscription_lag"


@pytest.fixture
def app() -> Holdfast:
    app = Holdfast("postgresql://unused.invalid/none")

    @app.on("order.*", start="start")
    async def send(event: Event[Any]) -> None: ...

    return app


def lag(kit: Kit) -> tuple[int, float]:
    (listed,) = Subscriptions(kit.database, "ann").find("send")
    (row,) = kit.sql(LAG)
    assert row["events"] == listed.lag_events
    return listed.lag_events, listed.lag_seconds


def test_it_is_exact_in_events_and_the_age_of_the_next_one_in_seconds(app: Holdfast, kit: Kit) -> None:
    kit.run_worker()
    assert lag(kit) == (0, 0.0)
    Subscriptions(kit.database, "ann").pause("send")
    app.publish_many([("order.paid", {}), ("other", {}), ("order.paid", {})])
    app.events.last_position()
    kit.sql("UPDATE holdfast.events SET created_at = holdfast.now() - seq * interval '1 hour'")
    events, seconds = lag(kit)
    assert events == 3
    assert 3600 <= seconds < 3700
    for position, hour in ((1, 2), (2, 3)):  # in the middle of a page
        Subscriptions(kit.database, "ann").reset("send", position)
        events, seconds = lag(kit)
        assert events == 3 - position
        assert hour * 3600 <= seconds < hour * 3600 + 100
    Subscriptions(kit.database, "ann").reset("send", "end")
    assert lag(kit) == (0, 0.0)


def test_what_is_not_numbered_yet_is_counted_when_it_is_asked(app: Holdfast, kit: Kit) -> None:
    kit.run_worker()
    app.publish("order.paid", {})
    assert kit.sql("SELECT events FROM holdfast.subscription_lag") == [{"events": 0}]
    assert lag(kit)[0] == 1


def test_the_next_event_of_a_late_commit_is_the_one_that_comes_next_in_position(
    app: Holdfast, kit: Kit
) -> None:
    """A transaction that was open while others committed: its event is older, and comes after them."""
    kit.run_worker()
    Subscriptions(kit.database, "ann").pause("send")
    with kit.connect() as late:
        app.publish("order.paid", {"which": "late"}, conn=late)
        app.publish("order.paid", {"which": "quick"})
        app.events.last_position()
    app.events.last_position()
    kit.sql(
        "UPDATE holdfast.events SET created_at = holdfast.now() - interval '1 day' WHERE data ->> 'which' = 'late'"
    )
    events, seconds = lag(kit)
    assert (events, seconds < 3600) == (2, True)
    Subscriptions(kit.database, "ann").reset("send", 1)
    events, seconds = lag(kit)
    assert (events, seconds > 86_000) == (1, True)
