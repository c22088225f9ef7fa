"""A worker is killed between the request and the end of its job: the same id again, and an attempt that nobody knows of."""

import signal
from collections.abc import Callable
from pathlib import Path

from tests.conftest import QUICK, wait_until
from tests.crash.process import Scene
from tests.webhooks.support import Site
from tests.webhooks.webhooks_app import app

from holdfast.shapes.webhooks.endpoints import Endpoints
from holdfast.shapes.webhooks.spec import Spec
from holdfast.testing import Kit

MODULE = "tests.webhooks.webhooks_app"


def test_a_kill_between_request_and_settle(
    holdfast_kit: Callable[..., Kit], site: Site, tmp_path: Path
) -> None:
    kit = holdfast_kit(app, QUICK)
    scene = Scene(kit, tmp_path)
    try:
        Endpoints(Spec(egress=site.egress), lambda: kit.database).create(tenant="acme", url=site.url())
        kit.sql(  # as a worker makes it known; before the event, which is to be seen
            """INSERT INTO holdfast.subscriptions (name, kind, patterns, position, seq, status, created_at, moved_at)
               VALUES ('webhooks', 'webhooks', '{order.*}', 0, 0, 'active', now(), now())"""
        )
        published = app.publish("order.paid", {"n": 1}, headers={"tenant": "acme"})
        env = {"HOOKS_PORT": str(site.port)}
        dying = scene.start(failpoints="webhooks.sent=kill", ready=False, module=MODULE, env=env)
        assert dying.wait() == -signal.SIGKILL
        assert len(site.requests) == 1
        assert kit.sql("SELECT FROM holdfast.webhook_attempts") == [], (
            "the settle and its attempt, or neither"
        )
        scene.start(ready=False, module=MODULE, env=env)
        wait_until(
            lambda: kit.sql("SELECT 1 FROM holdfast.webhook_deliveries WHERE status = 'delivered'"),
            "it arrived",
        )
    finally:
        scene.end()
    assert [r.headers["webhook-id"] for r in site.requests] == [str(published.id)] * 2
    rows = kit.sql("SELECT n, status, error FROM holdfast.webhook_attempts ORDER BY n")
    assert [(row["n"], row["status"], row["error"]) for row in rows] == [(1, None, "unknown"), (2, 200, None)]
    assert kit.sql("SELECT attempts FROM holdfast.webhook_deliveries") == [{"attempts": 2}]
