"""The four workflows of the agreed surface, end to end; time is moved."""

from collections.abc import AsyncIterator, Callable
from datetime import timedelta

import pytest
from tests.conftest import QUICK
from tests.typing import workflow_examples as shop

from holdfast import Holdfast
from holdfast.testing import Kit

DAY = timedelta(days=1)


@pytest.fixture
async def kit(holdfast_kit: Callable[..., Kit]) -> AsyncIterator[Kit]:
    kit = holdfast_kit(Holdfast("postgresql://unused.invalid/none", include=[shop.app]), QUICK)
    kit.sql("CREATE TABLE stock (order_id int PRIMARY KEY, reserved int NOT NULL DEFAULT 0)")
    kit.sql("INSERT INTO stock VALUES (1), (2), (3)")
    yield kit
    await kit.database.aclose()


async def later(kit: Kit, span: timedelta) -> None:
    """Time passes, and what is due is done."""
    kit.clock.advance(span)
    await kit.arun_worker()


async def test_a_checkout_goes_all_the_way(kit: Kit) -> None:
    run = await shop.checkout.using(id="checkout:1").astart(1, cents=995)
    await kit.arun_worker()
    assert (await run.astate())[0] == "suspended"  # it waits for a cancellation
    await later(kit, timedelta(hours=1))
    await later(kit, 2 * DAY)
    await later(kit, timedelta(hours=1))  # of the child, which is a plain function
    key = f"{run.run_id}:charge"
    assert await run.aresult(timeout=25) == f"ch_1_{key} 1 truck for label-1"
    assert kit.sql("SELECT reserved FROM stock WHERE order_id = 1") == [{"reserved": 1}]
    assert (await shop.ship.get("ship:1").astate())[0] == "completed"
    lines = [(line.key, line.outcome) for line in await run.atimeline() if line.kind != "compensation"]
    assert lines == [
        ("reserve_stock", "done"),
        ("charge", "done"),
        ("make_label", "done"),
        ("cancelled", "timed_out"),
        ("sleep", "done"),
        ("ship", "done"),
        ("ship.result", "done"),
    ] or lines[1:3] == [("make_label", "done"), ("charge", "done")]


async def test_a_checkout_that_is_cancelled_by_its_customer_is_undone(kit: Kit) -> None:
    run = await shop.checkout.using(id="checkout:2").astart(2, cents=995)
    await run.asignal(shop.CANCELLED({"by": "customer"}), idempotency_key="click-1")  # before it waits
    await run.asignal(shop.CANCELLED({"by": "customer"}), idempotency_key="click-1")
    await kit.arun_worker()
    assert await run.aresult(timeout=25) == "cancelled"
    assert await run.astate() == ("completed", {"cancelled by": "customer"})
    undone = [line.key for line in await run.atimeline() if line.key.startswith("undo/")]
    assert undone == ["undo/refund", "undo/release_stock"]


async def test_a_charge_that_is_refused_is_undone(kit: Kit) -> None:
    run = await shop.checkout.using(id="checkout:3").astart(3, cents=0)
    await kit.arun_worker()
    assert await run.aresult(timeout=25) == "refused"
    assert await run.astate() == ("completed", {"failed": "charge", "why": "NonRetryable"})


async def test_an_approval_asks_one_manager_after_the_other(kit: Kit) -> None:
    run = await shop.approval.astart(100, ["ada", "bob", "cleo"])
    await kit.arun_worker()
    await later(kit, 3 * DAY)
    assert await run.asignal(shop.DECIDED({"yes": True, "who": "bob"}))
    await kit.arun_worker()
    assert await run.aresult(timeout=25) == "approved"
    silent = await shop.approval.astart(100, ["ada", "bob"])
    await kit.arun_worker()
    await later(kit, 3 * DAY)
    await later(kit, 3 * DAY)
    assert await silent.aresult(timeout=25) == "nobody answered"


async def test_an_album_waits_for_all_of_its_jobs(kit: Kit) -> None:
    run = await shop.album.astart(7)
    await kit.arun_worker()
    assert await run.aresult(timeout=25) == sum(len(f"7/{n}.jpg") for n in range(200))


@pytest.mark.long
def test_a_checkout_ends_the_same_wherever_its_owner_is_lost(holdfast_kit: Callable[..., Kit]) -> None:
    kit = holdfast_kit(Holdfast("postgresql://unused.invalid/none", include=[shop.app]), QUICK)
    kit.sql("CREATE TABLE stock (order_id int PRIMARY KEY, reserved int NOT NULL DEFAULT 0)")
    shop.test_checkout(kit.workflows)


@pytest.mark.long
async def test_a_subscription_goes_on_for_more_than_a_year(kit: Kit) -> None:
    run = await shop.subscription.using(id="sub:1").astart(5)
    await kit.arun_worker()
    for _ in range(13):
        await later(kit, 30 * DAY)
    assert kit.sql("SELECT era FROM holdfast.workflow_runs") == [{"era": 1}]
    await run.asignal(shop.STOP("enough"))
    await kit.arun_worker()
    assert await run.aresult(timeout=25) == "stopped: enough"
