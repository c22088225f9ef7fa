"""Endpoints do not stand in each other's way: tenants, filters, breaker, concurrency, rate, pause, order."""

import asyncio
import threading
from collections import Counter
from typing import Any
from uuid import UUID

import pytest
from tests.conftest import await_until
from tests.flow.test_run import working
from tests.webhooks.support import OK, STEADY, Request, Site, held, hooks_of, reply, state

from holdfast import Event, Holdfast, Rate, Webhooks
from holdfast.testing import Kit

ACME = {"tenant": "acme"}


def ready(app: Holdfast, kit: Kit, site: Site, **options: Any) -> Webhooks:
    kit.database.settings = STEADY
    hooks = hooks_of(app, site, **options)
    kit.create_queues()
    kit.run_worker()
    return hooks


def publish(app: Holdfast, count: int, tenant: str = "acme", key: str | None = None) -> list[UUID]:
    events = [
        app.events.new("order.paid", {"n": n}, headers={"tenant": tenant}, key=key) for n in range(count)
    ]
    return [one.id for one in app.publish_many(events)]


def numbers(site: Site, path: str) -> list[int]:
    return [request.data["n"] for request in site.of(path)]


def test_events_of_a_tenant_reach_its_own_endpoints_by_their_filters(
    app: Holdfast, kit: Kit, site: Site
) -> None:
    hooks = ready(app, kit, site, on=["*"])
    for tenant in ("acme", "other"):
        for name, events in (("all", ["*"]), ("orders", ["order.*"]), ("two", ["order.paid", "user.*.left"])):
            hooks.endpoints.create(tenant=tenant, url=site.url(f"/{tenant}/{name}"), events=events)
    sent: list[tuple[str, str | None]] = [
        ("order.paid", "acme"), ("order.sent", "acme"), ("orders", "acme"), ("user.1.left", "acme"), ("user.left", "acme"),
        ("order.paid", "other"), ("order.paid", "nobody"), ("order.paid", None),
    ]  # fmt: skip
    for event_type, whose in sent:
        app.publish(event_type, {"t": whose}, headers={"tenant": whose} if whose else None)
    kit.run_worker()
    found = sorted((request.path, request.data["t"]) for request in site.requests)
    assert found == sorted(
        [("/acme/all", "acme")] * 5 + [("/acme/orders", "acme")] * 2 + [("/acme/two", "acme")] * 2
        + [(f"/other/{name}", "other") for name in ("all", "orders", "two")]
    )  # fmt: skip
    assert {d.status for d in hooks.deliveries(tenant="acme")} == {"delivered"}
    assert (len(hooks.deliveries(tenant="acme")), len(hooks.deliveries(tenant="other"))) == (9, 3)


def test_a_function_says_whose_an_event_is(app: Holdfast, kit: Kit, site: Site) -> None:
    def owner(event: Event[Any]) -> str | None:
        if event.data["n"] == 2:
            raise KeyError("nobody knows")
        return "acme" if event.data["n"] == 1 else None

    hooks = ready(
        app, kit, site, tenant=owner, payload=lambda event: {"id": str(event.id), "data": event.data}
    )
    hooks.endpoints.create(tenant="acme", url=site.url())
    ids = publish(app, 4, tenant="other")
    kit.run_worker()
    (request,) = site.requests
    assert request.data == {"n": 1}
    assert request.headers["webhook-id"] == str(ids[1])
    (failure,) = hooks.subscription.failures()
    assert (failure.event_id, failure.kind) == (ids[2], "skipped")
    assert "KeyError" in (failure.error or "")


def test_what_a_function_could_not_tell_is_tried_once_more(app: Holdfast, kit: Kit, site: Site) -> None:
    known: set[int] = {0, 1, 3}

    def owner(event: Event[Any]) -> str:
        if event.data["n"] not in known:
            raise KeyError("nobody knows")
        return "acme"

    hooks = ready(app, kit, site, tenant=owner)
    hooks.endpoints.create(tenant="acme", url=site.url("/all"))
    publish(app, 5)
    kit.run_worker()
    assert sorted(numbers(site, "/all")) == [0, 1, 3]
    known.add(4)
    assert hooks.subscription.retry_failures() == 2
    kit.run_worker()
    assert sorted(numbers(site, "/all")) == [0, 1, 3, 4], "those and no others"
    assert [f.position for f in hooks.subscription.failures()] == [3], "what failed again is noted again"


def test_a_replay_to_webhooks_ends_where_it_was_to_end(app: Holdfast, kit: Kit, site: Site) -> None:
    hooks = ready(app, kit, site)
    publish(app, 6)
    kit.run_worker()
    hooks.endpoints.create(tenant="acme", url=site.url("/late"))  # it has got none of them
    begun = hooks.subscription.replay(2, 4, rate=Rate(1000))
    kit.run_worker()
    assert sorted(numbers(site, "/late")) == [2, 3]
    assert kit.sql("SELECT 1 FROM holdfast.subscriptions WHERE replay_of IS NOT NULL") == [], "it is gone"
    assert begun.progress() == (2, 2)
    publish(app, 1)
    kit.run_worker()
    assert sorted(numbers(site, "/late")) == [0, 2, 3]


async def others_have_all(app: Holdfast, akit: Kit, site: Site, good: int, each: int, waiting: int) -> None:
    """By counts and order alone: all others have everything while the dead one has not replied to anything, though most of
    what waits is for it and came first."""
    akit.database.settings = STEADY
    hooks = hooks_of(app, site)
    akit.create_queues()
    let_go = threading.Event()

    async def answer(request: Request) -> bytes:
        while request.path == "/dead" and not let_go.is_set():  # noqa: ASYNC110 it is set in another loop
            await asyncio.sleep(0.01)
        return OK

    site.answer = answer
    await hooks.endpoints.acreate(tenant="acme", url=site.url("/good/1"), events=["order.paid"])
    copies(akit, good)
    dead = await hooks.endpoints.acreate(tenant="acme", url=site.url("/dead"), concurrency=2)
    paths = [f"/good/{n}" for n in range(1, good + 1)]
    async with working(akit, concurrency=8):
        await await_until(lambda: akit.sql("SELECT 1 FROM holdfast.subscriptions"), "the follower is known")
        events = [app.events.new("order.late", {"n": n}, headers=ACME) for n in range(waiting)]
        await app.apublish_many(events)
        await asyncio.to_thread(publish, app, each)

        def all_there() -> bool:
            return sum(1 for one in site.requests if one.path != "/dead") >= good * each

        await await_until(all_there, "the others have all", 60 + good / 10)
        counts = Counter(request.path for request in site.requests)
        assert {counts[path] for path in paths} == {each}
        assert 1 <= counts["/dead"] <= 2, "at once in this process, as the endpoint says"
        ended = await hooks.adeliveries(tenant="acme", endpoint=dead.id, status="delivered")
        assert ended == []
        let_go.set()
        if waiting <= 1000:
            await await_until(
                lambda: len(set(numbers(site, "/dead"))) == max(waiting, each), "and then the slow one"
            )
    assert {len(site.of(path)) for path in paths[:50]} == {each}


def copies(kit: Kit, most: int) -> None:
    """More endpoints such as the one that there is, each with its own path. Secrets stand bare, so they can be copied."""
    kit.sql(
        """WITH made AS (
               INSERT INTO holdfast.webhook_endpoints (id, tenant, url, events, concurrency, created_at, updated_at)
               SELECT gen_random_uuid(), e.tenant, replace(e.url, '/good/1', '/good/' || n), e.events, e.concurrency,
                      now(), now()
               FROM holdfast.webhook_endpoints e, generate_series(2, %s) n RETURNING id)
           INSERT INTO holdfast.webhook_secrets (id, endpoint_id, scheme, sealed, created_at)
           SELECT gen_random_uuid(), made.id, s.scheme, s.sealed, now() FROM made, holdfast.webhook_secrets s""",
        [most],
    )


async def test_one_dead_endpoint_delays_nobody(app: Holdfast, akit: Kit, site: Site) -> None:
    await others_have_all(app, akit, site, good=99, each=2, waiting=20)


@pytest.mark.long
async def test_one_dead_endpoint_of_ten_thousand_delays_nobody(app: Holdfast, akit: Kit, site: Site) -> None:
    await others_have_all(app, akit, site, good=9999, each=1, waiting=10_000)


def test_five_failures_open_the_breaker_and_one_trial_closes_it(app: Holdfast, kit: Kit, site: Site) -> None:
    hooks = ready(app, kit, site)
    bad = hooks.endpoints.create(tenant="acme", url=site.url("/bad"), concurrency=1)
    hooks.endpoints.create(tenant="acme", url=site.url("/good"))
    site.answer = lambda request: reply(500) if request.path == "/bad" else OK
    publish(app, 30)
    kit.run_worker(concurrency=1)
    assert len(site.of("/good")) == 30
    before = len(site.of("/bad"))
    assert 5 <= before < 30, "what began before the fifth failure was settled may follow"
    hold = held(kit)[str(bad.id)]
    assert hold["trial"]
    assert (hold["until"] - hold["held_at"]).total_seconds() == 30
    assert (state(kit, bad)["openings"], state(kit, bad)["window_failures"]) == (1, before)
    for openings, seconds in ((2, 60), (3, 120)):
        kit.clock.advance(seconds // 2 + 1)
        kit.run_worker()
        assert len(site.of("/bad")) == before + openings - 1, "one trial, however many wait"
        hold = held(kit)[str(bad.id)]
        assert (hold["until"] - hold["held_at"]).total_seconds() == seconds
        assert state(kit, bad)["openings"] == openings
    spent = {row["attempts"] for row in kit.sql("SELECT attempts FROM holdfast.work")}
    assert spent <= {0, 1, 2}, "what was held has spent nothing"
    site.answer = lambda _: OK
    kit.clock.advance(5000)
    kit.run_worker(concurrency=1)
    assert not [hold for hold in held(kit).values() if hold["reason"].startswith("webhook breaker")]
    assert sorted(set(numbers(site, "/bad"))) == list(range(30))
    assert {d.status for d in hooks.deliveries(tenant="acme", endpoint=bad.id)} == {"delivered"}
    health = state(kit, bad)
    assert (health["openings"], health["window_failures"], health["failing_since"]) == (0, 0, None)


def test_what_was_claimed_before_it_opened_puts_no_hold_in_the_place_of_the_trial(
    app: Holdfast, kit: Kit, site: Site
) -> None:
    """A worker may have claimed more than it has begun: these find the breaker open, and their key held already."""
    hooks = ready(app, kit, site)
    bad = hooks.endpoints.create(tenant="acme", url=site.url("/bad"), concurrency=1)
    site.answer = lambda _: reply(500)
    publish(app, 30)
    kit.run_worker(concurrency=1)
    assert held(kit)[str(bad.id)]["trial"]
    before = len(site.of("/bad"))
    kit.sql("DELETE FROM holdfast.key_holds RETURNING queue")  # so that they can be claimed
    kit.run_worker(concurrency=1)
    assert (len(site.of("/bad")), held(kit)) == (before, {})


def test_a_success_in_between_keeps_the_breaker_closed(app: Holdfast, kit: Kit, site: Site) -> None:
    hooks = ready(app, kit, site)
    made = hooks.endpoints.create(tenant="acme", url=site.url(), concurrency=1)
    site.answer = lambda request: OK if request.data["n"] % 3 == 0 else reply(500)
    for n in range(12):  # one by one, so that each end is settled before the next
        app.publish("order.paid", {"n": n}, headers=ACME)
        kit.run_worker(concurrency=1)
    assert len(site.requests) == 12
    assert (held(kit), state(kit, made)["openings"]) == ({}, 0)


def test_a_rate_holds_over_all_workers(app: Holdfast, kit: Kit, site: Site) -> None:
    hooks = ready(app, kit, site)
    hooks.endpoints.create(tenant="acme", url=site.url(), rate=Rate(3, per="1h", burst=3))
    publish(app, 8)
    kit.run_worker()
    assert len(site.requests) == 3
    assert {row["attempts"] for row in kit.sql("SELECT attempts FROM holdfast.work")} == {0}
    for expected in (4, 5, 6):
        kit.clock.advance(1201)
        kit.run_worker()
        assert len(site.requests) == expected
    kit.clock.advance(7200)
    kit.run_worker()
    assert sorted(numbers(site, "/hooks")) == list(range(8))


def test_pause_keeps_what_is_pending_and_makes_nothing_new(app: Holdfast, kit: Kit, site: Site) -> None:
    hooks = ready(app, kit, site)
    made = hooks.endpoints.create(tenant="acme", url=site.url())
    publish(app, 3)
    kit.run_projections()
    hooks.endpoints.update(made.id, tenant="acme", status="paused")
    app.publish("order.paid", {"n": 99}, headers=ACME)
    kit.run_worker()
    assert site.requests == []
    assert (held(kit)[str(made.id)]["reason"], len(held(kit))) == ("webhook paused", 1)
    hooks.endpoints.update(made.id, tenant="acme", status="active")
    kit.clock.advance(2)
    kit.run_worker()
    assert sorted(numbers(site, "/hooks")) == [0, 1, 2]


def test_an_ordered_endpoint_keeps_the_order_of_a_key_through_failures(
    app: Holdfast, kit: Kit, site: Site
) -> None:
    hooks = ready(app, kit, site)
    made = hooks.endpoints.create(tenant="acme", url=site.url("/ordered"), ordered=True)
    hooks.endpoints.create(tenant="acme", url=site.url("/any"))
    failing = {("a", 2): 2, ("b", 0): 1}
    taken: list[tuple[str, int]] = []

    def answer(request: Request) -> bytes:
        one = (request.data["k"], request.data["n"])
        if request.path == "/ordered" and failing.get(one, 0):
            failing[one] -= 1
            return reply(500)
        if request.path == "/ordered":
            taken.append(one)
        return OK

    site.answer = answer
    app.publish_many(
        app.events.new("order.paid", {"k": k, "n": n}, key=k, headers=ACME) for n in range(5) for k in "abc"
    )
    kit.run_worker()
    assert [n for k, n in taken if k == "a"] == [0, 1], "those behind the one that fails wait"
    assert [n for k, n in taken if k == "b"] == []
    assert [n for k, n in taken if k == "c"] == [0, 1, 2, 3, 4], "other keys go on"
    assert len(site.of("/any")) == 15
    for _ in range(3):
        kit.clock.advance(4400)
        kit.run_worker()
    for key in "abc":
        assert [n for k, n in taken if k == key] == [0, 1, 2, 3, 4]
    assert {d.status for d in hooks.deliveries(tenant="acme", endpoint=made.id)} == {"delivered"}
    keys = kit.sql(
        "SELECT DISTINCT partition_key AS k FROM holdfast.jobs WHERE queue = 'webhooks_ordered' ORDER BY 1"
    )
    assert [row["k"] for row in keys] == [f"{made.id}:{key}" for key in "abc"]
