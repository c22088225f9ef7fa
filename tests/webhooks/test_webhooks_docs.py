"""The pages are followed word by word: what a newcomer copies works."""

import asyncio
import re
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.webhooks.support import Site, verified

from holdfast import EventsGone
from holdfast.store.queues import create_queue
from holdfast.testing import Kit

DOCS = Path(__file__).resolve().parents[2] / "docs"


def page(name: str, kit: Kit, monkeypatch: pytest.MonkeyPatch, *changes: tuple[str, str]) -> dict[str, Any]:
    """What the python blocks of a page leave behind."""
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", kit.url)
    scope: dict[str, Any] = {"__name__": "docs"}
    text = (DOCS / name).read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    assert "<!-- skip" not in text
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, name, "exec"), scope)
    return scope


def work(app: Any) -> None:
    async def main() -> None:
        async with app:
            await app.run_worker(until_idle=True)

    asyncio.run(main())


def test_a_newcomer_follows_the_page_and_gets_the_event(
    kit: Kit, site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at_home = f'Egress(allow_http=True, allow_networks=["127.0.0.0/8"], ports=[{site.port}])'
    changes = [
        ("from holdfast import Holdfast\n", f"from holdfast import Egress, Holdfast\nat_home = {at_home}\n"),
        ('tenant="tenant")\n', 'tenant="tenant", egress=at_home)\n'),
    ]
    scope = page("webhooks.md", kit, monkeypatch, *changes)
    app = scope["app"]
    for name, rules in app.tasks.queue_rules().items():  # holdfast queue sync
        kit.database.run(partial(create_queue, name, rules=rules))
    work(app)
    secret = scope["register"]("acme", site.url())
    scope["pay"](9182, "acme")
    scope["pay"](1, "other")
    work(app)
    (request,) = site.requests
    assert request.data == {"order": 9182}
    assert verified(request, secret)
    scope["show"]("acme")
    assert capsys.readouterr().out == "", "nothing failed"
    app.close()


async def test_the_page_of_secrets_redelivery_and_portal(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    scope = page("webhooks-portal.md", kit, monkeypatch)
    app, hooks = scope["app"], scope["hooks"]
    made = hooks.endpoints.create(tenant="acme", url="https://acme.example/hooks")
    assert made.secret is not None
    assert len({made.secret.value, scope["rotate"](made.id), scope["leaked"](made.id)}) == 3
    assert len(kit.sql("SELECT FROM holdfast.webhook_secrets")) == 1, "the others leaked"
    for name, rules in app.tasks.queue_rules().items():
        kit.database.run(partial(create_queue, name, rules=rules))
    kit.sql(
        "INSERT INTO holdfast.webhook_deliveries (id, endpoint_id, tenant, event_id, event_type, url, status, created_at)"
        " VALUES (gen_random_uuid(), %s, 'acme', gen_random_uuid(), 'order.paid', 'https://acme.example/', 'failed', now())",
        [made.id],
    )
    (failed,) = hooks.deliveries(tenant="acme")
    with pytest.raises(EventsGone, match="no longer has the event"):  # it was never in the log
        scope["again"](made.id, failed.id, datetime.now(UTC))
    assert [one.cause for one in hooks.deliveries(tenant="acme", status="pending")] == ["ping"]
    transport = httpx.ASGITransport(app=scope["web"])
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        assert (await client.get("/webhooks/endpoints")).status_code == 401
        found = await client.get("/webhooks/endpoints", headers={"authorization": "token-of-acme"})
    assert [one["id"] for one in found.json()["data"]] == [str(made.id)]
    app.close()
