"""Consumers: events become jobs, with all that a job has."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.conftest import QUICK, await_until
from tests.flow.test_run import working

from holdfast import (
    AsyncTransaction,
    Backoff,
    DeadLetter,
    Event,
    EventsGone,
    Holdfast,
    Job,
    Registry,
    TaskDefinitionError,
    Transaction,
    event,
    telemetry,
)
from holdfast.operate.dead import redrive_verb
from holdfast.operate.operator import Operator
from holdfast.shapes.events.procedures import Subscriptions
from holdfast.testing import Kit


@event("order.paid", key="order:{order_id}")
@dataclass
class OrderPaid:
    order_id: int
    cents: int


@event("order.refunded", key="order:{order_id}")
@dataclass
class OrderRefunded:
    order_id: int
    reason: str


def test_one_event_to_ten_consumers_is_ten_jobs_and_one_row(app: Holdfast, kit: Kit) -> None:
    def make(number: int) -> None:
        @app.on(OrderPaid, name=f"consumer_{number}", start="start")
        async def consume(event: Event[OrderPaid]) -> None: ...

    for number in range(10):
        make(number)
    app.publish(OrderPaid(1, 995))
    kit.run_worker()
    assert sorted(row["task"] for row in kit.jobs()) == [f"consumer_{number}" for number in range(10)]
    assert kit.sql("SELECT count(*) AS n FROM holdfast.events") == [{"n": 1}]


def test_the_options_of_a_task_are_those_of_the_jobs(app: Holdfast, kit: Kit) -> None:
    app.queue("mail")
    kit.create_queues()
    tries: list[int] = []

    @app.on(
        OrderPaid,
        queue="mail",
        priority=7,
        max_attempts=2,
        retry=Backoff(first=0.01),
        timeout=30,
        start="start",
    )
    async def send(job: Job, event: Event[OrderPaid]) -> None:
        tries.append(job.attempt)
        raise RuntimeError("the mail server is away")

    app.publish(OrderPaid(1, 995))
    kit.run_worker()
    (row,) = kit.sql("SELECT task, queue, priority, max_attempts, partition_key FROM holdfast.dead_letters")
    assert (row["task"], row["queue"], row["priority"], row["max_attempts"]) == ("send", "mail", 7, 2)
    assert row["partition_key"] == "order:1"
    assert tries == [1, 2]


def test_events_of_a_key_are_jobs_of_that_key_in_order_where_the_queue_is_ordered(
    app: Holdfast, kit: Kit
) -> None:
    app.queue("steps", ordering="key")
    kit.create_queues()
    seen: list[tuple[str | None, int]] = []

    @app.on("order.*", "lone", queue="steps", start="start")
    async def step(event: Event[Any]) -> None:
        await asyncio.sleep(0.1 if event.position < 3 else 0)  # whoever did not wait would overtake
        seen.append((event.key, event.position))

    for _ in range(5):
        for order in (1, 2):
            app.publish(OrderPaid(order, 5))
    app.publish("lone", {})
    kit.run_worker(concurrency=8)
    assert [position for key, position in seen if key == "order:1"] == [1, 3, 5, 7, 9]
    assert [position for key, position in seen if key == "order:2"] == [2, 4, 6, 8, 10]
    assert (None, 11) in seen


def test_a_queue_that_is_ordered_and_not_declared_here_gets_keys(app: Holdfast, kit: Kit) -> None:
    seen: list[int] = []
    kit.sql("SELECT holdfast.create_queue('steps', NULL, 'key')")

    @app.on("*", queue="steps", start="start")
    async def step(event: Event[Any]) -> None:
        seen.append(event.position)

    app.publish("lone", {})
    kit.run_worker()
    assert seen == [1]


def test_injected_parameters_come_before_or_after_the_event(app: Holdfast, kit: Kit) -> None:
    kit.sql("CREATE TABLE sent (who text, order_id int)")

    @app.on(OrderPaid, start="start")
    def with_both(job: Job, tx: Transaction, event: Event[OrderPaid]) -> None:
        tx.execute("INSERT INTO sent VALUES (%s, %s)", [job.task, event.data.order_id])

    @app.on(OrderPaid, start="start")
    async def with_tx(tx: AsyncTransaction, event: Event[OrderPaid]) -> None:
        await tx.execute("INSERT INTO sent VALUES ('with_tx', %s)", [event.data.order_id])

    @app.on(OrderPaid, start="start")
    def event_first(event: Event[OrderPaid], job: Job, tx: Transaction) -> None:
        tx.execute("INSERT INTO sent VALUES (%s, %s)", [job.task, event.data.order_id])

    @app.on(OrderPaid, start="start")
    async def async_first(event: Event[OrderPaid], tx: AsyncTransaction) -> None:
        await tx.execute("INSERT INTO sent VALUES ('async_first', %s)", [event.data.order_id])

    app.publish(OrderPaid(4, 995))
    kit.run_worker()
    assert sorted((r["who"], r["order_id"]) for r in kit.sql("SELECT * FROM sent")) == [
        ("async_first", 4),
        ("event_first", 4),
        ("with_both", 4),
        ("with_tx", 4),
    ]


@pytest.mark.parametrize("wrong", ["none", "two", "plain", "late"])
def test_a_signature_that_no_event_fits_is_refused(app: Holdfast, wrong: str) -> None:
    def none() -> None: ...
    def two(a: Event[Any], b: Event[Any]) -> None: ...
    def plain(order_id: int) -> None: ...
    def late(event: Event[Any], other: int) -> None: ...

    fn: Any = {"none": none, "two": two, "plain": plain, "late": late}[wrong]
    with pytest.raises(TaskDefinitionError) as error:
        app.on("*")(fn)
    assert str(error.value) == (
        f"{wrong}: a consumer takes one event, and beside it only what is injected. Write: def {wrong}(event: Event[...])"
    )


def test_several_types_arrive_as_their_own_classes(app: Holdfast, kit: Kit) -> None:
    seen: list[object] = []

    @app.on(OrderPaid, OrderRefunded, start="start")
    async def watch(event: Event[OrderPaid | OrderRefunded]) -> None:
        seen.append(event.data)

    app.publish_many([OrderPaid(1, 5), OrderRefunded(1, "broken")])
    kit.run_worker()
    assert sorted(map(str, seen)) == sorted(map(str, [OrderPaid(1, 5), OrderRefunded(1, "broken")]))


def test_data_that_does_not_fit_is_set_aside_as_any_payload_and_holds_up_nobody(
    holdfast_kit: Callable[..., Kit],
) -> None:
    app = Holdfast("postgresql://unused.invalid/none")
    seen: list[int] = []

    @app.on(OrderPaid, start="start")
    async def send(event: Event[OrderPaid]) -> None:
        seen.append(event.data.order_id)

    kit = holdfast_kit(app, replace(QUICK, misfit_wait=0.2))
    kit.sql('SELECT holdfast.publish(\'order.paid\', \'{"order_id": "one", "cents": 5}\')')
    app.publish(OrderPaid(2, 5))
    kit.run_worker()
    assert seen == [2]
    assert Subscriptions(kit.database, "ann").find("send")[0].lag_events == 0
    held = kit.sql("SELECT 1 FROM holdfast.misfits") or kit.sql("SELECT 1 FROM holdfast.dead_letters")
    assert held


def test_a_dead_letter_of_a_consumer_can_be_redriven(app: Holdfast, kit: Kit) -> None:
    ready: list[bool] = []
    seen: list[Event[OrderPaid]] = []

    @app.on(OrderPaid, start="start")
    async def send(event: Event[OrderPaid]) -> None:
        if not ready:
            raise DeadLetter("not yet")
        seen.append(event)

    published = app.publish(OrderPaid(1, 995))
    kit.run_worker()
    (row,) = kit.sql("SELECT id, task FROM holdfast.dead_letters")
    ready.append(True)
    Operator(kit.database, "ann").act_on(redrive_verb(), [row["id"]])
    kit.run_worker()
    assert [(e.id, e.data) for e in seen] == [(published.id, OrderPaid(1, 995))]


def test_consumers_of_a_registry_are_those_of_the_app_that_includes_it(
    holdfast_kit: Callable[..., Kit],
) -> None:
    billing = Registry("billing")
    seen: list[int] = []

    @billing.on(OrderPaid, start="start")
    async def send(event: Event[OrderPaid]) -> None:
        seen.append(event.data.order_id)

    app = Holdfast("postgresql://unused.invalid/none", include=[billing])
    kit = holdfast_kit(app, QUICK)
    app.publish(OrderPaid(7, 5))
    kit.run_worker()
    assert seen == [7]
    assert send.name == "billing.send"
    assert send.lag() == (0, 0.0)


async def test_a_queue_that_is_missing_stops_its_consumer_only_and_says_so(app: Holdfast, akit: Kit) -> None:
    seen: dict[str, list[int]] = {"lost": [], "send": []}

    @app.on(OrderPaid, queue="nowhere", start="start")
    async def lost(event: Event[OrderPaid]) -> None:
        seen["lost"].append(event.position)

    @app.on(OrderPaid, start="start")
    async def send(event: Event[OrderPaid]) -> None:
        seen["send"].append(event.position)

    problem = "SELECT problem FROM holdfast.subscriptions WHERE name = 'lost'"
    await app.apublish(OrderPaid(1, 5))
    async with working(akit, queues=["inbox"]):
        await await_until(lambda: seen["send"] == [1], "the other goes on")
        await await_until(lambda: akit.sql(problem)[0]["problem"], "it says why it waits")
        assert akit.sql(problem)[0]["problem"].startswith("UnknownQueue: queue 'nowhere' does not exist")
        assert akit.sql("SELECT position FROM holdfast.subscriptions WHERE name = 'lost'") == [
            {"position": 0}
        ]
        akit.sql("SELECT holdfast.create_queue('nowhere')")
        await await_until(lambda: akit.sql(problem) == [{"problem": None}], "it goes on by itself")
    async with working(akit, queues=["nowhere"]):
        await await_until(lambda: seen["lost"] == [1], "nothing is lost")


def test_an_event_that_cannot_become_a_job_is_noted_and_the_others_go_on(
    app: Holdfast, kit: Kit, events: list[telemetry.Event]
) -> None:
    seen: list[int] = []

    @app.on("*", start="start")
    async def send(event: Event[Any]) -> None:
        seen.append(event.position)

    kit.sql("ALTER TABLE holdfast.inbox ADD CONSTRAINT refuse CHECK (payload::text NOT LIKE '%poison%')")
    app.publish_many([("thing.done", {"what": "poison" if n == 13 else "food"}) for n in range(30)])
    kit.run_worker()
    assert sorted(seen) == [n for n in range(1, 31) if n != 14]
    (failure,) = Subscriptions(kit.database, "ann").failures("send")
    assert (failure.position, failure.kind) == (14, "skipped")
    assert failure.error is not None
    assert failure.error.startswith("it cannot become a job: new row for relation")
    assert [e.fields["position"] for e in events if e.name == "consumer.skipped"] == [14]
    kit.sql("ALTER TABLE holdfast.inbox DROP CONSTRAINT refuse")
    Subscriptions(kit.database, "ann").replay("send", 0)
    kit.run_worker()
    assert sorted(seen) == list(range(1, 31)), "a replay makes the job that was missing, and no other"
    assert Subscriptions(kit.database, "ann").failures("send") == [], "it is not skipped any more"


def test_what_a_consumer_skipped_is_read_to_it_once_more(app: Holdfast, kit: Kit) -> None:
    """By replays of these events and of no other. What fails again is noted where it was, though the replay is gone."""
    seen: list[int] = []

    @app.on("*", start="start")
    async def send(event: Event[Any]) -> None:
        seen.append(event.position)

    verbs = Subscriptions(kit.database, "ann")
    kit.sql("ALTER TABLE holdfast.inbox ADD CONSTRAINT refuse CHECK (payload::text NOT LIKE '%poison%')")
    bad, never = (3, 4, 8), {1, 6}  # positions
    app.publish_many(
        [("thing.done", {"what": "poison" if n in bad else "food"}, f"k{n}") for n in range(1, 10)]
    )
    kit.run_worker()
    assert [f.position for f in verbs.failures("send")] == [3, 4, 8]
    for position in never:  # as a reset forward leaves them: they were never to become jobs
        seen.remove(position)
        kit.sql(
            "UPDATE holdfast.subscriptions SET delivered = delivered - int8multirange(int8range(%s::int8, %s::int8))",
            [position, position + 1],
        )

    assert verbs.retry("send", "k8") == 1
    kit.run_worker()
    assert kit.sql("SELECT name FROM holdfast.subscriptions") == [{"name": "send"}]
    (*_, again) = verbs.failures("send")
    assert again.position == 8, "it failed once more, and is noted of the subscription"

    kit.sql("ALTER TABLE holdfast.inbox DROP CONSTRAINT refuse")
    assert verbs.retry("send") == 3
    kit.run_worker()
    assert sorted(seen) == [2, 3, 4, 5, 7, 8, 9]
    assert verbs.failures("send") == []
    assert kit.sql("SELECT count FROM holdfast.audit WHERE action = 'retry_failures' ORDER BY id") == [
        {"count": 1},
        {"count": 3},
    ]
    assert verbs.retry("send") == 0


def test_what_the_log_has_no_more_is_not_read_once_more(app: Holdfast, kit: Kit) -> None:
    @app.on("*", start="start")
    async def send(event: Event[Any]) -> None: ...

    verbs = Subscriptions(kit.database, "ann")
    kit.run_worker()
    verbs.pause("send")
    app.publish("thing.done", {})
    app.publish("thing.done", {})
    verbs.skip("send")
    verbs.resume("send")
    kit.run_worker()
    kit.sql("UPDATE holdfast.event_log SET start_pos = 1")
    with pytest.raises(
        EventsGone, match=r"the log has no event 1: it begins after position 1\. Give that one up"
    ):
        verbs.retry("send")


async def test_a_fault_that_is_not_of_the_event_is_waited_out(app: Holdfast, akit: Kit) -> None:
    """A trigger that raises is nobody's bad data: no event is passed over."""
    seen: list[int] = []

    @app.on("*", start="start")
    async def send(event: Event[Any]) -> None:
        seen.append(event.position)

    akit.sql(
        "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not now'; END $$;"
        "CREATE TRIGGER refuse BEFORE INSERT ON holdfast.inbox FOR EACH ROW EXECUTE FUNCTION public.refuse()"
    )
    await app.apublish("thing.done", {})
    async with working(akit):
        problem = "SELECT problem FROM holdfast.subscriptions"
        await await_until(
            lambda: akit.sql(problem) and akit.sql(problem)[0]["problem"], "it says why it waits"
        )
        assert "not now" in akit.sql(problem)[0]["problem"]
        akit.sql("DROP TRIGGER refuse ON holdfast.inbox")
        await await_until(lambda: seen == [1], "it goes on")
    assert akit.sql("SELECT 1 FROM holdfast.event_failures") == []


def test_a_subscription_whose_code_is_gone_has_no_workers(holdfast_kit: Callable[..., Kit]) -> None:
    app = Holdfast("postgresql://unused.invalid/none")

    @app.on(OrderPaid)
    async def send(event: Event[OrderPaid]) -> None: ...

    kit = holdfast_kit(app, QUICK)
    found: list[tuple[int, bool]] = []

    async def look() -> None:
        async with working(kit):
            verbs = Subscriptions(kit.database, "ann")
            await await_until(lambda: verbs.find("send")[0].owner if verbs.list() else None, "it is owned")
            (listed,) = verbs.find("send")
            found.append((listed.workers, listed.unowned_seconds is None))
        await kit.database.aclose()

    import asyncio

    asyncio.run(look())
    (listed,) = Subscriptions(kit.database, "ann").find("send")
    assert found == [(1, True)]
    assert listed.workers == 0
    assert listed.unowned_seconds is not None
    assert listed.unowned_seconds >= 0


def test_a_batch_that_took_long_is_followed_by_a_smaller_one(
    app: Holdfast, kit: Kit, monkeypatch: Any
) -> None:
    """Whatever a batch took, here it was too long: each next one is half of it, and never nothing."""
    monkeypatch.setattr("holdfast.shapes.events.runner.LONG", 0.0)
    sizes: list[int] = []

    @app.projection("sizes", on=["*"])
    def project(tx: Transaction, events: Sequence[Event[Any]]) -> None:
        sizes.append(len(events))

    app.publish_many([("thing.done", {})] * 200)
    kit.run_worker()
    assert sizes == [100, 50, 25, 12, 6, 3, 1, 1, 1, 1]


def test_batches_grow_while_they_are_quick(app: Holdfast, kit: Kit, monkeypatch: Any) -> None:
    monkeypatch.setattr("holdfast.shapes.events.runner.LONG", 1e9)
    sizes: list[int] = []

    @app.projection("sizes", on=["*"], batch=300)
    def project(tx: Transaction, events: Sequence[Event[Any]]) -> None:
        sizes.append(len(events))

    app.publish_many([("thing.done", {})] * 900)
    kit.run_worker()
    assert sizes == [100, 300, 300, 200]


def test_a_batch_ends_at_its_bytes(app: Holdfast, kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.shapes.events.runner.BATCH_BYTES", 1)
    sizes: list[int] = []

    @app.projection("sizes", on=["*"])
    def project(tx: Transaction, events: Sequence[Event[Any]]) -> None:
        sizes.append(len(events))

    app.publish_many([("thing.done", {})] * 5)
    kit.run_worker()
    assert sizes == [1] * 5


def test_the_limits_of_a_queue_hold_for_jobs_of_events(app: Holdfast, kit: Kit) -> None:
    app.queue("mail", concurrency=1)
    kit.create_queues()
    now: list[int] = []
    most: list[int] = []

    @app.on(OrderPaid, queue="mail", start="start")
    async def send(event: Event[OrderPaid]) -> None:
        now.append(event.position)
        most.append(len(now))
        await asyncio.sleep(0.02)
        now.remove(event.position)

    app.publish_many([OrderPaid(n, 5) for n in range(6)])
    kit.run_worker(concurrency=8)
    assert most == [1] * 6
