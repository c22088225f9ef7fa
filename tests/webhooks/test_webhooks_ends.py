"""What ends at once and what is tried alone: endpoints that are turned off, the trial of one in order, pings."""

from typing import Any

import pytest
from tests.webhooks.support import OK, STEADY, Request, Site, hooks_of, reply, state
from tests.webhooks.test_portal import WIDE, Client, authorize, said

from holdfast import Holdfast, UnknownQueue, Webhooks
from holdfast.shapes.webhooks import deliver
from holdfast.testing import Kit

ACME = {"tenant": "acme"}


def ready(app: Holdfast, kit: Kit, site: Site, **options: Any) -> Webhooks:
    kit.database.settings = STEADY
    hooks = hooks_of(app, site, **options)
    kit.create_queues()
    kit.run_worker()
    return hooks


def publish(app: Holdfast, count: int, keys: int = 1) -> None:
    app.publish_many(
        app.events.new("order.paid", {"n": n, "k": f"k{n % keys}"}, key=f"k{n % keys}", headers=ACME)
        for n in range(count)
    )


@pytest.mark.parametrize("how", ["disable", "delete", "410"])
@pytest.mark.parametrize("ordered", [False, True])
def test_what_waits_for_an_endpoint_that_is_turned_off_ends_at_once(
    app: Holdfast, kit: Kit, site: Site, how: str, ordered: bool
) -> None:
    hooks = ready(app, kit, site)
    made = hooks.endpoints.create(tenant="acme", url=site.url("/off"), ordered=ordered)
    other = hooks.endpoints.create(tenant="acme", url=site.url("/on"), ordered=ordered)
    site.answer = lambda _: reply(500)
    publish(app, 3, keys=2)
    kit.run_worker()
    waiting = kit.sql("SELECT count(*) AS n FROM holdfast.work WHERE available_at > holdfast.now()")
    assert waiting[0]["n"] >= 2, "their next attempt is hours away"
    if how == "disable":
        hooks.endpoints.update(made.id, tenant="acme", status="disabled")
    elif how == "delete":
        hooks.endpoints.delete(made.id, tenant="acme")
    else:
        site.answer = lambda request: reply(410) if request.path == "/off" else reply(500)
        app.publish("order.paid", {"n": 9}, key="new", headers=ACME)
    sent = len(site.of("/off"))
    kit.run_worker()
    kit.run_worker()
    assert len(site.of("/off")) == sent + (how == "410")
    found = hooks.deliveries(tenant="acme", endpoint=made.id)
    assert {one.status for one in found} <= {"cancelled", "failed"}
    assert len([one for one in found if one.status == "cancelled"]) == 3
    left = kit.sql("SELECT DISTINCT payload->>'endpoint' AS e FROM holdfast.work")
    assert [row["e"] for row in left] == [str(other.id)], "and the other one waits as before"


def test_an_endpoint_in_order_gets_one_trial_whatever_waits(app: Holdfast, kit: Kit, site: Site) -> None:
    hooks = ready(app, kit, site, schedule=[*[1] * 20, "5d"])
    made = hooks.endpoints.create(tenant="acme", url=site.url(), ordered=True, concurrency=1)
    site.answer = lambda _: reply(500)
    publish(app, 24, keys=12)
    kit.run_worker(concurrency=1)
    before = len(site.requests)
    assert before >= 5
    assert state(kit, made)["openings"] == 1
    for openings, seconds in ((2, 31), (3, 61)):
        kit.clock.advance(seconds)
        kit.run_worker(concurrency=8)
        assert len(site.requests) == before + openings - 1, "one trial, however many keys wait"
        assert state(kit, made)["openings"] == openings
    taken: list[tuple[str, int]] = []

    def answer(request: Request) -> bytes:
        taken.append((request.data["k"], request.data["n"]))
        return OK

    site.answer = answer
    for _ in range(4):
        kit.clock.advance(130)
        kit.run_worker(
            concurrency=1
        )  # one request at a time: no key waits because the endpoint has as many as it may
    assert sorted(n for _, n in taken) == list(range(24))
    for key in range(12):
        assert [n for k, n in taken if k == f"k{key}"] == [key, key + 12]
    assert {one.status for one in hooks.deliveries(tenant="acme")} == {"delivered"}
    assert (state(kit, made)["openings"], state(kit, made)["trial_id"]) == (0, None)


def test_a_trial_that_comes_to_nothing_is_followed_by_another(app: Holdfast, kit: Kit, site: Site) -> None:
    hooks = ready(app, kit, site, schedule=[*[1] * 20, "5d"])
    made = hooks.endpoints.create(tenant="acme", url=site.url(), ordered=True)
    site.answer = lambda _: reply(500)
    publish(app, 6, keys=6)
    kit.run_worker(concurrency=1)
    assert state(kit, made)["openings"] == 1
    site.answer = lambda _: OK
    kit.sql("UPDATE holdfast.events SET data = NULL WHERE data->>'n' = '0'")  # the first that is due
    for _ in range(4):
        kit.clock.advance(400)
        kit.run_worker()
    assert [one.status for one in reversed(hooks.deliveries(tenant="acme"))] == [
        "cancelled",
        *["delivered"] * 5,
    ]


def test_an_endpoint_in_order_that_is_enabled_again_is_tried_with_one_delivery(
    app: Holdfast, kit: Kit, site: Site
) -> None:
    hooks = ready(app, kit, site)
    made = hooks.endpoints.create(tenant="acme", url=site.url(), ordered=True, concurrency=1)
    hooks.endpoints.update(made.id, tenant="acme", status="disabled")
    hooks.endpoints.update(made.id, tenant="acme", status="active")
    site.answer = lambda _: reply(500)
    publish(app, 6, keys=6)
    kit.run_worker(concurrency=4)
    assert len(site.requests) == 1


def test_a_place_that_is_let_go_is_taken_at_once(
    app: Holdfast, kit: Kit, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody goes back to the queue for a while, which would be far too long here."""
    monkeypatch.setattr(deliver, "BUSY", 1000.0)
    hooks = ready(app, kit, site)
    hooks.endpoints.create(tenant="acme", url=site.url(), ordered=True, concurrency=1)
    kit.run_worker()
    publish(app, 6, keys=6)
    kit.run_worker(concurrency=4)
    assert (len(site.requests), site.most_at_once) == (6, 1)
    assert kit.sql("SELECT max(lease_generation) AS claims FROM holdfast.archive") == [{"claims": 1}]


async def test_a_ping_before_the_queues_are_made_says_what_to_do(
    app: Holdfast, akit: Kit, site: Site
) -> None:
    hooks = hooks_of(app, site)
    made = await hooks.endpoints.acreate(tenant="acme", url=site.url())
    with pytest.raises(UnknownQueue, match="holdfast queue sync"):
        await hooks.aping(made.id, tenant="acme")
    assert akit.sql("SELECT FROM holdfast.webhook_deliveries") == []
    found = await Client(hooks.portal(authorize, limits=WIDE))("POST", f"/endpoints/{made.id}/ping")
    assert (found.status_code, said(found)) == (503, "unavailable")
