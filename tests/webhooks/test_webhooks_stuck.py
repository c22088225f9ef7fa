"""No key stays held for ever: after trials that fail in our own code, pauses that end meanwhile, pings."""

from typing import Any
from uuid import UUID

import pytest
from tests.webhooks.support import OK, Request, Site, held, reply, state
from tests.webhooks.test_webhooks_isolation import ACME, numbers, publish, ready

from holdfast import Event, Holdfast, Rate
from holdfast.errors import DatabaseUnavailable, SecretUnreadable
from holdfast.shapes.webhooks import request
from holdfast.shapes.webhooks.deliver import Deliverer
from holdfast.shapes.webhooks.loading import Loader
from holdfast.testing import Kit

HOLDS = "SELECT queue, partition_key, reason FROM holdfast.key_holds WHERE trial OR until > holdfast.now()"


def open_breaker(app: Holdfast, kit: Kit, site: Site) -> None:
    """Six deliveries wait behind a breaker; the trial will be that of the first."""
    site.answer = lambda _: reply(500)
    publish(app, 6)
    kit.run_worker(concurrency=1)
    site.answer = lambda _: OK


def trials(kit: Kit) -> None:
    """In less time than a trial without a row is waited for."""
    for _ in range(6):
        kit.clock.advance(31)
        kit.run_worker()


@pytest.mark.parametrize("why", ["payload", "secret", "database", "gone"])
def test_a_trial_that_fails_in_our_own_code_is_followed_by_another(
    app: Holdfast, kit: Kit, site: Site, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    broken: set[str] = set()

    def payload(event: Event[Any]) -> dict[str, Any]:
        if "payload" in broken:
            broken.clear()
            raise RuntimeError("no body for this one")
        return {"data": event.data}

    hooks = ready(app, kit, site, payload=payload, schedule=[1] * 40)
    hooks.endpoints.create(tenant="acme", url=site.url(), concurrency=1)
    open_breaker(app, kit, site)
    secrets_of, begin = request.secrets_of, Loader.begin

    def unreadable(*arguments: Any) -> list[str]:
        if "secret" in broken:
            broken.clear()
            raise SecretUnreadable("the key is not here")
        return secrets_of(*arguments)

    async def away(self: Loader, delivery: UUID, *arguments: Any, **more: Any) -> Any:
        if "gone" in broken:
            broken.clear()
            kit.sql("DELETE FROM holdfast.webhook_deliveries WHERE id = %s RETURNING id", [delivery])
        if "database" in broken:
            broken.clear()
            raise DatabaseUnavailable("not now")
        return await begin(self, delivery, *arguments, **more)

    monkeypatch.setattr(request, "secrets_of", unreadable)
    monkeypatch.setattr(Loader, "begin", away)
    broken.add(why)
    trials(kit)
    assert broken == set(), "the trial came to nothing"
    delivered = hooks.deliveries(tenant="acme", status="delivered")
    assert len(delivered) == 6 - (why == "gone"), "and the endpoint works again"
    assert [hold for hold in held(kit).values() if hold["trial"]] == []


def test_a_trial_that_left_no_row_is_made_up_for(
    app: Holdfast, kit: Kit, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an older release left them."""
    hooks = ready(app, kit, site, schedule=[1] * 40)
    hooks.endpoints.create(tenant="acme", url=site.url(), concurrency=1)
    open_breaker(app, kit, site)

    async def deliver(*_: Any) -> None:
        raise RuntimeError("a defect")

    with monkeypatch.context() as patched:
        patched.setattr(Deliverer, "deliver", deliver)
        kit.clock.advance(100)
        kit.run_worker()
    kit.clock.advance(100)
    kit.run_worker()
    assert hooks.deliveries(tenant="acme", status="delivered") == []
    kit.clock.advance(400)
    trials(kit)
    assert len(hooks.deliveries(tenant="acme", status="delivered")) == 6


@pytest.mark.parametrize("ordered", [False, True], ids=["plain", "ordered"])
def test_an_endpoint_that_is_continued_while_its_pause_is_settled_goes_on(
    app: Holdfast, kit: Kit, site: Site, monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> None:
    hooks = ready(app, kit, site)
    made = hooks.endpoints.create(tenant="acme", url=site.url(), ordered=ordered)
    publish(app, 3, key="k")
    kit.run_projections()
    hooks.endpoints.update(made.id, tenant="acme", status="paused")
    with monkeypatch.context() as patched:
        wait = Deliverer._wait

        def waits(self: Deliverer, *arguments: Any) -> None:
            """It was read as paused. Meanwhile it is set active, and then the row of its pause is settled."""
            hooks.endpoints.update(made.id, tenant="acme", status="active")
            wait(self, *arguments)

        patched.setattr(Deliverer, "_wait", waits)
        kit.run_worker(concurrency=1)
    for _ in range(3):
        kit.clock.advance(60)
        kit.run_worker()
    assert sorted(numbers(site, "/hooks")) == [0, 1, 2]
    assert kit.sql(HOLDS) == []


def test_an_endpoint_without_a_rate_waits_for_none(app: Holdfast, kit: Kit, site: Site) -> None:
    hooks = ready(app, kit, site)
    made = hooks.endpoints.create(tenant="acme", url=site.url(), rate=Rate(1, per="20d"))
    publish(app, 3)
    kit.run_worker()
    assert len(site.requests) == 1
    hooks.endpoints.update(made.id, tenant="acme", rate="none")
    for _ in range(2):
        kit.clock.advance(60)
        kit.run_worker()
    assert sorted(numbers(site, "/hooks")) == [0, 1, 2]


def test_pings_that_fail_leave_no_hold(app: Holdfast, kit: Kit, site: Site) -> None:
    hooks = ready(app, kit, site)
    made = hooks.endpoints.create(tenant="acme", url=site.url())
    site.answer = lambda _: reply(500)
    for _ in range(8):
        hooks.ping(made.id, tenant="acme")
        kit.run_worker(concurrency=1)
        assert kit.sql(HOLDS) == []
    assert state(kit, made)["openings"] >= 1
    site.answer = lambda _: OK
    publish(app, 2)
    trials(kit)
    assert len(site.of("/hooks")) == 10


def test_holds_of_pings_and_of_endpoints_that_are_gone_are_lifted(
    app: Holdfast, kit: Kit, site: Site
) -> None:
    """As an older release left them. A hold that somebody else made stays."""
    hooks = ready(app, kit, site)
    made = hooks.endpoints.create(tenant="acme", url=site.url())
    gone = UUID(int=7)
    holds = [
        (f"ping:{gone}", "webhook breaker: x"),
        (str(gone), "webhook breaker: x"),
        (f"{gone}:k", "webhook paused"),
    ]
    kept = [(str(made.id), "webhook breaker: x"), ("mine", "by hand"), (f"{gone}:by-hand", None)]
    for key, reason in holds + kept:
        kit.sql(
            "INSERT INTO holdfast.key_holds (queue, partition_key, until, trial, held_at, reason)"
            " VALUES ('webhooks', %s, 'infinity', true, now(), %s) RETURNING queue",
            [key, reason],
        )
    kit.run_worker()
    assert {(row["partition_key"], row["reason"]) for row in kit.sql(HOLDS)} == set(kept)


def test_an_endpoint_in_order_that_asks_to_wait_gets_nothing_of_any_key(
    app: Holdfast, kit: Kit, site: Site
) -> None:
    hooks = ready(app, kit, site, schedule=[1] * 40)
    made = hooks.endpoints.create(tenant="acme", url=site.url(), ordered=True, concurrency=1)
    site.answer = lambda _: reply(429, "retry-after: 600")
    for n in range(6):
        app.publish("order.paid", {"n": n}, key=f"k{n}", headers=ACME)
    kit.run_worker(concurrency=1)
    assert len(site.requests) == 1, "the others wait as it asked"
    site.answer = lambda _: OK
    kit.clock.advance(300)
    kit.run_worker()
    assert len(site.requests) == 1
    kit.clock.advance(301)
    kit.run_worker()
    kit.clock.advance(10)
    kit.run_worker()
    assert sorted(numbers(site, "/hooks")[1:]) == list(range(6))
    assert {one.status for one in hooks.deliveries(tenant="acme", endpoint=made.id)} == {"delivered"}


def test_an_endpoint_that_moved_waits_for_its_old_server_no_more(app: Holdfast, kit: Kit, site: Site) -> None:
    hooks = ready(app, kit, site, schedule=[1] * 40)
    made = hooks.endpoints.create(tenant="acme", url=site.url("/old"), ordered=True, concurrency=1)

    def answer(request: Request) -> bytes:
        if request.path == "/new":
            return OK
        hooks.endpoints.update(made.id, tenant="acme", url=site.url("/new"))
        return reply(429, "retry-after: 600")

    site.answer = answer
    for n in range(2):
        app.publish("order.paid", {"n": n}, key=f"k{n}", headers=ACME)
    kit.run_worker(concurrency=1)
    assert (len(site.of("/old")), len(site.of("/new"))) == (1, 1)
