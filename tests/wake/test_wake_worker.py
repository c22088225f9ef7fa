"""An idle worker is woken by whatever gives it something to do, and sleeps no longer than it may."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from tests.conftest import await_until
from tests.wake.conftest import LISTENER, SLEEPY, Ear, Notes, sleepers, until_asleep, working

from holdfast import DeadLetter, Holdfast, Retry, Snooze
from holdfast.operate.dead import redrive_verb
from holdfast.operate.edit import Changes
from holdfast.operate.job_acts import RETRY
from holdfast.operate.operator import Operator
from holdfast.testing import Kit


async def test_an_enqueue_wakes(asleep: Kit, notes: Notes) -> None:
    await notes.task.aenqueue(1)
    await notes.until(1)


async def test_an_enqueue_of_many_wakes(asleep: Kit, notes: Notes) -> None:
    await asleep.app.aenqueue_many([notes.task.job(1), notes.task.job(2)])
    await notes.until(1, 2)


async def test_an_enqueue_in_sql_wakes(asleep: Kit, notes: Notes) -> None:
    asleep.sql("SELECT holdfast.enqueue('note', '{\"n\": 5}', priority => 50)")
    await notes.until(5)


async def test_a_scheduled_job_starts_at_its_time(asleep: Kit, notes: Notes) -> None:
    await notes.task.using(run_after=3.0).aenqueue(1)
    await notes.task.using(run_after=2.5, priority=7).aenqueue(2)
    await notes.until(2, 1)


@pytest.mark.parametrize("rules", [{"ordering": "key"}, {"fair": True}, {"concurrency": 1}], ids=str)
async def test_an_enqueue_wakes_whatever_the_queue_is_like(
    app: Holdfast, holdfast_kit: Callable[..., Kit], notes: Notes, rules: dict[str, Any]
) -> None:
    app.queue("other", **rules)
    kit = holdfast_kit(app, SLEEPY)
    async with working(kit, queues=["other"]):
        await until_asleep(kit)
        for n in (1, 2):
            await notes.task.using(queue="other", partition_key="k").aenqueue(n)
            await notes.until(*range(1, n + 1))


async def test_a_schedule_wakes(app: Holdfast, holdfast_kit: Callable[..., Kit], notes: Notes) -> None:
    app.schedule(timedelta(seconds=1), notes.task.job(1))
    kit = holdfast_kit(app, SLEEPY)
    async with working(kit):
        await await_until(lambda: len(notes.ran) >= 2, "two slots have run")


@pytest.mark.parametrize("end", [Retry(after=0.9), Snooze(0.9)])
async def test_a_retry_and_a_snooze_start_at_their_time(
    asleep: Kit, notes: Notes, end: BaseException
) -> None:
    notes.ends = [end]
    await notes.task.aenqueue(1)
    await notes.until(1, 1)


@pytest.mark.parametrize("end", [Retry(after=1.5), Snooze(1.5)])
async def test_somebody_else_starts_it_when_the_worker_that_failed_it_is_gone(
    sleepy: Kit, notes: Notes, end: BaseException
) -> None:
    notes.ends = [end]
    await notes.task.aenqueue(1)
    async with working(sleepy, queues=["inbox"]) as first:
        await notes.until(1)
        first.cancel()
        async with working(sleepy):
            await notes.until(1, 1)
    await sleepy.database.aclose()


async def test_a_draining_worker_wakes_another_with_what_it_releases(sleepy: Kit, notes: Notes) -> None:
    """One worker runs a job, a second one sleeps; the first stops before its handler ends."""
    sleepy.database.settings = replace(SLEEPY, drain=0.2)
    async with working(sleepy) as first:
        await until_asleep(sleepy)
        await notes.wait.aenqueue(1)
        await notes.until(1)
        async with working(sleepy):
            await until_asleep(sleepy, 2)
            first.cancel()
            await notes.until(1, 1)
            notes.gate.set()
    await sleepy.database.aclose()


async def test_jobs_of_a_dead_worker_wake(asleep: Kit, notes: Notes) -> None:
    asleep.sql(
        "INSERT INTO holdfast.workers VALUES ('dead', 'h', 1, 'alive', now(), now(), '{inbox}', '{}', 1, '-')"
    )
    asleep.sql(
        """WITH job AS (INSERT INTO holdfast.work (id, queue, task, payload, status, claim_token)
               VALUES (holdfast.uuid7(), 'inbox', 'note', '{"n": 3}', 'processing', gen_random_uuid()) RETURNING *)
           INSERT INTO holdfast.claims
           SELECT claim_token, queue, 'dead', now(), now() + interval '1 hour', NULL, NULL, ARRAY[id] FROM job"""
    )
    await notes.until(3)


async def test_an_operator_wakes(asleep: Kit, notes: Notes) -> None:
    """Redrive, retry, edit, resume of a queue and of a task."""
    database = asleep.database
    notes.ends = [DeadLetter("no")]
    job = (await notes.task.aenqueue(1)).id
    await await_until(lambda: asleep.job(job)["status"] == "dead_letter", "it is dead")
    await asyncio.to_thread(Operator(database, "ann").act_on, redrive_verb(), [job])
    await notes.until(1, 1)

    job = (await notes.task.using(run_after=3600).aenqueue(2)).id
    await asyncio.to_thread(Operator(database, "ann").act_on, RETRY, [job])
    await notes.until(1, 1, 2)

    job = (await notes.task.using(run_after=3600).aenqueue(3)).id
    await asyncio.to_thread(Operator(database, "ann").edit_job, job, Changes(run_after=timedelta(seconds=0)))
    await notes.until(1, 1, 2, 3)

    await asyncio.to_thread(Operator(database, "ann").pause_queue, "inbox")
    await notes.task.aenqueue(4)
    await asyncio.to_thread(Operator(database, "ann").resume_queue, "inbox")
    await notes.until(1, 1, 2, 3, 4)

    await asyncio.to_thread(Operator(database, "ann").pause_task, "note")
    job = (await notes.task.aenqueue(5)).id
    await await_until(lambda: asleep.job(job)["status"] == "held", "it is set aside")
    await asyncio.to_thread(Operator(database, "ann").resume_task, "note")
    await notes.until(1, 1, 2, 3, 4, 5)


# No later than this -----------------------------------------------------------------------------------------------------


async def test_who_is_not_told_looks_after_the_poll_interval(sleepy: Kit, notes: Notes) -> None:
    sleepy.database.settings = replace(SLEEPY, poll=1.0)
    async with working(sleepy):
        await until_asleep(sleepy)
        with sleepy.connect() as conn:
            conn.execute("SET LOCAL holdfast.notify = 'off'")
            conn.execute("SELECT holdfast.enqueue('note', '{\"n\": 1}')")
        await notes.until(1)
    await sleepy.database.aclose()


async def test_a_producer_that_began_before_they_slept_is_found_after_the_poll_interval(
    sleepy: Kit, ear: Ear, notes: Notes
) -> None:
    sleepy.database.settings = replace(SLEEPY, poll=1.0)
    with sleepy.connect() as conn:
        conn.execute("SELECT holdfast.enqueue('note', '{\"n\": 1}')")
        async with working(sleepy):
            await until_asleep(sleepy)
            conn.commit()
            await notes.until(1)
    assert ear.heard() == []
    await sleepy.database.aclose()


async def test_a_second_look_after_lying_down_finds_what_came_meanwhile(
    sleepy: Kit, ear: Ear, notes: Notes
) -> None:
    """Committed after the last look and before the row was there: nobody was told of it."""
    with psycopg.connect(sleepy.url, autocommit=True) as conn, conn.transaction():
        conn.execute(
            "LOCK TABLE holdfast.sleepers IN SHARE MODE"
        )  # readers pass, who wants to lie down waits
        async with working(sleepy):
            waiting = """SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database()
                         AND wait_event_type = 'Lock' AND query LIKE '%%INSERT INTO holdfast.sleepers%%'"""
            await await_until(lambda: sleepy.sql(waiting, [])[0]["n"], "it wants to lie down")
            await notes.task.aenqueue(1)
            assert ear.heard() == []
            conn.execute("COMMIT")
            conn.execute("BEGIN")
            await notes.until(1)
    await sleepy.database.aclose()


# Who sleeps, and who does not -------------------------------------------------------------------------------------------


async def test_who_is_full_is_not_told(sleepy: Kit, notes: Notes) -> None:
    async with working(sleepy, concurrency=1):
        await until_asleep(sleepy)
        await notes.wait.aenqueue(1)
        await notes.until(1)
        await until_asleep(sleepy, 0)
        await notes.task.aenqueue(2)
        notes.gate.set()
        await notes.until(1, 2)
        await until_asleep(sleepy)
    await sleepy.database.aclose()


async def test_who_is_told_too_often_gets_up_and_comes_back(
    asleep: Kit, ear: Ear, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.runtime.sleep._MANY", 10)
    for n in range(20):
        await notes.task.aenqueue(n)
    await until_asleep(asleep, 0)
    ear.heard()
    await notes.task.aenqueue(100)
    assert ear.heard() == []
    await await_until(lambda: 100 in notes.ran, "what nobody was told of is found")
    await until_asleep(asleep)


async def test_a_flood_of_notifications_does_no_harm(sleepy: Kit, notes: Notes) -> None:
    """Anybody may say anything on a channel."""
    async with working(sleepy):
        await until_asleep(sleepy)
        with psycopg.connect(sleepy.url, autocommit=True) as conn:
            for _ in range(2000):
                conn.execute("NOTIFY holdfast_inbox")
        await until_asleep(sleepy, 0)
        await notes.task.aenqueue(1)
        await notes.until(1)
    await sleepy.database.aclose()


@pytest.mark.parametrize("settings", [{"notify": False}, {"poll": 0.2}])
async def test_who_does_not_want_to_be_told_has_no_listener(
    sleepy: Kit, notes: Notes, settings: dict[str, Any]
) -> None:
    sleepy.database.settings = replace(SLEEPY, **{"poll": 0.4, **settings})
    async with working(sleepy):
        for n in range(3):
            await asyncio.sleep(0.8)  # longer than it takes to fall asleep
            assert (sleepers(sleepy), sleepy.sql(LISTENER)) == ([], [])
            await notes.task.aenqueue(n)
        await notes.until(0, 1, 2)
    await sleepy.database.aclose()


async def test_every_queue_of_a_worker_is_slept_in_and_told(
    app: Holdfast, holdfast_kit: Callable[..., Kit], notes: Notes
) -> None:
    kit = holdfast_kit(app, SLEEPY)
    kit.sql("SELECT holdfast.create_queue('mail')")
    async with working(kit, queues=["inbox", "mail"]):
        await until_asleep(kit, 2)
        await notes.task.using(queue="mail").aenqueue(1)
        await notes.until(1)
        await notes.task.aenqueue(2)
        await notes.until(1, 2)
    assert sleepers(kit) == []
    await kit.database.aclose()
