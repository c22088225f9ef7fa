"""The dashboard beside many jobs: every page opens, none is large, and what many look at is read once."""

import asyncio
import html
import re
from collections import Counter
from typing import Any

import psycopg
import pytest
from tests.conftest import await_until
from tests.web.surfing import Surfer

from holdfast.bench.crowd import fill
from holdfast.bench.visits import Visit, first_load, visits
from holdfast.db.executors import listen_in
from holdfast.operate.overview import Overview, Workers
from holdfast.store.queue_load import Count, QueueLoad
from holdfast.testing import Kit
from holdfast.web import live
from holdfast.web.application import Dashboard
from holdfast.web.views import overview
from holdfast.web.views.overview import numbers_of, with_many

NONE = Count(0)


def wrong(found: list[Visit], *, seconds: float) -> dict[str, object]:
    """By address: what is not as it should be."""
    pages = [one for one in found if not one.path.startswith(("/api/", "/find"))]
    return {
        **{one.path: one.status for one in found if one.status >= 400},
        **{one.path: f"{first_load(one)} bytes" for one in pages if first_load(one) >= 60_000},
        **{one.path: f"{one.busy * 1000:.0f} ms" for one in found if one.busy >= seconds},
    }


@pytest.mark.slow
async def test_every_page_opens_beside_jobs_of_every_kind_and_none_is_large(kit: Kit) -> None:
    fill(kit.url, archived=20_000, due=4_000, runs=4_000)
    found = await visits(kit.url, 1)
    assert len(found) > 90
    assert wrong(found, seconds=60.0) == {}


@pytest.mark.long
async def test_every_page_is_quick_beside_ten_million_finished_jobs(kit: Kit) -> None:
    fill(kit.url, archived=10_000_000, due=1_000_000, runs=1_000_000)
    assert wrong(await visits(kit.url, 5), seconds=0.1) == {}


async def statements_of_looks(dashboard: Dashboard, tabs: int, looks: int) -> Counter[str]:
    """What so many open streams ask while everybody is told of so many looks."""
    seen: Counter[str] = Counter()
    told = dict.fromkeys(range(tabs), 0)
    gate = asyncio.Event()
    dashboard.site.snapshots.forget()

    async def watch(n: int) -> None:
        frames = live._frames(dashboard.site, ["overview"])
        async for _ in frames:
            told[n] += 1
            if told[n] == 1:
                await gate.wait()  # all of them are there before the next look
        await frames.aclose()  # type: ignore[attr-defined]

    end = listen_in(lambda statement, _rows, _took: seen.update([statement.name]))
    streams = [asyncio.ensure_future(watch(n)) for n in range(tabs)]
    try:
        await await_until(lambda: min(told.values()) >= 1, "every tab is told what there is")
        seen.clear()
        before = dashboard.site.snapshots.looks
        gate.set()
        await await_until(lambda: dashboard.site.snapshots.looks >= before + looks, "looks were made")
    finally:
        end()
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
    made = (dashboard.site.snapshots.looks - before) / 2  # each of the overview has one of its quick part
    return Counter({name: round(count / made) for name, count in seen.items()})


async def test_a_hundred_tabs_cost_no_more_statements_than_one(
    dashboard: Dashboard, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "REST_LASTS", 3600.0)  # what is read less often is read before
    monkeypatch.setattr(overview, "SHARE", 1.0)  # however long a query takes here
    kit.sql("SELECT holdfast.create_queue('busy')")
    for queue in ("inbox", "busy"):
        kit.sql(f"SELECT holdfast.enqueue('x', queue => '{queue}')")
    await numbers_of(dashboard.site)
    one = await statements_of_looks(dashboard, 1, 3)
    hundred = await statements_of_looks(dashboard, 100, 3)
    assert one["queue_load"] >= 2, one
    assert hundred == one
    assert sum(one.values()) <= 20, one


async def test_queues_that_were_empty_are_left_to_the_next_whole_look(
    dashboard: Dashboard, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "LASTS", 0.0)
    monkeypatch.setattr(overview, "REST_LASTS", 3600.0)
    monkeypatch.setattr(overview, "SHARE", 1.0)
    for n in range(8):
        kit.sql(f"SELECT holdfast.create_queue('empty_{n}')")
    kit.sql("SELECT holdfast.enqueue('x')")
    names = {load.name for load in (await numbers_of(dashboard.site)).found.queues if load.pending.count}
    seen: list[str] = []
    end = listen_in(lambda statement, rows, seconds: seen.append(str(statement.params[:1])))
    try:
        found = await numbers_of(dashboard.site)
    finally:
        end()
    assert names
    assert not [text for text in seen if "empty_" in text], seen
    assert [text for text in seen if any(name in text for name in names)]
    assert {f"empty_{n}" for n in range(8)} < {load.name for load in found.found.queues}
    kit.sql("SELECT holdfast.enqueue('x', queue => 'empty_3')")
    dashboard.site.snapshots.forget()  # as every act does, and five seconds
    found = await numbers_of(dashboard.site)
    assert [load.name for load in found.found.queues if load.name == "empty_3" and load.pending.count]


async def test_a_search_on_a_page_stops_soon_and_goes_on_by_a_link(
    mara: Surfer, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.web.views.jobs.SOON", 1e-9)
    monkeypatch.setattr("holdfast.store.search.SHORT", 10)
    for _ in range(30):
        kit.app.send("send", {"order_id": 1}, queue="mail")
    found = kit.app.send("send", {"order_id": 2}, queue="mail", tags=["rare"])
    for _ in range(30):
        kit.app.send("send", {"order_id": 3}, queue="mail")
    page = await mara.page("/jobs?tag=rare")
    assert "Searched back to " in page
    assert str(found.id) not in page
    place = html.unescape(re.findall(r'href="/(jobs\?[^"]*after=[^"]*)"', page)[-1])
    assert str(found.id) in await mara.page(f"/{place}")


def load_of(name: str, pending: Count, scheduled: Count = NONE) -> QueueLoad:
    return QueueLoad(name, pending, scheduled, NONE, NONE, NONE, NONE, NONE, NONE, 1.0)


def overview_of(queues: list[QueueLoad], dead: Count) -> Overview:
    return Overview(queues, [], dead, {"mail": dead}, Workers(1, 0, 0), 0, False, 1, "18.0", "on", [])


def test_what_is_many_is_shown_as_it_was_last_counted_further() -> None:
    few = Count(overview.FEW, True)
    seen = overview_of([load_of("mail", few, Count(3)), load_of("new", few), load_of("slow", few)], few)
    whole = overview_of(
        [load_of("mail", Count(7000), Count(9)), load_of("slow", Count(12))], Count(10_000, True)
    )
    found = with_many(seen, whole)
    assert [load.pending for load in found.queues] == [Count(7000), few, few]
    assert found.queues[0].scheduled == Count(3), "few are counted in every look"
    assert (found.dead_letters, found.dead_letters_by_queue) == (
        whole.dead_letters,
        whole.dead_letters_by_queue,
    )


async def test_a_look_counts_few_and_what_is_more_is_counted_beside_it(
    dashboard: Dashboard, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "FEW", 5)
    with psycopg.connect(kit.url, autocommit=True) as conn:
        conn.execute(
            "INSERT INTO holdfast.work (id, queue, task, payload) SELECT holdfast.uuid7(), 'mail', 'send', '{}'"
            " FROM generate_series(1, 12)"
        )

    async def due() -> Any:
        numbers = await numbers_of(dashboard.site)
        return next(load.pending for load in numbers.found.queues if load.name == "mail")

    assert await due() in (Count(5, True), Count(12))
    async with asyncio.timeout(30):
        while await due() != Count(12):
            dashboard.site.snapshots.drop("overview")
