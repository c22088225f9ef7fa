"""Publishing wakes where somebody sleeps for events, and nowhere else; a worker that sleeps costs a pulse."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from tests.conftest import QUICK, await_until
from tests.doctor.bouncer import bouncer
from tests.wake.conftest import SLEEPY, working
from tests.wake.test_wake_pulse import counted as counted
from tests.wake.test_wake_sql import register

from holdfast import AsyncTransaction, Event, Holdfast, Settings
from holdfast.db.database import Database
from holdfast.shapes.events.log import Log
from holdfast.store.wake import fall_asleep, get_up
from holdfast.testing import Kit

TOLD = ["holdfast_+events"]


class Ear:
    """Somebody who listens for events."""

    def __init__(self, url: str) -> None:
        self._conn = psycopg.connect(url, autocommit=True)
        self._conn.execute('LISTEN "holdfast_+events"')
        self._conn.execute("LISTEN holdfast_inbox")
        self._conn.execute("LISTEN over")

    def heard(self) -> list[str]:
        """Channels of all that was committed before this call."""
        self._conn.execute("NOTIFY over")
        found: list[str] = []
        for note in self._conn.notifies(timeout=20):
            if note.channel == "over":
                break
            found.append(note.channel)
        return found

    def close(self) -> None:
        self._conn.close()


@pytest.fixture
def ear(sleepy: Kit) -> Iterator[Ear]:
    made = Ear(sleepy.url)
    yield made
    made.close()


WAYS: dict[str, Callable[[Holdfast, Any], Any]] = {
    "publish": lambda app, conn: app.publish("a", {}, key="k", conn=conn),
    "publish_many": lambda app, conn: app.publish_many([("a", {}), ("b", {}, "k")], conn=conn),
    "append": lambda app, conn: app.events.append("s", [("a", {})], conn=conn),
    "sql": lambda app, conn: conn.execute("SELECT holdfast.publish('a')"),
}


@pytest.mark.versions
def test_publishing_notifies_only_where_somebody_sleeps(app: Holdfast, sleepy: Kit, ear: Ear) -> None:
    worker = register(sleepy)
    with sleepy.connect() as conn:
        for name, write in WAYS.items():
            write(app, conn)
            conn.commit()
            assert ear.heard() == [], name
        assert sleepy.database.run(lambda: fall_asleep(worker, ["inbox"], 10.0))
        WAYS["publish"](app, conn)
        conn.commit()
        assert ear.heard() == []  # it sleeps for jobs
        assert sleepy.database.run(lambda: fall_asleep(worker, ["+events"], 10.0))
        for name, write in WAYS.items():
            write(app, conn)
            write(app, conn)
            assert ear.heard() == [], name  # with the commit
            conn.commit()
            assert ear.heard() == TOLD, name  # once for each transaction
            write(app, conn)
            conn.rollback()
            assert ear.heard() == [], name
        sleepy.database.run(lambda: get_up(worker, ["+events"]))
        for write in WAYS.values():
            write(app, conn)
        conn.commit()
        assert ear.heard() == []


def projecting(app: Holdfast) -> list[int]:
    seen: list[int] = []

    @app.projection("seen", on=["*"])
    async def project(tx: AsyncTransaction, event: Event[Any]) -> None:
        seen.append(event.data["n"])

    return seen


async def asleep(kit: Kit) -> None:
    await await_until(lambda: kit.sql("SELECT 1 FROM holdfast.sleepers WHERE queue = '+events'"), "it sleeps")


async def test_a_sleeping_subscriber_is_woken_behind_a_pooler(
    app: Holdfast, holdfast_kit: Callable[..., Kit], pgbouncer: None
) -> None:
    """With a direct address for LISTEN; the worker looks by itself every ten minutes only."""
    seen = projecting(app)
    kit = holdfast_kit(app, SLEEPY)
    with bouncer(kit.url, "transaction") as url:
        app._opened = Database(url, replace(SLEEPY, listen_url=kit.url))
        async with working(kit):
            await asleep(kit)
            await asyncio.sleep(1.0)
            for n in range(3):
                await app.apublish("a", {"n": n})
                await await_until(lambda n=n: seen == list(range(n + 1)), "it was projected")  # type: ignore[misc]
        await app.database.aclose()
        app._opened.close()


async def test_an_open_publisher_is_looked_for_again_when_it_has_ended(
    app: Holdfast, holdfast_kit: Callable[..., Kit], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tells nobody, and its number is the one that the pulse has seen before: as when a pulse looks at the locks, and
    then at the number, and it publishes in between."""
    seen, answers, told = projecting(app), list[int | None](), Log.on_answer

    def noted(log: Log, answer: int | None) -> None:
        told(log, answer)
        answers.append(answer)

    monkeypatch.setattr(Log, "on_answer", noted)
    kit = holdfast_kit(app, replace(QUICK, heartbeat=0.4, dead_after=10.0, lease=60.0, poll=600.0))
    with kit.connect() as conn:
        async with working(kit):
            await asleep(kit)
            conn.execute("SELECT setval('holdfast.event_seq', 7)")
            await await_until(lambda: answers[-2:] == [7, 7], "the pulse has seen it, and nothing is new")
            conn.execute(
                "SELECT setval('holdfast.event_seq', 7, false); INSERT INTO holdfast.events (slot, type, data) "
                "VALUES (holdfast.archive_slot(holdfast.now()), 'a', '{\"n\": 1}')"
            )
            await await_until(lambda: answers[-1] is None, "the pulse sees the open transaction")
            assert seen == []
            conn.commit()
            await await_until(lambda: seen == [1], "it was projected")
    await kit.database.aclose()


async def test_a_transaction_that_published_before_it_slept_is_found_by_the_pulse(
    app: Holdfast, holdfast_kit: Callable[..., Kit], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody slept when it published, so it tells nobody; nor does its number change when it commits."""
    seen = projecting(app)
    kit = holdfast_kit(app, replace(QUICK, heartbeat=0.4, dead_after=10.0, lease=60.0, poll=600.0))
    with kit.connect() as conn:
        app.publish("a", {"n": 1}, conn=conn)
        async with working(kit):
            await asleep(kit)
            await asyncio.sleep(3.0)  # several pulses
            assert seen == []
            conn.commit()
            await await_until(lambda: seen == [1], "it was projected")
    await kit.database.aclose()


async def test_an_idle_subscriber_keeps_the_bound_of_idle_workers(
    app: Holdfast, holdfast_kit: Callable[..., Kit], counted: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pulse, and the renewal of its subscriptions: at most one statement in two seconds at default settings."""
    monkeypatch.setattr("holdfast.runtime.sleep._LIGHT", 0.0)
    seen = projecting(app)

    @app.on("a", name="another")
    async def another(event: Event[Any]) -> None: ...

    kit = holdfast_kit(app, Settings())
    async with working(kit):
        await asleep(kit)
        await asyncio.sleep(7)
        counted.clear()
        await asyncio.sleep(18)
        assert set(counted) == {"pulse", "own_subscriptions"}
        assert counted.total() <= 18 / 2 + 1, counted  # the window may begin just before one
        await app.apublish("a", {"n": 1})
        await await_until(lambda: seen == [1], "it hears")
    await kit.database.aclose()
