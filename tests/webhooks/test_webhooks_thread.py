"""One thin thread: an event that is published in a transaction arrives at the endpoint of its tenant, signed."""

import json

from tests.webhooks.support import STEADY, Site, hooks_of, verified

from holdfast import Holdfast
from holdfast.testing import Kit


def test_an_event_arrives_at_the_endpoint_of_its_tenant(app: Holdfast, kit: Kit, site: Site) -> None:
    kit.database.settings = STEADY
    hooks = hooks_of(app, site)
    kit.create_queues()
    kit.run_worker()
    made = hooks.endpoints.create(tenant="acme", url=site.url("/acme"), events=["order.*"])
    assert made.secret is not None
    other = hooks.endpoints.create(tenant="other", url=site.url("/other"))
    with kit.connect() as conn:
        published = app.publish("order.paid", {"n": 1}, key="order:1", headers={"tenant": "acme"}, conn=conn)
    kit.run_worker()
    (request,) = site.requests
    assert request.path == "/acme"
    assert verified(request, made.secret.value) == str(published.id)
    event = app.events.read(0, 1)[0]
    assert json.loads(request.body) == {
        "type": "order.paid",
        "timestamp": event.time.isoformat().replace("+00:00", "Z"),
        "data": {"n": 1},
    }
    (delivery,) = hooks.deliveries(tenant="acme")
    assert (delivery.endpoint_id, delivery.event_id, delivery.status) == (made.id, published.id, "delivered")
    (attempt,) = delivery.attempts
    assert (attempt.n, attempt.status, attempt.error, attempt.address) == (1, 200, None, "127.0.0.1")
    assert attempt.request_headers["webhook-id"] == str(published.id)
    assert attempt.response_headers["content-length"] == "2"
    assert hooks.deliveries(tenant="other", endpoint=other.id) == []
    assert hooks.lag() == (0, 0.0)
    assert [job["status"] for job in kit.jobs("holdfast.webhook")] == ["completed"]
