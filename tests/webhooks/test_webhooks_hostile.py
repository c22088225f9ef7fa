"""A tenant and an endpoint that mean harm: what they send is refused in words or kept in bounds, and nobody else pays."""

import asyncio
import json
from typing import Any
from uuid import UUID

import pytest
from tests.webhooks.support import OK, STEADY, Site, hooks_of, reply
from tests.webhooks.test_portal import WIDE, Client, authorize, said, work

from holdfast import ConfigurationError, Holdfast, PortalLimits, Rate, Webhooks
from holdfast.shapes.webhooks.registry import EventFilter
from holdfast.testing import Kit


@pytest.fixture
async def hooks(app: Holdfast, akit: Kit, site: Site) -> Webhooks:
    akit.database.settings = STEADY
    made = hooks_of(app, site, schedule=[0.01], keep_body=True)
    await asyncio.to_thread(akit.create_queues)
    await asyncio.to_thread(akit.run_worker)
    return made


def test_a_filter_of_many_stars_costs_no_more_than_its_length() -> None:
    """By backtracking this would take longer than the universe lasts."""
    for pattern in ("*" * 100, "*a" * 40, "*" + "a*" * 40, "a*" * 60 + "*"):
        wants = EventFilter([pattern + "b", "order.paid"])
        assert not wants("a" * 100)
        assert wants("order.paid")
        assert EventFilter([pattern])("a" * 150)


def test_stars_stand_for_anything() -> None:
    for pattern, yes, no in (
        ("*", ["", "a", "a.b"], []),
        ("order.*", ["order.", "order.paid", "order.a.b"], ["order", "xorder.paid", "Order.paid"]),
        ("*.paid", [".paid", "order.paid"], ["order.paid.x", "paid"]),
        ("a*b*a", ["aba", "axbxa", "abba"], ["ab", "aa", "aba."]),
        ("aa*aa", ["aaaa", "aaxaa"], ["aaa", "aa"]),
        ("*a*", ["a", "bab"], ["b"]),
        ("a.b", ["a.b"], ["axb", "a.b\n"]),
    ):
        wants = EventFilter([pattern])
        assert [one for one in yes if not wants(one)] == []
        assert [one for one in no if wants(one)] == []


async def test_numbers_out_of_reach_are_refused_in_words(
    app: Holdfast, akit: Kit, site: Site, hooks: Webhooks
) -> None:
    ask = Client(hooks.portal(authorize, limits=WIDE))
    made = (await ask("POST", "/endpoints", {"url": site.url()})).json()["id"]
    rates: list[Any] = [
        {"count": 1e-300}, {"count": 1, "per": 1e300}, {"count": 1e300}, {"count": 10**12}, {"count": 10**400},
        {"count": 1, "per": 10**400}, {"count": 5e-324, "per": 1e308}, {"count": True}, {"count": "5"}, [], 5,
    ]  # fmt: skip
    for rate in rates:
        for method, path, body in (
            ("POST", "/endpoints", {"url": site.url(), "rate": rate}),
            ("PATCH", f"/endpoints/{made}", {"rate": rate}),
            ("POST", f"/endpoints/{made}/redeliver", {"since": "2026-01-01T00:00:00Z", "rate": rate}),
        ):
            found = await ask(method, path, json.dumps(body).encode())
            assert (found.status_code, said(found)) == (400, "invalid"), (method, rate, found.text)
            assert "rate" in found.json()["error"]["message"].lower()
    for query in (
        "limit=" + "0" * 5000 + "1",
        "limit=0000000019999",
        "limit=%D9%A1",
        "limit=-1",
        "after=" + "0" * 9000,
    ):
        found = await ask("GET", f"/endpoints?{query}")
        assert (found.status_code, said(found)) == (400, "invalid"), found.text
    for since in ("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2026-01-01T00:00:00Z"):
        body = {"since": since, "dry_run": True}
        assert (await ask("POST", f"/endpoints/{made}/redeliver", body)).status_code == 202, since
    for overlap in (-1, 1e308, 10**400, True, None):
        found = await ask("POST", f"/endpoints/{made}/rotate", json.dumps({"overlap": overlap}).encode())
        assert (found.status_code, said(found)) == (400, "invalid"), overlap
    with pytest.raises(ConfigurationError, match="rate"):
        await hooks.endpoints.acreate(tenant="acme", url=site.url(), rate=Rate(1, per=1e300))


async def test_a_tenant_cannot_take_more_places_of_the_workers_than_it_may(
    app: Holdfast, akit: Kit, site: Site, hooks: Webhooks
) -> None:
    ask = Client(hooks.portal(authorize, limits=PortalLimits(writes=6000, concurrency=20)))
    made = (await ask("POST", "/endpoints", {"url": site.url(), "concurrency": 20})).json()["id"]
    for method, path, body in (
        ("POST", "/endpoints", {"url": site.url(), "concurrency": 21}),
        ("PATCH", f"/endpoints/{made}", {"concurrency": 1000}),
    ):
        found = await ask(method, path, body)
        assert (found.status_code, said(found)) == (400, "invalid")
        assert "20" in found.json()["error"]["message"]
    assert akit.sql("SELECT concurrency FROM holdfast.webhook_endpoints") == [{"concurrency": 20}]
    other = await hooks.endpoints.aupdate(UUID(made), tenant="acme", concurrency=1000)
    assert other.concurrency == 1000, "the product itself may give more"


async def test_a_reply_full_of_strange_characters_is_kept_in_bounds(
    app: Holdfast, akit: Kit, site: Site, hooks: Webhooks
) -> None:
    """However much larger it is as JSON: the attempt is written, and the delivery has arrived."""
    await hooks.endpoints.acreate(tenant="acme", url=site.url())
    wide = [f"x-{n}: " + "\U0001f600" * 1500 for n in range(10)]
    odd = ["x-odd: \xff\xfe\x80 \u2028", "set-cookie: token=secret", *[f"y{n}: {n}" for n in range(60)]]
    for lines, body in (
        (wide, b"\x01" * 60_000),
        ([*odd, "z: " + '"\\' * 3000], b'"\\' * 30_000),
        (odd, bytes(range(256)) * 200),
    ):
        head = "\r\n".join(["HTTP/1.1 200 OK", f"content-length: {len(body)}", *lines]).encode(
            "utf-8", "surrogateescape"
        )
        site.answer = lambda _, whole=head + b"\r\n\r\n" + body: whole  # type: ignore[misc]
        await app.apublish("order.paid", {"n": 1}, headers={"tenant": "acme"})
        await work(akit)
        newest = (await hooks.adeliveries(tenant="acme"))[0]
        assert (newest.status, len(newest.attempts)) == ("delivered", 1), newest
        kept = newest.attempts[0]
        assert kept.status == 200
        assert "secret" not in json.dumps(dict(kept.response_headers))
        assert kept.response_body
    assert akit.sql("SELECT FROM holdfast.work") == []


async def test_nothing_of_a_tenant_becomes_a_header_or_a_line_of_a_request(
    app: Holdfast, akit: Kit, site: Site, hooks: Webhooks
) -> None:
    ask = Client(hooks.portal(authorize, limits=WIDE))
    for headers in (
        {"x": "a\r\nhost: evil"}, {"x\r\nhost": "a"}, {"x": "a\nb"}, {"x": "\u010a"}, {"x": "\u560a"}, {"Host": "evil"},
        {"content-length": "5"}, {"Webhook-Signature": "v1,x"}, {"transfer-encoding": "chunked"},
        {"proxy-authorization": "x"},
        {"x y": "a"}, {"": "a"}, {"x": 5}, {"x": None}, ["x"], {f"h{n}": "x" for n in range(21)}, {"x": "a\u0000"},
        {"Expect": "100-continue"}, {"x": "y" * 9000},
    ):  # fmt: skip
        found = await ask("POST", "/endpoints", {"url": site.url(), "headers": headers})
        assert (found.status_code, said(found)) == (400, "invalid"), (headers, found.text)
    for url in (
        "https://b\u00fccher.example/", "https://ex\u0430mple.com/", "https://127.0.0.1\u3002nip.io/",
            "https://\uff11\uff12\uff17.0.0.1/",
        "https://a.example/\r\nx: y", "https://a.example/ x", "https://user@a.example/", "https://a.example#f", "https://[::1]/",
        "https://[::ffff:127.0.0.1]/", "https://0x7f.1/", "https://localhost/", "https://metadata.google.internal/", "ftp://a.example/",
        "https://a.example:22/", "https://169.254.169.254/latest", "//a.example", "https:///x", "", 5, None,
        "https://a.example/" + "x" * 2048,
    ):  # fmt: skip
        found = await ask("POST", "/endpoints", {"url": url})
        assert (found.status_code, said(found)) == (400, "invalid"), (url, found.text)
    assert akit.sql("SELECT FROM holdfast.webhook_endpoints") == []


def test_bodies_of_replies_are_not_decompressed_and_redirects_not_followed(
    app: Holdfast, kit: Kit, site: Site
) -> None:
    import gzip

    kit.database.settings = STEADY
    hooks = hooks_of(app, site, schedule=["1h"], keep_body=True)
    kit.create_queues()
    kit.run_worker()
    hooks.endpoints.create(tenant="acme", url=site.url("/a"))
    bomb = gzip.compress(b"0" * 50_000_000)
    site.answer = lambda _: reply(200, "content-encoding: gzip", body=bomb)
    app.publish("order.paid", {"n": 1}, headers={"tenant": "acme"})
    kit.run_worker()
    (one,) = hooks.deliveries(tenant="acme")
    assert one.status == "delivered"
    assert len(one.attempts[0].response_body or "") <= 4096
    site.answer = lambda request: (
        reply(307, f"location: {site.url('/inside')}") if request.path == "/a" else OK
    )
    app.publish("order.paid", {"n": 2}, headers={"tenant": "acme"})
    kit.run_worker()
    assert [request.path for request in site.requests] == ["/a", "/a"]
    assert hooks.deliveries(tenant="acme")[0].last_error == "redirect"
