"""Schedules on a real database: one firing per slot, whoever ticks, whatever the clock does."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.conftest import QUICK, await_until

from holdfast import Holdfast, Job, Registry, TaskDefinitionError, failpoints, telemetry
from holdfast.db.database import Database
from holdfast.model.clock import Clock
from holdfast.runtime.worker import Worker
from holdfast.shapes.schedules import store
from holdfast.shapes.schedules.declare import declared
from holdfast.shapes.schedules.service import Scheduler
from holdfast.shapes.schedules.shape import SHAPE
from holdfast.shapes.schedules.spec import BATCH, Spec
from holdfast.shapes.schedules.timing import Timing
from holdfast.testing import Kit

MINUTE, HOUR, DAY = 60, 3600, 86_400
Make = Callable[..., Scheduler]


@pytest.fixture
def nightly(app: Holdfast) -> Any:
    @app.task
    async def nightly(n: int = 1) -> int:
        return n

    return nightly


@pytest.fixture
async def scheduler(akit: Kit) -> AsyncIterator[Make]:
    """`scheduler()` is one as a worker of the app has it; with `database` on another clock."""
    made: list[Scheduler] = []

    def make(app: Holdfast | None = None, database: Database | None = None) -> Scheduler:
        made.append(Scheduler(database or akit.database, declared((app or akit.app).tasks)))
        return made[-1]

    yield make
    for one in made:
        await one.stop()


def firings(kit: Kit, name: str = "nightly") -> list[dict[str, Any]]:
    return kit.sql("SELECT * FROM holdfast.firings WHERE schedule = %s ORDER BY slot", [name])


def slots(kit: Kit, name: str = "nightly") -> list[datetime]:
    return [f["slot"] for f in firings(kit, name) if f["job_id"]]


def row(kit: Kit, name: str = "nightly") -> dict[str, Any]:
    (found,) = kit.sql("SELECT *, holdfast.now() AS now FROM holdfast.schedules WHERE name = %s", [name])
    return found


def go_to(kit: Kit, moment: datetime) -> None:
    kit.clock.advance((moment - row(kit)["now"]).total_seconds())


def go_past(kit: Kit, count: int = 1, late: float = 1.0) -> list[datetime]:
    """Move the clock just past the next `count` slots; answers them."""
    stored = row(kit)
    timing = Timing(stored["cron"], stored["every"], stored["tz"])
    ahead = timing.first(stored["decided_to"], count)
    go_to(kit, ahead[-1] + timedelta(seconds=late))
    return ahead


async def finish_jobs(kit: Kit) -> None:
    """Run what waits, without firing anything: the schedules are not this worker's."""
    kit.sql("UPDATE holdfast.schedules SET paused_at = holdfast.now()")
    await kit.arun_worker()
    kit.sql("UPDATE holdfast.schedules SET paused_at = NULL")


# One slot, one job ----------------------------------------------------------------------------------------------


async def test_a_schedule_of_the_code_fires_at_its_slot_and_the_handler_learns_it(
    app: Holdfast, akit: Kit, events: list[telemetry.Event]
) -> None:
    seen: list[dict[str, Any]] = []

    @app.task(queue="inbox")
    async def nightly(job: Job, n: int) -> None:
        seen.append(job.metadata)

    app.schedule("0 3 * * *", nightly.using(tags=["x"], metadata={"mine": 1}).job(n=5), tz="Europe/Berlin")
    await akit.arun_worker()
    assert seen == []  # declared now: what is past does not fire
    (slot,) = go_past(akit)
    await akit.arun_worker()
    assert slot.astimezone(Timing("0 3 * * *", tz="Europe/Berlin").zone).hour == 3
    assert seen == [{"mine": 1, "schedule": "nightly", "slot": slot.isoformat()}]
    (job,) = akit.jobs("nightly")
    assert (job["payload"], job["tags"], job["status"]) == ({"n": 5}, ["x"], "completed")
    (fired,) = firings(akit)
    assert (fired["slot"], fired["kind"], fired["job_id"]) == (slot, "slot", job["id"])
    (event,) = [e for e in events if e.name == "schedule.fired"]
    assert event.fields == {
        "schedule": "nightly",
        "task": "nightly",
        "slot": slot.isoformat(),
        "job": job["id"],
    }
    await akit.arun_worker()
    assert len(seen) == 1


async def test_an_interval_fires_in_a_worker_that_goes_on(app: Holdfast, akit: Kit, nightly: Any) -> None:
    app.schedule(timedelta(seconds=1), nightly.job(), missed="run_all")
    running = asyncio.ensure_future(app.run_worker())
    await await_until(lambda: len(slots(akit)) >= 2, "two slots have fired")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    found = slots(akit)
    assert [b - a for a, b in pairwise(found)] == [timedelta(seconds=1)] * (len(found) - 1)
    assert all(s.microsecond == 0 for s in found)


@pytest.mark.parametrize("overlap", ["allow", "skip", "queue"])
async def test_ten_tickers_at_once_fire_each_slot_once(
    overlap: Any, app: Holdfast, akit: Kit, nightly: Any, scheduler: Make
) -> None:
    """Ten schedulers with connections of their own, as ten workers have, all at the same moment, again and again."""
    app.schedule(timedelta(minutes=10), nightly.job(), missed="run_all", overlap=overlap)
    tickers = [scheduler() for _ in range(10)]
    await asyncio.gather(*(t.tick() for t in tickers))
    assert len(akit.sql("SELECT name FROM holdfast.schedules")) == 1
    expected: list[datetime] = []
    for count in (1, 3, 1):
        expected += go_past(akit, count)
        for _ in range(4):
            await asyncio.gather(*(t.catch_up() for t in tickers))
            await finish_jobs(akit)
        while row(akit)["next_at"] <= row(akit)["now"] or row(akit)["kept_slot"]:
            await asyncio.gather(*(t.catch_up() for t in tickers))
            await finish_jobs(akit)
    assert [f["slot"] for f in firings(akit)] == expected
    with_job = [f for f in firings(akit) if f["job_id"]]
    assert sorted(j["id"] for j in akit.jobs("nightly")) == sorted(f["job_id"] for f in with_job)
    assert len(with_job) == (3 if overlap == "skip" else 5)


async def test_the_constraint_alone_keeps_a_slot_from_firing_twice(
    app: Holdfast, akit: Kit, nightly: Any, scheduler: Make
) -> None:
    """Hands put the schedule back by an hour: its slots are decided already."""
    app.schedule(timedelta(minutes=10), nightly.job(), missed="run_all")
    one = scheduler()
    await one.tick()
    expected = go_past(akit, 3)
    await one.catch_up()
    akit.sql(
        "UPDATE holdfast.schedules SET decided_to = decided_to - interval '1 hour', next_at = %s",
        [expected[0]],
    )
    await one.catch_up()
    later = [s for s in slots(akit) if s >= expected[0]]
    assert later == expected
    assert len(akit.jobs("nightly")) == len(slots(akit))


async def test_a_clock_that_steps_back_and_forward_fires_nothing_twice(
    app: Holdfast, akit: Kit, nightly: Any, scheduler: Make
) -> None:
    """One worker's database is an hour ahead. Even the firings are gone when the clock is back."""
    app.schedule(timedelta(minutes=10), nightly.job(), missed="run_all")
    ahead = Database(akit.url, QUICK, Clock())
    try:
        here, there = scheduler(), scheduler(database=ahead)
        await here.tick()
        start = row(akit)["decided_to"]
        ahead.clock.advance(HOUR)
        await there.catch_up()
        fired = slots(akit)
        assert fired == list(Timing(every=600).between(start, row(akit)["decided_to"]))
        akit.sql("DELETE FROM holdfast.firings")
        assert not await here.catch_up()
        akit.clock.advance(HOUR / 2)
        assert not await here.catch_up()
        expected = go_past(akit)
        assert await here.catch_up()
        assert slots(akit) == expected == [fired[-1] + timedelta(minutes=10)]
        assert len(akit.jobs("nightly")) == len(fired) + 1
    finally:
        await ahead.aclose()


@given(steps=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 400)), min_size=1, max_size=12))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_order_of_tickers_and_clocks_fires_each_slot_once(kit: Kit, steps: list[tuple[int, int]]) -> None:
    """Five tickers, each with a clock of its own that steps as it likes; in the end one of them catches up."""

    async def main() -> None:
        app = Holdfast("postgresql://unused.invalid/none")
        spec = _spec(app, timedelta(minutes=1), missed="run_all")
        databases = [Database(kit.url, QUICK, Clock()) for _ in range(5)]
        tickers = [Scheduler(d, [spec]) for d in databases]
        try:
            start = (await databases[0].arun(lambda: _fresh(spec))).decided_to
            for who, seconds in steps:
                databases[who].clock.advance(float(seconds))
                await tickers[who].catch_up()
            furthest = max(databases, key=lambda d: d.clock.offset)
            while await tickers[databases.index(furthest)].catch_up():
                pass
            decided = row(kit)["decided_to"]
            expected = list(spec.timing.between(start, decided))
            assert slots(kit) == expected
            assert len(kit.jobs("nightly")) == len(expected)
        finally:
            for ticker in tickers:
                await ticker.stop()
            for database in databases:
                await database.aclose()

    kit.sql("TRUNCATE holdfast.schedules, holdfast.firings, holdfast.work")
    asyncio.run(main())


def _spec(app: Holdfast, when: Any, **options: Any) -> Spec:
    @app.task
    async def nightly() -> None: ...

    app.schedule(when, nightly.job(), **options)
    (spec,) = declared(app.tasks)
    return spec


def _fresh(spec: Spec) -> Any:
    yield from store.declare(spec, 120)
    return next(iter((yield from store.read_schedules([spec.name]))))


async def test_a_failure_before_the_commit_leaves_neither_job_nor_firing(
    app: Holdfast, akit: Kit, nightly: Any, scheduler: Make, events: list[telemetry.Event]
) -> None:
    app.schedule(timedelta(minutes=10), nightly.job())
    one = scheduler()
    await one.tick()
    (slot,) = go_past(akit)
    failpoints.arm("schedules.enqueued", "raise")
    assert not await one.catch_up()
    assert (firings(akit), akit.jobs("nightly")) == ([], [])
    assert row(akit)["problem"] == "schedules.enqueued"
    failpoints.disarm()
    assert not await one.catch_up()  # this one waits a little before it tries again
    assert await scheduler().catch_up()
    assert slots(akit) == [slot]
    assert row(akit)["problem"] is None
    assert [e.fields["schedule"] for e in events if e.name == "schedule.failed"] == ["nightly"]


# Missed -------------------------------------------------------------------------------------------------------------


async def missed(
    app: Holdfast, kit: Kit, nightly: Any, scheduler: Make, mode: Any, late: float
) -> list[datetime]:
    """An hourly schedule after four hours without a worker, `late` seconds after the last slot; answers the slots."""
    app.schedule("0 * * * *", nightly.job(), missed=mode)
    await scheduler().tick()
    ahead = go_past(kit, 4, late)
    await scheduler().catch_up()
    assert row(kit)["next_at"] == ahead[-1] + timedelta(hours=1)
    return ahead


async def test_missed_slots_are_skipped_by_default(
    app: Holdfast, akit: Kit, nightly: Any, scheduler: Make, events: list[telemetry.Event]
) -> None:
    ahead = await missed(app, akit, nightly, scheduler, "skip", 300)
    assert (slots(akit), akit.jobs("nightly")) == ([], [])
    (event,) = [e for e in events if e.name == "schedule.missed"]
    assert event.fields == {"schedule": "nightly", "task": "nightly", "since": ahead[0].isoformat()}


async def test_a_slot_within_the_grace_is_not_missed(
    app: Holdfast, akit: Kit, nightly: Any, scheduler: Make
) -> None:
    ahead = await missed(app, akit, nightly, scheduler, "skip", QUICK.schedule_grace - 30)
    assert slots(akit) == ahead[-1:]


@pytest.mark.parametrize("late", [300, 5])
async def test_run_once_fires_the_newest_missed_slot(
    late: float, app: Holdfast, akit: Kit, nightly: Any, scheduler: Make
) -> None:
    """One job, also when the newest slot is on time."""
    ahead = await missed(app, akit, nightly, scheduler, "run_once", late)
    assert slots(akit) == ahead[-1:]
    assert len(akit.jobs("nightly")) == 1


async def test_run_all_fires_every_missed_slot(
    app: Holdfast, akit: Kit, nightly: Any, scheduler: Make
) -> None:
    ahead = await missed(app, akit, nightly, scheduler, "run_all", 300)
    assert slots(akit) == ahead
    assert [j["metadata"]["slot"] for j in akit.jobs("nightly")] == [s.isoformat() for s in ahead]


async def test_run_all_catches_up_in_bounded_steps(
    app: Holdfast, akit: Kit, nightly: Any, scheduler: Make
) -> None:
    app.schedule(timedelta(minutes=1), nightly.job(), missed="run_all")
    one = scheduler()
    await one.tick()
    ahead = go_past(akit, 2 * BATCH + 20)
    assert await one.tick() == 0.0
    assert slots(akit) == ahead[:BATCH]
    while await one.catch_up():
        pass
    assert slots(akit) == ahead


# Overlap ------------------------------------------------------------------------------------------------------------


async def test_overlap_allow_fires_beside_live_jobs(
    app: Holdfast, akit: Kit, nightly: Any, scheduler: Make
) -> None:
    app.schedule(timedelta(minutes=10), nightly.job())
    one = scheduler()
    await one.tick()
    for _ in range(2):
        go_past(akit)
        await one.catch_up()
    assert [j["status"] for j in akit.jobs("nightly")] == ["pending", "pending"]


async def test_overlap_skip_writes_the_slot_down_and_enqueues_nothing(
    app: Holdfast, akit: Kit, nightly: Any, scheduler: Make, events: list[telemetry.Event]
) -> None:
    app.schedule(timedelta(minutes=10), nightly.job(), overlap="skip")
    one = scheduler()
    await one.tick()
    ahead = go_past(akit)
    await one.catch_up()
    ahead += go_past(akit)
    assert not await one.catch_up()
    assert [(f["slot"], f["kind"]) for f in firings(akit)] == [(ahead[0], "slot"), (ahead[1], "skipped")]
    assert [e.fields["slot"] for e in events if e.name == "schedule.skipped"] == [ahead[1].isoformat()]
    await finish_jobs(akit)
    ahead += go_past(akit)
    assert await one.catch_up()
    assert slots(akit) == [ahead[0], ahead[2]]


async def test_a_job_that_runs_counts_as_live(app: Holdfast, akit: Kit, scheduler: Make) -> None:
    gate = asyncio.Event()

    @app.task
    async def nightly() -> None:
        await gate.wait()

    app.schedule(timedelta(minutes=10), nightly.job(), overlap="skip")
    one = scheduler()
    await one.tick()
    go_past(akit)
    await one.catch_up()
    running = asyncio.ensure_future(akit.arun_worker())
    await await_until(lambda: akit.jobs("nightly")[0]["status"] == "processing", "the job runs")
    go_past(akit)
    await one.catch_up()
    gate.set()
    await running
    assert [f["kind"] for f in firings(akit)] == ["slot", "skipped"]


async def test_overlap_queue_keeps_one_slot_until_the_job_before_it_has_ended(
    app: Holdfast, akit: Kit, nightly: Any, scheduler: Make, events: list[telemetry.Event]
) -> None:
    """Three slots pass while the first job lives: the newest of them runs after it, however late; the others are skipped."""
    app.schedule(timedelta(minutes=10), nightly.job(), overlap="queue")
    one = scheduler()
    await one.tick()
    ahead = go_past(akit)
    await one.catch_up()
    for _ in range(3):
        ahead += go_past(akit)
        assert not await one.catch_up()
    assert [e.fields["slot"] for e in events if e.name == "schedule.waits"] == [
        s.isoformat() for s in ahead[1:]
    ]
    assert len(akit.jobs("nightly")) == 1
    await finish_jobs(akit)
    akit.clock.advance(300)  # no longer on time, and kept all the same
    assert await one.catch_up()
    assert slots(akit) == [ahead[0], ahead[3]]
    assert [f["kind"] for f in firings(akit)] == ["slot", "skipped", "skipped", "slot"]
    assert row(akit)["kept_slot"] is None


async def test_queue_with_run_all_runs_every_slot_one_after_the_other(
    app: Holdfast, akit: Kit, nightly: Any, scheduler: Make
) -> None:
    app.schedule(timedelta(minutes=10), nightly.job(), overlap="queue", missed="run_all")
    one = scheduler()
    await one.tick()
    ahead = go_past(akit, 3)
    for expected in (1, 2, 3):
        assert await one.catch_up()
        assert not await one.catch_up()
        assert slots(akit) == ahead[:expected]
        await finish_jobs(akit)


async def test_a_worker_until_idle_fires_what_is_due_and_what_was_kept(
    app: Holdfast, akit: Kit, nightly: Any
) -> None:
    app.schedule(timedelta(minutes=10), nightly.job(), overlap="queue", missed="run_all")
    await akit.arun_worker()
    ahead = go_past(akit, 3)
    await akit.arun_worker()
    assert slots(akit) == ahead
    assert {j["status"] for j in akit.jobs("nightly")} == {"completed"}


async def test_a_worker_that_stops_fires_nothing_more(app: Holdfast, akit: Kit, scheduler: Make) -> None:
    """A handler still runs while the worker drains: no slot of that time is this worker's to fire."""
    begun, gate = asyncio.Event(), asyncio.Event()

    @app.task
    async def slow() -> None:
        begun.set()
        await gate.wait()

    @app.task
    async def nightly() -> None: ...

    app.schedule(timedelta(seconds=1), nightly.job())
    slow.enqueue()
    workers: list[Worker] = []
    running = asyncio.ensure_future(app._serve(on_start=workers.append))
    await begun.wait()
    await await_until(lambda: bool(slots(akit)), "the schedule fires")
    workers[0].stop()
    await await_until(
        lambda: akit.sql("SELECT id FROM holdfast.workers WHERE status = 'draining'"), "it drains"
    )
    before = slots(akit)
    akit.clock.advance(30)
    at = row(akit)["now"]
    await await_until(lambda: row(akit)["now"] - at > timedelta(seconds=1.5), "a slot has passed")
    assert slots(akit) == before
    gate.set()
    await running


# Code and rows ------------------------------------------------------------------------------------------------------


def make_app(when: Any = "0 * * * *", n: int = 1, **options: Any) -> Holdfast:
    app = Holdfast("postgresql://unused.invalid/none")

    @app.task
    async def nightly(n: int) -> None: ...

    app.schedule(when, nightly.job(n=n), **options)
    return app


async def test_a_changed_cron_moves_the_next_slot_and_never_fires_the_past(
    akit: Kit, scheduler: Make, events: list[telemetry.Event]
) -> None:
    await scheduler(make_app("0 * * * *", missed="run_all")).tick()
    go_past(akit, 3)
    await scheduler(make_app("30 * * * *", missed="run_all")).tick()
    assert slots(akit) == []
    assert (row(akit)["next_at"] > row(akit)["now"], row(akit)["next_at"].minute) == (True, 30)
    assert [e.fields["outcome"] for e in events if e.name == "schedule.declared"] == ["created", "changed"]


async def test_a_changed_payload_leaves_the_slots_alone(akit: Kit, scheduler: Make) -> None:
    await scheduler(make_app(missed="run_all")).tick()
    ahead = go_past(akit, 2)
    await scheduler(make_app(n=2, missed="run_all")).tick()
    assert slots(akit) == ahead
    assert [j["payload"] for j in akit.jobs("nightly")] == [{"n": 2}] * 2


async def test_old_and_new_code_side_by_side_do_not_flap(
    akit: Kit, scheduler: Make, events: list[telemetry.Event]
) -> None:
    """New code wins at once. A worker of the old code that starts later changes nothing while the new code lives; it does
    when the new code is gone: the deploy was taken back."""
    old, new = make_app(n=1), make_app(n=2)
    await scheduler(old).tick()
    await scheduler(new).tick()
    for _ in range(3):
        await scheduler(old).tick()
        assert row(akit)["payload"] == {"n": 2}
        akit.clock.advance(60)
        await scheduler(new).tick()
    akit.clock.advance(121)
    await scheduler(old).tick()
    assert row(akit)["payload"] == {"n": 1}
    outcomes = [e.fields["outcome"] for e in events if e.name == "schedule.declared"]
    assert outcomes == ["created", "changed", "older", "older", "older", "changed"]


async def test_what_is_no_longer_in_the_code_stops_with_the_last_worker_that_has_it(
    akit: Kit, scheduler: Make
) -> None:
    old = scheduler(make_app())
    new = scheduler(Holdfast("postgresql://unused.invalid/none"))
    await old.tick()
    ahead = go_past(akit)
    assert not await new.catch_up()
    assert await old.catch_up()
    assert slots(akit) == ahead
    go_past(akit)
    assert not await new.catch_up()


async def test_an_operators_schedule_of_the_same_name_stays(
    app: Holdfast, akit: Kit, nightly: Any, scheduler: Make, events: list[telemetry.Event]
) -> None:
    assert await akit.app.schedules.aadd("nightly", timedelta(hours=2), nightly.job(n=9))
    app.schedule("0 3 * * *", nightly.job())
    await scheduler().tick()
    assert (row(akit)["origin"], row(akit)["every"]) == ("operator", 7200)
    (event,) = [e for e in events if e.name == "schedule.declared"]
    assert (event.fields["outcome"], event.fields["reason"]) == (
        "taken",
        "an operator added one of this name, which stays",
    )


async def test_a_schedule_that_cannot_fire_stops_no_other_and_says_why(
    app: Holdfast, akit: Kit, nightly: Any, scheduler: Make, events: list[telemetry.Event]
) -> None:
    """A queue that is gone, and a zone that this machine does not know."""
    for name in ("a", "b", "c"):
        app.schedule(timedelta(minutes=10), nightly.job(), name=name)
    app.schedule(timedelta(minutes=10), nightly.job())
    one = scheduler()
    await one.tick()
    akit.sql("UPDATE holdfast.schedules SET queue = 'gone' WHERE name = 'a'")
    akit.sql("UPDATE holdfast.schedules SET tz = 'Mars/Base' WHERE name = 'b'")
    go_past(akit)
    assert await one.catch_up()
    assert (len(slots(akit)), len(slots(akit, "c"))) == (1, 1)
    assert row(akit, "a")["problem"] == (
        "schedule 'a': queue 'gone' does not exist. Create it: holdfast queue create gone"
    )
    assert row(akit, "b")["problem"].startswith(
        "schedule 'b' cannot be used here: there is no time zone 'Mars/Base'."
    )
    assert sorted(e.fields["schedule"] for e in events if e.name == "schedule.failed") == ["a", "b"]
    assert firings(akit, "a") == []
    akit.sql("SELECT holdfast.create_queue('gone')")
    assert await scheduler().catch_up()
    assert len(slots(akit, "a")) == 1


async def test_a_schedule_that_somebody_holds_stops_no_other(
    app: Holdfast, akit: Kit, nightly: Any, scheduler: Make
) -> None:
    """A transaction that went to lunch with the row of one schedule: nobody waits for it."""
    app.schedule(timedelta(minutes=10), nightly.job(), name="a")
    app.schedule(timedelta(minutes=10), nightly.job())
    one = scheduler()
    await one.tick()
    go_past(akit)
    with akit.connect() as conn:
        conn.execute("SELECT FROM holdfast.schedules WHERE name = 'a' FOR UPDATE")
        assert await asyncio.wait_for(one.catch_up(), 25)
        assert (len(slots(akit)), len(slots(akit, "a"))) == (1, 0)
    assert await one.catch_up()
    assert len(slots(akit, "a")) == 1


# Tidying ------------------------------------------------------------------------------------------------------------


async def test_old_firings_are_forgotten_but_not_those_of_live_jobs(
    app: Holdfast, akit: Kit, nightly: Any, scheduler: Make
) -> None:
    from holdfast.runtime.sweep import Sweeper

    app.schedule(timedelta(minutes=10), nightly.job(), overlap="skip")
    one = scheduler()
    await one.tick()
    go_past(akit)
    await one.catch_up()
    await finish_jobs(akit)
    for _ in range(3):  # fired, skipped, skipped
        go_past(akit)
        await one.catch_up()
    ahead = [f["slot"] for f in firings(akit)]
    assert [f["kind"] for f in firings(akit)] == ["slot", "slot", "skipped", "skipped"]
    akit.clock.advance(8 * DAY)
    sweeper = Sweeper(akit.database, lambda: None, prunes=SHAPE.prunes)
    await sweeper.tidier.tidy_once(7, 60.0)
    await sweeper.stop()
    assert [f["slot"] for f in firings(akit)] == [ahead[1]]  # its job still waits
    assert (row(akit)["forgotten_from"], row(akit)["forgotten_to"]) == (ahead[0], ahead[3])
    done = await app.schedules.abackfill("nightly", ahead[0], ahead[3] + timedelta(minutes=20))
    assert (done.fired, done.decided, done.unknown) == (1, 1, 3)
    assert slots(akit) == [ahead[1], ahead[3] + timedelta(minutes=10)]


# Declarations -------------------------------------------------------------------------------------------------------


@pytest.fixture
def billing() -> tuple[Registry, Any]:
    billing = Registry("billing")

    @billing.task
    async def nightly() -> None: ...

    return billing, nightly


REFUSED: list[tuple[Callable[[Registry, Any], Any], str]] = [
    (
        lambda r, t: r.schedule("0 3 * *", t.job()),
        (
            "schedule 'billing.nightly': cron '0 3 * *' cannot be read: Wrong number of fields. Write minute, hour, "
            'day of month, month and day of week, such as "0 3 * * *"; or @hourly, @daily, @weekly, @monthly, @yearly'
        ),
    ),
    (
        lambda r, t: r.schedule("0 3 * * *", t.job(), tz="Berlin"),
        (
            "schedule 'billing.nightly': there is no time zone 'Berlin'. Did you mean 'Europe/Berlin'? "
            "Write it like Europe/Berlin, or UTC"
        ),
    ),
    (
        lambda r, t: r.schedule("0 3 * * *", t),
        (
            "a schedule takes a job, not Task Task('billing.nightly'). Write schedule(cron, nightly.job(...)), "
            "with the job's arguments"
        ),
    ),
    (
        lambda r, t: r.schedule("0 3 * * *", t.job(), missed="all"),  # type: ignore[arg-type]
        "missed must be one of skip, run_once, run_all, not str 'all'",
    ),
    (
        lambda r, t: r.schedule("0 3 * * *", t.job(), overlap="no"),  # type: ignore[arg-type]
        "overlap must be one of allow, skip, queue, not str 'no'",
    ),
    (
        lambda r, t: r.schedule("0 3 * * *", t.using(run_after=5).job()),
        (
            "the job of billing.nightly was made with using(run_after=...), which a schedule has no use for: "
            "it enqueues one job per slot, at the slot. Leave run_after out"
        ),
    ),
    (
        lambda r, t: r.schedule("0 3 * * *", t.using(then=t.job()).job()),
        (
            "the job of billing.nightly was made with using(then=...), which a schedule does not keep. "
            "Enqueue what follows in the handler"
        ),
    ),
    (
        lambda r, t: r.schedule("0 3 * * *", t.using(replace_key="x").job()),
        (
            "the job of billing.nightly was made with using(replace_key=...), which a schedule has no use for: "
            "it enqueues one job per slot, at the slot. Leave replace_key out"
        ),
    ),
    (
        lambda r, t: r.schedule("0 3 * * *", t.using(metadata={"slot": 1}).job()),
        "the job's metadata has a 'slot', which the schedule sets itself. Give it another name",
    ),
    (
        lambda r, t: r.schedule("0 3 * * *", t.using(metadata={"x": "y" * 8000}).job()),
        "the job's metadata is 8008 bytes; with what the schedule adds the limit is 7592. Put less into it",
    ),
    (
        lambda r, t: r.schedule(timedelta(seconds=1.5), t.job()),
        (
            "schedule 'billing.nightly': an interval must be whole seconds, from 1 second to 366 days, not 1.5. "
            "For what happens at a time of day, write a cron expression"
        ),
    ),
    (
        lambda r, t: r.schedule("0 3 * * *", t.job(), name="not a name"),
        "the schedule's name must be 1 to 200 letters, digits, '_', '.' or '-', not str 'not a name'",
    ),
]


@pytest.mark.parametrize(("declare", "message"), REFUSED, ids=range(len(REFUSED)))
def test_bad_declarations_are_refused(
    declare: Callable[[Registry, Any], Any], message: str, billing: tuple[Registry, Any]
) -> None:
    with pytest.raises(TaskDefinitionError) as caught:
        declare(*billing)
    assert str(caught.value) == message


def test_two_schedules_of_one_task_need_names(billing: tuple[Registry, Any]) -> None:
    registry, nightly = billing
    registry.schedule("0 3 * * *", nightly.job())
    registry.schedule(
        "0 3 * * *", nightly.job()
    )  # the same line twice is one schedule: a module may be run again
    said = "there are two schedules 'billing.nightly'. Give one of them another name: schedule(..., name=\"...\")"
    with pytest.raises(TaskDefinitionError) as caught:
        registry.schedule("0 4 * * *", nightly.job())
    assert str(caught.value) == said
    registry.schedule("0 4 * * *", nightly.job(), name="late")
    app = Holdfast("postgresql://unused.invalid/none", include=[registry])
    assert [s.name for s in declared(app.tasks)] == ["billing.nightly", "late"]
    app.schedule("0 5 * * *", nightly.job(), name="late")
    with pytest.raises(TaskDefinitionError, match="there are two schedules 'late'"):
        _ = app.tasks


def test_now_is_the_databases(kit: Kit) -> None:
    """The clock in the row is the one that the test moved, not this process's."""
    before = datetime.now(UTC)
    kit.clock.advance(DAY)
    assert kit.database.run(store.clock) - before >= timedelta(days=1)
