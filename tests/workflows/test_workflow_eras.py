"""continue_as_new() keeps the keys of signals. Calls and children that the code no longer waits for reach no later era."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.workflows.support import TYPE, Runs, waits

from holdfast import Holdfast, Signal, Workflow
from holdfast.model.job import Grant
from holdfast.shapes.workflows import store
from holdfast.shapes.workflows.runs import drop_signal
from holdfast.shapes.workflows.verbs import WorkflowVerbs
from holdfast.testing import Kit

LEVELS = (psycopg.IsolationLevel.READ_COMMITTED, psycopg.IsolationLevel.REPEATABLE_READ)
SEND = "SELECT holdfast.workflow_signal(%s, %s, 'go', '1', %s)"
NOTE = Signal("note", int)


@pytest.fixture
def runs(dsn: str) -> Iterator[Runs]:
    made = Runs.on(dsn)
    yield made
    made.conn.close()


@pytest.fixture(params=LEVELS, ids=("read_committed", "repeatable_read"))
def sender(request: pytest.FixtureRequest, dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn) as conn:
        conn.isolation_level = request.param
        yield conn


def next_era(runs: Runs, owner: Grant, era: int) -> str:
    return str(runs.run(store.next_era(owner, era, "{}"))[0])


def send(conn: psycopg.Connection[Any], runs: Runs, owner: Grant, key: str) -> str:
    found = conn.execute(SEND, [TYPE, runs.key(owner.id), key]).fetchone()
    assert found is not None
    return str(found[0])


def take(runs: Runs, owner: Grant, key: str = "wait") -> bool:
    return runs.decide(owner, waits(key=key)).stored is not None


def test_a_key_that_an_era_before_received_is_a_duplicate(
    runs: Runs, sender: psycopg.Connection[Any]
) -> None:
    owner = runs.started()
    for key in ("click-1", "click-2"):
        assert send(sender, runs, owner, key) == "sent"
    sender.commit()
    assert take(runs, owner)
    for era in range(3):
        assert next_era(runs, owner, era) == "ours"
        assert [send(sender, runs, owner, key) for key in ("click-1", "click-2")] == ["duplicate"] * 2
        sender.commit()
    assert take(runs, owner), "what was not received stays"
    assert not take(runs, owner, "wait#2")
    assert runs.one("SELECT count(*) FROM holdfast.workflow_signals") == 1
    # Another run has its own keys.
    assert send(sender, runs, runs.started(), "click-1") == "sent"


def test_a_sender_whose_transaction_is_older_than_the_era_is_refused_or_a_duplicate(
    runs: Runs, sender: psycopg.Connection[Any], dsn: str
) -> None:
    """Its transaction began before, and with repeatable read it does not see the end: it is refused, not sent twice."""
    owner = runs.started()
    assert runs.signal(owner.id, key="click-1") == "sent"
    assert take(runs, owner)
    sender.execute("SELECT count(*) FROM holdfast.workflow_runs")  # its snapshot, with repeatable read
    assert next_era(runs, owner, 0) == "ours"
    try:
        said = send(sender, runs, owner, "click-1")
    except psycopg.errors.SerializationFailure:
        assert sender.isolation_level == psycopg.IsolationLevel.REPEATABLE_READ
        sender.rollback()
        said = send(sender, runs, owner, "click-1")
    assert said == "duplicate"
    sender.commit()
    assert not take(runs, owner)


def test_keys_of_eras_are_forgotten_after_the_retention(runs: Runs) -> None:
    owner = runs.started()
    for era, key in enumerate(("old", "new")):
        runs.signal(owner.id, key=key)
        assert take(runs, owner)
        assert next_era(runs, owner, era) == "ours"
    older = "UPDATE holdfast.workflow_signal_keys SET kept_at = kept_at - interval '31 days' WHERE idempotency_key = %s"
    runs.conn.execute(older, ["user:old"])
    runs.one("SELECT holdfast.empty_workflow_slots(1000)")
    assert [runs.signal(owner.id, key=key) for key in ("new", "old")] == ["duplicate", "sent"]


def test_a_key_is_kept_from_the_end_of_its_era_and_not_from_when_it_was_sent(runs: Runs, dsn: str) -> None:
    """Whatever the isolation of its sender: a signal may wait for longer than the retention."""
    owner = runs.started()
    with psycopg.connect(dsn) as conn:
        conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        assert send(conn, runs, owner, "click-1") == "sent"
    runs.conn.execute("UPDATE holdfast.workflow_signal_keys SET kept_at = kept_at - interval '31 days'")
    assert take(runs, owner)
    assert next_era(runs, owner, 0) == "ours"
    runs.one("SELECT holdfast.empty_workflow_slots(1000)")
    assert runs.signal(owner.id, key="click-1") == "duplicate"


def test_the_key_of_a_dropped_signal_may_be_sent_again(runs: Runs, sender: psycopg.Connection[Any]) -> None:
    owner = runs.started()
    for name in ("go", None):
        assert send(sender, runs, owner, "click-1") == "sent"
        sender.commit()
        if name:
            assert take(runs, owner, "go")
            assert runs.run(drop_signal(owner.id, "go", 1)) == name


def test_a_signal_that_no_code_has_seen_keeps_its_place_and_key_over_eras(app: Holdfast, kit: Kit) -> None:
    """It lost in `first`, and another came later."""
    other = Signal("other", int)

    @app.workflow(sticky=0.05)
    async def chooses(wf: Workflow, era: int = 0) -> list[Any]:
        if era == 0:
            await wf.first(wf.signal(other), wf.signal(NOTE))
            wf.continue_as_new(1)
        notes = [await wf.signal(NOTE, timeout=5) for _ in range(3)]
        return [[note.value, note.key] for note in notes if note]

    kit.create_queues()
    run = chooses.start()
    assert run.signal(other(1))
    for number in (1, 2):
        assert run.signal(NOTE(10 * number), idempotency_key=f"n{number}")
    assert kit.workflows.run(run) == [[10, "n1"], [20, "n2"]]


def test_a_fork_has_a_signal_that_no_code_has_seen_in_its_next_era(app: Holdfast, kit: Kit) -> None:
    """A record that the fork keeps took it. Whoever sends it again to the fork sends a duplicate."""
    other = Signal("other", int)

    @app.workflow(sticky=0.05)
    async def chooses(wf: Workflow, era: int = 0) -> list[Any]:
        if era == 0:
            await wf.first(wf.signal(other), wf.signal(NOTE))
            for _ in range(2):
                await wf.sleep(60)
            wf.continue_as_new(1)
        notes = [await wf.signal(NOTE, timeout=5) for _ in range(2)]
        return [[note.value, note.key] for note in notes if note]

    kit.create_queues()
    run = chooses.using(id="c").start()
    assert run.signal(other(1))
    assert run.signal(NOTE(10), idempotency_key="n1")
    kit.run_worker()
    kit.clock.advance(61)
    kit.run_worker()
    for new in ("c2", "c3"):
        WorkflowVerbs(app.database, "ann").fork("c", "sleep", new_id=new)
    (again,) = kit.sql("SELECT holdfast.workflow_signal('chooses', 'c3', 'note', '10', 'n1') AS said")
    assert [kit.workflows.run(chooses.get(name)) for name in ("c", "c2", "c3")] == [[[10, "n1"]]] * 3
    assert again["said"] == "duplicate"


class Shop:
    def __init__(self, app: Holdfast) -> None:
        @app.task(queue="slow")
        async def price(n: int) -> int:
            return n

        @app.workflow(sticky=0.05)
        async def ship(wf: Workflow, n: int) -> int:
            return await wf.signal(NOTE) + n

        @app.workflow(sticky=0.05)
        async def calls(wf: Workflow, era: int = 0) -> list[Any]:
            if era == 0:
                which, _ = await wf.first(wf.call(price, 7), wf.sleep(60))
                wf.continue_as_new(1 if which == 1 else 9)
            return [era, await wf.call(price, 8), await wf.call(price, 9)]

        @app.workflow(sticky=0.05)
        async def maps(wf: Workflow, era: int = 0) -> list[Any]:
            if era == 0:
                which, _ = await wf.first(wf.map(price, [1, 2, 3], limit=1), wf.sleep(60))
                wf.continue_as_new(1 if which == 1 else 9)
            return [era, await wf.map(price, [4, 5, 6], limit=1)]

        @app.workflow(sticky=0.05)
        async def parent(wf: Workflow, era: int = 0, rests: bool = False) -> int:
            child = await wf.using(on_cancel="abandon").start(ship, era)
            if era == 0:
                wf.continue_as_new(1, rests=rests)
            if rests:
                await wf.sleep(60)
            return await child.result()

        self.price, self.ship, self.calls, self.maps, self.parent = price, ship, calls, maps, parent


@pytest.fixture
def shop(app: Holdfast, kit: Kit) -> Shop:
    made = Shop(app)
    kit.create_queues()
    return made


@pytest.mark.parametrize("which", ["calls", "maps"])
def test_a_call_that_lost_does_not_hold_back_the_next_era(shop: Shop, kit: Kit, which: str) -> None:
    """It is still running, and its end is no result of a call of the same key there."""
    run = getattr(shop, which).start()
    kit.run_worker(queues=["workflows"])
    kit.clock.advance(61)
    kit.run_worker(queues=["workflows"])
    assert run.state()[0] == "suspended"
    assert kit.sql("SELECT era, error FROM holdfast.workflow_runs") == [{"era": 1, "error": None}]
    assert kit.workflows.run(run) == {"calls": [1, 8, 9], "maps": [1, [4, 5, 6]]}[which]
    assert kit.sql("SELECT count(*) AS n FROM holdfast.workflow_calls") == [{"n": 0}]
    assert kit.sql("SELECT count(*) AS n FROM holdfast.work WHERE queue = 'slow'") == [{"n": 0}]


@pytest.mark.parametrize("before", [True, False])
def test_an_abandoned_child_of_an_era_before_is_not_taken_for_the_new_one(
    shop: Shop, kit: Kit, before: bool
) -> None:
    """Whether it ends before its parent waits for the new one, or then."""
    run = shop.parent.using(id="p").start()
    if before:
        shop.ship.using(id="p/ship", signal_key="x").start_with_signal(NOTE(100), 0)
    kit.workflows.run_until_waiting(run)
    if not before:
        assert shop.ship.get("p/ship").signal(NOTE(100))
        kit.run_worker()
    assert run.state()[0] == "suspended"
    assert shop.ship.get("p/1/ship").signal(NOTE(200))
    assert kit.workflows.run(run) == 201


def test_children_of_two_eras_that_have_ended_before_they_are_asked_for(shop: Shop, kit: Kit) -> None:
    run = shop.parent.using(id="p").start(rests=True)
    kit.run_worker()
    for child, value in (("p/ship", 100), ("p/1/ship", 200)):
        assert shop.ship.get(child).signal(NOTE(value))
        kit.run_worker()
    assert kit.workflows.run(run) == 201


def test_a_call_that_lost_is_not_running_in_a_run_that_has_ended(app: Holdfast, kit: Kit) -> None:
    """And a fork of the run does not wait for it."""

    @app.task(queue="slow")
    async def price(n: int) -> int:
        return n

    @app.workflow(sticky=0.05)
    async def quote(wf: Workflow) -> int:
        which, _ = await wf.first(wf.call(price, 7), wf.sleep(60))
        await wf.sleep(60)
        return which

    kit.create_queues()
    run = quote.using(id="q").start()
    for _ in range(3):
        kit.run_worker(queues=["workflows"])
        kit.clock.advance(61)
    assert run.state()[0] == "completed"
    assert next((entry.key, entry.outcome) for entry in run.timeline()) == ("price", "cancelled")
    WorkflowVerbs(app.database, "ann").fork("q", "sleep", new_id="q2")
    for _ in range(2):
        kit.run_worker(queues=["workflows"])
        kit.clock.advance(61)
    assert quote.get("q2").state()[0] == "completed"


def test_a_fork_makes_a_call_again_that_its_run_left(app: Holdfast, kit: Kit) -> None:
    @app.task(queue="slow")
    async def price(n: int) -> int:
        return n

    @app.workflow(sticky=0.05)
    async def quote(wf: Workflow) -> list[int]:
        call = wf.call(price, 7)
        which, _ = await wf.first(call, wf.sleep(60))
        await wf.sleep(60)
        return [which, await call]

    kit.create_queues()
    quote.using(id="q").start()
    for _ in range(3):
        kit.run_worker(queues=["workflows"])
        kit.clock.advance(61)
    kit.sql("SELECT holdfast.workflow_terminate('quote', 'q', 'enough')")
    WorkflowVerbs(app.database, "ann").fork("q", "sleep", new_id="q2")
    assert kit.workflows.run(quote.get("q2")) == [1, 7]


def test_a_fork_knows_the_end_of_a_child_that_a_kept_record_took(app: Holdfast, shop: Shop, kit: Kit) -> None:
    """Another call asks for it."""

    @app.workflow(sticky=0.05)
    async def asks(wf: Workflow) -> list[int]:
        child = await wf.start(shop.ship, 0)
        first = await child.result()
        await wf.sleep(60)
        return [first, await child.result()]

    run = asks.using(id="a").start()
    kit.workflows.run_until_waiting(run)
    assert shop.ship.get("a/ship").signal(NOTE(100))
    kit.run_worker()
    assert kit.workflows.run(run) == [100, 100]
    WorkflowVerbs(app.database, "ann").fork("a", "sleep", new_id="a2")
    assert kit.workflows.run(asks.get("a2")) == [100, 100]
