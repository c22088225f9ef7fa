"""A large redelivery beside live traffic: the live events of others do not wait for it, and nothing is sent twice."""

from collections import Counter

import pytest
from tests.conftest import await_until
from tests.flow.test_run import working
from tests.webhooks.support import OK, STEADY, Request, Site, hooks_of

from holdfast import Holdfast, Rate
from holdfast.testing import Kit

ACME = {"tenant": "acme"}
QUICKLY = Rate(10_000)  # as many wait as the engine lets wait
PART = 10_000  # events of one publish


async def beside(app: Holdfast, akit: Kit, site: Site, past: int, live: int, most_between: int) -> None:
    """`most_between`: requests of the redelivery between a live event and its arrival, at most. Endpoints take turns, so it
    does not grow with what waits."""
    akit.database.settings = STEADY
    seen: Counter[str] = Counter()
    numbers: Counter[int] = Counter()

    def answer(request: Request) -> bytes:
        seen[request.path] += 1
        if request.path == "/late":
            numbers[request.data["n"]] += 1
        site.requests.clear()  # a hundred thousand need not be kept
        return OK

    site.answer = answer
    hooks = hooks_of(app, site, on=["order.*"])
    akit.create_queues()
    for begin in range(0, past, PART):
        events = [
            app.events.new("order.past", {"n": n}, headers=ACME)
            for n in range(begin, min(past, begin + PART))
        ]
        await app.apublish_many(events)
    late = await hooks.endpoints.acreate(tenant="acme", url=site.url("/late"), events=["order.past"])
    await hooks.endpoints.acreate(tenant="acme", url=site.url("/live"), events=["order.live"])
    between: list[int] = []
    async with working(akit, concurrency=8):
        await await_until(lambda: akit.sql("SELECT 1 FROM holdfast.subscriptions"), "the follower is known")
        assert (
            await hooks.aredeliver_range(late.id, tenant="acme", since=0, only="missing", rate=QUICKLY)
            == past
        )
        waiting = "SELECT 1 FROM holdfast.webhook_deliveries WHERE status = 'pending' OFFSET 800"
        await await_until(lambda: akit.sql(waiting), "many wait", 60)
        for n in range(live):
            before = seen["/late"]
            await app.apublish("order.live", {"n": n}, headers=ACME)
            await await_until(lambda: seen["/live"] > n, f"live event {n} arrives", 60)  # noqa: B023
            between.append(seen["/late"] - before)
        assert seen["/late"] < past, "it is still under way"
        await await_until(lambda: seen["/late"] >= past, "all of the past arrives", 60 + past / 50)
    assert max(between) <= most_between, sorted(between)
    assert (len(numbers), set(numbers.values())) == (past, {1})
    assert seen["/live"] == live


async def test_live_events_do_not_wait_for_a_redelivery(app: Holdfast, akit: Kit, site: Site) -> None:
    await beside(app, akit, site, past=1500, live=5, most_between=200)


@pytest.mark.long
async def test_live_events_do_not_wait_for_a_redelivery_of_a_hundred_thousand(
    app: Holdfast, akit: Kit, site: Site
) -> None:
    await beside(app, akit, site, past=100_000, live=100, most_between=200)
