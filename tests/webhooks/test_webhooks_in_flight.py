"""What happens while a request is under way: changes of its endpoint, other transactions, crashes of the fan-out."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Literal

import pytest
from tests.conftest import await_until, wait_until
from tests.flow.test_run import working
from tests.webhooks.support import OK, STEADY, Request, Site, hooks_of, reply, state, verified

from holdfast import Holdfast, Rate, Webhooks, failpoints
from holdfast.runtime.slots import Slots
from holdfast.shapes.webhooks import deliver
from holdfast.testing import Kit

ACME = {"tenant": "acme"}


class Gate:
    """Requests wait here until the test lets them go on."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()
        self.reply = OK  # to the first request
        self.replies = 0

    async def __call__(self, request: Request) -> bytes:
        self.reached.set()
        while not self.open.is_set():  # noqa: ASYNC110 it is set in another thread
            await asyncio.sleep(0.01)
        self.replies += 1
        return self.reply if self.replies == 1 else OK


async def ready(app: Holdfast, kit: Kit, site: Site, **options: Any) -> Webhooks:
    kit.database.settings = STEADY
    hooks = hooks_of(app, site, **options)
    kit.create_queues()
    return hooks


async def test_an_endpoint_that_is_changed_while_a_request_is_under_way(
    app: Holdfast, akit: Kit, site: Site
) -> None:
    hooks = await ready(app, akit, site, schedule=[0.05])
    acts: dict[str, Callable[[Any], Any]] = {
        "paused": lambda e: hooks.endpoints.update(e.id, tenant="acme", status="paused"),
        "moved": lambda e: hooks.endpoints.update(e.id, tenant="acme", url=site.url("/moved-to")),
        "rotated": lambda e: secrets.append(hooks.endpoints.rotate(e.id, tenant="acme", overlap=0).value),
        "disabled": lambda e: hooks.endpoints.update(e.id, tenant="acme", status="disabled"),
        "deleted": lambda e: hooks.endpoints.delete(e.id, tenant="acme"),
    }
    secrets: list[str] = []
    gates = {f"/{name}": Gate() for name in acts}
    site.answer = lambda request: gates[request.path](request) if request.path in gates else OK
    made = {name: hooks.endpoints.create(tenant="acme", url=site.url(f"/{name}")) for name in acts}
    for name in ("moved", "rotated", "deleted"):
        gates[f"/{name}"].reply = reply(500)
    async with working(akit):
        await await_until(lambda: akit.sql("SELECT 1 FROM holdfast.subscriptions"), "the follower is known")
        await app.apublish("order.paid", {"n": 1}, headers=ACME)
        for name, act in acts.items():
            await await_until(gates[f"/{name}"].reached.is_set, f"{name} has its request")
            await asyncio.to_thread(act, made[name])
        for gate in gates.values():
            gate.open.set()

        def statuses() -> dict[str, str]:
            found = {d.endpoint_id: d.status for d in hooks.deliveries(tenant="acme")}
            return {name: found[endpoint.id] for name, endpoint in made.items()}

        expected = {
            "paused": "delivered",
            "moved": "delivered",
            "rotated": "delivered",
            "disabled": "delivered",
            "deleted": "cancelled",
        }
        await await_until(lambda: statuses() == expected, "each has its end")
    assert len(site.of("/moved-to")) == 1, "the next attempt goes where the endpoint is now"
    assert len(site.of("/deleted")) == 1, "and to one that is gone there is none"
    assert verified(site.of("/rotated")[-1], secrets[0]), "the next attempt is signed by the new secret"


async def test_an_endpoint_that_is_paused_while_its_delivery_waits_for_a_slot_gets_no_request(
    app: Holdfast, akit: Kit, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = await ready(app, akit, site)
    made = hooks.endpoints.create(tenant="acme", url=site.url())
    unrest = Slots.unrest
    status: Literal["active", "paused"] = "paused"

    async def late(self: Slots) -> None:
        await asyncio.to_thread(hooks.endpoints.update, made.id, tenant="acme", status=status)
        await unrest(self)

    monkeypatch.setattr(deliver, "STALE", 0.0)
    monkeypatch.setattr(Slots, "unrest", late)
    async with working(akit):
        await await_until(lambda: akit.sql("SELECT 1 FROM holdfast.subscriptions"), "the follower is known")
        await app.apublish("order.paid", {"n": 1}, headers=ACME)
        held = "SELECT reason FROM holdfast.key_holds"
        await await_until(lambda: akit.sql(held) == [{"reason": "webhook paused"}], "it was read again")
        assert site.requests == []
        status = "active"
        await asyncio.to_thread(hooks.endpoints.update, made.id, tenant="acme", status=status)
        await await_until(lambda: len(site.requests) == 1, "and is sent when it may be")


async def test_a_delivery_that_waited_for_its_slot_spends_one_token_of_its_endpoint(
    app: Holdfast, akit: Kit, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is begun twice, of an endpoint in order as well. One that found no token has none to give back."""
    hooks = await ready(app, akit, site)
    for n, ordered in enumerate((False, True)):
        rate = Rate(6, per="1d", burst=6)
        hooks.endpoints.create(tenant="acme", url=site.url(f"/{n}"), rate=rate, ordered=ordered)
    monkeypatch.setattr(deliver, "STALE", -1.0)
    async with working(akit):
        await await_until(lambda: akit.sql("SELECT 1 FROM holdfast.subscriptions"), "the follower is known")
        for n in range(8):
            await app.apublish("order.paid", {"n": n}, key=f"k{n}", headers=ACME)
        held = "SELECT count(DISTINCT queue) AS n FROM holdfast.key_holds WHERE reason LIKE 'webhook rate%'"
        await await_until(lambda: akit.sql(held)[0]["n"] == 2, "no token is left")
        sent = "SELECT FROM holdfast.webhook_deliveries WHERE status = 'delivered'"
        await await_until(lambda: len(akit.sql(sent)) == 12, "each token was a request")
    assert [len(site.of(path)) for path in ("/0", "/1")] == [6, 6]


def test_a_settle_does_not_wait_for_a_transaction_of_the_user(app: Holdfast, kit: Kit, site: Site) -> None:
    kit.database.settings = STEADY
    hooks = hooks_of(app, site)
    kit.create_queues()
    made = hooks.endpoints.create(tenant="acme", url=site.url("/open"))
    other = hooks.endpoints.create(tenant="acme", url=site.url("/other"))
    kit.run_worker()
    site.answer = lambda request: reply(410) if request.path == "/open" else OK
    with kit.connect() as conn:
        hooks.endpoints.update(made.id, tenant="acme", description="not committed", conn=conn)
        app.publish("order.paid", {"n": 1}, headers=ACME)
        kit.run_worker()
        assert {d.status for d in hooks.deliveries(tenant="acme")} == {"delivered", "failed"}
        assert hooks.endpoints.get(made.id, tenant="acme").status == "active"
    app.publish("order.paid", {"n": 2}, headers=ACME)
    kit.run_worker()
    assert hooks.endpoints.get(made.id, tenant="acme").status == "disabled", "the next failure does it"
    assert state(kit, other)["status"] == "active"


@pytest.mark.parametrize("hop", ["webhooks.advanced", "webhooks.written", "webhooks.done"])
def test_each_endpoint_gets_one_delivery_of_an_event_whatever_dies(
    app: Holdfast, kit: Kit, site: Site, hop: str
) -> None:
    kit.database.settings = STEADY
    hooks = hooks_of(app, site)
    kit.create_queues()
    for n in range(3):
        hooks.endpoints.create(tenant="acme", url=site.url(f"/{n}"), ordered=n == 2)
    kit.run_worker()
    failed: list[int] = []

    def fail() -> None:
        if len(failed) < 2:
            failed.append(1)
            raise RuntimeError(hop)

    failpoints.arm(hop, fail)
    app.publish_many(app.events.new("order.paid", {"n": n}, key="k", headers=ACME) for n in range(5))

    def all_delivered() -> bool:
        kit.run_worker()
        return len(site.requests) >= 15

    wait_until(all_delivered, "all are delivered")
    assert failed, "it died there"
    found = sorted((request.path, request.data["n"]) for request in site.requests)
    assert found == [(f"/{path}", n) for path in range(3) for n in range(5)]
    hooks.subscription.reset("start", again=True)  # and reading the log again makes none twice
    kit.run_worker()
    assert len(site.requests) == 15
    assert kit.sql("SELECT count(*) FROM holdfast.webhook_deliveries") == [{"count": 15}]


def test_both_secrets_sign_during_a_rotation(app: Holdfast, kit: Kit, site: Site) -> None:
    kit.database.settings = STEADY
    hooks = hooks_of(app, site)
    kit.create_queues()
    made = hooks.endpoints.create(tenant="acme", url=site.url(), headers={"authorization": "Bearer token"})
    asymmetric = hooks.endpoints.create(tenant="acme", url=site.url("/v1a"), scheme="v1a")
    kit.run_worker()
    assert made.secret is not None
    assert asymmetric.secret is not None
    assert asymmetric.secret.value.startswith("whpk_")
    new = hooks.endpoints.rotate(made.id, tenant="acme", overlap="1h")
    app.publish("order.paid", {"n": 1}, headers=ACME)
    kit.run_worker()
    (request,) = site.of("/hooks")
    for secret in (new.value, made.secret.value):
        assert verified(request, secret)
    assert request.headers["webhook-signature"].count("v1,") == 2
    assert request.headers["authorization"] == "Bearer token"
    assert verified(site.of("/v1a")[0], asymmetric.secret.value)
    rows = kit.sql("SELECT request_head::text AS head FROM holdfast.webhook_attempts")
    assert not [row for row in rows if "token" in row["head"]], "what users send along is not kept"
