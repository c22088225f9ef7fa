"""The portal: what each tenant sees and may do, its limits, its idempotency keys, and its mounts."""

import asyncio
import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

import httpx
import litestar
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount
from tests.django_app.setting_up import set_up
from tests.webhooks.support import STEADY, Site, hooks_of, reply, verified

from holdfast import Holdfast, PortalLimits, Rate, Webhooks
from holdfast.testing import Kit

WIDE = PortalLimits(writes=6000)


async def authorize(scope: Any) -> str | None:
    headers = dict(scope["headers"])
    if b"boom" in headers:
        raise RuntimeError("boom: secret-of-ours")
    found = headers.get(b"x-tenant")
    return None if found is None else found.decode()


class Client:
    """One tenant's."""

    def __init__(self, app: Any, tenant: str | None = "acme", prefix: str = "") -> None:
        headers = {} if tenant is None else {"x-tenant": tenant}
        transport = httpx.ASGITransport(app=app)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://shop", headers=headers)
        self._prefix = prefix

    async def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if isinstance(body, bytes):
            sent = {"content-type": "application/json", **sent}
            return await self._client.request(method, self._prefix + path, content=body, headers=sent)
        return await self._client.request(method, self._prefix + path, json=body, headers=sent)


@pytest.fixture
async def hooks(app: Holdfast, akit: Kit, site: Site) -> Webhooks:
    akit.database.settings = STEADY
    made = hooks_of(app, site, schedule=[0.01])
    await asyncio.to_thread(akit.create_queues)
    await asyncio.to_thread(akit.run_worker)
    return made


def work(kit: Kit) -> Any:
    return asyncio.to_thread(kit.run_worker)


def said(found: httpx.Response) -> str:
    code: str = found.json()["error"]["code"]
    return code


def said_of(found: httpx.Response) -> str:
    text: str = found.json()["error"]["message"]
    return text


async def test_null_takes_away_what_an_endpoint_may_do_without(
    app: Holdfast, akit: Kit, site: Site, hooks: Webhooks
) -> None:
    ask = Client(hooks.portal(authorize, limits=WIDE))
    spec = {
        "url": site.url(),
        "rate": {"count": 5},
        "headers": {"x-a": "tok"},
        "description": "of ours",
    }
    endpoint = (await ask("POST", "/endpoints", spec)).json()["id"]
    found = await ask("PATCH", f"/endpoints/{endpoint}", {"rate": None, "headers": None, "description": None})
    assert (found.status_code, found.json()["rate"], found.json()["description"]) == (200, None, "")
    await ask("POST", f"/endpoints/{endpoint}/ping")
    await work(akit)
    (request,) = site.requests
    assert "x-a" not in request.headers
    again = await hooks.endpoints.aupdate(UUID(endpoint), tenant="acme", rate=Rate(7))
    assert again.rate is not None
    assert (await hooks.endpoints.aupdate(UUID(endpoint), tenant="acme", description="x")).rate == again.rate
    assert (await hooks.endpoints.aupdate(UUID(endpoint), tenant="acme", rate="none")).rate is None


async def test_a_tenant_makes_looks_at_changes_and_removes_its_endpoints(
    app: Holdfast, akit: Kit, site: Site, hooks: Webhooks
) -> None:
    ask = Client(hooks.portal(authorize, limits=WIDE))
    made = await ask(
        "POST", "/endpoints", {"url": site.url(), "events": ["order.*"], "headers": {"x-a": "tok"}}
    )
    assert made.status_code == 201, made.text
    assert made.headers["cache-control"] == "no-store"
    whole = made.json()
    secret = whole.pop("secret")
    assert secret["value"].startswith("whsec_")
    found = await ask("GET", f"/endpoints/{whole['id']}")
    assert (found.status_code, found.json()) == (200, whole)
    assert (await ask("GET", "/endpoints")).json() == {"data": [whole], "next": None}
    changed = await ask(
        "PATCH", f"/endpoints/{whole['id']}", {"status": "paused", "rate": {"count": 5, "per": 1}}
    )
    assert (changed.json()["status"], changed.json()["rate"]["count"]) == ("paused", 5)
    await ask("PATCH", f"/endpoints/{whole['id']}", {"status": "active"})
    rotated = await ask("POST", f"/endpoints/{whole['id']}/rotate", {"overlap": 0})
    assert rotated.json()["value"] != secret["value"]
    ping = await ask("POST", f"/endpoints/{whole['id']}/ping")
    assert (ping.status_code, ping.json()["cause"]) == (202, "ping")
    await work(akit)
    assert verified(site.requests[0], rotated.json()["value"])
    assert site.requests[0].headers["x-a"] == "tok"
    shown = (await ask("GET", f"/deliveries/{ping.json()['id']}")).json()
    assert shown["status"] == "delivered"
    assert [one["status"] for one in shown["attempts"]] == [200]
    assert "address" not in shown["attempts"][0]
    assert (await ask("GET", "/event-types")).json() == {"data": []}
    gone = await ask("DELETE", f"/endpoints/{whole['id']}")
    assert (gone.status_code, gone.content) == (204, b"")
    assert (await ask("GET", "/endpoints")).json()["data"] == []
    actors = {row["actor"] for row in akit.sql("SELECT actor FROM holdfast.audit")}
    assert actors == {"tenant acme"}


async def test_another_tenant_finds_nothing_by_any_call(
    app: Holdfast, akit: Kit, site: Site, hooks: Webhooks
) -> None:
    site.answer = lambda _: reply(500)
    portal = hooks.portal(authorize, limits=WIDE)
    mine, other = Client(portal), Client(portal, "other")
    endpoint = (await mine("POST", "/endpoints", {"url": site.url()})).json()["id"]
    await app.apublish("order.paid", {"n": 1}, headers={"tenant": "acme"})
    await work(akit)
    (delivery,) = (await mine("GET", f"/endpoints/{endpoint}/deliveries")).json()["data"]
    before = akit.sql(
        "SELECT (SELECT count(*) FROM holdfast.audit) AS n, (SELECT max(version) FROM holdfast.webhook_endpoints) AS v"
    )
    for method, path, body in (
        ("GET", f"/endpoints/{endpoint}", None),
        ("PATCH", f"/endpoints/{endpoint}", {"status": "paused"}),
        ("DELETE", f"/endpoints/{endpoint}", None),
        ("POST", f"/endpoints/{endpoint}/rotate", None),
        ("POST", f"/endpoints/{endpoint}/ping", None),
        ("POST", f"/endpoints/{endpoint}/redeliver", {"since": "2026-01-01T00:00:00Z"}),
        ("GET", f"/deliveries/{delivery['id']}", None),
        ("POST", f"/deliveries/{delivery['id']}/redeliver", None),
    ):
        found = await other(method, path, body)
        assert (found.status_code, said(found)) == (404, "not_found"), (method, path, found.text)
        unknown = path.replace(endpoint, endpoint[::-1]).replace(delivery["id"], delivery["id"][::-1])
        assert (await other(method, unknown, body)).status_code == 404
    assert (await other("GET", f"/endpoints/{endpoint}/deliveries")).json()["data"] == []
    assert (await other("GET", "/endpoints")).json()["data"] == []
    assert before == akit.sql(
        "SELECT (SELECT count(*) FROM holdfast.audit) AS n, (SELECT max(version) FROM holdfast.webhook_endpoints) AS v"
    )
    again = await mine("POST", f"/deliveries/{delivery['id']}/redeliver")
    assert (again.status_code, again.json()["cause"]) == (202, "redelivery")


async def test_a_key_makes_one_endpoint_however_often_it_is_sent(
    app: Holdfast, akit: Kit, site: Site, hooks: Webhooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SECRET_KEYS", "k:" + "AAAA" * 10 + "AAA=")
    portal = hooks.portal(authorize, limits=PortalLimits(writes=10))
    ask = Client(portal)
    body = {"url": site.url()}
    replies = await asyncio.gather(
        *(ask("POST", "/endpoints", body, idempotency_key="one") for _ in range(10))
    )
    assert {one.status_code for one in replies} == {201}
    assert len({one.content for one in replies}) == 1
    assert sum("idempotent-replayed" in one.headers for one in replies) == 9
    value = replies[0].json()["secret"]["value"]
    (kept,) = akit.sql("SELECT key_id, reply FROM holdfast.webhook_requests")
    assert (kept["key_id"], value.encode() in bytes(kept["reply"])) == ("k", False)
    akit.sql("UPDATE holdfast.webhook_writes SET next_at = next_at + interval '1 hour'")
    assert (await ask("POST", "/endpoints", body, idempotency_key="one")).status_code == 201  # costs no write
    other = await ask("POST", "/endpoints", {"url": site.url("/b")}, idempotency_key="one")
    assert (other.status_code, said(other)) == (422, "key_used")
    akit.sql("DELETE FROM holdfast.webhook_writes")
    theirs = await Client(portal, "other")("POST", "/endpoints", body, idempotency_key="one")
    assert theirs.json()["id"] != replies[0].json()["id"]
    for key in ("", "a b", "x" * 257):
        assert (await ask("POST", "/endpoints", body, idempotency_key=key)).status_code == 400
    akit.clock.advance(86401)
    assert (
        await ask("POST", "/endpoints", {"url": site.url("/c")}, idempotency_key="one")
    ).status_code == 201


async def test_a_tenant_has_limits_of_endpoints_writes_and_ranges(
    app: Holdfast, akit: Kit, site: Site, hooks: Webhooks
) -> None:
    portal = hooks.portal(authorize, limits=PortalLimits(endpoints=3, writes=6000))
    ask = Client(portal)
    replies = await asyncio.gather(*(ask("POST", "/endpoints", {"url": site.url()}) for _ in range(8)))
    assert sorted(one.status_code for one in replies) == [201] * 3 + [409] * 5
    assert {said(one) for one in replies if one.status_code == 409} == {"endpoints"}
    assert (await Client(portal, "other")("POST", "/endpoints", {"url": site.url()})).status_code == 201

    slow = Client(hooks.portal(authorize), "third")
    codes = [(await slow("POST", "/endpoints", {"url": site.url()})).status_code for _ in range(10)]
    assert codes == [201] * 10
    refused = await slow("POST", "/endpoints", {"url": site.url()})
    assert (refused.status_code, said(refused)) == (429, "rate")
    assert 1 <= int(refused.headers["retry-after"]) <= 7
    assert (await slow("GET", "/endpoints")).status_code == 200  # looking is free
    akit.clock.advance(7)
    assert (await slow("POST", "/endpoints", {"url": site.url()})).status_code == 201

    endpoint = replies[0].json().get("id") or next(r.json()["id"] for r in replies if r.status_code == 201)
    await app.apublish("order.paid", {"n": 1}, headers={"tenant": "acme"})
    await app.events.alast_position()
    wanted = {"since": "2020-01-01T00:00:00Z", "only": "missing"}
    dry = await ask("POST", f"/endpoints/{endpoint}/redeliver", {**wanted, "dry_run": True})
    assert (dry.status_code, dry.json()["count"], dry.json()["begun"]) == (202, 1, False)
    codes = [(await ask("POST", f"/endpoints/{endpoint}/redeliver", wanted)).status_code for _ in range(3)]
    assert codes == [202, 202, 429]


async def test_pages_go_on_where_the_last_one_ended(
    app: Holdfast, akit: Kit, site: Site, hooks: Webhooks
) -> None:
    ask = Client(hooks.portal(authorize, limits=WIDE))
    made = [(await ask("POST", "/endpoints", {"url": site.url(f"/{n}")})).json()["id"] for n in range(5)]
    for n in range(5):
        await app.apublish("order.paid", {"n": n}, headers={"tenant": "acme"})
    await work(akit)
    for path, wanted in (("/endpoints", 5), (f"/endpoints/{made[0]}/deliveries", 5)):
        seen: list[str] = []
        after = ""
        for _ in range(3):
            page = (await ask("GET", f"{path}?limit=2{after}")).json()
            seen += [one["id"] for one in page["data"]]
            after = f"&after={page['next']}"
        assert page["next"] is None
        assert len(seen) == len(set(seen)) == wanted
    found = (await ask("GET", f"/endpoints/{made[0]}/deliveries?status=failed")).json()
    assert found["data"] == []


BAD: list[tuple[str, str, Any, int]] = [
    ("GET", "/nothing", None, 404),
    ("GET", "/endpoints/1", None, 404),
    ("PUT", "/endpoints", {}, 405),
    ("POST", "/endpoints", b"{", 400),
    ("POST", "/endpoints", b'{"url": "a", "url": "b"}', 400),
    ("POST", "/endpoints", b'{"url": NaN}', 400),
    ("POST", "/endpoints", b"[" * 60_000, 400),
    ("POST", "/endpoints", b"[]", 400),
    ("POST", "/endpoints", b'"\xff"', 400),
    ("POST", "/endpoints", b" " * 70_000, 413),
    ("POST", "/endpoints", {}, 400),
    ("POST", "/endpoints", {"url": "URL", "tenant": "other"}, 400),
    ("POST", "/endpoints", {"url": "https://10.0.0.1/"}, 400),
    ("POST", "/endpoints", {"url": 5}, 400),
    ("POST", "/endpoints", {"url": "URL", "rate": 5}, 400),
    ("POST", "/endpoints", {"url": "URL", "description": "\ud800"}, 400),
    ("POST", "/endpoints", {"url": "URL", "description": "\0"}, 400),
    ("POST", "/endpoints", {"url": "URL", "events": [1]}, 400),
    ("POST", "/endpoints", {"url": "URL", "headers": {"x": 5}}, 400),
    ("PATCH", "/endpoints/ID", {"url": None}, 400),
    ("PATCH", "/endpoints/ID", {"events": None}, 400),
    ("PATCH", "/endpoints/ID", {"status": None}, 400),
    ("PATCH", "/endpoints/ID", {"concurrency": None}, 400),
    ("PATCH", "/endpoints/ID", {"rate": "none"}, 400),
    ("POST", "/endpoints/ID/rotate", {"overlap": "x"}, 400),
    ("POST", "/endpoints/ID/rotate", {"overlap": -1}, 400),
    ("POST", "/endpoints/ID/redeliver", {"since": "yesterday"}, 400),
    ("POST", "/endpoints/ID/redeliver", {"since": "2026-01-01T00:00:00"}, 400),
    ("GET", "/endpoints?limit=0", None, 400),
    ("GET", "/endpoints?limit=x", None, 400),
    ("GET", "/endpoints?after=x", None, 400),
    ("GET", "/endpoints?tenant=other", None, 400),
    ("GET", "/endpoints/ID/deliveries?status=none", None, 400),
]


async def test_bad_requests_are_refused_in_words_and_write_nothing(
    app: Holdfast, akit: Kit, site: Site, hooks: Webhooks
) -> None:
    portal = hooks.portal(authorize, limits=WIDE)
    ask = Client(portal)
    endpoint = (await ask("POST", "/endpoints", {"url": site.url()})).json()["id"]
    before = akit.sql("SELECT id FROM holdfast.audit")
    for method, path, body, status in BAD:
        sent = json.dumps(body).replace("URL", site.url()).encode() if isinstance(body, dict) else body
        found = await ask(method, path.replace("ID", endpoint), sent)
        assert found.status_code == status, (method, path, body, found.text)
        field = list(body)[-1].rstrip("s") if isinstance(body, dict) and body else ""
        assert field in said_of(found), "and it is for this that it is refused"
    text = await ask("POST", "/endpoints", b"{}", content_type="text/plain")
    assert text.status_code == 415
    assert (await Client(portal, None)("GET", "/endpoints")).status_code == 401
    failed = await ask("GET", "/endpoints", boom="1")
    assert (failed.status_code, "secret-of-ours" in failed.text) == (500, False)
    assert akit.sql("SELECT id FROM holdfast.audit") == before


def starlette_app(portal: Any) -> Any:
    return Starlette(routes=[Mount("/my/webhooks", app=portal)])


def fastapi_app(portal: Any) -> Any:
    app = FastAPI()
    app.mount("/my/webhooks", portal)
    return app


def litestar_app(portal: Any) -> Any:
    return litestar.Litestar([litestar.asgi("/my/webhooks", is_mount=True, copy_scope=True)(portal)])


def django_app(portal: Any) -> Any:
    from django.core.asgi import get_asgi_application

    set_up()
    rest = get_asgi_application()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        is_ours = scope["type"] == "http" and scope["path"].startswith("/my/webhooks")
        await (portal if is_ours else rest)(scope, receive, send)

    return app


MOUNTS: dict[str, Callable[[Any], Any]] = {
    "starlette": starlette_app,
    "fastapi": fastapi_app,
    "litestar": litestar_app,
    "django": django_app,
}


async def test_it_is_mounted_in_every_asgi_framework(
    app: Holdfast, akit: Kit, site: Site, hooks: Webhooks
) -> None:
    portal = hooks.portal(authorize, limits=WIDE)
    for name, make in MOUNTS.items():
        ask = Client(make(portal), name, "/my/webhooks")
        made = await ask("POST", "/endpoints", {"url": site.url()})
        assert made.status_code == 201, (name, made.text)
        found = await ask("GET", f"/endpoints/{made.json()['id']}")
        assert found.json()["url"] == site.url(), name
        assert (await ask("GET", "/nothing")).status_code == 404, name
        assert len((await ask("GET", "/endpoints")).json()["data"]) == 1, name
