"""Events out: each is written once, with a record of the run."""

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from tests.conftest import await_until
from tests.workflows.memory_journal import RUN, Store, run
from tests.workflows.support import Runs
from tests.workflows.test_workflow_worker import working

from holdfast import (
    Backoff,
    Holdfast,
    InvalidEvent,
    Run,
    Signal,
    SyncWorkflow,
    Workflow,
    WorkflowFailed,
    event,
)
from holdfast.model.job import Grant
from holdfast.model.outcome import Completed, DeadLettered, Released, Suspended
from holdfast.registry import Registry
from holdfast.shapes.workflows import store as statements
from holdfast.shapes.workflows.journal import Record
from holdfast.shapes.workflows.outgoing import NewEvent, event_id
from holdfast.testing import Kit

NOTE = Signal("note", str)


@event("order.settled", key="order:{order_id}")
@dataclass
class OrderSettled:
    order_id: int
    cents: int


async def say(word: str) -> str:
    return word.upper()


async def broken() -> None:
    raise ValueError("no")


def of(store: Store) -> list[Any]:
    return list(store.events.values())


async def test_an_event_is_written_with_the_next_record_and_not_without_it() -> None:
    async def flow(wf: Workflow) -> str:
        wf.publish(OrderSettled(1, 5))
        wf.publish("order.seen", {"n": 1}, key="k")
        return await wf.step(say, "a")

    store = Store()
    assert isinstance(await run(flow, store, crash_at=0), Released)
    assert (store.rows, of(store)) == ([], [])
    assert isinstance(await run(flow, store, crash_at=1), Completed), "one write has all of it"
    assert of(store) == [("order.settled", {"order_id": 1, "cents": 5}), ("order.seen", {"n": 1})]
    assert store.written() == ["order.settled.published", "order.seen.published", "say"]
    assert list(store.events) == [event_id(RUN, 0, key) for key in store.written()[:2]]
    assert {row.record.linked for row in store.rows[:2]} == set(store.events)


async def test_an_event_that_is_awaited_is_written_there() -> None:
    async def flow(wf: Workflow) -> str:
        sent = wf.publish("order.seen", {"n": 1})
        await sent
        await sent
        wf.publish("order.seen", {"n": 2})
        return await wf.step(say, "a")

    store = Store()
    assert isinstance(await run(flow, store, crash_at=1), Released)
    assert of(store) == [("order.seen", {"n": 1})]
    assert isinstance(await run(flow, store), Completed)
    assert of(store) == [("order.seen", {"n": 1}), ("order.seen", {"n": 2})]


async def _waits(wf: Workflow) -> None:
    wf.publish("order.seen", {"n": 1})
    await wf.signal(NOTE)


async def _ends(wf: Workflow) -> None:
    wf.publish("order.seen", {"n": 1})


async def _fails(wf: Workflow) -> None:
    wf.publish("order.seen", {"n": 1})
    raise ValueError("no")


async def _goes_on(wf: Workflow, n: int = 0) -> None:
    wf.publish("order.seen", {"n": 1})
    if n == 0:
        wf.continue_as_new(n=1)


async def _pauses(wf: Workflow) -> None:
    """One branch publishes and ends, while the retry of another waits."""

    async def publish() -> None:
        wf.publish("order.seen", {"n": 1})

    slow = wf.using(retry=Backoff(first=600, jitter=False)).step(broken)
    await wf.gather(slow, late(wf, publish))


async def late(wf: Workflow, publish: Callable[[], Any]) -> None:
    for _ in range(20):  # until the other one's row is written
        await asyncio.sleep(0)
    await publish()


@pytest.mark.parametrize(
    ("flow", "outcome", "events"),
    [
        (_waits, Suspended, 1),
        (_ends, Completed, 1),
        (_fails, DeadLettered, 1),
        (_goes_on, Completed, 2),
        (_pauses, Suspended, 1),
    ],
)
async def test_an_event_is_written_at_the_latest_when_the_run_waits_or_ends(
    flow: Callable[..., Any], outcome: type, events: int
) -> None:
    store = Store()
    assert isinstance(await run(flow, store, verify=False), outcome)
    assert of(store) == [("order.seen", {"n": 1})] * events
    assert len(store.events) == events, "an era has events of its own"


async def test_an_event_before_a_signal_that_is_there_is_written() -> None:
    store = Store(signals=[("note", "here")])
    assert isinstance(await run(_waits, store), Completed)
    assert of(store) == [("order.seen", {"n": 1})]
    assert store.written() == ["order.seen.published", "note"]


async def takes_one(wf: Workflow) -> Any:
    return await wf.signal(NOTE)


async def takes_all(wf: Workflow) -> Any:
    return await wf.received(NOTE)


@pytest.mark.parametrize("takes", [takes_one, takes_all])
async def test_an_event_that_a_branch_publishes_while_another_writes_is_in_the_log(takes: Any) -> None:
    """It comes between the write of one branch and what that branch takes from outside, with which no event is written."""

    async def asks(wf: Workflow) -> Any:
        wf.set_state("asks")
        return await takes(wf)

    async def tells(wf: Workflow) -> str:
        wf.publish("told", {"n": 1})
        return await wf.step(say, "told")

    async def flow(wf: Workflow) -> Any:
        return await wf.gather(asks(wf), tells(wf))

    store = Store(signals=[("note", "there")])
    assert isinstance(await run(flow, store), Completed)
    assert of(store) == [("told", {"n": 1})]


async def test_a_replay_neither_publishes_nor_checks_again() -> None:
    async def flow(wf: Workflow) -> str:
        await wf.publish("order.settled", {"order_id": 1, "cents": cents})
        return await wf.step(say, "a")

    store, cents = Store(), 5
    assert isinstance(await run(flow, store), Completed)
    cents = "none"  # type: ignore[assignment]
    assert isinstance(await run(flow, store), Completed)
    assert len(store.events) == 1


async def test_an_event_that_does_not_fit_its_contract_fails_the_run_and_writes_nothing() -> None:
    async def flow(wf: Workflow) -> None:
        wf.publish("order.settled", {"order_id": 1, "cents": "many"})
        await wf.step(say, "a")

    async def catches(wf: Workflow) -> str:
        try:
            wf.publish(object())
        except InvalidEvent as error:
            return str(error)
        return ""

    async def large(wf: Workflow) -> None:
        wf.publish("order.seen", {"text": "x" * 300_000})

    store = Store()
    outcome = await run(flow, store)
    assert isinstance(outcome, DeadLettered)
    assert outcome.error.summary.startswith("InvalidEvent: event 'order.settled' version 1: cents")
    assert (store.rows, of(store)) == ([], [])
    ended = await run(catches)
    assert isinstance(ended, Completed)
    assert json.loads(ended.result or "") == (
        'object is no event. Declare it: @event("order.paid") above the class, or write publish("order.paid", {...})'
    )
    outcome = await run(large)
    assert isinstance(outcome, DeadLettered)
    assert "more than the limit of 229,376" in outcome.error.summary


async def test_a_branch_that_awaits_what_another_is_writing_has_one_event() -> None:
    async def flow(wf: Workflow) -> None:
        sent = wf.publish("order.seen", {"n": 1})

        async def waits() -> None:
            await asyncio.sleep(0)
            await sent

        await wf.gather(wf.step(say, "a"), waits(), sent)

    store = Store()
    assert isinstance(await run(flow, store), Completed)
    assert of(store) == [("order.seen", {"n": 1})]


# On the database


@pytest.fixture
def app() -> Holdfast:
    app = Holdfast("postgresql://unused.invalid/none")

    @app.workflow(sticky=0.05)
    async def checkout(wf: Workflow, order: int) -> str:
        wf.publish(OrderSettled(order, 5), headers={"tenant": "acme"})
        word = await wf.step(say, "paid")
        await wf.publish("order.seen", {"order": order}, key=f"order:{order}")
        await wf.sleep(timedelta(hours=1))
        wf.publish("order.shipped", {"order": order})
        return word

    @app.workflow(sticky=0.05)
    def plain(wf: SyncWorkflow, order: int) -> str:
        wf.publish(OrderSettled(order, 5))
        wf.publish("order.seen", {"order": order}, key="k")
        return "done"

    @app.workflow(sticky=0.05)
    async def large(wf: Workflow) -> None:
        await wf.publish("order.large", {"n": 1})

    app.checkout, app.plain, app.large = checkout, plain, large  # type: ignore[attr-defined]
    return app


def published(kit: Kit) -> list[tuple[str, str | None, Any]]:
    return [(e.type, e.key, e.data) for e in kit.published("order.*")]


def test_events_of_a_run_are_in_the_log_once_and_in_its_timeline(app: Any, kit: Kit) -> None:
    run = app.checkout.start(7)
    assert kit.workflows.run(run) == "PAID"
    assert published(kit) == [
        ("order.settled", "order:7", {"order_id": 7, "cents": 5}),
        ("order.seen", "order:7", {"order": 7}),
        ("order.shipped", None, {"order": 7}),
    ]
    assert kit.published("order.settled")[0].headers == {"tenant": "acme"}
    lines = [entry for entry in run.timeline() if entry.kind == "event"]
    assert [line.linked for line in lines] == [e.id for e in kit.published("order.*")]
    assert [line.key for line in lines] == [
        "order.settled.published",
        "order.seen.published",
        "order.shipped.published",
    ]


def test_a_plain_function_publishes_too(app: Any, kit: Kit) -> None:
    assert kit.workflows.run(app.plain.start(3)) == "done"
    assert [kind for kind, _, _ in published(kit)] == ["order.settled", "order.seen"]


@pytest.mark.parametrize("name", ["checkout", "plain"])
def test_an_owner_that_is_lost_around_the_commit_leaves_one_event_of_each(
    app: Any, kit: Kit, name: str
) -> None:
    orders = iter(range(100, 200))
    started: list[int] = []

    def start() -> Run[Any]:
        started.append(next(orders))
        run: Run[Any] = getattr(app, name).start(started[-1])
        return run

    def effects(_: Run[Any]) -> list[str]:
        mine = [started[-1]]
        return [
            e.type for e in kit.published("order.*") if [e.data.get("order", e.data.get("order_id"))] == mine
        ]

    points = ["publish.before", "publish.done", "record.done", "settle.before"]
    report = kit.workflows.crash_everywhere(start, effects=effects, points=points)
    report.assert_same()
    assert {"publish.before#1", "publish.done#1", "publish.done#2"} <= set(report.boundaries)
    assert len(kit.published("order.settled")) == len(started)


def test_what_the_log_refuses_fails_the_run_and_not_the_worker(app: Any, kit: Kit) -> None:
    kit.sql("ALTER TABLE holdfast.events ADD CONSTRAINT small CHECK (type <> 'order.large') NOT VALID")
    bad, good = app.large.start(), app.plain.start(1)
    assert kit.workflows.run(good) == "done"
    with pytest.raises(WorkflowFailed, match=r'RecordRefused: .* violates check constraint "small"'):
        kit.workflows.run(bad)
    assert bad.timeline() == []
    kit.assert_not_published("order.large")


async def test_a_key_that_somebody_else_holds_makes_its_own_run_wait_and_no_other(
    app: Any, akit: Kit
) -> None:
    with psycopg.connect(akit.url) as other:
        other.execute("SELECT holdfast.publish('order.other', '{}', 'k')")
        stuck = await app.plain.astart(1)
        async with working(akit):
            run = await app.checkout.astart(2)
            await await_until(lambda: akit.published("order.seen", order=2), "another run publishes")
            assert (await stuck.astate())[0] == "open"
            other.commit()
            assert await stuck.aresult(timeout=60) == "done"
            await run.acancel()
    assert len(akit.published("order.seen", order=1)) == 1


# The statement


@pytest.fixture
def runs(dsn: str) -> Iterator[Runs]:
    made = Runs.on(dsn)
    yield made
    made.conn.close()


def new(grant: Grant, key: str = "order.seen.published", **options: Any) -> tuple[Record, NewEvent]:
    number = event_id(grant.id, 0, key)
    made = Registry._events.encode("order.seen", {"n": 1}, event_id=number, **options)
    return Record(key, "event", "done", 0, linked=number), made


def write(runs: Runs, grant: Grant, *pairs: tuple[Record, NewEvent], shown: str | None = None) -> Any:
    rows, events = zip(*pairs, strict=True)
    return runs.run(statements.publish(grant, rows, events, shown))


def ids(runs: Runs) -> list[UUID]:
    return [row["id"] for row in runs.conn.execute("SELECT id FROM holdfast.events ORDER BY seq").fetchall()]


def test_a_publish_whose_answer_was_lost_is_not_made_again(runs: Runs) -> None:
    owner = runs.started()
    pair = new(owner, key="k")
    answer, at = write(runs, owner, pair, shown='{"paid": true}')
    assert (answer, runs.of(owner.id)["shown"]) == ("ours", {"paid": True})
    assert write(runs, owner, pair) == ("ours", at)
    assert ids(runs) == [pair[1].id]
    assert [row["ended_at"] for row in runs.steps(owner.id)] == [at]


def test_a_stale_owner_publishes_nothing(runs: Runs, dsn: str) -> None:
    owner = runs.started()
    with psycopg.connect(dsn) as other:
        other.execute("SELECT FROM holdfast.work WHERE id = %s FOR UPDATE", [owner.id])
        assert write(runs, owner, new(owner)) == ("busy", None)
    after = runs.take_over(owner)
    assert write(runs, owner, new(owner)) == ("lost", None)
    assert (ids(runs), runs.steps(owner.id)) == ([], [])
    assert write(runs, after, new(after))[0] == "ours"
    again = runs.take_over(after)
    row, made = new(again)
    other_id = Registry._events.encode("order.seen", {"n": 2}, event_id=UUID(int=5))
    assert write(runs, again, (row, other_id)) == ("lost", None), "its owner before has recorded it"
    assert ids(runs) == [made.id]
