"""A projection or a rebuild that waits: it leaves when it is asked to, nobody waits for it, it goes on as what it was."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from tests.conftest import QUICK, await_until, within
from tests.events.test_projections_calls import QUICKLY, run_until, standing
from tests.events.test_projections_rebuild import run_until_swapped
from tests.flow.test_run import working

from holdfast import Backoff, Event, Holdfast, Transaction
from holdfast.shapes.events import service, store
from holdfast.shapes.events.declare import declared
from holdfast.shapes.events.rebuild import Builder
from holdfast.shapes.events.store import Owner
from holdfast.testing import Kit

HOURS = Backoff(first=3600.0, cap=3600.0)


@pytest.fixture
def kit(app: Holdfast, holdfast_kit: Callable[..., Kit]) -> Kit:
    kit = holdfast_kit(app, replace(QUICK, pool_size=8, drain=900.0))
    kit.sql("CREATE TABLE totals (n int)")
    return kit


class Picky:
    def __init__(self, app: Holdfast, **options: Any) -> None:
        self.bad: set[int] = set()
        self.refused = 0

        @app.projection("totals", on=["counted"], tables=["totals"], **options)
        def totals(tx: Transaction, event: Event[Any]) -> None:
            if event.data["n"] in self.bad:
                self.refused += 1
                raise ValueError("not that")
            tx.execute("INSERT INTO totals VALUES (%s)", [event.data["n"]])

        self.projection = totals


async def until_it_fails(kit: Kit, name: str) -> None:
    await await_until(lambda: "not that" in str(standing(kit, name).get("problem")), what="the failure")


@pytest.mark.parametrize("name", ["totals", "totals@1"], ids=["projection", "rebuild"])
async def test_a_worker_that_stops_does_not_wait_for_the_next_attempt(
    app: Holdfast, akit: Kit, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(service, "_LAST_BATCH", 900.0)
    picky = Picky(app, retry=HOURS)
    await app.apublish("counted", {"n": 1})
    async with asyncio.timeout(within(60)):
        async with working(akit):
            await picky.projection.aread_your_writes(1, timeout=within(20))
            picky.bad = {1, 2}
            if name == "totals":
                await app.apublish("counted", {"n": 2})
            else:
                await picky.projection.arebuild()
            await until_it_fails(akit, name)
    (row,) = akit.sql("SELECT owner, token FROM holdfast.subscriptions WHERE name = %s", [name])
    assert (row["owner"], row["token"]) == (None, None), "it let go by itself"
    assert picky.refused <= 2, "and the delay was kept until then"  # a rebuild tries to swap first


def test_a_worker_that_ends_when_idle_does_not_wait_for_a_rebuild_that_fails(app: Holdfast, kit: Kit) -> None:
    picky = Picky(app, retry=HOURS)
    app.publish("counted", {"n": 1})
    run_until(kit, 1)
    picky.bad = {1}
    picky.projection.rebuild()

    async def main() -> None:
        async with asyncio.timeout(within(60)):
            await kit.arun_worker()
        await kit.database.aclose()

    asyncio.run(main())
    assert standing(kit, "totals@1")["position"] == 0


async def test_a_rebuild_is_stuck_while_it_waits_and_not_afterwards(app: Holdfast, akit: Kit) -> None:
    picky = Picky(app, retry=QUICKLY, max_attempts=1000)
    await app.apublish("counted", {"n": 1})
    async with working(akit):
        await picky.projection.aread_your_writes(1, timeout=within(20))
    await picky.projection.arebuild()
    (code,) = declared(app.tasks)
    assert code.apply is not None
    owner = Owner([("totals", ["counted"])], uuid4(), "w", 600.0, 0.0)
    owned = {o.name: o for o in await akit.database.arun(lambda: store.own(owner))}
    builder = Builder(akit.database, code.apply, owned["totals@1"], 600.0)
    picky.bad = {1}
    task = asyncio.create_task(builder.run())
    await await_until(lambda: builder.stuck, what="it waits for an event that fails")
    assert not builder.is_behind(1)
    with akit.connect() as reader:
        reader.execute("SELECT count(*) FROM totals")  # and the transaction stays open
        picky.bad.clear()
        await await_until(
            lambda: "waits for a lock" in str(standing(akit, "totals@1")["problem"]),
            what="it waits for a lock",
        )
        assert builder.stuck
    await task
    assert not builder.stuck
    assert len(akit.sql("SELECT 1 FROM totals")) == 1


def test_a_rebuild_that_is_resumed_builds_on(app: Holdfast, kit: Kit) -> None:
    picky = Picky(app, poison="stop", max_attempts=1)
    app.publish("counted", {"n": 1})
    run_until(kit, 1)
    picky.bad = {1}
    picky.projection.rebuild()
    kit.run_worker()
    assert standing(kit, "totals@1")["status"] == "paused"
    picky.bad.clear()
    kit.database.run(lambda: store.resume("totals@1"))
    assert standing(kit, "totals@1")["status"] == "building"
    kit.database.run(lambda: store.pause("totals", "somebody"))
    kit.database.run(lambda: store.resume("totals"))
    assert standing(kit)["status"] == "active"
    run_until_swapped(kit)
    assert standing(kit) == {"position": 1, "status": "active", "problem": None}
