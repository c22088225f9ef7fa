"""Webhooks on the dashboard: an endpoint with deliveries, what was sent, and what can be done."""

import asyncio
from collections.abc import Iterator

import pytest
from tests.web.surfing import Surfer, fields, made_for
from tests.webhooks.support import STEADY, Site, hooks_of

from holdfast import Holdfast
from holdfast.operate.operator import Operator
from holdfast.testing import Kit


@pytest.fixture
def tenant_site() -> Iterator[Site]:
    site = Site()
    site.reset()
    yield site
    site.end()


async def test_an_endpoint_its_deliveries_and_its_acts(app: Holdfast, kit: Kit, tenant_site: Site) -> None:
    kit.database.settings = STEADY
    hooks = hooks_of(app, tenant_site, schedule=[0.01])
    kit.create_queues()
    await asyncio.to_thread(kit.run_worker)
    url = f"{tenant_site.url()}?token=tok_of_theirs_only"  # as many addresses of chats have
    made = hooks.endpoints.create(tenant="acme", url=url, description="<b>theirs</b>")
    assert made.secret is not None
    app.publish("order.paid", {"n": 1}, headers={"tenant": "acme"})
    await asyncio.to_thread(kit.run_worker)
    dashboard = made_for(app)
    surfer = Surfer(dashboard)
    operator = Operator(kit.database, "test")
    assert tenant_site.url() in await surfer.page("/webhooks")
    text = await surfer.page(f"/webhooks/{made.id}")
    assert ("delivered" in text, "order.paid" in text, "<b>theirs" in text) == (True, True, False)
    assert made.secret.value not in text + await surfer.page(f"/api/v1/webhooks/{made.id}")
    (sent,) = hooks.deliveries(tenant="acme")
    assert "Attempts" in await surfer.page(f"/webhooks/deliveries/{sent.id}")
    for path in ("webhooks", f"webhooks/{made.id}", f"webhooks/deliveries/{sent.id}"):
        assert "tok_of_theirs" not in await surfer.page(f"/{path}") + await surfer.page(f"/api/v1/{path}")
    assert str(sent.id) not in await surfer.page(f"/webhooks/{made.id}?status=failed")
    before = len(hooks.deliveries(tenant="acme"))
    path = "/acts/webhook-redeliver-range"
    assert "0 events would be" in await surfer.look(f"{path}?endpoint={made.id}", begin="1h")
    text = await surfer.look(f"{path}?endpoint={made.id}", begin="1h", only="all")
    assert "1 event would be delivered once more" in text
    app.publish("order.paid", {"n": 2}, headers={"tenant": "acme"})  # after what was shown
    await asyncio.to_thread(kit.run_worker)
    there = len(hooks.deliveries(tenant="acme"))
    assert there == before + 1
    assert (await surfer.post(path, fields(text))).status_code == 303
    await asyncio.to_thread(kit.run_worker)
    assert len(hooks.deliveries(tenant="acme")) == there + 1, "what came after it was shown is not in it"
    assert operator.list_audit(limit=1).entries[0].actor == "mara"
    for begin in ("yesterday", "2026-05-01T00:00", "-3"):
        text = await surfer.look(f"{path}?endpoint={made.id}", begin=begin)
        assert "begin must be a position" in text
    assert (await surfer.confirm(f"/acts/webhook-ping?endpoint={made.id}")).status_code == 303
    assert (await surfer.confirm(f"/acts/webhook-redeliver?delivery={sent.id}")).status_code == 303
    csrf = (await surfer.page("/webhooks")).split('name="csrf" value="')[1].split('"')[0]
    for act, status in (("pause", "paused"), ("enable", "active")):
        form = {"endpoint": str(made.id), "csrf": csrf}
        assert (await surfer.post(f"/acts/webhook-{act}", form)).status_code == 303
        assert hooks.endpoints.get(made.id, tenant="acme").status == status
        assert operator.list_audit(limit=1).entries[0].actor == "mara"
    text = await surfer.page(f"/acts/webhook-disable?endpoint={made.id}")
    assert "2 deliveries cancelled" in text
    assert (await surfer.confirm(f"/acts/webhook-disable?endpoint={made.id}")).status_code == 303
    assert hooks.endpoints.get(made.id, tenant="acme").status == "disabled"
    await dashboard.site.close()
    await kit.database.aclose()
