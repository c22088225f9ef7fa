"""What Prometheus reads of the log and its subscriptions, from a real worker on a real database."""

from collections.abc import Callable
from typing import Any

from tests.conftest import wait_until
from tests.observe.support import Port, ready, with_port

from holdfast import Event, Holdfast, Transaction
from holdfast.testing import Kit

MakeKit = Callable[..., Kit]
OFTEN, NEVER_AGAIN = 0.05, 3600.0


def _until(port: Port, number: float, name: str, **labels: str) -> None:
    wait_until(lambda: port.value(name, **labels) == number, f"{name} {labels} is {number}")


def test_lag_status_and_counts_of_every_subscription(app: Holdfast, holdfast_kit: MakeKit) -> None:
    @app.projection("totals", on=["order.*"])
    def totals(tx: Transaction, event: Event[Any]) -> None: ...

    @app.on("order.*", name="mails")
    def mails(event: Event[Any]) -> None: ...

    kit = holdfast_kit(app, with_port(metrics_snapshot=OFTEN))
    with ready(kit) as port:
        wait_until(
            lambda: kit.sql("SELECT name FROM holdfast.subscriptions WHERE owner IS NOT NULL"), "owned"
        )
        app.publish_many([("order.paid", {"n": n}, None) for n in range(3)])
        _until(port, 3, "events_last_position")
        for name in ("totals", "mails"):
            _until(port, 3, "events_delivered_total", subscription=name)
            _until(port, 0, "subscription_lag_events", subscription=name, shard="0")
            _until(port, 1, "subscription_owned", subscription=name, shard="0")
            _until(port, 1, "subscription_status", subscription=name, status="active")
            assert port.value("subscription_status", subscription=name, status="paused") == 0
            assert port.value("subscription_lag_seconds", subscription=name, shard="0") == 0
        assert port.value("events_published_total") == 3
        totals.pause()
        app.publish("order.paid", {"n": 4})
        app.events.last_position()
        _until(port, 1, "subscription_lag_events", subscription="totals", shard="0")
        _until(port, 1, "subscription_status", subscription="totals", status="paused")
        _until(port, 0, "subscription_status", subscription="totals", status="active")
        _until(port, 0, "subscription_owned", subscription="totals", shard="0")
        wait_until(
            lambda: (port.value("subscription_lag_seconds", subscription="totals", shard="0") or 0) > 0.1,
            "it waits",
        )
        kit.sql("UPDATE holdfast.subscriptions SET status = 'expired', missed = 7 WHERE name = 'totals'")
        kit.sql(
            """INSERT INTO holdfast.event_failures
               SELECT 'totals', 1, 1, 0, 'skipped', gen_random_uuid(), 'order.paid', NULL, 'no', now()"""
        )
        _until(port, 7, "subscription_missed_events", subscription="totals", shard="0")
        _until(port, 1, "subscription_failures", subscription="totals", shard="0")
        _until(port, 1, "subscription_status", subscription="totals", status="expired")


def test_a_replay_leaves_no_series_behind(app: Holdfast, holdfast_kit: MakeKit) -> None:
    kit = holdfast_kit(app, with_port(metrics_snapshot=OFTEN))
    kit.sql(
        """INSERT INTO holdfast.subscriptions
               (name, kind, patterns, position, seq, status, until, replay_of, created_at, moved_at)
           SELECT n, 'jobs', '{*}', 0, 0, 'active', r, o, now(), now()
           FROM (VALUES ('mails', NULL::bigint, NULL), ('mails@0123abcd', 9, 'mails')) AS v(n, r, o)"""
    )
    with ready(kit) as port:
        _until(port, 0, "subscription_lag_events", subscription="mails", shard="0")
        named = {value for _, labels in port.samples() for label, value in labels if label == "subscription"}
        assert named == {"mails"}


def test_scrapes_ask_the_database_nothing_about_events(app: Holdfast, holdfast_kit: MakeKit) -> None:
    kit = holdfast_kit(app, with_port(metrics_snapshot=NEVER_AGAIN))
    with ready(kit) as port:
        app.publish("order.paid", {})
        app.events.last_position()
        for _ in range(10):
            assert port.value("events_last_position") == 0  # as it was seen
