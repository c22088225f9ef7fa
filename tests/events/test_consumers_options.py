"""Options of `@app.on(...)` that are those of a task: a process of its own, and a breaker."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import QUICK
from tests.events.consumer_process_app import OrderPaid
from tests.events.consumer_process_app import app as process_app

from holdfast import Backoff, Breaker, Event, Holdfast
from holdfast.testing import Kit


def test_an_event_is_handled_in_a_process_of_its_own(
    holdfast_kit: Callable[..., Kit], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its type, and a process that dies costs an attempt of its job and nothing else."""
    notes = tmp_path / "notes"
    monkeypatch.setenv("CONSUMER_NOTES", str(notes))
    kit = holdfast_kit(process_app, QUICK)
    process_app.publish(OrderPaid(1, 995))
    process_app.publish(OrderPaid(2, -1))
    kit.run_worker(concurrency=1)
    lines = [line.split() for line in notes.read_text(encoding="utf-8").splitlines()]
    assert [line[1:] for line in lines if line[1] == "1"] == [["1", "order:1", "OrderPaid", "995"]]
    assert [line[1:] for line in lines if line[1] == "2"] == [["2", "order:2", "OrderPaid", "-1"]] * 2
    died, again = (int(line[0]) for line in lines if line[1] == "2")
    assert os.getpid() not in {int(line[0]) for line in lines}
    assert died != again
    ends = kit.sql("SELECT status, attempts FROM holdfast.archive ORDER BY attempts")
    assert [(row["status"], row["attempts"]) for row in ends] == [("completed", 1), ("completed", 2)]


def test_a_breaker_holds_the_jobs_of_events_back(app: Holdfast, kit: Kit) -> None:
    """The subscription goes on: events become jobs, and the jobs wait for the breaker."""
    handled: list[int] = []
    is_down = True

    @app.on(
        "order.paid",
        start="start",
        breaker=Breaker(failures=3, within=60, cooldown=30),
        retry=Backoff(first=0, jitter=False),
        max_attempts=10,
    )
    def send(event: Event[Any]) -> None:
        handled.append(event.position)
        if is_down:
            raise ConnectionError("it is down")

    app.publish_many([("order.paid", {}) for _ in range(3)])
    kit.run_worker(concurrency=1)
    assert [row["state"] for row in kit.sql("SELECT state FROM holdfast.breakers WHERE task = 'send'")] == [
        "open"
    ]
    calls = len(handled)
    app.publish_many([("order.paid", {}) for _ in range(3)])
    kit.run_worker(concurrency=1)
    assert len(handled) == calls
    assert kit.sql("SELECT position FROM holdfast.subscriptions") == [{"position": 6}]
    assert len(kit.jobs()) == 6
    is_down = False
    handled.clear()
    kit.clock.advance(31)
    kit.run_worker(concurrency=1)
    assert sorted(handled) == [1, 2, 3, 4, 5, 6]
