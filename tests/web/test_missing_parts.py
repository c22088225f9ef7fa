"""A statement that takes too long takes no other part of a page with it: that is when somebody is needed most."""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Iterator
from datetime import timedelta

import psycopg
import pytest
from tests.conftest import within
from tests.web.conftest import Shop
from tests.web.surfing import Surfer
from tests.web.test_live import _frames

from holdfast.db.faults import LockTimeout
from holdfast.errors import DatabaseUnavailable
from holdfast.operate.operator import Operator
from holdfast.store.statement import Statement
from holdfast.testing import Kit
from holdfast.web import live, reading
from holdfast.web.application import Dashboard
from holdfast.web.parts import Missing, in_time
from holdfast.web.views import overview

BLOCKED = "1 key blocked by a dead letter"


@contextlib.contextmanager
def locked(kit: Kit, table: str) -> Iterator[None]:
    """As a migration or a forgotten session locks it."""
    with psycopg.connect(kit.database.dsn) as conn:
        conn.execute(f"LOCK TABLE holdfast.{table} IN ACCESS EXCLUSIVE MODE".encode())
        yield


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statements of the dashboard end soon."""
    monkeypatch.setattr(reading, "LONGEST", 0.3)
    monkeypatch.setattr(overview, "FIRST", 30.0)


async def test_the_overview_says_what_is_wrong_where_its_numbers_cannot_be_read(
    mara: Surfer, dashboard: Dashboard, kit: Kit, shop: Shop, quick: None
) -> None:
    with locked(kit, "throughput"):
        text = await mara.page("/")
        found = (await mara.get("/api/v1/overview")).json()["data"]
    assert "The numbers could not be read: it took too long, or somebody holds a lock on it." in text
    assert "The history could not be read" in text
    assert BLOCKED in text, re.findall("<b>[^<]*</b>", text)
    assert "Oldest that could run" not in text
    assert any(sentence.startswith("The numbers") for sentence in found["missing"])
    assert any(one["what"].startswith(BLOCKED) for one in found["findings"])
    dashboard.site.snapshots.forget()
    whole = await mara.page("/")
    assert "could not be read" not in whole
    assert "Oldest that could run" in whole


async def test_older_numbers_stay_with_their_age(
    mara: Surfer, dashboard: Dashboard, kit: Kit, shop: Shop, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mara.page("/")
    dashboard.site.snapshots.forget()
    now = dashboard.site.now
    with locked(kit, "throughput"):
        monkeypatch.setattr(dashboard.site, "now", lambda: now() + timedelta(seconds=42))
        text = await mara.page("/")
    assert re.search("These numbers are [45][0-9] s old", text), re.findall("These numbers[^<]*", text)
    assert "Oldest that could run" in text


async def test_other_pages_stay_too(mara: Surfer, kit: Kit, shop: Shop, quick: None) -> None:
    with locked(kit, "throughput"):
        doctor = await mara.page("/doctor")
        jobs = await mara.page("/jobs")
    assert BLOCKED in doctor
    assert "What takes the space could not be read" in doctor
    assert str(shop.waiting) in jobs


def now_limited(dashboard: Dashboard) -> Awaitable[str]:
    shown = Statement(
        "shown", "SELECT current_setting('statement_timeout')", (), lambda rows: str(rows[0][0])
    )
    return dashboard.site.reading.arun(lambda: shown)


async def test_no_statement_of_the_dashboard_takes_longer_than_its_limit(
    dashboard: Dashboard, kit: Kit, quick: None
) -> None:
    with locked(kit, "queues"), pytest.raises(LockTimeout):
        await asyncio.wait_for(dashboard.site.look(Operator.list_rules.procedure()), within(30))
    assert await now_limited(dashboard) == "300ms"


async def test_a_page_that_takes_too_long_says_where_to_look(
    mara: Surfer, kit: Kit, shop: Shop, quick: None
) -> None:
    with locked(kit, "archive"):
        answer = await mara.get("/jobs")
    assert (answer.status_code, "see Doctor" in answer.text) == (503, True)


async def test_what_takes_too_long_is_not_waited_for() -> None:
    async def slow() -> int:
        await asyncio.sleep(60)
        return 1

    found = await in_time("The numbers", slow, 0.01)
    assert isinstance(found, Missing)
    assert found.sentence == "The numbers could not be read: it took longer than 0.01 s."


async def test_what_is_about_the_whole_database_is_about_the_whole_page() -> None:
    async def away() -> int:
        raise DatabaseUnavailable("no answer")

    with pytest.raises(DatabaseUnavailable):
        await in_time("The numbers", away, 10)


async def test_a_stream_calls_no_database_unreachable_that_is_there(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow(*_: object) -> dict[str, str]:
        raise LockTimeout("canceling statement due to statement timeout")

    monkeypatch.setattr(live, "values_of", slow)
    (frame,) = await _frames(dashboard, ["overview"], 1)
    assert frame["event"] == "away"
    assert frame["sentence"].startswith("New numbers take too long to read")
