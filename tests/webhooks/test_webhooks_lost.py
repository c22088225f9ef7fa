"""Jobs that end without their handler: their deliveries end too, everywhere, and can be sent again."""

import asyncio
import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tests.conftest import QUICK, wait_until
from tests.crash.process import Scene, WorkerProcess
from tests.surface.running import Cli
from tests.webhooks.support import OK, STEADY, Site, hooks_of, reply, state
from tests.webhooks.test_portal import WIDE, Client, authorize
from tests.webhooks.webhooks_app import app as killed_app

from holdfast import Delivery, Holdfast, Webhooks
from holdfast.shapes.webhooks import service
from holdfast.shapes.webhooks.endpoints import Endpoints
from holdfast.shapes.webhooks.spec import Spec
from holdfast.testing import Kit

ACME = {"tenant": "acme"}
LOOK = 2 * service.EVERY


@pytest.fixture
def cli(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(kit.url, monkeypatch)


def ready(app: Holdfast, kit: Kit, site: Site, **options: Any) -> Webhooks:
    kit.database.settings = STEADY
    hooks = hooks_of(app, site, **options)
    kit.create_queues()
    kit.run_worker()
    return hooks


def one_waits(app: Holdfast, kit: Kit, site: Site, hooks: Webhooks, *, ordered: bool = False) -> Delivery:
    """A delivery that has failed once, and whose next attempt is an hour away."""
    site.answer = lambda _: reply(500)
    hooks.endpoints.create(tenant="acme", url=site.url(), ordered=ordered)
    app.publish("order.paid", {"n": 1}, key="k", headers=ACME)
    kit.run_worker()
    (found,) = hooks.deliveries(tenant="acme")
    assert (found.status, found.attempts[0].status) == ("pending", 500)
    return found


def seen(hooks: Webhooks, cli: Cli, delivery: UUID) -> set[tuple[str, str | None]]:
    """Its status and reason as Python, the portal and the command line have them: one, where they agree."""
    (listed,) = [one for one in hooks.deliveries(tenant="acme") if one.id == delivery]
    found = asyncio.run(_asked(hooks, delivery))
    shown = cli.json("webhook", "delivery", str(delivery))
    return {(listed.status, listed.reason), found, (shown["status"], shown["reason"])}


async def _asked(hooks: Webhooks, delivery: UUID) -> tuple[str, str | None]:
    portal = Client(hooks.portal(authorize, limits=WIDE))
    try:
        body = (await portal("GET", f"/deliveries/{delivery}")).json()
    finally:
        await hooks._database().aclose()
    return body["status"], body["reason"]


def stored(kit: Kit, delivery: UUID) -> tuple[str, str | None, bool]:
    (row,) = kit.sql("SELECT * FROM holdfast.webhook_deliveries WHERE id = %s", [delivery])
    return row["status"], row["reason"], row["settled_at"] is not None


def cancel(cli: Cli, kit: Kit, job: str) -> None:
    cli.text("jobs", "cancel", job, "--yes")


def discard(cli: Cli, kit: Kit, job: str) -> None:
    cli.text("jobs", "discard", job, "--yes")


def refuse(cli: Cli, kit: Kit, job: str) -> None:
    """Its payload fits no signature: it is set aside, and buried later."""
    assert cli("jobs", "edit", job, "other=1").code == 0
    cli.text("jobs", "retry", job, "--yes")
    kit.run_worker()
    kit.clock.advance(3600)

    def buried() -> bool:
        kit.run_worker()
        return bool(kit.sql("SELECT FROM holdfast.dead_letters"))

    wait_until(buried, "it is buried")


WAYS: dict[str, tuple[Callable[[Cli, Kit, str], None], str, str]] = {
    "cancelled": (cancel, "cancelled", "its job was cancelled"),
    "discarded": (discard, "cancelled", "its job was discarded"),
    "refused": (refuse, "failed", "its job was given up: "),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ordered", [False, True], ids=["plain", "ordered"])
def test_a_delivery_ends_with_its_job_and_is_sent_again(
    app: Holdfast, kit: Kit, site: Site, cli: Cli, way: str, ordered: bool
) -> None:
    hooks = ready(app, kit, site)
    kit.database.settings = dataclasses.replace(STEADY, misfit_wait=0.3)
    lost = one_waits(app, kit, site, hooks, ordered=ordered)
    end, status, reason = WAYS[way]
    end(cli, kit, str(lost.id))
    ((shown, why),) = seen(hooks, cli, lost.id)
    assert shown == status
    assert why is not None
    assert why.startswith(reason)
    assert hooks.deliveries(tenant="acme", status="pending") == []
    site.answer = lambda _: OK
    again = hooks.redeliver(lost.id, tenant="acme")
    assert again.id != lost.id
    kit.clock.advance(LOOK)
    kit.run_worker()
    kit.clock.advance(LOOK)
    kit.run_worker()
    assert stored(kit, lost.id) == (status, why, True)
    assert [one.id for one in hooks.deliveries(tenant="acme", status="delivered")] == [again.id]
    assert [r.headers["webhook-id"] for r in site.requests] == [str(lost.event_id)] * 2


@pytest.mark.parametrize("policy", ["park", "block"])
def test_a_delivery_whose_code_fails_to_the_end_has_failed(
    app: Holdfast, kit: Kit, site: Site, cli: Cli, policy: str
) -> None:
    def broken(_: Any) -> Any:
        """An operator changes the queue while the worker runs."""
        cli.text("queue", "set", "webhooks_ordered", "--on-dead-letter", policy)
        raise RuntimeError("no body for this one")

    hooks = ready(app, kit, site, schedule=[0.01], payload=broken)
    hooks.endpoints.create(tenant="acme", url=site.url(), ordered=True)
    app.publish("order.paid", {"n": 1}, key="k", headers=ACME)
    kit.run_worker()
    (found,) = hooks.deliveries(tenant="acme")
    gone = ("failed", "its job was given up: RuntimeError: no body for this one")
    assert seen(hooks, cli, found.id) == {gone}
    if policy == "block":
        cli.text("keys", "release", "webhooks_ordered", "--all", "--skip", "--yes")
        assert seen(hooks, cli, found.id) == {gone}
        cli.text("queue", "set", "webhooks_ordered", "--on-dead-letter", "park")
    kit.clock.advance(LOOK)
    kit.run_worker()
    assert stored(kit, found.id) == (*gone, True)


@pytest.mark.parametrize("verb", ["cancel", "discard"])
def test_a_ping_ends_with_its_job(app: Holdfast, kit: Kit, site: Site, cli: Cli, verb: str) -> None:
    hooks = ready(app, kit, site)
    made = hooks.endpoints.create(tenant="acme", url=site.url())
    sent = hooks.ping(made.id, tenant="acme")
    cli.text("jobs", verb, str(sent.id), "--yes")
    kit.clock.advance(LOOK)
    kit.run_worker()
    assert stored(kit, sent.id) == ("cancelled", f"its job was {verb}{'l' * (verb == 'cancel')}ed", True)
    assert site.requests == []


def test_a_range_takes_what_was_lost(app: Holdfast, kit: Kit, site: Site, cli: Cli) -> None:
    hooks = ready(app, kit, site)
    made = hooks.endpoints.create(tenant="acme", url=site.url())
    site.answer = lambda _: reply(500)
    for n in range(3):
        app.publish("order.paid", {"n": n}, headers=ACME)
    kit.run_worker()
    lost, kept, _ = hooks.deliveries(tenant="acme")
    cli.text("jobs", "discard", str(lost.id), "--yes")
    site.answer = lambda _: OK
    assert hooks.redeliver_range(made.id, tenant="acme", since=0, only="failed") == 1
    kit.run_worker()
    (again,) = hooks.deliveries(tenant="acme", status="delivered")
    assert again.event_id == lost.event_id
    assert stored(kit, kept.id)[0] == "pending"


@pytest.mark.parametrize("looked", [True, False])
@pytest.mark.parametrize("how", ["cancelled", "given up"])
def test_a_job_that_is_put_back_takes_its_delivery_along(
    app: Holdfast, kit: Kit, site: Site, cli: Cli, how: str, looked: bool
) -> None:
    hooks = ready(app, kit, site, schedule=[3600])
    lost = one_waits(app, kit, site, hooks)
    if how == "cancelled":
        cli.text("jobs", "cancel", str(lost.id), "--yes")
    else:
        kit.clock.advance(3600 * 1.3)
        kit.run_worker()
        assert stored(kit, lost.id) == ("failed", "HTTP 500", True)
    if looked:
        kit.clock.advance(LOOK)
        kit.run_worker()
        assert stored(kit, lost.id)[2]
    cli.text("jobs", "retry", str(lost.id), "--yes")
    sent = len(site.requests)
    kit.run_worker()
    assert len(site.requests) == sent + 1
    assert seen(hooks, cli, lost.id) == {("pending", None)}, "and its next attempt fails as any does"
    site.answer = lambda _: OK
    kit.clock.advance(3600 * 1.3)
    kit.run_worker()
    assert stored(kit, lost.id) == ("delivered", None, True)


def test_what_was_cancelled_with_its_endpoint_stays_so(app: Holdfast, kit: Kit, site: Site) -> None:
    """Its job did not end at once, and the endpoint is back before it is claimed."""
    hooks = ready(app, kit, site)
    lost = one_waits(app, kit, site, hooks)
    kit.sql("SELECT holdfast.webhook_disable(%s, 'gone')", [lost.endpoint_id])
    hooks.endpoints.update(lost.endpoint_id, tenant="acme", status="active")
    sent = len(site.requests)
    kit.run_worker()
    assert len(site.requests) == sent
    assert stored(kit, lost.id) == ("cancelled", "endpoint disabled: gone", True)


def test_a_trial_whose_job_is_gone_is_followed_by_another(
    app: Holdfast, kit: Kit, site: Site, cli: Cli
) -> None:
    hooks = ready(app, kit, site, schedule=[*[1] * 20, "5d"])
    made = hooks.endpoints.create(tenant="acme", url=site.url(), ordered=True)
    site.answer = lambda _: reply(500)
    for n in range(6):
        app.publish("order.paid", {"n": n}, key=f"k{n}", headers=ACME)
    kit.run_worker(concurrency=1)
    trial = hooks.deliveries(tenant="acme")[-1]
    kit.sql(
        "UPDATE holdfast.webhook_health SET trial_id = %s, open_until = holdfast.now() + interval '5 minutes'",
        [trial.id],
    )
    cli.text("jobs", "discard", str(trial.id), "--yes")
    site.answer = lambda _: OK
    kit.clock.advance(LOOK)
    kit.run_worker()
    assert state(kit, made)["trial_id"] != trial.id, "nobody waits for it"
    for _ in range(4):
        kit.clock.advance(130)
        kit.run_worker()
    assert stored(kit, trial.id) == ("cancelled", "its job was discarded", True)
    assert len(hooks.deliveries(tenant="acme", status="delivered")) == 5


def over(kit: Kit, process: WorkerProcess) -> bool:
    return not process.is_running or bool(kit.sql("SELECT FROM holdfast.dead_letters"))


def test_a_delivery_whose_workers_die_has_failed_with_every_attempt(
    holdfast_kit: Callable[..., Kit], site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = holdfast_kit(killed_app, QUICK)
    scene = Scene(kit, tmp_path)
    env = {"HOOKS_PORT": str(site.port)}
    try:
        Endpoints(Spec(egress=site.egress), lambda: kit.database).create(tenant="acme", url=site.url())
        scene.start(ready=False, module="tests.webhooks.webhooks_app", env=env)
        wait_until(lambda: bool(kit.sql("SELECT FROM holdfast.subscriptions")), "the worker has begun")
        scene.end()
        killed_app.publish("order.paid", {"n": 1}, headers=ACME)
        while not kit.sql("SELECT FROM holdfast.dead_letters"):
            dying = scene.start(
                failpoints="webhooks.sent=kill", ready=False, module="tests.webhooks.webhooks_app", env=env
            )
            wait_until(functools.partial(over, kit, dying), "it died, or its job is buried")
        scene.end()
        kit.clock.advance(LOOK)
        scene.start(ready=False, module="tests.webhooks.webhooks_app", env=env)
        wait_until(
            lambda: kit.sql("SELECT status FROM holdfast.webhook_deliveries") == [{"status": "failed"}],
            "its delivery has failed",
        )
    finally:
        scene.end()
    (row,) = kit.sql("SELECT * FROM holdfast.webhook_deliveries")
    assert row["reason"].startswith("its job was given up: ")
    (dead,) = kit.sql("SELECT * FROM holdfast.dead_letters")
    tried = kit.sql("SELECT n, error FROM holdfast.webhook_attempts ORDER BY n")
    assert [(one["n"], one["error"]) for one in tried] == [
        (n, "unknown") for n in range(1, dead["crashes"] + 1)
    ]
    assert len(site.requests) == dead["crashes"] == row["attempts"]


def test_one_worker_looks_and_the_next_goes_on_where_it_stopped(
    app: Holdfast, kit: Kit, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MOST_DELIVERIES", 2)
    hooks = ready(app, kit, site)
    hooks.endpoints.create(tenant="acme", url=site.url())
    site.answer = lambda _: reply(500)
    for n in range(5):
        app.publish("order.paid", {"n": n}, headers=ACME)
    kit.run_worker()
    kit.sql(  # but for those that a look meets first
        """DELETE FROM holdfast.work WHERE queue = 'webhooks' AND id NOT IN (
               SELECT id FROM holdfast.webhook_deliveries ORDER BY endpoint_id, created_at, id LIMIT 2)"""
    )

    def look() -> int:
        kit.run_worker()
        return len(kit.sql("SELECT FROM holdfast.webhook_deliveries WHERE status = 'pending'"))

    left = []
    for _ in range(4):
        kit.clock.advance(LOOK)
        left += [look(), look()]
    assert left == [5, 5, 3, 3, 2, 2, 2, 2], "two at a time, and one look for all"


@pytest.mark.parametrize("ranged", [False, True], ids=["one", "range"])
def test_a_redelivery_of_what_a_key_is_parked_for_takes_its_place(
    app: Holdfast, kit: Kit, site: Site, ranged: bool
) -> None:
    hooks = ready(app, kit, site, schedule=[0.01])
    made = hooks.endpoints.create(tenant="acme", url=site.url(), ordered=True)
    site.answer = lambda _: reply(500)
    for n in range(3):
        app.publish("order.paid", {"n": n}, key="k", headers=ACME)
    kit.run_worker()
    (failed,) = hooks.deliveries(tenant="acme", status="failed")
    site.reset()
    kit.run_worker()
    assert site.requests == [], "the key waits for what failed"
    later = hooks.deliveries(tenant="acme", status="pending")[0]
    if ranged:
        assert hooks.redeliver_range(made.id, tenant="acme", since=0) == 1
    else:
        hooks.redeliver(failed.id, tenant="acme")
    kit.run_worker()
    assert [request.data["n"] for request in site.requests] == [0, 1, 2]
    assert later.id in {one.id for one in hooks.deliveries(tenant="acme", status="delivered")}
