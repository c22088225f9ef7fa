"""A listener that hears nothing any more is noticed, whatever the reason, and work goes on."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import psycopg
import pytest
from tests.conftest import await_until
from tests.crash.proxy import Proxy
from tests.wake.conftest import LISTENER, SLEEPY, Notes, sleepers, until_asleep, working

from holdfast.telemetry import Event
from holdfast.testing import Kit


@pytest.fixture
def proxy(sleepy: Kit) -> Iterator[Proxy]:
    made = Proxy(sleepy.url)
    yield made
    made.close()


def named(events: list[Event], name: str) -> list[Event]:
    return [e for e in events if e.name == name]


async def test_a_killed_listener_is_replaced(events: list[Event], asleep: Kit, notes: Notes) -> None:
    def again(n: int) -> bool:
        return len(named(events, "listen.ready")) > n + 1

    for n in range(3):
        (before,) = asleep.sql(LISTENER)
        asleep.sql("SELECT pg_terminate_backend(%s)", [before["pid"]])
        await await_until(partial(again, n), "it listens again", 15)
        await notes.task.aenqueue(n)
        await notes.until(*range(n + 1))
        assert asleep.sql(LISTENER) not in ([], [before])
        await until_asleep(asleep)


async def test_a_half_open_listener_is_noticed_within_15_seconds(
    sleepy: Kit, notes: Notes, proxy: Proxy, events: list[Event]
) -> None:
    sleepy.database.settings = replace(SLEEPY, listen_url=proxy.url)
    async with working(sleepy):
        await until_asleep(sleepy)
        assert proxy.go_silent(lambda name: name == "holdfast listen") == 1
        await notes.task.aenqueue(1)  # nobody hears of it
        await until_asleep(sleepy, 0, seconds=15)
        await notes.until(1)  # it looks when it notices
        assert "no answer within" in named(events, "service.failed")[0].fields["error"]
        proxy.heal()
        await until_asleep(sleepy)
        await notes.task.aenqueue(2)
        await notes.until(1, 2)
    await sleepy.database.aclose()


async def test_an_address_that_hears_nothing_of_this_database(
    sleepy: Kit, notes: Notes, events: list[Event]
) -> None:
    """Like a pooler, another database takes LISTEN and says nothing."""
    elsewhere = psycopg.conninfo.make_conninfo(sleepy.url, dbname="postgres")
    sleepy.database.settings = replace(SLEEPY, poll=0.4, listen_url=elsewhere)
    async with working(sleepy):
        await await_until(lambda: named(events, "listen.deaf"), "it says that it hears nothing")
        await notes.task.aenqueue(1)
        await notes.until(1)
        assert sleepers(sleepy) == []
    await sleepy.database.aclose()


async def test_an_address_that_nobody_answers_at(sleepy: Kit, notes: Notes, events: list[Event]) -> None:
    sleepy.database.settings = replace(SLEEPY, poll=0.4, listen_url="postgresql://127.0.0.1:1/none")
    async with working(sleepy):
        await await_until(lambda: len(named(events, "service.failed")) > 1, "it says so")
        await notes.task.aenqueue(1)
        await notes.until(1)
    assert {e.fields["service"] for e in named(events, "service.failed")} == {"notify"}
    await sleepy.database.aclose()


async def test_a_fenced_worker_sleeps_under_its_new_name(asleep: Kit, notes: Notes) -> None:
    (old,) = sleepers(asleep)
    asleep.sql(
        "UPDATE holdfast.workers SET last_seen_at = now() - interval '1 hour', status = 'gone' WHERE id = %s",
        [old],
    )
    await await_until(lambda: sleepers(asleep) not in ([], [old]), "it lies down under its new name")
    await notes.task.aenqueue(1)
    await notes.until(1)
