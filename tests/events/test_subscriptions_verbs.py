"""What people do to a subscription: pause, resume, reset, replay, skip, remove. Each is in the audit."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.conftest import QUICK, await_until
from tests.flow.test_run import working

from holdfast import ConfigurationError, Event, EventsGone, Holdfast, Rate, Transaction, UnknownSubscription
from holdfast.shapes.events.procedures import Subscriptions
from holdfast.testing import Kit


class Shop:
    """Two consumers of the same events, and what each got: (position, whether by a replay)."""

    def __init__(self) -> None:
        self.app = app = Holdfast("postgresql://unused.invalid/none")
        self.seen: dict[str, list[tuple[int, bool]]] = {"send": [], "other": []}

        @app.on("*", start="start")
        async def send(event: Event[Any]) -> None:
            self.seen["send"].append((event.position, event.replay))

        @app.on("*", start="start")
        async def other(event: Event[Any]) -> None:
            self.seen["other"].append((event.position, event.replay))

        self.send, self.other = send, other

    def publish(self, count: int) -> None:
        self.app.publish_many([("thing.done", {"number": n}) for n in range(count)])


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def kit(shop: Shop, holdfast_kit: Callable[..., Kit]) -> Kit:
    kit = holdfast_kit(shop.app, QUICK)
    kit.run_worker()
    return kit


@pytest.fixture
def verbs(kit: Kit) -> Subscriptions:
    return Subscriptions(kit.database, "ann")


def audited(kit: Kit) -> list[tuple[str, str, dict[str, Any], int]]:
    rows = kit.sql("SELECT actor, action, selection, count FROM holdfast.audit ORDER BY id")
    return [(r["actor"], r["action"], r["selection"], r["count"]) for r in rows]


def test_a_paused_one_gets_nothing_and_goes_on_where_it_was(
    shop: Shop, kit: Kit, verbs: Subscriptions
) -> None:
    assert verbs.pause("send") == 1
    shop.publish(2)
    kit.run_worker()
    assert (shop.seen["send"], len(shop.seen["other"])) == ([], 2)
    assert shop.send.lag()[0] == 2
    assert verbs.pause("send") == 0, "it is paused already"
    assert verbs.resume("send") == 1
    assert verbs.resume("send") == 0
    kit.run_worker()
    assert sorted(shop.seen["send"]) == [(1, False), (2, False)]
    assert audited(kit) == [
        ("ann", "pause_subscription", {"subscription": "send"}, 1),
        ("ann", "resume_subscription", {"subscription": "send"}, 1),
    ]


async def test_a_resumed_one_goes_on_in_a_worker_that_runs(shop: Shop, kit: Kit) -> None:
    async with working(kit):
        await await_until(
            lambda: kit.sql("SELECT 1 FROM holdfast.subscriptions WHERE owner IS NOT NULL"), "owned"
        )
        await shop.send.apause()
        await shop.app.apublish("thing.done", {})
        await await_until(lambda: shop.seen["other"], "the other gets it")
        assert shop.seen["send"] == []
        await shop.send.aresume()
        await await_until(lambda: shop.seen["send"], "it gets it")
    await kit.database.aclose()


def test_pause_resume_and_reset_are_part_of_the_callers_transaction(shop: Shop, kit: Kit) -> None:
    shop.publish(3)
    kit.run_worker()
    state = "SELECT status, position FROM holdfast.subscriptions WHERE name = 'send'"
    with kit.connect() as conn:
        shop.send.pause(conn=conn)
        conn.rollback()
    assert kit.sql(state) == [{"status": "active", "position": 3}]
    assert audited(kit) == []
    with kit.connect() as conn:
        shop.send.pause(conn=conn)
        shop.send.reset(1, conn=conn)
        assert kit.sql(state) == [{"status": "active", "position": 3}]
    assert kit.sql(state) == [{"status": "paused", "position": 1}]
    with kit.connect() as conn:
        shop.send.resume(conn=conn)
        with pytest.raises(EventsGone):
            shop.send.reset(99, conn=conn)
        assert conn.execute("SELECT 1 AS usable").fetchall() == [{"usable": 1}]
    assert kit.sql(state) == [{"status": "active", "position": 1}]
    assert [action for _, action, _, _ in audited(kit)] == [
        "pause_subscription",
        "reset_subscription",
        "resume_subscription",
    ]


def test_a_reset_makes_no_job_twice_unless_asked(shop: Shop, kit: Kit, verbs: Subscriptions) -> None:
    shop.publish(4)
    kit.run_worker()
    assert verbs.reset("send", 1) == 1
    kit.run_worker()
    assert sorted(shop.seen["send"]) == [(n, False) for n in (1, 2, 3, 4)]
    assert verbs.reset("send", 2, again=True) == 2
    kit.run_worker()
    assert sorted(shop.seen["send"]) == [(n, False) for n in (1, 2, 3, 3, 4, 4)]
    assert sorted(shop.seen["other"]) == [(n, False) for n in (1, 2, 3, 4)]
    assert audited(kit) == [
        ("ann", "reset_subscription", {"subscription": "send", "position": 1, "left_out": 3}, 1),
        ("ann", "reset_subscription", {"subscription": "send", "position": 2, "again": True}, 1),
    ]


def test_a_reset_forward_leaves_a_hole_that_a_replay_fills(
    shop: Shop, kit: Kit, verbs: Subscriptions
) -> None:
    verbs.pause("send")
    shop.publish(6)
    verbs.reset("send", 4)
    verbs.resume("send")
    kit.run_worker()
    assert sorted(shop.seen["send"]) == [(5, False), (6, False)]
    begun = shop.send.replay(0)
    assert begun.left_out == 2
    kit.run_worker()
    assert sorted(shop.seen["send"]) == [*((n, True) for n in (1, 2, 3, 4)), (5, False), (6, False)]
    assert begun.progress() == (6, 6)
    assert kit.sql("SELECT delivered::text AS d FROM holdfast.subscriptions WHERE name = 'send'") == [
        {"d": "{[1,7)}"}
    ]


def test_by_time_and_by_word(shop: Shop, kit: Kit, verbs: Subscriptions) -> None:
    shop.publish(2)
    shop.app.events.last_position()
    between = kit.sql("SELECT clock_timestamp() AS at")[0]["at"]
    shop.publish(2)
    assert verbs.reset("send", between) == 2
    assert verbs.reset("send", between - timedelta(days=400)) == 0
    assert verbs.reset("send", between + timedelta(days=400)) == 4
    assert verbs.reset("send", "start") == 0
    assert verbs.reset("send", "end") == 4
    kit.run_worker()
    begun = shop.send.replay(between)
    kit.run_worker()
    assert begun.progress() == (2, 2)
    assert sorted(shop.seen["send"]) == [(3, True), (4, True)]


def test_a_replay_reaches_one_subscriber_and_makes_no_job_twice(
    shop: Shop, kit: Kit, verbs: Subscriptions
) -> None:
    shop.publish(5)
    kit.run_worker()
    verbs.replay("send", 1, 4)
    kit.run_worker()
    assert sorted(shop.seen["send"]) == [(n, False) for n in range(1, 6)]
    name = verbs.replay("send", 1, 4, again=True)
    assert verbs.find(name)[0].lag_events == 3, "to its end, not to that of the log"
    kit.run_worker()
    assert sorted(shop.seen["send"])[1:7] == [(n, again) for n in (2, 3, 4) for again in (False, True)]
    assert len(shop.seen["send"]) == 8
    assert len(shop.seen["other"]) == 5
    assert {row.name for row in verbs.list()} == {"send", "other"}, "a replay that is done is gone"
    left, again = audited(kit)
    assert left == ("ann", "replay_events", {"subscription": "send", "from": 1, "to": 4, "left_out": 3}, 3)
    assert again == ("ann", "replay_events", {"subscription": "send", "from": 1, "to": 4, "again": True}, 3)


def test_what_a_replay_delivered_ahead_is_not_delivered_again(
    shop: Shop, kit: Kit, verbs: Subscriptions
) -> None:
    """The subscription itself is behind: what the replay makes jobs of, it passes over."""
    verbs.pause("send")
    shop.publish(4)
    verbs.replay("send", 1, 3)
    kit.run_worker()
    assert sorted(shop.seen["send"]) == [(2, True), (3, True)]
    verbs.resume("send")
    kit.run_worker()
    assert sorted(shop.seen["send"]) == [(1, False), (2, True), (3, True), (4, False)]


def test_a_replay_is_paced_says_how_far_it_is_and_can_be_ended(shop: Shop, kit: Kit) -> None:
    shop.publish(3)
    kit.run_worker()
    begun = shop.send.replay(0, again=True, rate=Rate(1, per=3600))
    assert begun.progress() == (0, 3)

    async def run() -> None:
        async with working(kit):
            await await_until(lambda: len(shop.seen["send"]) == 4, "the first is delivered")
            assert begun.progress() == (1, 3)
            await begun.acancel()
            await await_until(
                lambda: not kit.sql("SELECT 1 FROM holdfast.subscriptions WHERE replay_of IS NOT NULL"),
                "it is gone",
            )
        await kit.database.aclose()

    import asyncio

    asyncio.run(run())
    kit.run_worker()
    assert sorted(shop.seen["send"]) == [(1, False), (1, True), (2, False), (3, False)]
    assert begun.progress() == (3, 3), "it is over"
    begun.cancel()


def test_a_skipped_event_is_passed_noted_and_can_be_replayed(
    shop: Shop, kit: Kit, verbs: Subscriptions
) -> None:
    verbs.pause("send")
    shop.publish(2)
    skipped = verbs.skip("send")
    assert (skipped.position, skipped.kind, skipped.type) == (1, "skipped", "thing.done")
    verbs.resume("send")
    kit.run_worker()
    assert shop.seen["send"] == [(2, False)]
    assert [(f.position, f.error) for f in verbs.failures("send")] == [(1, "skipped by an operator")]
    verbs.replay("send", 0)
    kit.run_worker()
    assert sorted(shop.seen["send"]) == [(1, True), (2, False)]
    assert audited(kit)[1] == ("ann", "skip_event", {"subscription": "send", "position": 1}, 1)


def test_a_skip_passes_only_the_event_that_was_seen(kit: Kit, shop: Shop, verbs: Subscriptions) -> None:
    from holdfast.shapes.events import store

    verbs.pause("send")
    shop.publish(3)
    (listed,) = verbs.find("send")
    page = kit.database.run(lambda: store.next_event(listed))
    kit.sql("UPDATE holdfast.subscriptions SET position = 2, seq = 2 WHERE name = 'send'")
    assert not kit.database.run(lambda: store.skip_event(listed, page.events[0], "why"))
    assert verbs.failures("send") == []


def test_an_expired_one_says_what_it_missed_and_a_reset_revives_it(
    shop: Shop, kit: Kit, verbs: Subscriptions
) -> None:
    verbs.pause("send")
    shop.publish(5)
    kit.run_worker()
    kit.sql("UPDATE holdfast.event_log SET start_pos = 3")
    verbs.resume("send")
    kit.run_worker()
    (listed,) = verbs.find("send")
    assert (listed.status, listed.missed, listed.position) == ("expired", 3, 0)
    assert listed.problem == "3 events after position 0 were removed before it read them"
    said = "send is expired: it missed 3 events"
    for verb in (verbs.pause, verbs.resume, verbs.skip):
        with pytest.raises(ConfigurationError) as error:
            verb("send")
        assert str(error.value) == said
    assert verbs.reset("send", "start") == 3
    kit.run_worker()
    assert sorted(shop.seen["send"]) == [(4, False), (5, False)]
    (listed,) = verbs.find("send")
    assert (listed.status, listed.missed, listed.problem) == ("active", None, None)


def test_remove_forgets_it_unless_a_worker_runs_it(shop: Shop, kit: Kit, verbs: Subscriptions) -> None:
    kit.sql(
        "UPDATE holdfast.subscriptions SET owner = 'w1', lease_expires_at = holdfast.now() + interval '1 minute' "
        "WHERE name = 'send'"
    )
    with pytest.raises(ConfigurationError) as error:
        verbs.remove("send")
    assert str(error.value) == ("send is run by worker w1. Take it out of the code first, or pause it")
    shop.publish(1)
    verbs.pause("send")
    verbs.replay("send", 0, again=True)
    verbs.skip("send")
    assert verbs.remove("send") == 2, "with its replay"
    assert [row.name for row in verbs.list()] == ["other"]
    assert kit.sql("SELECT 1 FROM holdfast.event_failures") == []
    assert audited(kit)[-1] == ("ann", "remove_subscription", {"subscription": "send"}, 2)


@pytest.mark.parametrize(
    ("verb", "args"),
    [
        ("pause", ()),
        ("resume", ()),
        ("reset", ("end",)),
        ("replay", (0,)),
        ("skip", ()),
        ("remove", ()),
        ("failures", ()),
    ],
)
def test_a_name_that_nothing_has(kit: Kit, verbs: Subscriptions, verb: str, args: tuple[Any, ...]) -> None:
    with pytest.raises(UnknownSubscription) as error:
        getattr(verbs, verb)("sent", *args)
    assert str(error.value) == (
        "there is no subscription 'sent' (known: other, send). A worker makes those that its code declares"
    )
    assert audited(kit) == []


def test_what_makes_no_sense_is_refused_and_changes_nothing(
    shop: Shop, kit: Kit, verbs: Subscriptions
) -> None:
    shop.publish(3)
    kit.run_worker()
    before = kit.sql("SELECT * FROM holdfast.subscriptions ORDER BY name")
    refused: list[tuple[Callable[[], object], str]] = [
        (
            lambda: verbs.reset("send", 4),
            "position 4 is not in the log, which has 0 to 3. Choose one of these",
        ),
        (
            lambda: verbs.reset("send", -1),
            "position -1 is not in the log, which has 0 to 3. Choose one of these",
        ),
        (
            lambda: verbs.reset("send", "now"),  # type: ignore[arg-type]
            'a position is a number, a time with its zone, "start" or "end", not str \'now\'',
        ),
        (
            lambda: verbs.replay("send", 2, 1),
            "a replay ends after it begins: from position 2 to 1 is nothing",
        ),
        (
            lambda: verbs.replay("send", 2, 9),
            "the log has positions 0 to 3; a replay from 2 to 9 is not in it",
        ),
        (
            lambda: verbs.replay("send", "start"),  # type: ignore[arg-type]
            "a replay goes from a position or a time to another one, not str 'start'",
        ),
        (
            lambda: verbs.replay("send", 1, rate=5),  # type: ignore[arg-type]
            "rate must be a Rate, such as Rate(100, per=1), not int 5",
        ),
        (
            lambda: verbs.skip("send"),
            "send is not stopped, so there is nothing to skip",
        ),
    ]
    for act, said in refused:
        with pytest.raises((ConfigurationError, EventsGone)) as error:
            act()
        assert str(error.value) == said
    assert kit.sql("SELECT * FROM holdfast.subscriptions ORDER BY name") == before
    assert audited(kit) == []
    verbs.pause("send")
    with pytest.raises(ConfigurationError, match="send has read all events, so there is nothing to skip"):
        verbs.skip("send")


def test_a_projection_and_a_replay_are_not_replayed(shop: Shop, kit: Kit, verbs: Subscriptions) -> None:
    @shop.app.projection("totals", on=["*"])
    def totals(tx: Transaction, event: Event[Any]) -> None: ...

    kit.run_worker()
    with pytest.raises(ConfigurationError) as error:
        verbs.replay("totals", 0)
    assert str(error.value) == ("totals is a projection: events that it applied would count twice")
    name = verbs.replay("send", 0)
    with pytest.raises(ConfigurationError) as error:
        verbs.replay(name, 0)
    assert str(error.value) == f"{name} is a replay. Replay send instead"


def test_what_became_jobs_stays_small(shop: Shop, kit: Kit, verbs: Subscriptions) -> None:
    """Ranges merge; a hole is there only where a reset jumped; what the log has no longer is forgotten."""
    delivered = "SELECT delivered::text AS d FROM holdfast.subscriptions WHERE name = 'send'"
    for _ in range(3):
        shop.publish(3)
        kit.run_worker()
    assert kit.sql(delivered) == [{"d": "{[1,10)}"}]
    verbs.pause("send")
    shop.publish(3)
    verbs.reset("send", "end")
    verbs.resume("send")
    shop.publish(1)
    kit.run_worker()
    assert kit.sql(delivered) == [{"d": "{[1,10),[13,14)}"}]
    kit.sql("UPDATE holdfast.event_log SET start_pos = 12")
    verbs.reset("send", "end")
    assert kit.sql(delivered) == [{"d": "{[13,14)}"}]
