"""Events that a projection cannot apply: stop, skip or park the key, apply them later; and waiting for one's writes."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest
from tests.conftest import QUICK, await_until, within
from tests.events.test_projections_calls import QUICKLY, run_until, standing
from tests.flow.test_run import working

from holdfast import (
    AsyncTransaction,
    ConfigurationError,
    Event,
    Holdfast,
    ResultTimeout,
    SubscriptionStopped,
    Transaction,
    UnknownSubscription,
    event,
    failpoints,
)
from holdfast.shapes.events import store
from holdfast.testing import Kit

KEEP = "INSERT INTO applied (key, n) VALUES (%s, %s)"


@event("counted")
@dataclass
class Counted:
    n: int


@pytest.fixture
def kit(app: Holdfast, holdfast_kit: Callable[..., Kit]) -> Kit:
    kit = holdfast_kit(app, replace(QUICK, pool_size=8))
    kit.sql("CREATE TABLE applied (at serial, key text, n int)")
    return kit


class Picky:
    """Refuses what is in `bad`."""

    def __init__(self, app: Holdfast, poison: Literal["stop", "skip", "park_key"], batch: int = 500) -> None:
        self.bad: set[int] = set()

        @app.projection("totals", on=["*"], poison=poison, max_attempts=2, retry=QUICKLY, batch=batch)
        def totals(tx: Transaction, event: Event[Any]) -> None:
            tx.execute(KEEP, [event.key, event.data["n"]])
            if event.data["n"] in self.bad:
                raise ValueError(f"no {event.data['n']}")

        self.projection = totals


def publish(app: Holdfast, *pairs: tuple[str | None, int]) -> None:
    app.publish_many([("counted", {"n": n}, key) for key, n in pairs])


def applied(kit: Kit) -> list[tuple[str | None, int]]:
    return [(row["key"], row["n"]) for row in kit.sql("SELECT key, n FROM applied ORDER BY at")]


def kinds(picky: Picky) -> list[tuple[int, str]]:
    return [(f.position, f.kind) for f in picky.projection.failures()]


def test_by_default_it_stops_and_goes_on_when_it_is_resumed(app: Holdfast, kit: Kit) -> None:
    picky = Picky(app, "stop")
    picky.bad = {2}
    publish(app, ("a", 1), ("b", 2), ("a", 3))
    run_until(kit, 3)
    now = standing(kit)
    assert (now["position"], now["status"]) == (1, "paused")
    assert now["problem"] == "event 2 (counted, key 'b') failed: ValueError: no 2"
    assert applied(kit) == [("a", 1)]
    picky.bad.clear()
    picky.projection.resume()
    run_until(kit, 3)
    assert applied(kit) == [("a", 1), ("b", 2), ("a", 3)]


def test_a_parked_key_waits_in_order_and_the_others_go_on(app: Holdfast, kit: Kit) -> None:
    picky = Picky(app, "park_key")
    picky.bad = {2}
    publish(app, ("a", 1), ("b", 2), ("a", 3), ("b", 4), ("c", 5), ("b", 6))
    run_until(kit, 6)
    assert applied(kit) == [("a", 1), ("a", 3), ("c", 5)]
    assert kinds(picky) == [(2, "parked"), (4, "behind"), (6, "behind")]
    publish(app, ("b", 7), ("c", 8))  # another owner finds the key parked
    run_until(kit, 8)
    assert kinds(picky) == [(2, "parked"), (4, "behind"), (6, "behind"), (7, "behind")]

    failed = picky.projection.retry_failures()
    assert (failed.applied, failed.left, failed.error) == (0, 4, "event 2: ValueError: no 2")
    picky.bad.clear()
    done = picky.projection.retry_failures("b")
    assert (done.applied, done.left, done.error) == (4, 0, None)
    publish(app, ("b", 9))
    run_until(kit, 9)
    assert applied(kit) == [
        ("a", 1),
        ("a", 3),
        ("c", 5),
        ("c", 8),
        ("b", 2),
        ("b", 4),
        ("b", 6),
        ("b", 7),
        ("b", 9),
    ]
    assert kit.sql(
        "SELECT action, count FROM holdfast.audit WHERE action = 'projection retry' ORDER BY id"
    ) == [
        {"action": "projection retry", "count": 0},
        {"action": "projection retry", "count": 4},
    ]


def test_an_event_without_a_key_parks_nothing_and_stops(app: Holdfast, kit: Kit) -> None:
    picky = Picky(app, "park_key")
    picky.bad = {1}
    publish(app, (None, 1))
    run_until(kit, 1)
    assert standing(kit)["status"] == "paused"


def test_what_was_skipped_is_applied_later(app: Holdfast, kit: Kit) -> None:
    picky = Picky(app, "skip")
    picky.bad = {1, 3}
    publish(app, ("a", 1), ("b", 2), ("b", 3), (None, 1), ("a", 5))
    run_until(kit, 5)
    assert applied(kit) == [("b", 2), ("a", 5)]
    picky.bad = {3}
    done = picky.projection.retry_failures()
    assert (done.applied, done.left) == (2, 1)
    assert applied(kit) == [("b", 2), ("a", 5), ("a", 1), (None, 1)]
    assert kinds(picky) == [(3, "skipped")]


def test_data_that_was_erased_or_does_not_fit_fails_without_another_attempt(app: Holdfast, kit: Kit) -> None:
    called: list[int] = []

    @app.projection("totals", on=["counted"], poison="skip")
    def totals(tx: Transaction, events: list[Event[Counted]]) -> None:
        called.extend(e.data.n for e in events)

    publish(app, ("a", 1), ("a", 2), ("a", 3), ("a", 4))
    kit.sql("SELECT holdfast.publish('counted', '{\"m\": 1}')")  # from where nobody knows the class
    app.publish("counted", {"n": 6})
    kit.sql("UPDATE holdfast.events SET data = NULL WHERE data->>'n' = '2'")
    run_until(kit, 6)
    assert called == [1, 3, 4, 6]
    assert [(f.position, f.error) for f in totals.failures()] == [
        (2, "Misfit: the data of this counted was erased"),
        (5, totals.failures()[1].error),
    ]
    assert str(totals.failures()[1].error).startswith("Misfit: ")


def test_an_event_that_the_log_has_no_more_cannot_be_applied_later(app: Holdfast, kit: Kit) -> None:
    picky = Picky(app, "skip")
    picky.bad = {1}
    publish(app, ("a", 1))
    run_until(kit, 1)
    kit.sql("UPDATE holdfast.event_log SET start_pos = 1")
    done = picky.projection.retry_failures()
    assert (done.left, done.error) == (1, "event 1: EventsGone: the log begins after position 1")
    assert kinds(picky) == [(1, "skipped")]


async def test_a_key_that_was_retried_is_not_parked_any_more(app: Holdfast, akit: Kit) -> None:
    """Also for the worker that has parked it, and goes on meanwhile."""
    picky = Picky(app, "park_key")
    picky.bad = {1}
    async with working(akit):
        await app.apublish_many([("counted", {"n": n}, "k") for n in (1, 2)])
        await picky.projection.aread_your_writes(2, timeout=within(20))
        picky.bad.clear()
        done = await picky.projection.aretry_failures()
        assert (done.applied, done.left) == (2, 0)
        await app.apublish("counted", {"n": 3}, key="k")
        await picky.projection.aread_your_writes(3, timeout=within(20))
        assert await picky.projection.afailures() == []
    assert applied(akit) == [("k", 1), ("k", 2), ("k", 3)]


async def test_a_key_is_applied_in_order_while_more_of_it_comes(app: Holdfast, akit: Kit) -> None:
    """Retried again and again beside a worker that goes on, with crashes on both sides: each event once, in order."""
    picky = Picky(app, "park_key", batch=7)
    keys = [f"k{n % 5}" for n in range(200)]
    picky.bad = {20, 33}
    hits = iter(range(10_000))

    def crash() -> None:
        if next(hits) % 9 == 8:
            raise ConnectionError("crashed")

    failpoints.arm("projection.commit", crash)
    async with working(akit):
        for start in range(0, 200, 10):
            await app.apublish_many([("counted", {"n": n}, keys[n]) for n in range(start, start + 10)])
            if start == 100:
                picky.bad.clear()
            try:
                await picky.projection.aretry_failures()
            except (UnknownSubscription, ConnectionError):
                await asyncio.sleep(0)
        await picky.projection.aread_your_writes(200, timeout=60)
        failpoints.disarm()
        await picky.projection.aretry_failures()
    assert next(hits) > 2 * 9, "it crashed again and again"
    found = applied(akit)
    for key in set(keys):
        assert [n for k, n in found if k == key] == [n for n in range(200) if keys[n] == key]


# Read your writes -------------------------------------------------------------------------------------------------------


class Slow:
    def __init__(self, app: Holdfast, shards: int = 1) -> None:
        @app.projection("totals", on=["*"], shards=shards)
        async def totals(tx: AsyncTransaction, event: Event[Any]) -> None:
            await tx.execute(KEEP, [event.key, event.data["n"]])

        self.projection = totals


@pytest.mark.parametrize("shards", [1, 3])
async def test_writes_are_read_when_the_projection_has_passed_them(
    app: Holdfast, akit: Kit, shards: int
) -> None:
    slow = Slow(app, shards)
    async with working(akit):
        for n in range(5):
            one = await app.apublish("counted", {"n": n}, key=f"k{n}")
            assert await slow.projection.aread_your_writes(one, timeout=60) >= n * 3 + 1
            many = await app.apublish_many([("counted", {"n": n}, "x"), ("counted", {"n": n}, "y")])
            await slow.projection.aread_your_writes(many, timeout=60)
            assert len(applied(akit)) == (n + 1) * 3
        await slow.projection.aread_your_writes(15, timeout=60)
        assert await asyncio.to_thread(slow.projection.read_your_writes, many, timeout=60) == 15
        assert await slow.projection.aread_your_writes([], timeout=60) == 15


def test_why_writes_cannot_be_read_is_said(app: Holdfast, kit: Kit) -> None:
    slow = Slow(app)
    with pytest.raises(UnknownSubscription, match="there is no subscription 'totals'"):
        slow.projection.read_your_writes(1, timeout=0.01)
    kit.run_worker()
    published = app.publish("counted", {"n": 1})
    with pytest.raises(ResultTimeout) as late:
        slow.projection.read_your_writes(published, timeout=0.01)
    assert str(late.value) == "totals has not passed position 1 within 0.01 s: it is at position 0"
    with kit.connect() as conn:
        open_one = app.publish("counted", {"n": 2}, conn=conn)
        with pytest.raises(ResultTimeout) as open_:
            slow.projection.read_your_writes([published, open_one], timeout=0.01)
        assert str(open_.value) == (
            "totals has not passed an event that is not committed yet within 0.01 s: it is at position 0"
        )
        conn.rollback()
    slow.projection.pause()
    with pytest.raises(SubscriptionStopped) as paused:
        slow.projection.read_your_writes(published, timeout=1000)
    assert str(paused.value).startswith("totals is paused at position 0, before position 1 by ")
    assert str(paused.value).endswith(". Resume it to continue")
    assert slow.projection.read_your_writes(0) == 0
    with pytest.raises(
        ConfigurationError, match="takes what publish\\(\\) returned, a list of that, or a position"
    ):
        slow.projection.read_your_writes("soon")  # type: ignore[arg-type]


def test_an_event_that_stopped_the_projection_is_named(app: Holdfast, kit: Kit) -> None:
    picky = Picky(app, "stop")
    picky.bad = {1}
    published = app.publish("counted", {"n": 1}, key="a")
    run_until(kit, 1)
    with pytest.raises(
        SubscriptionStopped, match="position 1: event 1 \\(counted, key 'a'\\) failed: ValueError: no 1"
    ):
        picky.projection.read_your_writes(published, timeout=1000)


async def test_nobody_waits_for_a_shard_that_is_behind_by_itself(app: Holdfast, akit: Kit) -> None:
    """A shard that is stopped beyond the position does not matter; one that is stopped before it does."""
    slow = Slow(app, 2)
    async with working(akit):
        published = await app.apublish("counted", {"n": 1}, key="a")
        await slow.projection.aread_your_writes(published, timeout=60)
        await await_until(
            lambda: akit.sql("SELECT 1 FROM holdfast.subscriptions HAVING min(position) = 1"), "both"
        )
    akit.sql("UPDATE holdfast.subscriptions SET status = 'paused' WHERE shard = 1")
    assert await slow.projection.aread_your_writes(published, timeout=5) == 1


def test_what_a_reset_reads_again_is_not_applied_twice(app: Holdfast, kit: Kit) -> None:
    picky = Picky(app, "skip")
    picky.bad = {2}
    publish(app, ("a", 1), ("b", 2), ("a", 3))
    run_until(kit, 3)
    assert kinds(picky) == [(2, "skipped")]
    picky.bad.clear()
    kit.sql("TRUNCATE applied")
    picky.projection.reset(0)
    assert kinds(picky) == []
    run_until(kit, 3)
    assert picky.projection.retry_failures().applied == 0
    assert applied(kit) == [("a", 1), ("b", 2), ("a", 3)]


def test_code_of_another_version_applies_nothing_to_these_tables(app: Holdfast, kit: Kit) -> None:
    picky = Picky(app, "skip")
    picky.bad = {1}
    publish(app, ("a", 1))
    run_until(kit, 1)
    kit.sql("UPDATE holdfast.subscriptions SET version = 2")
    with pytest.raises(ConfigurationError) as refused:
        picky.projection.retry_failures()
    assert str(refused.value) == (
        "the tables of totals are of version 2, and this code is of version 1. Rebuild them first"
    )
    assert kinds(picky) == [(1, "skipped")]


def test_a_shard_that_stopped_beyond_it_is_no_reason_not_to_wait(app: Holdfast, kit: Kit) -> None:
    picky = Picky(app, "stop")
    publish(app, ("a", 1), ("b", 2), ("c", 3))
    run_until(kit, 3)
    kit.sql("UPDATE holdfast.subscriptions SET shards = 2, position = 1")
    kit.sql(
        "INSERT INTO holdfast.subscriptions (name, shard, shards, kind, patterns, position, seq, status, created_at, "
        "moved_at) SELECT name, 1, 2, kind, patterns, 3, 3, 'paused', created_at, moved_at FROM holdfast.subscriptions"
    )
    with pytest.raises(ResultTimeout):  # and not SubscriptionStopped
        picky.projection.read_your_writes(2, timeout=0.01)


def test_a_parked_event_keeps_its_day_of_the_log(app: Holdfast, kit: Kit) -> None:
    picky = Picky(app, "park_key")
    picky.bad = {1}
    publish(app, ("a", 1))
    run_until(kit, 1)
    kit.clock.advance(10 * 86400)
    publish(app, ("b", 2))
    run_until(kit, 2)
    kit.sql("SELECT holdfast.empty_event_slots()")
    assert kit.sql("SELECT start_pos FROM holdfast.event_log") == [{"start_pos": 0}]
    picky.bad.clear()
    assert picky.projection.retry_failures().applied == 1
    kit.sql("SELECT holdfast.empty_event_slots()")
    assert kit.sql("SELECT start_pos FROM holdfast.event_log") == [{"start_pos": 1}]


def test_a_parked_key_goes_on_when_its_failures_are_forgotten(app: Holdfast, kit: Kit) -> None:
    """Also when the log has them no more, so that nothing could apply them."""
    picky = Picky(app, "park_key")
    picky.bad = {2, 5}
    publish(app, ("a", 1), ("b", 2), ("b", 3), ("c", 4), ("d", 5))
    run_until(kit, 5)
    assert kinds(picky) == [(2, "parked"), (3, "behind"), (5, "parked")]
    kit.sql("UPDATE holdfast.event_log SET start_pos = 5")
    picky.bad.clear()
    assert picky.projection.retry_failures().left == 3
    publish(app, ("b", 6))
    run_until(kit, 6)
    assert kinds(picky) == [(2, "parked"), (3, "behind"), (5, "parked"), (6, "behind")]

    assert picky.projection.forget_failures("a") == 0
    assert picky.projection.forget_failures("b", position=2) == 1
    assert kinds(picky) == [(3, "behind"), (5, "parked"), (6, "behind")]
    assert picky.projection.forget_failures(position=3) == 1
    publish(app, ("b", 7))
    run_until(kit, 7)
    assert kinds(picky) == [(5, "parked"), (6, "behind"), (7, "behind")], "the key waits for its other events"
    assert picky.projection.retry_failures("b").applied == 2
    assert picky.projection.forget_failures() == 1
    publish(app, ("b", 8), ("d", 9))
    run_until(kit, 9)
    assert kinds(picky) == []
    assert applied(kit) == [("a", 1), ("c", 4), ("b", 6), ("b", 7), ("b", 8), ("d", 9)]
    assert kit.sql(
        "SELECT selection::text, count FROM holdfast.audit WHERE action = 'forget_failures' ORDER BY id"
    ) == [
        {"selection": '{"key": "b", "position": 2, "subscription": "totals"}', "count": 1},
        {"selection": '{"position": 3, "subscription": "totals"}', "count": 1},
        {"selection": '{"subscription": "totals"}', "count": 1},
    ]


async def test_an_owner_at_work_learns_that_a_key_is_parked_no_more(app: Holdfast, akit: Kit) -> None:
    picky = Picky(app, "park_key")
    picky.bad = {1}
    async with working(akit):
        await app.apublish("counted", {"n": 1}, key="a")
        await await_until(lambda: akit.sql("SELECT 1 FROM holdfast.event_failures"), "it is parked")
        assert await picky.projection.aforget_failures("a") == 1
        published = await app.apublish("counted", {"n": 2}, key="a")
        await picky.projection.aread_your_writes(published, timeout=60)
    assert applied(akit) == [("a", 2)]
    with pytest.raises(ConfigurationError, match="position must be a number, not str 'x'"):
        await picky.projection.aforget_failures(position="x")  # type: ignore[arg-type]


def test_what_is_left_is_counted_by_the_server(app: Holdfast, kit: Kit) -> None:
    """However many there are: they are not read to be counted."""
    picky = Picky(app, "skip")
    picky.bad = {1}
    publish(app, ("a", 1))
    run_until(kit, 1)
    kit.sql(
        "INSERT INTO holdfast.event_failures (subscription, position, seq, shard, kind, event_id, type, key, at) "
        "SELECT 'totals', 1000 + n, 1000 + n, 0, 'skipped', gen_random_uuid(), 'counted', 'a', now() "
        "FROM generate_series(1, 3000) n"
    )
    kit.sql("UPDATE holdfast.event_log SET start_pos = 5000")  # none can be applied
    largest = 0
    taken = store.list_failures

    def noted(name: str, key: str | None = None, most: int = 1000, after: int = 0) -> Any:
        nonlocal largest
        largest = max(largest, most)
        return taken(name, key, most, after)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "list_failures", noted)
        done = picky.projection.retry_failures()
    assert (done.applied, done.left) == (0, 3001)
    assert largest == 500, "a batch"
