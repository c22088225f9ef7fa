"""Endpoints that fail for days, by the moved clock: reported, disabled, and tried with care when they are enabled."""

from typing import Any

import pytest
from tests.webhooks.support import OK, STEADY, Site, held, hooks_of, reply, state

from holdfast import ConfigurationError, Holdfast, Webhooks
from holdfast.testing import Kit

ACME = {"tenant": "acme"}
HOURLY = [3600] * 200


def ready(app: Holdfast, kit: Kit, site: Site, **options: Any) -> Webhooks:
    kit.database.settings = STEADY
    hooks = hooks_of(app, site, **options)
    kit.create_queues()
    kit.run_worker()
    return hooks


def publish(app: Holdfast, *numbers: int) -> None:
    app.publish_many(app.events.new("order.paid", {"n": n}, headers=ACME) for n in numbers)


def days(kit: Kit) -> list[int]:
    return [event.data["days"] for event in kit.published("holdfast.webhook.failing")]


def test_days_of_failure_are_reported_and_then_disable(app: Holdfast, kit: Kit, site: Site) -> None:
    hooks = ready(app, kit, site, schedule=HOURLY)
    made = hooks.endpoints.create(tenant="acme", url=site.url())
    site.answer = lambda _: reply(500)
    publish(app, 1, 2, 3)
    kit.run_worker()
    seen: list[tuple[list[int], str]] = []
    for hours in (23, 2, 46, 2, 46, 2):
        kit.clock.advance(hours * 3600)
        kit.run_worker()
        seen.append((days(kit), state(kit, made)["status"]))
    assert seen == [
        ([], "active"), ([1], "active"), ([1], "active"), ([1, 3], "active"), ([1, 3], "active"), ([1, 3], "disabled"),
    ]  # fmt: skip
    assert hooks.endpoints.get(made.id, tenant="acme").disabled_reason == "failing"
    event = kit.assert_published("holdfast.webhook.disabled", endpoint=str(made.id), reason="failing")
    assert event.headers == {"tenant": "acme"}
    assert {d.status for d in hooks.deliveries(tenant="acme")} == {"cancelled"}
    kit.clock.advance("2d")
    before = len(site.requests)
    kit.run_worker()
    assert len(site.requests) == before
    assert {job["status"] for job in kit.jobs("holdfast.webhook")} == {"cancelled"}


def test_one_poison_event_does_not_disable(app: Holdfast, kit: Kit, site: Site) -> None:
    hooks = ready(app, kit, site, schedule=HOURLY)
    alone = hooks.endpoints.create(tenant="acme", url=site.url("/alone"))
    busy = hooks.endpoints.create(tenant="acme", url=site.url("/busy"))
    site.answer = lambda request: reply(500) if request.path == "/alone" or request.data["n"] < 3 else OK
    publish(app, 0)
    for day in range(
        7
    ):  # /alone: the same delivery fails for days; /busy: three fail for days, and others do not
        kit.run_worker()
        if day == 0:
            hooks.endpoints.update(alone.id, tenant="acme", events=["none"])
            publish(app, 1, 2)
        publish(app, 10 + day)
        kit.run_worker()
        kit.clock.advance("1d")
    assert (state(kit, alone)["failed_deliveries"], state(kit, alone)["status"]) == (1, "active")
    assert state(kit, busy)["status"] == "active"
    assert days(kit) == [1, 3], "that of the one that does nothing but fail"


def test_enabling_tries_one_delivery_first(app: Holdfast, kit: Kit, site: Site) -> None:
    hooks = ready(app, kit, site)
    made = hooks.endpoints.create(tenant="acme", url=site.url(), concurrency=1)
    hooks.endpoints.update(made.id, tenant="acme", status="disabled")
    assert hooks.endpoints.get(made.id, tenant="acme").disabled_reason == "by hand"
    publish(app, 0)
    assert hooks.endpoints.update(made.id, tenant="acme", status="active").disabled_reason is None
    site.answer = lambda _: reply(500)
    publish(app, *range(1, 11))
    kit.run_worker(concurrency=1)
    assert len(site.requests) == 1, "one trial, and it failed"
    assert held(kit)[str(made.id)]["trial"]
    assert state(kit, made)["openings"] == 1
    hooks.endpoints.update(made.id, tenant="acme", status="disabled")
    assert held(kit) == {}
    with pytest.raises(ConfigurationError, match="was enabled less than 5 minutes ago"):
        hooks.endpoints.update(made.id, tenant="acme", status="active")
    assert hooks.endpoints.get(made.id, tenant="acme").status == "disabled"
    kit.clock.advance(4400)
    kit.run_worker()
    assert len(site.requests) == 1
    assert {d.status for d in hooks.deliveries(tenant="acme")} == {"cancelled"}
    hooks.endpoints.update(made.id, tenant="acme", status="active")
    site.answer = lambda _: OK
    publish(app, *range(20, 30))
    kit.run_worker(concurrency=1)
    assert sorted(request.data["n"] for request in site.requests[1:]) == list(range(20, 30))


def test_what_is_past_retention_goes(app: Holdfast, kit: Kit, site: Site) -> None:
    hooks = ready(app, kit, site, retention="2d", schedule=HOURLY)
    made = hooks.endpoints.create(tenant="acme", url=site.url())
    publish(app, 1)
    kit.run_worker()
    site.answer = lambda _: reply(500)
    publish(app, 2)
    kit.run_worker()
    count = """SELECT (SELECT count(*) FROM holdfast.webhook_deliveries) AS d,
                      (SELECT count(*) FROM holdfast.webhook_attempts) AS a"""
    assert kit.sql(count) == [{"d": 2, "a": 2}]
    kit.sql("SELECT holdfast.empty_webhook_slots(100)")
    assert kit.sql(count) == [{"d": 2, "a": 2}]
    kit.clock.advance("4d")
    kit.sql("SELECT holdfast.empty_webhook_slots(100)")
    assert kit.sql(count) == [{"d": 1, "a": 0}], "what is pending stays"
    kit.clock.advance("28d")  # the ring has come round: the day has old rows and new ones
    kit.run_worker()
    kit.sql("UPDATE holdfast.webhook_attempts SET at = at - interval '32 days'")
    kit.sql("SELECT holdfast.empty_webhook_slots(100)")
    assert kit.sql(count)[0]["a"] == 0
    hooks.endpoints.delete(made.id, tenant="acme")
    kit.clock.advance("1d")
    kit.run_worker()
    kit.clock.advance("4d")
    kit.sql("SELECT holdfast.empty_webhook_slots(100)")
    assert kit.sql(count)[0]["d"] == 0
    assert kit.sql("SELECT FROM holdfast.webhook_health") == []


@pytest.mark.parametrize("ordered", [False, True])
def test_a_delivery_gives_up_by_its_age(app: Holdfast, kit: Kit, site: Site, ordered: bool) -> None:
    """It spent one attempt of four, and waited for the rest of its time: its endpoint was held."""
    hooks = ready(app, kit, site)
    made = hooks.endpoints.create(tenant="acme", url=site.url(), ordered=ordered)
    site.answer = lambda _: reply(500)
    publish(app, 1)
    kit.run_worker()
    (delivery,) = hooks.deliveries(tenant="acme")
    assert delivery.status == "pending"
    hooks.endpoints.update(made.id, tenant="acme", status="paused")
    kit.clock.advance("2h")
    kit.run_worker()
    assert len(site.requests) == 1
    hooks.endpoints.update(made.id, tenant="acme", status="active")
    kit.clock.advance("2h")
    kit.run_worker()
    assert len(site.requests) == 2
    (delivery,) = hooks.deliveries(tenant="acme")
    assert (delivery.status, len(delivery.attempts)) == ("failed", 2)
    (job,) = kit.jobs("holdfast.webhook")
    assert (job["status"], job["attempts"], job["max_attempts"]) == ("dead_letter", 2, 4)


def test_a_success_is_noted_to_within_ten_seconds(app: Holdfast, kit: Kit, site: Site) -> None:
    hooks = ready(app, kit, site)
    made = hooks.endpoints.create(tenant="acme", url=site.url())
    seen = []
    for seconds in (0, 1, 11):
        kit.clock.advance(seconds)
        publish(app, seconds)
        kit.run_worker()
        seen.append(state(kit, made)["last_success_at"])
    assert len(site.requests) == 3
    assert seen[0] is not None
    assert seen[1] == seen[0], "it needs no write"
    assert (seen[2] - seen[0]).total_seconds() >= 11
