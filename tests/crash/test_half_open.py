"""Connections that say nothing any more and do not close: noticed, replaced, and no reason to hang."""

import signal

from tests.conftest import wait_until
from tests.crash.crash_app import plain, record
from tests.crash.process import Scene
from tests.crash.proxy import Proxy

OURS = ("holdfast claim", "holdfast renew", "holdfast settle", "holdfast sweep")


def test_silent_connections_are_noticed_and_replaced(scene: Scene, proxy: Proxy) -> None:
    job = plain.enqueue("go").id
    worker = scene.start(url=proxy.url, lease=20, dead_after=15, statement_timeout=1, connect_timeout=2)
    scene.until_noted("start", job)
    assert proxy.go_silent(lambda name: name in OURS) >= 3
    scene.open("go")  # so that the settler has something to say

    def failed() -> set[str]:
        names = {event["service"] for event in worker.events("service.failed")}
        return names | ({"claim"} if worker.events("claim.failed") else set())

    wait_until(lambda: failed() >= {"claim", "renew", "settle", "sweep"}, "every loop noticed", 15)
    proxy.heal()
    row = scene.until_status(job, "completed", 10)
    assert (row["attempts"], row["lease_generation"]) == (1, 1)
    assert len(scene.notes("start", job)) == 1
    scene.until_status(record.enqueue().id, "completed", 12)
    recovered = lambda: {e["service"] for e in worker.events("service.recovered")} >= {"renew", "sweep"}  # noqa: E731
    wait_until(recovered, "every loop goes on", 12)


def test_leaving_does_not_hang_on_a_silent_database(scene: Scene, proxy: Proxy) -> None:
    job = plain.enqueue("go").id
    worker = scene.start(
        url=proxy.url, command_line=True, drain=0.5, statement_timeout=0.5, connect_timeout=0.5, lease=60
    )
    scene.until_noted("start", job)
    proxy.go_silent()
    scene.open("go")
    worker.kill(signal.SIGTERM)
    worker.wait(20)
    scene.start()
    row = scene.until_status(job, "completed", 15)
    assert row["attempts"] == 1
