"""The drill of those on call: systems that are broken in one way each. The first entry of the overview names the cause, and
what it offers heals the system."""

import asyncio
import contextlib
import os
import re
import shlex
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import psycopg
import pytest
from tests.conftest import QUICK, await_until
from tests.web import drill_app
from tests.web.drill_app import OrderPaid, checkout, down
from tests.web.entries import Entry, entries
from tests.web.surfing import Surfer, fields, made_for

from holdfast import Holdfast, shapes
from holdfast.operate.doctor.thresholds import Limits
from holdfast.operate.operator import Operator
from holdfast.testing import Kit
from holdfast.web.application import Dashboard


@dataclass
class Drill:
    kit: Kit
    made: Dashboard
    surfer: Surfer
    workers: list["asyncio.Future[None]"] = field(default_factory=list)

    async def worker(self, **options: Any) -> None:
        """One that lives on while the system is broken."""
        before = len(self.sql("SELECT FROM holdfast.workers"))
        self.workers.append(asyncio.ensure_future(self.kit.app.run_worker(**options)))
        await await_until(
            lambda: len(self.sql("SELECT FROM holdfast.workers")) > before, "the worker is there"
        )

    def later(self, span: str) -> None:
        self.kit.clock.advance(span)

    def sql(self, text: str, *params: object) -> list[dict[str, Any]]:
        return self.kit.sql(text, params or None)

    def send(self, task: str, count: int = 1, **options: Any) -> None:
        for number in range(1, count + 1):
            self.kit.app.send(task, {"number": number}, **options)

    def count(self, status: str) -> int:
        return len(self.sql("SELECT FROM holdfast.jobs WHERE status = %s", status))

    async def look(self) -> list[Entry]:
        self.made.site.snapshots.forget()
        return entries(await self.surfer.page("/"))

    async def first(self, cause: str) -> Entry:
        """Workers are heard of once they know what time it is."""
        seen: list[Entry] = []

        async def named() -> Any:
            seen[:] = await self.look()
            return bool(seen) and cause in seen[0].sentence

        try:
            await await_until(named, "it is named", 4)
        except AssertionError:
            raise AssertionError([one.sentence for one in seen]) from None
        return seen[0]

    async def press(self, entry: Entry, label: str, **more: str) -> None:
        (button,) = [one for one in entry.buttons if one.label == label]
        if button.form is not None:
            answer = await self.surfer.post(button.path, button.form)
        else:
            form = fields(await self.surfer.page(button.path))
            assert form["seal"]
            sent = dict(parse_qsl(urlsplit(button.path).query)) | form | more
            answer = await self.surfer.post(button.path.partition("?")[0], sent)
        assert answer.status_code == 303, answer.text[-2000:]
        (line,) = Operator(self.kit.database, "test").list_audit(limit=1).entries
        assert (line.actor, line.surface) == ("mara", "web")

    async def healed(self, entry: Entry, condition: Callable[[], object], what: str) -> None:
        await await_until(condition, what)

        async def gone() -> Any:
            return entry.sentence.split(" ", 1)[1] not in str([one.sentence for one in await self.look()])

        await await_until(gone, "nothing is said of it any more")


@pytest.fixture
def app() -> Holdfast:
    return Holdfast("postgresql://unused.invalid/none", include=[drill_app.shop])


@pytest.fixture
def limits() -> Limits | None:
    return None


@pytest.fixture
async def drill(kit: Kit, limits: Limits | None, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Drill]:
    """The servers of tests are quick instead of durable, and their clocks are moved: that is not what is broken here. What
    looks at the schema and at the way to the server takes its time, and finds nothing."""
    others = ("durability", "clock", "schema", "indexes", "plans", "listen", "pooler")
    monkeypatch.setattr(shapes, "CHECKS", [check for check in shapes.CHECKS if check.name not in others])
    down.clear()
    kit.sql("CREATE TABLE totals (number int)")
    made = made_for(kit.app, limits=limits, named="tests.web.drill_app:app")
    one = Drill(kit, made, Surfer(made))
    yield one
    down.clear()
    for worker in one.workers:
        worker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await worker
    await made.site.close()
    await kit.database.aclose()


async def test_a_queue_that_was_paused_and_forgotten(drill: Drill) -> None:
    Operator(drill.kit.database, "bob").pause_queue("mail")
    drill.send("mail.send", 3)
    drill.later("2h")
    await drill.worker()
    entry = await drill.first("1 queue paused while 3 jobs wait behind")
    assert "queue mail: for 2 h, by bob" in entry.text
    await drill.press(entry, "Resume")
    await drill.healed(entry, lambda: drill.count("completed") == 3, "the letters are sent")


async def test_a_breaker_that_waits_for_its_next_trial(drill: Drill) -> None:
    down.add("bank")
    drill.send("billing.charge", 5)
    await drill.worker()
    await await_until(
        lambda: drill.sql("SELECT FROM holdfast.breakers WHERE state = 'open'"), "the breaker opened"
    )
    drill.later("10m")
    entry = await drill.first("1 breaker open, ")
    assert "task billing.charge for 10 min" in entry.text
    assert "bank.example did not answer" in entry.text
    limits = await drill.surfer.page("/limits")
    assert re.search(r"breaker open</span>.*?for 10 min[^,]*, (the )?next trial (is due|in)", limits)
    assert "bank.example did not answer" in limits
    down.clear()
    await drill.press(entry, "Resume")
    await drill.healed(entry, lambda: drill.count("completed") == 5, "the orders are charged")


async def test_a_key_that_waits_for_its_dead_letter(drill: Drill) -> None:
    down.add("carrier")
    drill.send("parcels.ship", 3, partition_key="order:1", queue="parcels")
    await drill.worker()
    entry = await drill.first("1 key blocked by a dead letter")
    assert "key order:1" in entry.text
    assert "no such street" in entry.text
    down.clear()
    await drill.press(entry, "Release, retry")
    await drill.healed(entry, lambda: drill.count("completed") == 3, "the parcels are sent")


async def test_many_keys_that_wait_for_their_dead_letters(drill: Drill) -> None:
    down.add("carrier")
    for n in range(4):
        drill.send("parcels.ship", 2, partition_key=f"order:{n}", queue="parcels")
    await drill.worker()
    entry = await drill.first("4 keys blocked by a dead letter")
    down.clear()
    await drill.press(entry, "Release, retry")
    await drill.healed(entry, lambda: drill.count("completed") == 8, "the parcels are sent")


async def test_a_row_that_makes_claims_fail(drill: Drill) -> None:
    drill.send("mail.send", 2)
    bad = drill.sql("SELECT id FROM holdfast.work ORDER BY seq LIMIT 1")[0]["id"]
    drill.sql(
        "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'this row is bad' USING ERRCODE = '22000'; END $$"
    )
    drill.sql(
        "CREATE TRIGGER refuse BEFORE UPDATE ON holdfast.queue_mail FOR EACH ROW"
        f" WHEN (OLD.id = '{bad}') EXECUTE FUNCTION public.refuse()"
    )
    await drill.worker()
    await await_until(lambda: drill.sql("SELECT FROM holdfast.quarantine"), "it is in quarantine")
    drill.sql("DROP TRIGGER refuse ON holdfast.queue_mail")
    entry = await drill.first("1 job in quarantine, because it made a claim or a sweep fail")
    assert f"{bad} (mail.send, queue mail)" in entry.text
    await drill.press(entry, "Retry now")
    await drill.healed(entry, lambda: drill.count("completed") == 2, "both letters are sent")


async def test_a_schedule_whose_queue_is_gone(drill: Drill) -> None:
    await drill.kit.app.schedules.aadd(
        "nightly", timedelta(hours=1), drill_app.send.job(number=1), missed="run_all"
    )
    drill.sql("UPDATE holdfast.schedules SET queue = 'night'")
    drill.later("2h")
    await drill.worker()
    await await_until(
        lambda: drill.sql("SELECT FROM holdfast.schedules WHERE problem IS NOT NULL"), "it could not fire"
    )
    entry = await drill.first("1 schedule overdue")
    assert "queue 'night' does not exist" in entry.text
    await drill.press(entry, "Create queue")
    await drill.healed(entry, lambda: drill.sql("SELECT FROM holdfast.firings"), "it fires")


async def test_a_schedule_that_fires_and_fails(drill: Drill) -> None:
    """One dead letter a night is no storm, and nobody waits for the job who would be told."""
    down.add("mail")
    await drill.kit.app.schedules.aadd(
        "nightly", timedelta(hours=1), drill_app.send.job(number=1), missed="run_all"
    )
    drill.later("61m")
    await drill.worker()
    await await_until(lambda: drill.count("dead_letter") == 1, "its letter died")
    entry = await drill.first("1 schedule whose last job is a dead letter")
    assert "nightly: job " in entry.text
    assert "of mail.send" in entry.text
    assert "with ConnectionRefusedError: mail.example refused letter 1" in entry.text
    down.clear()
    await drill.press(entry, "Redrive", rate="")
    await drill.healed(entry, lambda: drill.count("completed") == 1, "the letter is sent")


@pytest.mark.long
async def test_a_storm_of_dead_letters(drill: Drill) -> None:
    down.add("mail")
    drill.send("mail.send", 120)
    await drill.worker()
    await await_until(lambda: drill.count("dead_letter") == 120, "all of them died")
    entry = await drill.first("120 dead letters in the last hour")
    assert "mail.send: 120, the last with ConnectionRefusedError: mail.example refused letter" in entry.text
    down.clear()
    await drill.press(entry, "Redrive", typed="120", rate="")
    await drill.healed(entry, lambda: drill.count("completed") == 120, "the letters are sent")


@pytest.mark.long
@pytest.mark.parametrize("limits", [Limits(horizon=0.2, dead_rows=1)])
async def test_a_session_that_went_to_lunch_in_a_transaction(drill: Drill) -> None:
    """Dead rows are what follows from it: it is named before them."""
    with psycopg.connect(drill.kit.url, application_name="lunch") as conn:
        conn.execute("SELECT pg_current_xact_id()")
        drill.send("mail.send", 20)
        await drill.worker()
        await await_until(lambda: drill.count("completed") == 20, "the letters are sent")
        await await_until(lambda: _dead_rows(drill), "the server counts dead rows")
        entry = await drill.first("1 session in a transaction for long")
        behind = (await drill.look())[1]
        assert "dead rows" in behind.sentence
        assert f"pid {conn.info.backend_pid}" in entry.text
        await drill.press(entry, "Fix", reason="nobody knows whose it is")
        with pytest.raises(psycopg.OperationalError):
            conn.execute("SELECT 1")
    await drill.healed(entry, lambda: True, "the session is over")


def _dead_rows(drill: Drill) -> bool:
    drill.sql("SELECT pg_stat_force_next_flush()")
    return bool(
        drill.sql("SELECT FROM pg_stat_all_tables WHERE schemaname = 'holdfast' AND n_dead_tup >= 1 LIMIT 1")
    )


async def test_a_projection_that_stopped_at_an_event(drill: Drill) -> None:
    down.add("totals")
    await drill.worker()
    await drill.kit.app.apublish(OrderPaid(7))
    await await_until(
        lambda: drill.sql("SELECT FROM holdfast.subscriptions WHERE status = 'paused'"), "it stopped"
    )
    entry = await drill.first("1 subscription stopped at an event that failed again and again")
    assert "totals (projection), 1 event behind" in entry.text
    assert "there is no column cents" in entry.text
    down.clear()
    await drill.press(entry, "Resume")
    await drill.healed(
        entry, lambda: drill.sql("SELECT FROM totals WHERE number = 7"), "the event is applied"
    )


async def test_a_limit_that_starves_a_queue(drill: Drill) -> None:
    down.add("printer")
    drill.kit.app.send("reports.render", {"number": 0}, queue="reports")
    await drill.worker(concurrency=4)
    await await_until(lambda: drill.count("processing") == 1, "the long one runs")
    drill.send("reports.render", 3, queue="reports")
    drill.later("5m")
    entry = await drill.first("1 queue held back by a limit while 3 jobs wait")
    assert "queue reports: 3 jobs due, the oldest for 5 min; 1 of 1 run, of 4 slots" in entry.text
    await drill.press(entry, "Raise concurrency", value="2")
    await drill.healed(entry, lambda: drill.count("completed") == 3, "the others run")


async def test_an_endpoint_that_was_disabled(drill: Drill) -> None:
    hooks = drill.kit.app.webhooks(on=["*"])
    drill.kit.create_queues()
    made = await hooks.endpoints.acreate(tenant="acme", url="https://acme.example/hooks")
    drill.sql(
        "UPDATE holdfast.webhook_endpoints SET status = 'disabled', disabled_reason = 'failing',"
        " disabled_at = holdfast.now()"
    )
    await drill.worker()
    entry = await drill.first("1 endpoint disabled because of what came back")
    assert f"{made.id} of acme: it did nothing but fail for days" in entry.text
    await drill.press(entry, "Enable")
    await drill.healed(
        entry,
        lambda: drill.sql("SELECT FROM holdfast.webhook_endpoints WHERE status = 'active'"),
        "it is enabled",
    )


@pytest.mark.long
async def test_a_release_that_does_not_fit_its_open_runs(drill: Drill) -> None:
    await drill.worker()
    run = await checkout.using(id="order:1").astart()
    await await_until(
        lambda: drill.sql("SELECT FROM holdfast.workflow_runs WHERE asleep IS NOT NULL"), "the run waits"
    )
    down.add("release")
    drill.later("5m")
    await await_until(
        lambda: drill.sql("SELECT FROM holdfast.workflow_runs WHERE state = 'diverged'"), "the run diverged"
    )
    entry = await drill.first("1 run set aside: its code diverged from what was recorded")
    assert f"checkout version 1: 1 run, such as {run.run_id}" in entry.text
    down.clear()  # the release is taken back
    await drill.press(entry, "Retry")
    await drill.healed(
        entry,
        lambda: drill.sql("SELECT FROM holdfast.workflow_runs WHERE state = 'completed'"),
        "the run ends",
    )


# What no button heals: a process is missing. The command to copy does. -----------------------------------------------


@pytest.mark.long
async def test_a_queue_without_a_worker(drill: Drill) -> None:
    drill.send("mail.send", 2)
    drill.later("5m")
    entry = await drill.first("1 queue with due jobs and no live worker")
    (command,) = entry.commands
    assert command == "holdfast worker tests.web.drill_app:app --queue mail"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        *shlex.split(command),
        env={**os.environ, "HOLDFAST_DATABASE_URL": drill.kit.url},
    )
    try:
        await drill.healed(entry, lambda: drill.count("completed") == 2, "the letters are sent")
    finally:
        process.terminate()
        await process.wait()


async def test_a_version_that_no_worker_knows(drill: Drill) -> None:
    newer = Holdfast(drill.kit.url, settings=QUICK)

    @newer.task(name="mail.send", version=2, queue="mail")
    def send(number: int, to: str) -> None: ...

    await send.aenqueue(number=1, to="ann")
    await drill.worker()
    await await_until(lambda: drill.count("held") == 1, "it is set aside")
    entry = await drill.first("1 job set aside: no worker knew its task or version")
    assert "queue mail: 1 job of mail.send version 2" in entry.text
    assert entry.commands[0] == "holdfast worker MODULE:APP --queue mail"  # of a release that has it
    await newer.run_worker(queues=["mail"], until_idle=True)
    await drill.healed(entry, lambda: drill.count("completed") == 1, "the letter is sent")
    await newer.database.aclose()
    newer.close()
