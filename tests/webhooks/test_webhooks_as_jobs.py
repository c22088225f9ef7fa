"""Each delivery is a job: `explain` says what it waits for, and a worker that drains ends its requests."""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.conftest import QUICK, wait_until
from tests.crash.process import Scene, WorkerProcess
from tests.surface.running import Cli
from tests.webhooks.support import OK, STEADY, Request, Site, hooks_of, reply
from tests.webhooks.webhooks_app import app as other_app

from holdfast import Holdfast
from holdfast.shapes.webhooks.endpoints import Endpoints
from holdfast.shapes.webhooks.spec import Spec
from holdfast.testing import Kit

ACME = {"tenant": "acme"}
MODULE = "tests.webhooks.webhooks_app"


@pytest.mark.parametrize("ordered", [False, True], ids=["plain", "ordered"])
def test_explain_says_what_a_delivery_waits_for(
    app: Holdfast, kit: Kit, site: Site, monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> None:
    kit.database.settings = STEADY
    hooks = hooks_of(app, site)
    kit.create_queues()
    kit.run_worker()
    cli = Cli(kit.url, monkeypatch)
    answers = {"/late": reply(500), "/asks": reply(503, "retry-after: 3600"), "/broken": reply(500)}
    site.answer = lambda request: answers.get(request.path, OK)
    made = {
        path: hooks.endpoints.create(tenant="acme", url=site.url(path), ordered=ordered, events=[event])
        for path, event in (
            ("/late", "order.a"),
            ("/asks", "order.b"),
            ("/broken", "order.c"),
            ("/rests", "order.d"),
        )
    }
    for event in ("order.a", "order.b", *["order.c"] * 6, "order.d"):
        app.publish(event, {}, headers=ACME)
    kit.run_worker(concurrency=1)

    def said(path: str) -> str:
        jobs = [one.id for one in hooks.deliveries(tenant="acme", endpoint=made[path].id)]
        return " ".join(cli("explain", str(job)).out for job in jobs)

    assert "HTTP 500" in said("/late")
    assert "webhook asked to wait: Retry-After" in said("/asks")
    assert "webhook breaker" in said("/broken")
    assert "completed" in said("/rests")


@pytest.fixture
def gate(site: Site) -> Iterator[threading.Event]:
    """The site replies once it is open."""
    opened = threading.Event()

    async def answer(_: Request) -> bytes:
        await asyncio.to_thread(opened.wait)
        return OK

    site.answer = answer
    yield opened
    opened.set()


def under_way(kit: Kit, scene: Scene, site: Site, drain: float) -> WorkerProcess:
    """A worker that has sent a request and waits for the reply."""
    Endpoints(Spec(egress=site.egress), lambda: kit.database).create(tenant="acme", url=site.url())
    env = {"HOOKS_PORT": str(site.port)}
    worker = scene.start(command_line=True, ready=False, module=MODULE, env=env, drain=drain)
    wait_until(lambda: bool(kit.sql("SELECT FROM holdfast.subscriptions")), "it reads the log")
    other_app.publish("order.paid", {"n": 1}, headers=ACME)
    wait_until(lambda: len(site.requests) == 1, "the request is under way")
    return worker


def delivered(kit: Kit) -> bool:
    return bool(kit.sql("SELECT FROM holdfast.webhook_deliveries WHERE status = 'delivered'"))


def test_a_worker_that_drains_waits_for_the_reply(
    holdfast_kit: Callable[..., Kit], site: Site, gate: threading.Event, tmp_path: Path
) -> None:
    kit = holdfast_kit(other_app, QUICK)
    scene = Scene(kit, tmp_path)
    try:
        worker = under_way(kit, scene, site, drain=300)
        worker.kill(signal.SIGTERM)
        wait_until(
            lambda: bool(kit.sql("SELECT FROM holdfast.workers WHERE status = 'draining'")), "it drains"
        )
        gate.set()
        assert worker.wait() == 0
    finally:
        scene.end()
    assert delivered(kit)
    assert len(site.requests) == 1
    assert kit.sql("SELECT n, status, error FROM holdfast.webhook_attempts") == [
        {"n": 1, "status": 200, "error": None}
    ]


def test_a_request_that_outlasts_the_drain_is_sent_again_and_the_first_is_unknown(
    holdfast_kit: Callable[..., Kit], site: Site, gate: threading.Event, tmp_path: Path
) -> None:
    kit = holdfast_kit(other_app, QUICK)
    scene = Scene(kit, tmp_path)
    try:
        worker = under_way(kit, scene, site, drain=0.3)
        worker.kill(signal.SIGTERM)
        assert worker.wait() == 0
        (row,) = kit.sql("SELECT status, attempts FROM holdfast.webhook_deliveries")
        assert row["status"] == "pending"
        gate.set()
        scene.start(ready=False, module=MODULE, env={"HOOKS_PORT": str(site.port)})
        wait_until(lambda: delivered(kit), "it arrived")
    finally:
        scene.end()
    first, second = site.requests
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    rows = kit.sql("SELECT n, status, error FROM holdfast.webhook_attempts ORDER BY n")
    assert [(one["n"], one["status"], one["error"]) for one in rows] == [(1, None, "unknown"), (2, 200, None)]
