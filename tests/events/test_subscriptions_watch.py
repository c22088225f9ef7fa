"""What turns the pages of a worker goes on after every failure, says so, and knows the era of the log."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.conftest import QUICK, await_until
from tests.flow.test_run import working

from holdfast import AsyncTransaction, Event, Holdfast, telemetry
from holdfast.shapes.events.log import Log
from holdfast.testing import Kit


@pytest.fixture
def kit(app: Holdfast, holdfast_kit: Callable[..., Kit]) -> Kit:
    return holdfast_kit(app, replace(QUICK, heartbeat=600.0, dead_after=3600.0, lease=4000.0))  # one tick


def projecting(app: Holdfast) -> tuple[Any, list[Event[Any]]]:
    seen: list[Event[Any]] = []

    @app.projection("seen", on=["*"])
    async def project(tx: AsyncTransaction, event: Event[Any]) -> None:
        seen.append(event)

    return project, seen


def failed(events: list[telemetry.Event]) -> list[Any]:
    return [event.fields["error"] for event in events if event.name == "pages.failed"]


@pytest.mark.parametrize("error", [RuntimeError("a fault of ours"), ConnectionError("cut off")])
async def test_pages_are_turned_again_after_any_failure_and_it_is_said(
    app: Holdfast,
    akit: Kit,
    events: list[telemetry.Event],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    project, seen = projecting(app)
    watch, times = Log.watch, iter([error, error])

    async def failing(log: Log) -> None:
        if (fault := next(times, None)) is not None:
            raise fault
        await watch(log)

    monkeypatch.setattr(Log, "watch", failing)
    async with working(akit):
        await await_until(lambda: len(failed(events)) == 2, "it has failed twice")
        published = await app.apublish("a", {})
        await project.aread_your_writes(published, timeout=60)
    assert failed(events) == [f"{type(error).__name__}: {error}"] * 2
    assert len(seen) == 1


async def test_a_log_of_another_server_is_waited_for_and_its_new_era_is_known(
    app: Holdfast, akit: Kit, events: list[telemetry.Event]
) -> None:
    """An owner at work begins anew after a rebase: its events are of the next era."""
    project, seen = projecting(app)
    async with working(akit):
        await project.aread_your_writes(await app.apublish("a", {}), timeout=60)
        akit.sql("UPDATE holdfast.event_log SET system_id = system_id + 1")
        await app.apublish("a", {})
        await await_until(lambda: failed(events), "it says so")
        akit.sql("SELECT holdfast.rebase_events()")
        await project.aread_your_writes(await app.apublish("a", {}), timeout=60)
    assert [(event.position, event.era) for event in seen] == [(1, 1), (2, 2), (3, 2)]
