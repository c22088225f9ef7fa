"""The log and its subscriptions in trouble: made so, found, mended by the printed command, and gone."""

import sys
from collections.abc import Iterator

import psycopg
import pytest
from tests.conftest import wait_until
from tests.doctor.case import Case, transaction

from holdfast import Holdfast

APP = """
from pathlib import Path
from typing import Any
from holdfast import Backoff, Event, Holdfast, Transaction

app = Holdfast()


@app.projection("totals", on=["order.*"], max_attempts=1, retry=Backoff(first=0.01, cap=0.01))
def totals(tx: Transaction, event: Event[Any]) -> None:
    if event.data["n"] < 0:
        raise ValueError("no such order")
    while event.data["n"] > 100 and not Path("go").exists():
        tx.execute("SELECT pg_sleep(0.02)")


@app.on("parcel.*", start="start")
async def send(event: Event[Any]) -> None: ...
"""
HERE = ("-a", "events_app:app")
WORKER = "holdfast worker events_app:app"


@pytest.fixture
def app(case: Case) -> Iterator[Holdfast]:
    (case.folder / "events_app.py").write_text(APP)
    with Holdfast(case.url) as made:
        yield made
    sys.modules.pop("events_app", None)


def publish(app: Holdfast, *numbers: int) -> None:
    app.publish_many([("order.paid", {"n": n}, None) for n in numbers])
    app.events.last_position()  # turns the page


def subscribe(case: Case, status: str = "active", more: str = "") -> None:
    """As a worker would make it, that is gone since."""
    case.sql(
        "INSERT INTO holdfast.subscriptions (name, kind, patterns, position, seq, status, created_at, moved_at)"
        " VALUES ('totals', 'projection', '{order.*}', 0, 0, %s, now(), now())",
        [status],
    )
    if more:
        case.sql(f"UPDATE holdfast.subscriptions SET {more}")


def older(case: Case, interval: str) -> None:
    case.sql(f"UPDATE holdfast.event_pages SET at = at - interval '{interval}'")
    case.sql(f"UPDATE holdfast.events SET created_at = created_at - interval '{interval}'")


def status(case: Case) -> tuple[str, int]:
    (row,) = case.sql("SELECT status, position FROM holdfast.subscriptions WHERE name = 'totals'")
    return row["status"], row["position"]


# The log ------------------------------------------------------------------------------------------------------------


def test_foreign_log(case: Case, app: Holdfast) -> None:
    publish(app, 1)
    assert case.found("foreign_log") is None
    case.sql("UPDATE holdfast.event_log SET system_id = system_id + 1")
    finding = case.cure("foreign_log")
    assert finding["level"] == "error"
    assert finding["fix"] == ["holdfast events rebase --yes"]
    publish(app, 2)
    assert [e.data["n"] for e in app.events.read()] == [1, 2]


def test_unnumbered_events(case: Case, app: Holdfast) -> None:
    app.publish("order.paid", {"n": 1})
    assert case.found("unnumbered_events") is None
    case.sql("UPDATE holdfast.events SET created_at = created_at - interval '2 hours'")
    finding = case.cure("unnumbered_events", *HERE)
    assert finding["level"] == "warning"
    assert finding["what"] == (
        "1 event without a position for up to 2 h: no worker turns the pages of the log"
    )
    assert finding["fix"] == [WORKER]


def test_open_publisher(case: Case, app: Holdfast) -> None:
    subscribe(case)
    with transaction(case.url, "SELECT holdfast.publish('order.paid', '{\"n\": 1}', 'k')"):
        assert case.found("open_publisher") is None
        wait_until(
            lambda: case.found("open_publisher", "--limit", "horizon=0.2") is not None, "it is open for long"
        )
        finding = case.cure("open_publisher", "--limit", "horizon=0.2")
    assert finding["level"] == "warning"
    assert "others wait for its keys" in finding["what"]
    assert finding["details"][0].startswith("pid ")
    assert "lunch" in finding["details"][0]
    assert app.publish("order.paid", {"n": 2}, key="k").created  # does not wait


def test_a_transaction_that_published_nothing_is_not_one(case: Case) -> None:
    with transaction(case.url, "SELECT holdfast.enqueue('work')"):
        assert case.found("open_publisher", "--limit", "horizon=0") is None


def test_prepared_publisher(odd: Case) -> None:
    with psycopg.connect(odd.url, autocommit=True) as conn:
        conn.execute("BEGIN")
        conn.execute("SELECT holdfast.publish('order.paid', '{\"n\": 1}', 'k')")
        conn.execute("PREPARE TRANSACTION 'left''behind'")
    assert odd.found("open_publisher", "--limit", "horizon=0") is None
    finding = odd.cure("prepared_publisher", "--limit", "horizon=0")
    assert finding["level"] == "error"
    assert finding["details"][0].startswith("left'behind of ")
    assert "COMMIT PREPARED" in finding["otherwise"][0]
    assert odd.sql("SELECT count(*) AS n FROM pg_prepared_xacts WHERE database = current_database()") == [
        {"n": 0}
    ]


# Those who read it --------------------------------------------------------------------------------------------------


def test_unowned_subscription(case: Case, app: Holdfast) -> None:
    subscribe(case)
    publish(app, 1, 2)
    assert case.found("unowned_subscription") is None  # a moment ago
    older(case, "2 hours")
    finding = case.cure("unowned_subscription", *HERE)
    assert finding["level"] == "error"
    assert finding["fix"] == [WORKER]
    assert finding["otherwise"] == ["holdfast subscriptions remove totals --yes"]
    assert finding["details"] == ["totals (projection), 2 events behind, 2 h"]
    wait_until(lambda: status(case) == ("active", 2), "its new owner has read them")


def test_a_subscription_that_has_read_all_needs_no_owner(case: Case, app: Holdfast) -> None:
    publish(app, 1)
    subscribe(case, more="position = 1")
    older(case, "2 hours")
    assert case.found("unowned_subscription", "--limit", "stuck=0") is None


def test_the_owner_that_is_gone_counts_as_none(case: Case, app: Holdfast) -> None:
    subscribe(
        case,
        more="owner = 'ghost', token = gen_random_uuid(), lease_expires_at = now() - interval '1 second'",
    )
    publish(app, 1)
    older(case, "2 hours")
    assert case.found("unowned_subscription") is not None


def test_an_owner_whose_batch_is_longer_than_its_lease_is_still_one(case: Case, app: Holdfast) -> None:
    """It holds the row, so that it cannot renew the lease; nobody can take it over either."""
    subscribe(
        case, more="owner = 'w1', token = gen_random_uuid(), lease_expires_at = now() - interval '1 minute'"
    )
    case.sql(
        """INSERT INTO holdfast.workers
               (id, host, pid, status, last_seen_at, started_at, queues, tasks, concurrency, release)
           VALUES ('w1', 'h', 1, 'alive', now() + interval '1 hour', now(), '{inbox}', '{}', 1, '1')"""
    )
    publish(app, 1)
    older(case, "2 hours")
    assert case.found("unowned_subscription") is None
    assert case.found("lagging_subscription") is not None
    case.sql("UPDATE holdfast.workers SET last_seen_at = now() - interval '1 hour'")
    assert case.found("unowned_subscription") is not None


def test_lagging_subscription(case: Case, app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    subscribe(case)
    case.start("events_app:app")
    publish(app, 101, 102)
    wait_until(
        lambda: case.sql("SELECT FROM holdfast.subscriptions WHERE owner IS NOT NULL"), "a worker has it"
    )
    assert case.found("lagging_subscription") is None
    assert case.found("lagging_subscription", "--limit", "lag_events=2") is not None
    older(case, "10 minutes")
    watch = case.run

    def watch_and_help(line: str) -> None:
        watch(line)
        (case.folder / "go").touch()  # whatever was slow is quick again

    monkeypatch.setattr(case, "run", watch_and_help)
    finding = case.cure("lagging_subscription")
    assert (finding["level"], finding["fix"]) == ("warning", ["holdfast events lag"])
    assert finding["details"] == ["totals (projection), 2 events behind, 10 min"]
    wait_until(lambda: status(case) == ("active", 2), "it caught up")


def test_stopped_subscription(case: Case, app: Holdfast) -> None:
    subscribe(case)
    publish(app, -1, 2)
    case.start("events_app:app")
    wait_until(lambda: status(case)[0] == "paused", "it stopped")
    finding = case.cure("stopped_subscription")
    assert finding["level"] == "error"
    assert finding["fix"] == ["holdfast subscriptions skip totals", "holdfast subscriptions resume totals"]
    assert finding["otherwise"] == ["holdfast subscriptions resume totals"]
    assert "no such order" in finding["details"][0]
    wait_until(lambda: status(case) == ("active", 2), "it went on")
    assert case.sql("SELECT position, kind FROM holdfast.event_failures") == [
        {"position": 1, "kind": "skipped"}
    ]


def test_paused_subscription(case: Case, app: Holdfast) -> None:
    subscribe(case, "paused", "paused_by = 'ann', paused_at = now() - interval '1 hour'")
    assert case.found("paused_subscription") is None
    assert case.found("stopped_subscription") is None
    case.sql("UPDATE holdfast.subscriptions SET paused_at = now() - interval '2 days'")
    finding = case.cure("paused_subscription")
    assert (finding["level"], finding["fix"]) == ("info", ["holdfast subscriptions resume totals"])
    assert finding["what"] == "1 subscription paused for more than 1 d"


def test_expired_subscription(case: Case, app: Holdfast) -> None:
    """A slow subscriber past its limits: the tidier empties the day and it expires, with the exact number."""
    publish(app, 1, 2, 3)
    subscribe(case)
    case.sql("UPDATE holdfast.event_log SET hold_bytes = 1, retention_days = 1")
    # Three days pass: what was published moves into the slot of that day, as if it had been published then.
    slot = "holdfast.archive_slot(now() - interval '5 days')"
    case.sql(f"UPDATE holdfast.events SET slot = {slot}, created_at = created_at - interval '5 days'")
    case.sql(f"UPDATE holdfast.event_pages SET slot = {slot}, at = at - interval '5 days'")
    assert case.found("expired_subscription") is None
    wait_until(
        lambda: case.sql("SELECT holdfast.empty_event_slots()") and status(case)[0] == "expired",
        "a day is emptied",
    )
    finding = case.cure("expired_subscription")
    assert finding["level"] == "error"
    assert finding["what"] == "1 subscription expired: the log was emptied before 3 events were read"
    assert finding["fix"] == ["holdfast subscriptions reset totals --to start --yes"]
    assert "missed 3 events" in finding["details"][0]
    assert status(case) == ("active", 3)


def test_held_log(case: Case, app: Holdfast) -> None:
    subscribe(case, "paused", "paused_by = 'ann', paused_at = now()")
    publish(app, 1)
    older(case, "10 days")
    assert case.found("held_log") is None
    older(case, "5 days")
    case.start("events_app:app")
    finding = case.cure("held_log", *HERE)
    assert finding["level"] == "warning"
    assert finding["fix"] == ["holdfast subscriptions resume totals"]
    assert finding["details"][0].startswith("totals: its oldest event is 15 d old, of 28 days;")
    assert status(case) == ("active", 1)


def test_half_of_the_bytes_is_found_too(case: Case, app: Holdfast) -> None:
    subscribe(case)
    publish(app, 1)
    assert case.found("held_log") is None
    case.sql("UPDATE holdfast.event_log SET hold_bytes = 65536")
    finding = case.found("held_log", *HERE)
    assert finding is not None
    assert finding["fix"] == [WORKER]
    case.sql("UPDATE holdfast.subscriptions SET owner = 'w', lease_expires_at = now() + interval '1 hour'")
    finding = case.found("held_log", *HERE)
    assert finding is not None
    assert finding["fix"] == ["holdfast events retention --hold-days 30 --hold-bytes 131072"]


def test_what_a_consumer_skipped(case: Case, app: Holdfast) -> None:
    app.publish("parcel.sent", {})
    app.events.last_position()
    case.sql(
        "INSERT INTO holdfast.subscriptions (name, kind, patterns, position, seq, status, created_at, moved_at)"
        " VALUES ('send', 'jobs', '{parcel.*}', 0, 0, 'paused', now(), now())"
    )
    case.run("holdfast subscriptions skip send")
    case.run("holdfast subscriptions resume send")
    case.start("events_app:app")
    finding = case.cure("skipped_events", *HERE)
    assert finding["fix"] == ["holdfast subscriptions retry send"]
    assert case.sql("SELECT task FROM holdfast.archive UNION SELECT task FROM holdfast.work") == [
        {"task": "send"}
    ]


# Rebuilds -----------------------------------------------------------------------------------------------------------


def rebuild(case: Case, status: str, more: str = "position = position") -> None:
    """As `holdfast projection rebuild` makes it."""
    subscribe(case)
    case.sql("CREATE SCHEMA holdfast_new_totals; CREATE SCHEMA holdfast_old_totals")
    case.sql(
        "INSERT INTO holdfast.projection_builds"
        " (name, projection, version, tables, shadow, old, since, started_by, started_at) VALUES"
        " ('totals@1', 'totals', 1, '{}', 'holdfast_new_totals', 'holdfast_old_totals', 0, 'ann', now())"
    )
    case.sql(
        "INSERT INTO holdfast.subscriptions (name, kind, patterns, position, seq, replay_of, status, created_at, moved_at)"
        " VALUES ('totals@1', 'projection', '{order.*}', 0, 0, 'totals', %s, now(), now())",
        [status],
    )
    case.sql(f"UPDATE holdfast.subscriptions SET {more} WHERE name = 'totals@1'")


@pytest.mark.parametrize(
    ("code", "status", "more"),
    [
        (
            "stopped_subscription",
            "paused",
            "paused_by = 'poison', paused_at = now(), problem = 'it wrote to x'",
        ),
        ("expired_subscription", "expired", "missed = 3"),
    ],
)
def test_a_rebuild_that_cannot_go_on_is_given_up(
    case: Case, app: Holdfast, code: str, status: str, more: str
) -> None:
    """It is neither reset nor removed: its tables would lack events, or stay behind."""
    publish(app, 1, 2, 3)
    rebuild(case, status, more)
    finding = case.cure(code)
    assert finding["fix"] == ["holdfast projection cancel totals"]
    assert case.sql("SELECT name FROM holdfast.subscriptions") == [{"name": "totals"}]
    assert case.sql("SELECT 1 FROM pg_namespace WHERE starts_with(nspname, 'holdfast_')") == []


def test_a_rebuild_that_holds_the_log_can_be_given_up(case: Case, app: Holdfast) -> None:
    publish(app, 1)
    rebuild(case, "building")
    case.sql("UPDATE holdfast.subscriptions SET position = 1, seq = 1 WHERE name = 'totals'")
    older(case, "15 days")
    finding = case.found("held_log", *HERE)
    assert finding is not None
    assert finding["otherwise"] == ["holdfast projection cancel totals"]
    for line in finding["otherwise"]:
        case.run(line)
    assert case.found("held_log", *HERE) is None


def test_what_a_rebuild_skipped_is_found_when_it_is_swapped(case: Case, app: Holdfast) -> None:
    """Before that nobody could apply it: the tables are not there yet."""
    publish(app, 1)
    rebuild(case, "building")
    case.sql(
        "INSERT INTO holdfast.event_failures VALUES"
        " ('totals@1', 1, 1, 0, 'skipped', gen_random_uuid(), 'order.paid', NULL, 'no', now())"
    )
    assert case.found("skipped_events", *HERE) is None
    case.sql("UPDATE holdfast.event_failures SET subscription = 'totals'")
    finding = case.found("skipped_events", *HERE)
    assert finding is not None
    assert finding["fix"] == ["holdfast projection retry totals"]
