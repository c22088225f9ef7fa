"""What an expert tried, and what happens now."""

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from tests.conftest import QUICK, await_until
from typer.testing import CliRunner

from holdfast import (
    Backoff,
    ConfigurationError,
    DeadLetter,
    Holdfast,
    InvalidPayload,
    Job,
    Settings,
    Snooze,
    Transaction,
    UnknownQueue,
    telemetry,
)
from holdfast.cli import app as cli
from holdfast.db.faults import BadRow, ConnectionLost
from holdfast.model.job import NewRow
from holdfast.runtime.claim.claimer import Ask
from holdfast.runtime.claim.queues import Queues
from holdfast.store.jobs import describe_server, enqueue
from holdfast.tasks.taskset import TaskSet
from holdfast.testing import Kit

pytestmark = pytest.mark.versions
AT_ONCE = Backoff(first=0, jitter=False)


def test_numbers_that_print_larger_than_they_are_written_count_as_they_print(app: Holdfast, kit: Kit) -> None:
    @app.task
    def touch(numbers: list[float]) -> None: ...

    with pytest.raises(InvalidPayload, match="payload is 9,"):
        touch.enqueue([1e308] * 30_000)
    touch.enqueue([1e308] * 100)
    kit.run_worker()
    assert [r["status"] for r in kit.jobs()] == ["completed"]
    with pytest.raises(BadRow):
        kit.database.run(
            lambda: enqueue([NewRow("touch", '{"a": [' + ",".join(["1e131071"] * 20_000) + "]}")])
        )


@pytest.mark.slow
def test_a_row_that_cannot_be_printed_is_quarantined_and_stops_nobody(app: Holdfast, kit: Kit) -> None:
    @app.task
    def touch() -> None: ...

    kit.sql(
        "INSERT INTO holdfast.work (id, queue, task, payload) VALUES (holdfast.uuid7(), 'inbox', 'touch', "
        "jsonb_build_object('a', (SELECT jsonb_agg(1e131071::numeric) FROM generate_series(1, 9000))))"
    )
    good = touch.enqueue()
    kit.run_worker()
    assert kit.sql("SELECT status FROM holdfast.archive WHERE id = %s", [good.id])[0]["status"] == "completed"
    assert len(kit.sql("SELECT reason FROM holdfast.quarantine")) == 1


def test_a_lease_is_never_shorter_than_it_takes_to_know_a_dead_worker(app: Holdfast, kit: Kit) -> None:
    with pytest.raises(ConfigurationError, match="or it would run out before a dead worker is known"):
        Settings(lease=2.5, dead_after=6, heartbeat=1)

    @app.task(lease=0.01)
    async def ask() -> None:
        row = kit.sql(
            "SELECT lease_expires_at - claimed_at AS lease FROM holdfast.jobs WHERE status = 'processing'"
        )
        assert row[0]["lease"].total_seconds() >= QUICK.lease

    kit.sql("UPDATE holdfast.queues SET lease = NULL")
    ask.enqueue()
    kit.run_worker()
    assert [r["status"] for r in kit.jobs()] == ["completed"]


@pytest.mark.parametrize("lease", ["NaN", "Infinity", "0.5", "-1"])
def test_a_queue_takes_no_lease_that_cannot_be_kept(kit: Kit, lease: str) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        kit.sql("SELECT holdfast.create_queue('fast', %s::float8)", [lease])
    assert [r["name"] for r in kit.sql("SELECT name FROM holdfast.queues")] == ["inbox"]


def test_the_durability_is_the_one_everybody_gets_not_the_one_we_set_for_ourselves(kit: Kit) -> None:
    name = kit.sql("SELECT current_database() AS name")[0]["name"]
    kit.sql(f"ALTER DATABASE {name} SET synchronous_commit = off")
    server = replace(kit.database.run(describe_server), fsync="on")
    assert server.durability == "synchronous_commit is off: a crash of the server may lose the last commits"


def test_held_jobs_do_not_wait_behind_a_backlog(app: Holdfast, kit: Kit) -> None:
    ran: list[str] = []

    @app.task
    def plain() -> None:
        ran.append("plain")

    app.send("later.known", {})
    kit.run_worker()
    assert [r["status"] for r in kit.jobs("later.known")] == ["held"]

    @app.task(name="later.known")
    def known() -> None:
        ran.append("known")

    app.enqueue_many(plain.job() for _ in range(100))
    kit.run_worker(concurrency=1)
    assert "known" in ran[:5]


def test_a_connection_that_breaks_under_a_handler_spends_no_attempt(app: Holdfast, kit: Kit) -> None:
    @app.task(max_attempts=1)
    def settle(job: Job, tx: Transaction) -> None:
        if job.generation == 1:
            tx.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    settle.enqueue()
    kit.run_worker()
    (row,) = kit.jobs()
    assert (row["status"], row["attempts"], row["lease_generation"]) == ("completed", 1, 2)


def test_a_handler_that_makes_its_own_commit_fail_ends_as_a_dead_letter(app: Holdfast, kit: Kit) -> None:
    @app.task(max_attempts=2, retry=AT_ONCE)
    def settle(tx: Transaction) -> None:
        tx.execute("SET TRANSACTION READ ONLY")

    settle.enqueue()
    kit.run_worker()
    (row,) = kit.jobs()
    assert (row["status"], row["attempts"]) == ("dead_letter", 2)
    assert row["lease_generation"] < 20


async def test_until_idle_does_not_take_a_failed_claim_for_an_empty_queue(
    app: Holdfast, akit: Kit, monkeypatch: pytest.MonkeyPatch, events: list[telemetry.Event]
) -> None:
    @app.task
    async def touch() -> None: ...

    real = Queues.claim
    failures = iter([True, True, True])

    async def flaky(self: Queues, *arguments: Any) -> Any:
        if next(failures, False):
            raise ConnectionLost("gone for a moment")
        return await real(self, *arguments)

    monkeypatch.setattr(Queues, "claim", flaky)
    handle = await touch.aenqueue()
    await akit.arun_worker()
    assert akit.job(handle.id)["status"] == "completed"


async def test_jobs_claimed_on_the_way_to_an_error_are_given_back(app: Holdfast, akit: Kit) -> None:
    """Two queues: the first claim went through, the second failed. The first one's jobs reach nobody."""

    @app.task
    async def touch() -> None: ...

    akit.sql("SELECT holdfast.create_queue('mail')")
    handle = await touch.aenqueue()
    akit.sql(
        "INSERT INTO holdfast.workers VALUES ('w', 'h', 1, 'alive', holdfast.now(), holdfast.now(), '{}', '{}', 1, '-')"
    )
    claimer = Queues(akit.database, TaskSet([app]), {"mail": 60.0, "inbox": 60.0})

    async def failing(ask: Ask) -> Any:
        raise ConnectionLost("gone")

    claimer["mail"].claim = failing  # type: ignore[method-assign]
    with pytest.raises(ConnectionLost):
        await claimer.claim(Ask("w", 5))
    assert akit.job(handle.id)["status"] == "processing"
    await claimer.lost_replies.give_back()
    assert akit.sql("SELECT token FROM holdfast.claims") == []
    assert akit.job(handle.id)["status"] == "pending"
    await claimer.close()


def test_a_step_that_could_not_be_recorded_is_not_run(app: Holdfast, kit: Kit) -> None:
    ran: list[str] = []

    @app.task(max_attempts=1)
    def step(job: Job, name: str) -> None:
        job.once(name, lambda: ran.append(name))

    for name in ("", "x" * 513):
        step.enqueue(name)
    kit.run_worker()
    assert ran == []
    assert {r["status"] for r in kit.jobs()} == {"dead_letter"}
    assert "job.once() needs a name of 1 to 512 bytes without NUL" in kit.jobs()[0]["last_error"]


def test_a_snooze_for_ever_is_ten_years(app: Holdfast, kit: Kit) -> None:
    @app.task
    def sleepy() -> None:
        raise Snooze(1e15)

    sleepy.enqueue()
    kit.run_worker()
    (row,) = kit.jobs()
    assert (row["status"], row["attempts"]) == ("scheduled", 0)
    assert 9 <= row["available_at"].year - row["created_at"].year <= 10


def test_a_reason_may_be_an_exception(app: Holdfast, kit: Kit) -> None:
    @app.task
    def give_up() -> None:
        raise DeadLetter(ValueError("broken for good"))  # type: ignore[arg-type]

    give_up.enqueue()
    kit.run_worker()
    assert kit.jobs()[0]["last_error"] == "DeadLetter: broken for good"


def test_a_producer_with_execute_only_can_use_any_queue_from_python(
    app: Holdfast, kit: Kit, holdfast_kit: Callable[..., Kit]
) -> None:
    kit.sql("SELECT holdfast.create_queue('mail')")
    role = "producer_" + kit.sql("SELECT current_database() AS name")[0]["name"][-12:]
    kit.sql(f"CREATE ROLE {role} LOGIN")
    try:
        kit.sql(f"GRANT USAGE ON SCHEMA holdfast TO {role}")
        kit.sql(f"GRANT EXECUTE ON FUNCTION holdfast.enqueue_many, holdfast.enqueue TO {role}")
        info = psycopg.conninfo.conninfo_to_dict(kit.url)
        poor = Holdfast(psycopg.conninfo.make_conninfo(**{**info, "user": role}))
        with poor:
            assert poor.send("anything", {}, queue="mail").created
            with pytest.raises(UnknownQueue, match="queue 'nowhere' does not exist"):
                poor.send("anything", {}, queue="nowhere")
    finally:
        kit.sql(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_producer_cannot_turn_the_clock_back_or_hide_megabytes_in_tags(kit: Kit) -> None:
    with kit.connect() as conn:
        conn.execute("SET holdfast.clock_offset = '-3000 years'")
        conn.execute("SELECT holdfast.enqueue('t')")
        conn.execute("SET holdfast.clock_offset = '3000 years'")
        conn.execute("SELECT holdfast.enqueue('t')")
    years = [r["created_at"].year for r in kit.jobs()]
    assert years[1] - years[0] in (9, 10)
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        kit.sql("SELECT holdfast.enqueue('t', tags => ARRAY[%s])", ["x" * 9000])


async def test_a_worker_that_is_cancelled_gives_back_what_it_held(app: Holdfast, akit: Kit) -> None:
    started = asyncio.Event()

    @app.task
    async def forever() -> None:
        started.set()
        await asyncio.Event().wait()

    settings = replace(QUICK, drain=0.2)
    akit.app._opened = akit.database = type(akit.database)(akit.url, settings, akit.clock)
    handle = await forever.aenqueue()
    worker = asyncio.create_task(app.run_worker())
    await started.wait()
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
    await await_until(lambda: akit.job(handle.id)["status"] == "pending", "it is handed back")
    row = akit.job(handle.id)
    assert (row["attempts"], json.dumps(row["payload"])) == (0, "{}")


async def test_handlers_that_never_end_do_not_pile_up_threads(app: Holdfast, akit: Kit) -> None:
    go = threading.Event()
    begun: list[int] = []

    @app.task(timeout=0.05, max_attempts=1)
    def stuck(n: int) -> None:
        begun.append(n)
        go.wait(150)

    app.enqueue_many(stuck.job(n) for n in range(12))
    worker = asyncio.create_task(app.run_worker(concurrency=2))
    await await_until(lambda: len(akit.sql("SELECT id FROM holdfast.dead_letters")) >= 4, "four are given up")
    await await_until(lambda: len(begun) == 4, "two slots, and as many again left behind")
    beat = akit.sql("SELECT last_seen_at FROM holdfast.workers")[0]["last_seen_at"]
    await await_until(
        lambda: (
            (akit.sql("SELECT last_seen_at FROM holdfast.workers")[0]["last_seen_at"] - beat).total_seconds()
            > 1
        ),
        "a while later",
    )
    assert len(begun) == 4
    go.set()
    await await_until(lambda: len(begun) == 12, "the rest runs once threads are free")
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)


def test_a_role_with_other_dates_and_letters_by_default(app: Holdfast, kit: Kit) -> None:
    @app.task
    def greet(name: str) -> str:
        return name

    name = kit.sql("SELECT current_database() AS name")[0]["name"]
    kit.sql(f"ALTER DATABASE {name} SET datestyle = 'SQL, DMY'")
    kit.sql(f"ALTER DATABASE {name} SET client_encoding = 'LATIN1'")
    handle = greet.enqueue("日本")
    kit.run_worker()
    assert handle.result(timeout=25) == "日本"
    for words in (
        ["jobs", "list"],
        ["jobs", "show", str(handle.id)],
        ["explain", str(handle.id)],
        ["doctor", "--only", "clock"],
    ):
        ran = CliRunner().invoke(cli, [*words, "-d", kit.url])
        assert (ran.exit_code, ran.exception) == (0, None), (words, ran.output)
