"""The test kit of workflows, as users have it."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import pytest

from holdfast import (
    AsyncTransaction,
    Holdfast,
    Run,
    Signal,
    StepFailed,
    Workflow,
    WorkflowFailed,
    WorkflowType,
    current_step,
    failpoints,
)
from holdfast.testing import Kit
from holdfast.testing.workflows import POINTS, CrashReport, StillWaiting

DECIDED = Signal("decided", bool)
RAN: list[str] = []


async def charge(cents: int) -> str:
    RAN.append(f"charge {cents}")
    return f"paid {cents}"


async def label() -> str:
    RAN.append("label")
    return "A4"


async def refund(cents: int) -> None:
    RAN.append(f"refund {cents}")


async def reserve(tx: AsyncTransaction, order: int) -> int:
    await tx.execute("INSERT INTO public.reserved (n) VALUES (%s)", [order])
    return order


@dataclass
class Shop:
    kit: Kit
    checkout: WorkflowType[[int], list[str]]
    plain: WorkflowType[[int], list[str]]
    asks: WorkflowType[[], bool]
    gives_up: WorkflowType[[], None]


@pytest.fixture
def shop(app: Holdfast, kit: Kit) -> Shop:
    RAN.clear()
    kit.sql("CREATE TABLE public.reserved (n int)")

    @app.workflow()
    async def checkout(wf: Workflow, order: int) -> list[str]:
        wf.on_failure(refund, 995)
        await wf.transact(reserve, order)
        paid, made = await wf.gather(wf.step(charge, 995), wf.step(label))
        await wf.sleep(timedelta(days=2))
        if await wf.signal(DECIDED, timeout=timedelta(hours=1)):
            return ["decided", paid, made]
        return ["timed out", paid, made]

    @app.workflow()
    async def plain(wf: Workflow, order: int) -> list[str]:
        await wf.transact(reserve, order)
        return list(await wf.gather(wf.step(charge, 995), wf.step(label)))

    @app.workflow()
    async def asks(wf: Workflow) -> bool:
        return await wf.signal(DECIDED)

    @app.workflow()
    async def gives_up(wf: Workflow) -> None:
        wf.on_failure(refund, 1)
        try:
            await wf.using(max_attempts=3).step(charge, 1)
        except StepFailed as error:
            raise RuntimeError(error.message) from error

    kit.create_queues()
    return Shop(kit, checkout, plain, asks, gives_up)


def test_time_passes_by_itself(shop: Shop) -> None:
    before = shop.kit.clock.now()
    run = shop.checkout.start(1)
    assert shop.kit.workflows.run(run) == ["timed out", "paid 995", "A4"]
    assert shop.kit.clock.now() - before >= timedelta(days=2, hours=1)
    assert sorted(RAN) == ["charge 995", "label"]


def test_a_run_that_waits_is_sent_a_signal(shop: Shop) -> None:
    run = shop.checkout.start(1)
    assert shop.kit.workflows.run_until_waiting(run) == ["decided"]
    run.signal(DECIDED(True))
    assert shop.kit.workflows.run(run) == ["decided", "paid 995", "A4"]


def test_code_that_depends_on_something_else_than_its_history_is_found(app: Holdfast, kit: Kit) -> None:
    """Also in a run that waits for nothing, and is never replayed by itself."""
    turns = itertools.count()

    @app.workflow()
    async def asks_the_world(wf: Workflow) -> str:
        if next(turns) % 2:
            await wf.step(label)
        return await wf.step(charge, 1)

    @app.workflow()
    async def returns_the_world(wf: Workflow) -> int:
        await wf.step(charge, 1)
        return next(turns)

    kit.create_queues()
    with pytest.raises(
        StillWaiting, match=r"diverged: .*the history has 'charge', the code asks for 'label'"
    ):
        kit.workflows.run(asks_the_world.start())
    with pytest.raises(StillWaiting, match="diverged: a replay returned something else than the first run"):
        kit.workflows.run(returns_the_world.start())


def test_a_signal_that_nobody_sends_is_said(shop: Shop) -> None:
    run = shop.asks.using(id="a1").start()
    with pytest.raises(StillWaiting, match=r"Run\(asks 'a1'\) is suspended, and waits for decided\. Send it"):
        shop.kit.workflows.run(run)
    assert run.signal(DECIDED(False))
    assert shop.kit.workflows.run(run) is False
    with pytest.raises(StillWaiting, match="a time, which does not pass by itself here"):
        shop.kit.workflows.run(shop.checkout.start(2), skip_time=False)


def test_a_run_that_waits_for_another_names_it(app: Holdfast, kit: Kit) -> None:
    """And what that one waits for; also a job that nobody here runs."""

    @app.task(queue="far")
    async def far() -> None: ...

    @app.workflow()
    async def asks(wf: Workflow) -> bool:
        return await wf.signal(DECIDED)

    @app.workflow()
    async def middle(wf: Workflow) -> bool:
        child = await wf.start(asks)
        return await child.result()

    @app.workflow()
    async def outer(wf: Workflow) -> bool:
        child = await wf.using(name="inner", id="m").start(middle)
        return await child.result()

    @app.workflow()
    async def calls(wf: Workflow) -> None:
        await wf.using(queue="nobodys").call(far)

    kit.create_queues()
    kit.sql("SELECT holdfast.create_queue('nobodys')")
    run = outer.using(id="o").start()
    for program, says in (
        (
            run,
            (
                "Run(outer 'o') is suspended, and waits for the end of child inner: Run(middle 'm') is suspended, and "
                "waits for the end of child asks: Run(asks 'm/asks') is suspended, and waits for decided. Send it, and run "
                "it again"
            ),
        ),
        (
            calls.using(id="c").start(),
            (
                "Run(calls 'c') is suspended, and waits for the end of call far: job JOB of far is pending in queue "
                "'nobodys', in which no task of the app is"
            ),
        ),
    ):
        with pytest.raises(StillWaiting) as said:
            kit.workflows.run(program)
        assert re.sub("[0-9a-f-]{36}", "JOB", str(said.value)) == says
    kit.sql("SELECT holdfast.workflow_pause('outer', 'o')")
    with pytest.raises(StillWaiting, match=r"^Run\(outer 'o'\) is paused\. Resume it, and run it again$"):
        kit.workflows.run(run)
    kit.sql("SELECT holdfast.workflow_resume('outer', 'o')")
    assert asks.get("m/asks").signal(DECIDED(True))
    assert kit.workflows.run(run) is True


def test_steps_are_mocked_under_their_own_keys(shop: Shop) -> None:
    async def cheaper(cents: int) -> str:
        return f"free instead of {cents}"

    run = shop.checkout.start(1)
    with shop.kit.workflows.mock(charge, cheaper):
        assert shop.kit.workflows.run(run)[1] == "free instead of 995"
    assert RAN == ["label"]
    assert "charge" in [entry.key for entry in run.timeline()]
    assert shop.kit.workflows.run(shop.checkout.start(2))[1] == "paid 995"


def test_retries_pass_and_a_failure_is_raised(shop: Shop) -> None:
    tried: list[int] = []

    async def down(cents: int) -> str:
        tried.append(cents)
        raise OSError("down")

    run = shop.gives_up.start()
    with shop.kit.workflows.mock(charge, down), pytest.raises(WorkflowFailed, match="RuntimeError: down"):
        shop.kit.workflows.run(run)
    assert tried == [1, 1, 1]
    assert RAN == ["refund 1"]


def crashed(shop: Shop, flow: WorkflowType[[int], list[str]], points: Sequence[str]) -> CrashReport:
    orders = itertools.count(1)

    def effects(run: Run[list[str]]) -> int:
        return len(shop.kit.sql("DELETE FROM public.reserved RETURNING n"))

    start = lambda: flow.start(next(orders))  # noqa: E731
    return shop.kit.workflows.crash_everywhere(start, effects=effects, points=points)


def test_the_owner_is_lost_everywhere_and_nothing_is_different(shop: Shop) -> None:
    points = ("record.before", "record.done", "transact.done", "settle.before")
    report = crashed(shop, shop.plain, points)
    report.assert_same()
    assert report.outcomes[""] == (["paid 995", "A4"], 1)
    assert {name.partition("#")[0] for name in report.boundaries} == set(points)
    assert set(report.outcomes) == {"", *report.boundaries}
    assert report.repeats["charge"] == 2, "lost before its record, and no more often"
    assert report.repeats["reserve"] == 1, "a transaction is made once"


@pytest.mark.long
def test_the_owner_is_lost_at_every_wait_too(shop: Shop) -> None:
    report = crashed(shop, shop.checkout, POINTS)
    report.assert_same()
    assert report.outcomes[""] == (["timed out", "paid 995", "A4"], 1)
    places = {name.partition("#")[0] for name in report.boundaries}
    assert places >= {"claim.after", "decide.before", "decide.done", "suspend.before", "settle.before"}


def test_the_owner_is_lost_where_it_starts_others_and_in_another_era(app: Holdfast, kit: Kit) -> None:
    @app.task(queue="sizes")
    async def size(path: str) -> int:
        return len(path)

    async def pack(order_id: int) -> str:
        return f"packed {order_id}"

    @app.workflow()
    async def ship(wf: Workflow, order_id: int) -> str:
        return await wf.step(pack, order_id)

    @app.workflow()
    async def order(wf: Workflow, order_id: int, sizes: int = 0) -> str:
        if not sizes:
            wf.continue_as_new(order_id, sizes=sum(await wf.map(size, ["a", "bc"])))
        child = await wf.start(ship, order_id)
        return f"{await child.result()} of {sizes}"

    kit.create_queues()
    orders = itertools.count(1)
    points = [point for point in POINTS if point.partition(".")[0] in ("call", "child", "era")]
    report = kit.workflows.crash_everywhere(
        lambda: order.start(next(orders)), effects=lambda _: None, points=points
    )
    assert report.boundaries == [
        "call.before#1",
        "call.done#1",
        "era.before#1",
        "era.done#1",
        "child.before#1",
        "child.done#1",
    ]
    endings = {
        name: str(found).replace(f"packed {n}", "packed")
        for n, (name, found) in enumerate(report.outcomes.items(), 1)
    }
    assert set(endings.values()) == {"('packed of 3', None)"}, endings
    assert max(report.repeats.values()) <= 2, "it may be lost with its parent"


def test_a_body_that_must_not_run_twice_is_found(shop: Shop) -> None:
    ledger: list[str] = []

    async def careless(cents: int) -> str:
        ledger.append("charged")
        return f"paid {len(ledger)} times"

    orders = itertools.count(1)

    def start() -> Run[list[str]]:
        ledger.clear()
        return shop.plain.start(next(orders))

    with shop.kit.workflows.mock(charge, careless):
        report = shop.kit.workflows.crash_everywhere(start, points=["record.before"])
    with pytest.raises(AssertionError, match=r"without a crash: \['paid 1 times', 'A4'\]") as raised:
        report.assert_same()
    assert "record.before#1: ['paid 2 times', 'A4']" in str(raised.value)


def test_what_has_the_id_of_its_run_in_it_is_the_same_all_the_same(app: Holdfast, kit: Kit) -> None:
    """Every run has an id of its own, and so have the keys that its steps give to others."""

    async def pay() -> str:
        return f"ch_{current_step().idempotency_key}"

    @app.workflow()
    async def payment(wf: Workflow) -> dict[str, object]:
        return {"charge": [await wf.step(pay)], "run": str(wf.run_id)}

    kit.create_queues()

    def effects(run: Run[dict[str, object]]) -> object:
        return run.run_id, {str(run.run_id)}

    report = kit.workflows.crash_everywhere(
        payment.start, effects=effects, points=["claim.after", "settle.before"]
    )
    report.assert_same()
    assert len(report.outcomes) > 2
    wanted = {"charge": ["ch_<run_id>:" + next(iter(report.repeats))], "run": "<run_id>"}
    assert report.outcomes[""] == (wanted, ("<run_id>", {"<run_id>"}))


def test_a_start_that_gives_the_same_run_is_refused(shop: Shop) -> None:
    with pytest.raises(AssertionError, match="was there before: start"):
        shop.kit.workflows.crash_everywhere(
            lambda: shop.gives_up.using(id="one").start(), points=["settle.before"]
        )


def test_the_owner_is_lost_at_a_place_of_the_users_own_too(shop: Shop) -> None:
    async def marks(cents: int) -> str:
        failpoints.point("charged")
        return f"paid {cents}"

    orders = itertools.count(1)
    kit = shop.kit.workflows
    with kit.mock(charge, marks):
        start = lambda: shop.plain.start(next(orders))  # noqa: E731
        report = kit.crash_everywhere(start, also=["charged"], points=["record.done"])
        report.assert_same()
        assert {name.partition("#")[0] for name in report.boundaries} == {"charged", "record.done"}
        assert report.repeats["charge"] == 2
        with pytest.raises(
            AssertionError, match=r"the run never came to 'packed': call holdfast\.failpoints"
        ):
            kit.crash_everywhere(start, also=["packed"], points=[])
        with pytest.raises(TypeError, match=r"also=\['charged'\]"):
            kit.crash_everywhere(start, also="charged")


async def test_histories_are_those_of_open_and_ended_runs(shop: Shop) -> None:
    kit = shop.kit
    try:
        ended, waiting = await shop.plain.astart(1), await shop.plain.astart(2)
        assert await kit.workflows.arun(ended) == ["paid 995", "A4"]
        await kit.workflows.arun(waiting)
        await shop.asks.astart()
        found = [entries async for entries in kit.workflows.histories(shop.plain)]
        assert [{entry.key for entry in entries} for entries in found] == [{"reserve", "charge", "label"}] * 2
        assert [entries[0].result for entries in found] == [2, 1], "the newest first"
        assert len([entries async for entries in kit.workflows.histories(shop.plain, limit=1)]) == 1
        assert [list(entries) async for entries in kit.workflows.histories(shop.asks)] == [[]]
        with pytest.raises(ValueError, match="limit must be at least 1, not 0"):
            [entries async for entries in kit.workflows.histories(shop.plain, limit=0)]
    finally:
        await kit.database.aclose()


async def test_a_mock_is_an_async_context_manager_too(shop: Shop) -> None:
    async def cheaper(cents: int) -> str:
        return "free"

    try:
        async with shop.kit.workflows.mock(charge, cheaper):
            assert await shop.kit.workflows.arun(await shop.plain.astart(1)) == ["free", "A4"]
        assert await shop.kit.workflows.arun(await shop.plain.astart(2)) == ["paid 995", "A4"]
    finally:
        await shop.kit.database.aclose()
