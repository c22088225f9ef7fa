"""What Prometheus reads of webhooks, from a real worker on a real database."""

from collections.abc import Callable

from tests.conftest import wait_until
from tests.observe.support import Port, ready, with_port
from tests.webhooks.support import OK, Site, hooks_of, reply

from holdfast import Holdfast
from holdfast.testing import Kit

ACME = {"tenant": "acme"}
MakeKit = Callable[..., Kit]


def _until(port: Port, number: float, name: str, **labels: str) -> None:
    wait_until(lambda: port.value(name, **labels) == number, f"{name} {labels} is {number}")


def test_attempts_endpoints_and_what_waits(app: Holdfast, holdfast_kit: MakeKit) -> None:
    site = Site()
    site.answer = lambda request: {"/good": OK, "/bad": reply(500), "/gone": reply(410)}[request.path]
    hooks = hooks_of(app, site, start="start")
    kit = holdfast_kit(app, with_port(metrics_snapshot=0.05))
    try:
        with ready(kit) as port:
            for path in ("/good", "/bad", "/gone"):
                hooks.endpoints.create(tenant="acme", url=site.url(path), concurrency=1)
            paused = hooks.endpoints.create(tenant="acme", url=site.url("/paused"))
            hooks.endpoints.update(paused.id, tenant="acme", status="paused")
            app.publish("order.paid", {"n": 1}, headers=ACME)
            _until(port, 1, "webhook_attempts_total", result="delivered")
            _until(port, 2, "webhook_attempts_total", result="failed")
            _until(port, 1, "webhook_endpoints_disabled_total", reason="gone")
            for status, count in (("active", 2), ("paused", 1), ("disabled", 1)):
                _until(port, count, "webhook_endpoints", status=status)
            _until(port, 1, "webhook_deliveries_pending")
            assert (port.value("webhook_oldest_pending_seconds") or 0) > 0
            wait_until(lambda: (port.value("webhook_endpoints_failing") or 0) >= 1, "the bad one fails")
            app.publish_many(app.events.new("order.paid", {"n": n}, headers=ACME) for n in range(2, 9))
            _until(port, 1, "webhook_breakers_opened_total")
            _until(port, 8, "webhook_attempts_total", result="delivered")
    finally:
        site.end()
