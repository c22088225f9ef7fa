"""Several databases behind one dashboard: everything belongs to one of them, and one that is away delays no other."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount
from tests.conftest import await_until, within
from tests.web.surfing import Surfer, fields

from holdfast import Holdfast
from holdfast.errors import ConfigurationError
from holdfast.operate.operator import Operator
from holdfast.testing import Kit
from holdfast.web import Identity, database_of, hashed, holdfast_web, live
from holdfast.web.application import Dashboard, dashboard
from holdfast.web.serve import Served, make

AWAY = "postgresql://nobody@127.0.0.1:9/none?connect_timeout=1"
TOKEN = "a-token-of-more-than-twenty-letters"


def shop_of(name: str) -> Holdfast:
    app = Holdfast("postgresql://unused.invalid/none")
    app.queue(f"{name}_mail")
    app.task(max_attempts=1, name=f"{name}.send", queue=f"{name}_mail")(lambda number: 1 / 0)
    return app


@pytest.fixture
async def two(holdfast_server: Any, holdfast_url: str) -> AsyncIterator[dict[str, Kit]]:
    other = holdfast_server.clone()
    urls = {"shop": holdfast_url, "billing": holdfast_server.url(other)}
    kits = {name: Kit(shop_of(name), url) for name, url in urls.items()}
    for name, kit in kits.items():
        for n in range(2 if name == "shop" else 3):
            kit.app.send(f"{name}.send", {"number": n})
        await asyncio.to_thread(kit.run_worker)
    yield kits
    for kit in kits.values():
        await kit.database.aclose()
        kit.close()
    holdfast_server.drop(other)


async def by_database(request: Request) -> Identity | None:
    """An admin of the shop, who only looks at billing; the stranger is known in billing alone."""
    name = request.headers.get("x-who", "mara")
    if name == "stranger":
        return Identity(name, "operator") if database_of(request) == "billing" else None
    return Identity(name, "admin" if database_of(request) == "shop" else "viewer")


@pytest.fixture
async def made(two: dict[str, Kit]) -> AsyncIterator[Dashboard]:
    apps = {**{name: kit.app for name, kit in two.items()}, "old": Holdfast(AWAY)}
    found = holdfast_web(apps, authorize=by_database, secret="shared by two processes")
    yield found
    await found.close()


def dead(kit: Kit) -> int:
    return Operator(kit.database, "test").overview().dead_letters.count


def links(text: str) -> list[str]:
    found = text[text.index("data-switch") :]
    return re.findall(r'<li><a href="([^"]*)"', found[: found.index("</details>")])


async def test_everything_belongs_to_the_database_that_the_address_names(
    made: Dashboard, two: dict[str, Kit]
) -> None:
    mara = Surfer(Starlette(routes=[Mount("/ops", made)]))
    assert (await mara.get("/ops/")).headers["location"] == "/ops/d/shop/"
    text = await mara.page("/ops/d/shop/dead?task=shop.send&group=0123abcd")
    assert "shop.send" in text
    assert "billing.send" not in text
    same = "dead?task=shop.send"  # the filter is kept, the place in one list is not
    assert links(text) == [f"/ops/d/{name}/{same}" for name in ("shop", "billing", "old")]
    assert [
        link for link in re.findall(r'(?:href|src|action)="(/[^"]*)"', text) if not link.startswith("/ops/d/")
    ] == []
    one = Operator(two["shop"].database, "test").list_dead().dead_letters[0]
    assert "/ops/d/billing/jobs" in links(await mara.page(f"/ops/d/shop/jobs/{one.id}"))
    assert (await mara.get(f"/ops/d/billing/jobs/{one.id}")).status_code == 404
    assert "billing_mail" in await mara.page("/ops/d/billing/queues")
    found = (await mara.get("/ops/d/shop/find?q=bill", **{"x-fragment": "1"})).json()["found"]
    assert [(one["kind"], one["href"]) for one in found] == [("database", "/ops/d/billing/")]

    answer = await mara.confirm("/ops/d/shop/acts/dead-redrive?all=1")
    assert answer.status_code == 303
    assert set(re.findall("Path=[^;,]*", answer.headers["set-cookie"])) == {"Path=/ops/d/shop"}
    assert (dead(two["shop"]), dead(two["billing"])) == (0, 3)
    audited = {
        n: [e.action for e in Operator(k.database, "test").list_audit().entries] for n, k in two.items()
    }
    assert ("dead redrive" in audited["shop"], "dead redrive" in audited["billing"]) == (True, False)


async def test_a_role_and_a_preview_are_good_in_one_database(made: Dashboard, two: dict[str, Kit]) -> None:
    mara = Surfer(made)
    assert (await mara.get("/d/billing/acts/dead-redrive?all=1")).status_code == 403
    headers = {"authorization": "Bearer x", "x-who": "stranger"}
    act = "api/v1/acts/dead-redrive?dry_run=1"
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=made), base_url="http://testserver"
    ) as program:
        for name, status in (("shop", 401), ("billing", 200)):
            answer = await program.post(f"/d/{name}/{act}", json={"all": True}, headers=headers)
            assert answer.status_code == status, name
        named = (await program.get("/api/v1/databases", headers=headers)).json()["data"]
        assert [(one["name"], one["role"], one["url"]) for one in named] == [
            ("billing", "operator", "/d/billing/api/v1")
        ]
        openapi = (await program.get("/d/billing/api/v1/openapi.json", headers=headers)).json()
        assert openapi["servers"] == [{"url": "/d/billing"}]
        assert (await program.get("/", headers=headers)).headers["location"] == "/d/billing/"
        text = (await program.get("/d/billing/", headers=headers)).text
        assert "data-switch" not in text  # no other is named to whom it is closed
        assert "shop" not in text

    both = dashboard({n: k.app for n, k in two.items()}, lambda _: Identity("mara", "admin"), secret="shared")
    mara = Surfer(both)
    path = "acts/dead-discard?all=1"
    shown = {name: fields(await mara.page(f"/d/{name}/{path}")) for name in ("shop", "billing")}
    for name, other in (("shop", "billing"), ("billing", "shop")):
        mixed = {**shown[name], "seal": shown[other]["seal"], "typed": "2"}
        answer = await mara.post(f"/d/{name}/acts/dead-discard", mixed)
        assert (answer.status_code, "was not shown before" in answer.text) == (409, True)
        form = {**shown[name], "csrf": shown[other]["csrf"], "typed": "2"}
        assert (await mara.post(f"/d/{name}/acts/dead-discard", form)).status_code == 403
    assert (dead(two["shop"]), dead(two["billing"])) == (2, 3)
    await both.close()


async def test_a_database_that_is_away_is_shown_and_delays_no_other(
    made: Dashboard, two: dict[str, Kit], monkeypatch: pytest.MonkeyPatch
) -> None:
    mara, old, gate = Surfer(made), made.sites[2], asyncio.Event()
    look = old.look

    async def hangs(procedure: Any) -> Any:
        await gate.wait()
        return await look(procedure)

    monkeypatch.setattr(old, "look", hangs)
    stuck = asyncio.ensure_future(mara.get("/d/old/queues"))
    async with asyncio.timeout(within(20)):
        for path in (
            "/d/shop/",
            "/d/billing/jobs",
            "/d/shop/doctor",
        ):  # nobody waits for the one that says nothing
            await mara.page(path)
    assert not stuck.done()
    gate.set()
    answer = await stuck
    assert (answer.status_code, "The database is unreachable" in answer.text) == (503, True)
    assert len(links(answer.text)) == 3  # and one can leave it

    async def shown() -> Any:
        text = await mara.page("/d/shop/settings")
        return '<span class="badge dead" data-live="db.old">away</span>' in text

    await await_until(shown, "the switcher says so")
    assert '<span class="badge dead" data-live="db.billing"></span>' in await mara.page("/d/shop/settings")
    shop = made.sites[0]
    first = await anext(live._frames(shop, ["overview"], [made.sites[1], old]))
    sent = json.loads(first.decode().split("data: ")[1])
    assert (sent["db.old"], sent["db.billing"]) == ("away", "")


def test_what_cannot_be_served_is_refused() -> None:
    app, other = Holdfast(AWAY), Holdfast(AWAY)
    who = lambda _: Identity("mara")  # noqa: E731
    for apps, said in (
        ({}, "needs at least one"),
        ({"a/b": app}, "cannot be called"),
        ({"..": app}, "cannot be called"),
        ({"shop": app, "Shop": other}, "two databases have one name"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            holdfast_web(apps, authorize=who)
    with pytest.raises(ConfigurationError, match="a title is for one database"):
        holdfast_web({"shop": app}, authorize=who, title="x")
    with pytest.raises(ConfigurationError, match="no database 'bills'"):
        make(
            {"shop": app},
            Served(proxy_header="X-User", proxy_addresses=["10.0.0.5"], proxy_admins=["bills=bo"]),
        )


async def test_options_give_roles_by_database() -> None:
    served = Served(
        proxy_header="X-User", proxy_addresses=["127.0.0.1"], proxy_admins=["mara", "billing=bo"],
        proxy_operators=["shop=bo", "shop=eve"], token_hash=hashed(TOKEN),
    )  # fmt: skip
    made, _ = make({"shop": Holdfast(AWAY), "billing": Holdfast(AWAY)}, served)
    found = {}
    for who in ("mara", "bo", "eve"):
        for site in made.sites:
            scope = {"type": "http", "headers": [(b"x-user", who.encode())], "client": ("127.0.0.1", 1)}
            identity = await site.identity(Request({**scope, "holdfast.database": site.name}))
            found[who, site.name] = identity and identity.role
    assert found == {
        ("mara", "shop"): "admin", ("mara", "billing"): "admin",
        ("bo", "shop"): "operator", ("bo", "billing"): "admin",
        ("eve", "shop"): "operator", ("eve", "billing"): "viewer",
    }  # fmt: skip
