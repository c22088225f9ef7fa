"""Endpoints of tenants: created, looked at, changed, removed; secrets are shown once."""

from typing import Any

import pytest
from tests.webhooks.support import Site, hooks_of

from holdfast import ConfigurationError, Holdfast, Rate, UnknownEndpoint
from holdfast.testing import Kit


def test_an_endpoint_of_another_tenant_does_not_exist(app: Holdfast, kit: Kit, site: Site) -> None:
    endpoints = hooks_of(app, site).endpoints
    made = endpoints.create(
        tenant="acme", url=site.url(), events=["order.*"], rate=Rate(5, per=1), concurrency=3
    )
    assert made.secret is not None
    assert made.secret.value.startswith("whsec_")
    assert "whsec_" not in repr(made)
    same = endpoints.get(made.id, tenant="acme")
    assert (same.secret, same.events, same.rate, same.concurrency) == (
        None,
        ("order.*",),
        Rate(5.0, 1.0, 5),
        3,
    )
    for act in (endpoints.get, endpoints.delete, endpoints.rotate, endpoints.update):
        with pytest.raises(UnknownEndpoint, match=f"has no endpoint {made.id}"):
            act(made.id, tenant="other")
    with pytest.raises(UnknownEndpoint, match=f"has no endpoint {made.id}"):
        endpoints.update(made.id, tenant="other", status="disabled")
    assert endpoints.get(made.id, tenant="acme").status == "active"
    assert endpoints.list(tenant="other") == []
    second = endpoints.create(tenant="acme", url=site.url("/b"))
    assert [one.id for one in endpoints.list(tenant="acme")] == [made.id, second.id]
    assert [one.id for one in endpoints.list(tenant="acme", after=made.id, limit=1)] == [second.id]
    endpoints.delete(made.id, tenant="acme")
    with pytest.raises(UnknownEndpoint):
        endpoints.get(made.id, tenant="acme")


async def test_verbs_have_async_twins_and_take_part_in_a_transaction(
    app: Holdfast, akit: Kit, site: Site
) -> None:
    endpoints = hooks_of(app, site).endpoints
    with akit.connect() as conn:
        made = endpoints.create(tenant="acme", url=site.url(), conn=conn)
        endpoints.rotate(made.id, tenant="acme", conn=conn)
        assert endpoints.list(tenant="acme") == []
        conn.rollback()
        kept = endpoints.create(tenant="acme", url=site.url("/kept"), conn=conn)
    assert [one.id for one in await endpoints.alist(tenant="acme")] == [kept.id]
    await endpoints.aupdate(
        kept.id, tenant="acme", url=site.url("/new"), events=["a.*", "b"], status="paused"
    )
    found = await endpoints.aget(kept.id, tenant="acme")
    assert (found.url, found.events, found.status, found.version) == (
        site.url("/new"),
        ("a.*", "b"),
        "paused",
        2,
    )
    assert (await endpoints.arotate(kept.id, tenant="acme")).value.startswith("whsec_")
    other = await endpoints.acreate(tenant="acme", url=site.url())
    await endpoints.adelete(other.id, tenant="acme")
    with pytest.raises(UnknownEndpoint):
        await endpoints.adelete(other.id, tenant="acme")


BAD: list[tuple[dict[str, object], str]] = [
    ({"url": "ftp://a.example/"}, "cannot be called: the URL must begin with https:// or http://"),
    ({"url": "https://10.0.0.1/"}, "cannot be called"),
    ({"url": 5}, "url must be text of at most 2048 bytes, not int 5"),
    ({"events": "order.*"}, "events must be a list"),
    ({"events": []}, "events must be a list"),
    ({"events": ["a b"]}, "an event type of an endpoint must be"),
    ({"scheme": "v2"}, "scheme must be v1 or v1a"),
    ({"ordered": 1}, "ordered must be True or False"),
    ({"rate": 5}, "rate must be a Rate"),
    ({"concurrency": 0}, "concurrency must be an integer from 1 to 1000, not int 0"),
    ({"headers": {"Host": "a"}}, "Host"),
    ({"headers": {"webhook-id": "a"}}, "webhook-id is not yours to set"),
    ({"headers": {"x": "a\nb"}}, "header x"),
    ({"tenant": ""}, "tenant must not be empty"),
    ({"description": 5}, "description must be text"),
]


def test_bad_input_is_refused_before_anything_is_written(app: Holdfast, kit: Kit, site: Site) -> None:
    endpoints = hooks_of(app, site).endpoints
    with kit.connect() as conn:
        for given, text in BAD:
            options: dict[str, Any] = {"tenant": "acme", "url": site.url(), **given}
            with pytest.raises(ConfigurationError, match=text):
                endpoints.create(**options, conn=conn)
        assert conn.execute("SELECT count(*) FROM holdfast.webhook_endpoints").fetchone() == {"count": 0}


def test_five_secrets_at_most(app: Holdfast, kit: Kit, site: Site) -> None:
    endpoints = hooks_of(app, site).endpoints
    made = endpoints.create(tenant="acme", url=site.url())
    for _ in range(4):
        endpoints.rotate(made.id, tenant="acme")
    with pytest.raises(ConfigurationError, match="has 5 secrets in use"):
        endpoints.rotate(made.id, tenant="acme")
    endpoints.rotate(made.id, tenant="acme", overlap=0)
    (row,) = kit.sql("SELECT count(*) FROM holdfast.webhook_secrets")
    assert row["count"] == 1
    kit.clock.advance(86401)
    assert endpoints.rotate(made.id, tenant="acme", overlap="1h").value
