"""A worker that reads no events still turns pages, so that whoever does read finds them numbered."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from tests.conftest import QUICK, await_until
from tests.flow.test_run import working

from holdfast import Holdfast
from holdfast.shapes.events import service, store
from holdfast.shapes.events.service import Pages
from holdfast.testing import Kit


@pytest.fixture
def kit(app: Holdfast, holdfast_kit: Callable[..., Kit]) -> Kit:
    """A worker that sleeps while it has nothing to do, and asks with its pulse."""
    return holdfast_kit(app, replace(QUICK, heartbeat=0.3, dead_after=10.0, lease=30.0, poll=600.0))


def pages(kit: Kit) -> int:
    return int(kit.sql("SELECT count(*) AS n FROM holdfast.event_pages")[0]["n"])


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What each pulse said."""
    answers: list[Any] = []
    original = Pages.on_answer

    def noted(self: Pages, answer: Any) -> None:
        original(self, answer)
        answers.append(answer)

    monkeypatch.setattr(Pages, "on_answer", noted)
    return answers


async def after_pulses(told: list[Any], count: int) -> None:
    until = len(told) + count
    await await_until(lambda: len(told) >= until, what="the worker to sleep and ask")


async def test_a_commit_after_its_number_was_seen_gets_its_page(kit: Kit, told: list[Any]) -> None:
    """The last number that was drawn does not change when its transaction commits, and nobody is woken for it."""
    with psycopg.connect(kit.url) as conn:
        async with working(kit):
            await after_pulses(told, 2)
            conn.execute("SELECT holdfast.publish('order.paid')")
            await after_pulses(told, 3)
            assert pages(kit) == 0
            conn.commit()
            await await_until(lambda: pages(kit) == 1, what="the page of what was committed")


async def test_while_one_is_open_the_events_of_others_get_their_pages(kit: Kit, told: list[Any]) -> None:
    with psycopg.connect(kit.url) as conn:
        async with working(kit):
            conn.execute("SELECT holdfast.publish('open')")
            await after_pulses(told, 2)
            kit.sql("SELECT holdfast.publish('other')")
            await await_until(lambda: pages(kit) == 1, what="the page of the other")
            await after_pulses(told, 2)
            conn.commit()
            await await_until(lambda: pages(kit) == 2, what="the page of the one that was open")


async def test_a_worker_that_is_busy_turns_pages_too(
    app: Holdfast, kit: Kit, told: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it has a job there is no pulse that would tell."""
    monkeypatch.setattr(service, "_UNREAD", 0.2)
    let_go, began = threading.Event(), threading.Event()

    @app.task
    def long() -> None:
        began.set()
        let_go.wait()

    try:
        async with working(kit, concurrency=1):
            kit.sql("SELECT holdfast.publish('a')")
            await await_until(lambda: pages(kit) == 1, what="the first page")
            await after_pulses(told, 2)
            await long.aenqueue()
            await asyncio.to_thread(began.wait)
            kit.sql("SELECT holdfast.publish('b')")
            await await_until(lambda: pages(kit) == 2, what="a page while it is busy")
            let_go.set()
    finally:
        let_go.set()


async def test_an_idle_log_is_left_alone(kit: Kit, told: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A pulse that says the same as before makes nobody ask."""
    turns: list[int] = []
    original = store.turn_page

    def noted() -> Any:
        turns.append(1)
        return original()

    async with working(kit):
        kit.sql("SELECT holdfast.publish('a')")
        await await_until(lambda: pages(kit) == 1, what="the page")
        await after_pulses(told, 2)
        monkeypatch.setattr(store, "turn_page", noted)
        await after_pulses(told, 10)
    assert len(turns) <= 5  # where pulses come late, it looks by itself every ten seconds
