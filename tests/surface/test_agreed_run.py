"""The agreed examples of boundaries, run against a server: what they show is there when it is called, too."""

import asyncio
import hashlib
import hmac
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from tests.conftest import QUICK
from tests.typing import boundary_examples as shop

from holdfast import Subscription, UnknownEndpoint
from holdfast.testing import Kit

BODY = b'{"ref": "main"}'


@pytest.fixture
def kit(holdfast_kit: Callable[..., Kit]) -> Kit:
    kit = holdfast_kit(shop.app, QUICK)
    kit.sql("CREATE TABLE orders (id int, paid_at timestamptz)")
    kit.sql("INSERT INTO orders VALUES (1)")
    kit.sql("CREATE TABLE order_totals (order_id int PRIMARY KEY, cents int)")
    kit.run_projections()
    shop.bus.pause()  # there is no broker
    return kit


def test_events_are_published_consumed_and_projected(kit: Kit) -> None:
    with psycopg.connect(kit.url) as conn:
        paid = shop.pay(conn, 1, 995)

    async def by_name() -> None:
        async with await psycopg.AsyncConnection.connect(kit.url) as conn:
            await shop.pay_by_name(conn)
        await kit.database.aclose()

    asyncio.run(by_name())
    kit.run_projections()
    assert kit.published(shop.OrderPaid, cents=995)[0].id == paid
    assert kit.sql("SELECT * FROM order_totals ORDER BY order_id")[0] == {"order_id": 1, "cents": 5}
    assert len(kit.jobs(shop.send_receipt.name)) == 3
    assert shop.order_totals.lag() == (0, 0.0)


def test_webhooks_are_a_subscription_with_endpoints(kit: Kit) -> None:
    hooks = shop.hooks
    with psycopg.connect(kit.url) as conn:
        secret = shop.new_endpoint(conn, "acme", "https://acme.example/hooks")
    assert secret.startswith("whsec_")
    (endpoint,) = hooks.endpoints.list(tenant="acme")
    assert (endpoint.status, endpoint.ordered, endpoint.secret) == ("active", True, None)
    with psycopg.connect(kit.url) as conn:
        shop.pay(conn, 1, 995)
    kit.run_projections()
    assert shop.after_an_outage(endpoint.id, datetime.now(UTC) - timedelta(hours=1)) == 0
    found = {one.event_type: one.status for one in hooks.deliveries(tenant="acme", endpoint=endpoint.id)}
    assert found == {"webhook.ping": "pending", "order.paid": "pending"}
    assert hooks.endpoints.rotate(endpoint.id, tenant="acme", overlap=60).value != secret
    with pytest.raises(UnknownEndpoint):
        hooks.ping(endpoint.id, tenant="other")

    assert isinstance(hooks, Subscription)
    hooks.pause()
    with psycopg.connect(kit.url) as conn:
        shop.pay(conn, 1, 5)
    kit.run_projections()
    assert hooks.lag()[0] == 1
    hooks.resume()
    kit.run_projections()
    assert hooks.lag()[0] == 0
    assert len(hooks.deliveries(tenant="acme")) == 3
    hooks.reset("end")
    hooks.endpoints.delete(endpoint.id, tenant="acme")
    assert not hooks.endpoints.list(tenant="acme")


def test_messages_are_received_in_the_callers_transaction(kit: Kit) -> None:
    signature = "sha256=" + hmac.new(b"s3cret", BODY, hashlib.sha256).hexdigest()
    headers = {
        "X-Hub-Signature-256": signature,
        "X-GitHub-Delivery": "d1",
        "Content-Type": "application/json",
    }
    with psycopg.connect(kit.url) as conn:
        assert shop.django_view(headers, BODY, conn) == 202
        assert shop.django_view(headers, BODY, conn) == 200
        assert shop.django_view({**headers, "X-Hub-Signature-256": "sha256=00"}, BODY, conn) == 401
    assert len(kit.jobs()) == 1
