"""Alive, ready, started: over HTTP, from a real worker on a real database."""

import asyncio
import contextlib
import logging
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from tests.conftest import QUICK, wait_until
from tests.crash.proxy import Proxy
from tests.observe.support import Port, ready, serving, with_port

from holdfast import ConfigurationError, Holdfast, Settings, telemetry
from holdfast.observe import health
from holdfast.settings import load_settings
from holdfast.testing import Kit

MakeKit = Callable[..., Kit]


@pytest.fixture
def proxied(app: Holdfast, holdfast_kit: MakeKit, dsn: str) -> Iterator[tuple[Kit, Proxy]]:
    """The app behind a proxy that can take the database away."""
    proxy = Proxy(dsn)
    kit = Kit(app, proxy.url, with_port(statement_timeout=1.0, connect_timeout=1.0, metrics_snapshot=0.2))
    yield kit, proxy
    kit.close()
    proxy.close()


def test_a_worker_at_work_is_started_alive_and_ready(app: Holdfast, holdfast_kit: MakeKit) -> None:
    with ready(holdfast_kit(app, with_port())) as port:
        for path in ("/livez", "/readyz", "/startupz"):
            answer = port.get(path)
            assert (answer.status_code, answer.json()) == (200, {"status": "ok", "reasons": []})
            assert answer.headers["connection"] == "close"
            assert answer.headers["content-length"] == str(len(answer.content))


def test_without_the_setting_there_is_no_port(
    app: Holdfast, holdfast_kit: MakeKit, events: list[telemetry.Event]
) -> None:
    holdfast_kit(app, QUICK).run_worker()
    assert not [e for e in events if e.name == "health.listening"]
    assert not [t for t in threading.enumerate() if t.name == "holdfast-health"]


def test_the_port_is_gone_with_the_worker(app: Holdfast, holdfast_kit: MakeKit) -> None:
    with ready(holdfast_kit(app, with_port())) as port:
        pass
    host, number = port.address.removeprefix("http://").split(":")
    with socket.create_server((host, int(number))):  # free again
        pass
    assert not [t for t in threading.enumerate() if t.name == "holdfast-health"]


def test_it_answers_while_the_worker_still_starts(holdfast_kit: MakeKit) -> None:
    gate = threading.Event()

    @contextlib.asynccontextmanager
    async def lifespan(_: Holdfast) -> AsyncIterator[None]:
        await asyncio.to_thread(gate.wait, 20)
        yield

    app = Holdfast("postgresql://unused.invalid/none", lifespan=lifespan)
    with serving(holdfast_kit(app, with_port())) as port:
        assert port.reasons("/startupz") == ["the worker is not registered yet"]
        assert port.reasons("/livez") == []
        assert "the worker is not registered" in port.reasons("/readyz")
        gate.set()
        wait_until(lambda: port.get("/startupz").status_code == 200, "started")
        wait_until(lambda: port.get("/readyz").status_code == 200, "ready")


def _timeless(reason: str) -> str:
    return re.sub(r"for [\d.]+ s", "for a while", reason)


def test_a_blocked_event_loop_is_not_alive_though_the_heartbeat_goes_on(
    app: Holdfast, holdfast_kit: MakeKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "longest_turn", lambda settings, queues: 0.0)
    gate, entered = threading.Event(), threading.Event()

    @app.task
    async def blocks() -> None:
        entered.set()
        gate.wait(100)  # no await: the loop stands still

    kit = holdfast_kit(app, with_port(live_after=0.5))
    beat = "SELECT max(last_seen_at) AS at FROM holdfast.workers"
    with ready(kit) as port:
        blocks.enqueue()
        entered.wait(100)
        wait_until(lambda: port.get("/livez").status_code == 503, "not alive")
        (reason,) = port.reasons("/livez")
        assert reason.startswith("the claim loop has not come round for ")
        assert reason.endswith(" s (limit 0.5 s); running: blocks")
        ready_to = [_timeless(said) for said in port.reasons("/readyz")]
        assert _timeless(reason) in ready_to  # asked later, so for longer
        assert port.reasons("/startupz") == []
        before = kit.sql(beat)
        wait_until(lambda: kit.sql(beat) != before, "the heartbeat goes on")
        assert port.get("/livez").status_code == 503
        gate.set()
        wait_until(lambda: port.get("/livez").status_code == 200, "alive again")


def test_sync_handlers_and_long_jobs_do_not_matter(
    app: Holdfast, holdfast_kit: MakeKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "longest_turn", lambda settings, queues: 0.0)
    gate, entered = threading.Event(), threading.Event()

    @app.task
    def long() -> None:
        entered.set()
        gate.wait(100)

    with ready(holdfast_kit(app, with_port(live_after=0.6)), concurrency=1) as port:
        long.enqueue()
        entered.wait(100)
        begun = time.monotonic()
        wait_until(lambda: time.monotonic() - begun > 1.2 or _dead(port), "twice the limit")
        assert not _dead(port)
        gate.set()


def _dead(port: Port) -> bool:
    return port.get("/livez").status_code != 200


def test_an_unreachable_database_makes_a_worker_unready_but_never_dead(proxied: tuple[Kit, Proxy]) -> None:
    """The claim loop goes on coming round: restarting every worker would not bring the database back."""
    kit, proxy = proxied
    with ready(kit) as port:
        proxy.refuse()
        wait_until(lambda: port.get("/readyz").status_code == 503, "unready")
        (reason,) = port.reasons("/readyz")
        assert reason.startswith("the heartbeat has not reached the database for ")
        for _ in range(2):
            _next_turn(port)
            assert port.get("/livez").status_code == 200
        assert port.get("/startupz").status_code == 200
        assert port.get("/readyz").status_code == 503
        proxy.heal()
        wait_until(lambda: port.get("/readyz").status_code == 200, "ready again")


def _next_turn(port: Port) -> None:
    before = port.worker.ticked_at
    wait_until(lambda: port.worker.ticked_at > before, "another turn of the claim loop")


@pytest.mark.parametrize("queues", [1, 5])
def test_the_limit_is_never_less_than_a_slow_database_makes_a_turn_take(queues: int) -> None:
    settings = Settings(poll=1, statement_timeout=10, connect_timeout=10)
    assert health.longest_turn(settings, queues) == 5 + 10 + 10 * (1 + 4 * queues)
    assert health.longest_turn(Settings(poll=120), queues) - health.longest_turn(settings, queues) == 115


def test_a_limit_below_what_a_turn_may_take_is_raised(app: Holdfast, holdfast_kit: MakeKit) -> None:
    gate, entered = threading.Event(), threading.Event()

    @app.task
    async def blocks() -> None:
        entered.set()
        gate.wait(100)

    with ready(holdfast_kit(app, with_port(live_after=0.1))) as port:
        blocks.enqueue()
        entered.wait(100)
        wait_until(lambda: (port.value("worker_tick_age_seconds") or 0) > 0.3, "past live_after")
        assert port.get("/livez").status_code == 200
        gate.set()


def test_a_draining_worker_is_alive_and_not_ready(
    app: Holdfast, holdfast_kit: MakeKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "longest_turn", lambda settings, queues: 0.0)
    gate, entered = threading.Event(), threading.Event()

    @app.task
    def last() -> None:
        entered.set()
        gate.wait(100)

    with ready(holdfast_kit(app, with_port(live_after=0.5))) as port:
        last.enqueue()
        entered.wait(100)
        port.worker._lifecycle._loop.call_soon_threadsafe(port.worker.stop)
        wait_until(lambda: port.get("/readyz").status_code == 503, "draining")
        last_turn = port.worker.ticked_at
        wait_until(lambda: time.monotonic() - last_turn > 1.0, "no claim loop for longer than the limit")
        assert port.reasons("/readyz") == ["the worker is draining"]
        assert port.reasons("/livez") == []
        assert port.value("worker_draining") == 1
        gate.set()


def test_a_schema_that_does_not_fit_is_not_ready(app: Holdfast, holdfast_kit: MakeKit) -> None:
    kit = holdfast_kit(app, with_port(metrics_snapshot=0.05))
    with ready(kit) as port:
        kit.sql("INSERT INTO holdfast.migrations (number, name) VALUES (99, 'from the future')")
        wait_until(lambda: port.get("/readyz").status_code == 503, "unready")
        (reason,) = port.reasons("/readyz")
        assert reason.startswith(
            "the database is at 99 and needs code that knows migration 99, this release knows"
        )
        assert port.get("/livez").status_code == 200
        kit.sql("DELETE FROM holdfast.migrations WHERE number = 99")
        wait_until(lambda: port.get("/readyz").status_code == 200, "ready again")


def test_a_worker_under_a_new_identity_is_ready_again(
    app: Holdfast, holdfast_kit: MakeKit, events: list[telemetry.Event]
) -> None:
    kit = holdfast_kit(app, with_port())
    with ready(kit) as port:
        before = port.worker.identity.id
        kit.sql("UPDATE holdfast.workers SET status = 'gone'")
        wait_until(lambda: any(e.name == "worker.fenced" for e in events), "fenced")
        wait_until(lambda: port.get("/readyz").status_code == 200, "ready under a new name")
        assert port.worker.identity.id != before


def test_a_port_in_use_is_said_at_the_start(app: Holdfast, holdfast_kit: MakeKit) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        kit = holdfast_kit(app, with_port())
        with pytest.raises(ConfigurationError) as caught, serving(kit, health=("127.0.0.1", number)):
            pass
    assert str(caught.value) == (
        f"health port {number} of 127.0.0.1 is in use, perhaps by another worker. Choose another one "
        "(--health-port, HOLDFAST_HEALTH_PORT), or 0 for any free one"
    )


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host"])
def test_a_host_that_is_not_ours(app: Holdfast, holdfast_kit: MakeKit, host: str) -> None:
    kit = holdfast_kit(app, with_port(health_host=host))
    text = f"^health port 0 of {host} cannot be opened: .+HEALTH_HOST"
    with pytest.raises(ConfigurationError, match=text), serving(kit):
        pass


@pytest.mark.parametrize("host", ["0.0.0.0", "::1"])
def test_other_addresses(app: Holdfast, holdfast_kit: MakeKit, host: str) -> None:
    with ready(holdfast_kit(app, with_port(health_host=host))) as port:
        assert port.get("/livez").status_code == 200


@pytest.mark.parametrize(("host", "level"), [("127.0.0.1", "WARNING"), ("0.0.0.0", "INFO")])
def test_in_kubernetes_a_port_that_probes_cannot_reach_is_a_warning(
    app: Holdfast,
    holdfast_kit: MakeKit,
    events: list[telemetry.Event],
    monkeypatch: pytest.MonkeyPatch,
    host: str,
    level: str,
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with serving(holdfast_kit(app, with_port(health_host=host))):
        (said,) = [e for e in events if e.name == "health.listening"]
    assert logging.getLevelName(said.level) == level
    assert ("HOLDFAST_HEALTH_HOST=0.0.0.0" in said.fields.get("advice", "")) == (level == "WARNING")


@pytest.mark.parametrize(
    ("text", "port"), [("0", 0), ("8080", 8080), ("none", None), ("None", None), ("", None)]
)
def test_the_port_as_a_setting(text: str, port: int | None) -> None:
    assert load_settings({"HOLDFAST_HEALTH_PORT": text}, Path("/nonexistent")).health_port == port


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x", "environment: HOLDFAST_HEALTH_PORT must be a whole number, not 'x'"),
        # what Kubernetes sets for a Service called holdfast-health
        (
            "tcp://10.0.0.1:80",
            "environment: HOLDFAST_HEALTH_PORT must be a whole number, not 'tcp://10.0.0.1:80'",
        ),
        ("70000", "health_port must be between 0 and 65535, not 70000"),
        ("-1", "health_port must be between 0 and 65535, not -1"),
    ],
)
def test_a_port_that_cannot_be(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_settings({"HOLDFAST_HEALTH_PORT": text}, Path("/nonexistent"))
    assert str(caught.value) == said


def test_two_workers_of_one_process_have_a_port_each(holdfast_kit: MakeKit) -> None:
    apps = [Holdfast("postgresql://unused.invalid/none") for _ in range(2)]
    first, second = (holdfast_kit(app, with_port()) for app in apps)
    with ready(first) as one, ready(second) as other:
        assert one.address != other.address
        assert one.get("/readyz").status_code == other.get("/readyz").status_code == 200
