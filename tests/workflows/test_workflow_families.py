"""Children: whose they are, who hears of their end, and what becomes of them when their parent goes."""

import asyncio

import pytest
from tests.conftest import await_until

from holdfast import Holdfast, Signal, StepFailed, Workflow, WorkflowFailed, WorkflowType
from holdfast.testing import Kit
from holdfast.testing.workflows import StillWaiting

GO = Signal("go", str)


async def double(n: int) -> int:
    return 2 * n


class House:
    """The workflows of these tests."""

    def __init__(self, app: Holdfast) -> None:
        @app.workflow(name="ship", sticky=0.05)
        async def ship(wf: Workflow, fails: bool = False) -> str:
            word = await wf.signal(GO)
            if fails:
                raise ValueError(f"no truck for {word}")
            return f"shipped {word}"

        @app.workflow(name="order", sticky=0.05)
        async def order(wf: Workflow, ship_id: str) -> str:
            child = await wf.using(id=ship_id).start(ship)
            try:
                return await child.result()
            except StepFailed as failed:
                return f"{failed.kind}: {failed.message}"

        @app.workflow(name="twice", sticky=0.05)
        async def twice(wf: Workflow) -> list[str]:
            one = await wf.using(id="s").start(ship)
            two = await wf.using(id="s").start(ship)
            return [await one.result(), await two.result()]

        @app.workflow(name="rounds", sticky=0.05)
        async def rounds(wf: Workflow, n: int = 0) -> str:
            child = await wf.using(id="s").start(ship)
            word = await child.result()
            if n < 2:
                wf.continue_as_new(n + 1)
            return f"{word} after {n} rounds"

        self.ship: WorkflowType[..., str] = ship
        self.order: WorkflowType[[str], str] = order
        self.twice: WorkflowType[[], list[str]] = twice
        self.rounds: WorkflowType[..., str] = rounds


@pytest.fixture
def house(app: Holdfast, kit: Kit) -> House:
    made = House(app)
    kit.create_queues()
    return made


def test_a_run_that_had_ended_before_it_was_started_as_a_child_gives_its_result(
    house: House, kit: Kit
) -> None:
    ship = house.ship.using(id="s").start()
    ship.signal(GO("it"))
    assert kit.workflows.run(ship) == "shipped it"
    assert kit.workflows.run(house.order.start("s")) == "shipped it"


def test_a_run_that_somebody_else_started_gives_its_result_to_whoever_starts_it_as_a_child(
    house: House, kit: Kit
) -> None:
    house.ship.using(id="s").start()
    orders = [house.order.start("s"), house.order.start("s")]
    for order in orders:
        with pytest.raises(StillWaiting):
            kit.workflows.run(order)
    house.ship.get("s").signal(GO("it"))
    assert [kit.workflows.run(order) for order in orders] == ["shipped it", "shipped it"]


def test_a_child_that_fails_or_is_terminated_fails_for_everybody_who_waits(house: House, kit: Kit) -> None:
    house.ship.using(id="f").start(fails=True)
    failing = [house.order.start("f"), house.order.start("f")]
    house.ship.using(id="t").start()
    ended = [house.order.start("t"), house.order.start("t")]
    for order in (*failing, *ended):
        with pytest.raises(StillWaiting):
            kit.workflows.run(order)
    house.ship.get("f").signal(GO("it"))
    kit.sql("SELECT holdfast.workflow_terminate('ship', 't', 'enough')")
    assert [kit.workflows.run(order) for order in failing] == ["ValueError: no truck for it"] * 2
    assert [kit.workflows.run(order) for order in ended] == ["Terminated: enough"] * 2
    with pytest.raises(WorkflowFailed):
        house.ship.get("f").result(timeout=0)
    assert kit.workflows.run(house.order.start("f")) == "ValueError: no truck for it", "also later"


def test_a_run_that_starts_the_same_child_twice_gets_its_result_twice(house: House, kit: Kit) -> None:
    twice = house.twice.start()
    with pytest.raises(StillWaiting):
        kit.workflows.run(twice)
    house.ship.get("s").signal(GO("it"))
    assert kit.workflows.run(twice) == ["shipped it", "shipped it"]


def test_a_child_of_an_era_before_is_known_in_the_next(house: House, kit: Kit) -> None:
    rounds = house.rounds.start()
    with pytest.raises(StillWaiting):
        kit.workflows.run(rounds)
    house.ship.get("s").signal(GO("it"))
    assert kit.workflows.run(rounds) == "shipped it after 2 rounds"


def test_only_the_parent_takes_its_child_along_when_it_is_cancelled(house: House, kit: Kit) -> None:
    parent = house.order.start("s")
    with pytest.raises(StillWaiting):
        kit.workflows.run(parent)
    other = house.order.start("s")
    with pytest.raises(StillWaiting):
        kit.workflows.run(other)
    other.cancel()
    with pytest.raises(WorkflowFailed):
        kit.workflows.run(other)
    assert house.ship.get("s").state()[0] == "suspended", "it is not its child"
    parent.cancel()
    with pytest.raises(WorkflowFailed):
        kit.workflows.run(parent)
    with pytest.raises(WorkflowFailed):
        kit.workflows.run(house.ship.get("s"))
    assert house.ship.get("s").state()[0] == "cancelled"


def test_a_run_cannot_be_its_own_child(app: Holdfast, kit: Kit) -> None:
    def own() -> WorkflowType[[], str]:
        return snake

    @app.workflow(name="snake")
    async def snake(wf: Workflow) -> str:
        return await (await wf.using(id="s").start(own())).result()

    kit.create_queues()
    with pytest.raises(WorkflowFailed, match="'s' is this very run"):
        kit.workflows.run(snake.using(id="s").start())


def test_items_that_are_no_longer_as_many_park_the_run(app: Holdfast, kit: Kit) -> None:
    task = app.task(name="double")(double)
    items = [1, 2, 3]

    @app.workflow(name="album", sticky=0.05)
    async def album(wf: Workflow) -> int:
        sizes = await wf.map(task, items)
        word = await wf.signal(GO)
        return sum(sizes) + len(word)

    kit.create_queues()
    run = album.start()
    with pytest.raises(StillWaiting):
        kit.workflows.run(run)
    items.append(4)
    run.signal(GO("!"))
    with pytest.raises(StillWaiting, match="diverged"):
        kit.workflows.run(run)
    (held,) = kit.sql("SELECT hold_reason FROM holdfast.work WHERE id = %s", [run.run_id])
    assert "it has 3 results, and the code now gives 4 items" in held["hold_reason"]


async def test_a_place_of_a_map_is_not_lost_while_somebody_holds_the_next_job(
    app: Holdfast, akit: Kit
) -> None:
    ran: list[int] = []

    @app.task(name="thumb")
    async def thumb(n: int) -> int:
        ran.append(n)
        return n

    @app.workflow(name="album", sticky=0.05)
    async def album(wf: Workflow) -> list[int]:
        return await wf.map(thumb, [1, 2], limit=1)

    akit.create_queues()
    run = await album.astart()
    with akit.connect() as other:
        working = asyncio.create_task(akit.arun_worker(until_idle=False))
        await await_until(lambda: akit.jobs("thumb"), "the jobs are there")
        held = other.execute(
            "SELECT FROM holdfast.work WHERE task = 'thumb' AND available_at = '9999-01-01Z' FOR UPDATE"
        )
        if held.rowcount == 1:  # else the first was quicker, and nothing is to be seen
            await await_until(
                lambda: _waits_or_ended(akit), "the end of the first job is about to be written"
            )
        other.rollback()
    try:
        assert await run.aresult(timeout=60) == [1, 2]
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
    assert ran == [1, 2]


def _waits_or_ended(kit: Kit) -> bool:
    waiting = (
        "SELECT FROM pg_stat_activity a WHERE a.datname = current_database() AND a.wait_event_type = 'Lock'"
    )
    return bool(kit.sql(waiting)) or any(row["status"] == "completed" for row in kit.jobs("thumb"))


def test_a_call_that_the_database_would_refuse_at_every_try_fails_the_run(app: Holdfast, kit: Kit) -> None:
    """And its compensations run. Before, the run was tried again every five seconds, for ever."""
    task = app.task(name="double")(double)
    undone: list[str] = []

    async def undo() -> None:
        undone.append("undone")

    @app.workflow(name="calls", sticky=0.05)
    async def calls(wf: Workflow, how: str) -> int:
        wf.on_failure(undo)
        await wf.step(double, 1)
        if how == "many":
            return len(await wf.map(task, range(100_001)))
        if how == "trigger":
            return await wf.call(task, 13)
        if how == "replace_key":
            return await wf.call(task.using(replace_key="k"), 1)
        return await wf.call(task.using(idempotency_key="k"), 1)

    kit.create_queues()
    kit.sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'no more than 12'; END $$"
    )
    kit.sql(
        "CREATE TRIGGER refuse BEFORE INSERT ON holdfast.work FOR EACH ROW"
        " WHEN (NEW.payload = '{\"n\": 13}') EXECUTE FUNCTION refuse()"
    )
    why = {
        "idempotency_key": r"InvalidOption: wf\.call\(\) takes a task without idempotency_key: .* Leave the key out",
        "replace_key": r"InvalidOption: wf\.call\(\) takes a task without replace_key: .* Leave the key out",
        "many": r"InvalidOption: wf\.map\(\) was given 100,001 items, more than the limit of 100,000",
        "trigger": "ConfigurationError: the database refuses what is to be started: no more than 12",
    }
    for count, (how, text) in enumerate(why.items(), 1):
        with pytest.raises(WorkflowFailed, match=text):
            kit.workflows.run(calls.start(how))
        assert len(undone) == count
