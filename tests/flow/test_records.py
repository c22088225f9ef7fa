"""Rows with an outcome: what `job.record` collects is written by the settle, in its transaction, for what it settled."""

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from tests.conftest import QUICK, await_until
from tests.flow.test_run import working
from tests.shapes import notes
from tests.sql.support import (
    BOOM,
    EVERY_OUTCOME,
    Conn,
    configure,
    enqueue,
    one,
    register,
    sweep_all,
    take,
)

from holdfast import telemetry
from holdfast.db.executors import run as run_one
from holdfast.db.executors import walk
from holdfast.errors import ConfigurationError, InvalidPayload, JobSettled
from holdfast.model.outcome import NOTHING, Completed, DeadLettered, Outcome, Recorded, Settlement
from holdfast.runtime import record
from holdfast.runtime.record import Recorders, Rows
from holdfast.runtime.settle import Settler
from holdfast.tasks.payload import dump
from holdfast.testing import Kit

pytestmark = pytest.mark.versions
Told = dict[str, str]


@pytest.fixture
def kit(holdfast_kit: Callable[..., Kit]) -> Kit:
    kit = holdfast_kit(notes.app, replace(QUICK, drain=0.2))
    kit.sql(notes.TABLE)
    kit.sql(notes.COUNTERS)
    return kit


@pytest.fixture
def conn(kit: Kit) -> Iterator[Conn]:
    with psycopg.connect(kit.url, autocommit=True) as made:
        configure(made, kit)
        yield made


@pytest.fixture
def told() -> Told:
    return {}


@pytest.fixture
async def settler(akit: Kit, told: Told) -> AsyncIterator[Settler]:
    def tell(settlements: Any, states: Any) -> None:
        for settlement, state in zip(settlements, states, strict=True):
            told[settlement.grant.id_text] = state

    made = Settler(akit.database, lambda: "w", tell, recorders=Recorders(notes.SHAPE.recorders, dump))
    yield made
    await made.stop()


def noted(outcome: Outcome, *numbers: int, table: str = "notes") -> Outcome:
    return replace(outcome, rows=tuple(Recorded(table, f'{{"n": {n}, "name": "a"}}') for n in numbers))


def written(kit: Kit) -> list[dict[str, Any]]:
    return kit.sql("SELECT * FROM holdfast.notes ORDER BY job_id, n")


async def test_every_end_writes_the_rows_of_its_attempt(
    settler: Settler, kit: Kit, conn: Conn, told: Told
) -> None:
    enqueue(conn, len(EVERY_OUTCOME))
    jobs = take(conn, register(conn), len(EVERY_OUTCOME))
    for job, outcome in zip(jobs, EVERY_OUTCOME, strict=True):
        settler.settle(Settlement(job, noted(outcome, 1, 2)))
    await settler.tick()
    kinds = {job.id: type(outcome).__name__ for job, outcome in zip(jobs, EVERY_OUTCOME, strict=True)}
    rows = written(kit)
    assert [(r["job_id"], r["n"]) for r in rows] == [(job.id, n) for job in sorted(jobs) for n in (1, 2)]
    for row in rows:
        assert (row["generation"], row["outcome"]) == (1, kinds[row["job_id"]])
        assert row["state"] == told[str(row["job_id"])]
    assert {told[job.id_text] for job in jobs} == {"completed", "cancelled", "pending", "dead_letter", "held"}


async def test_a_stale_owner_writes_nothing_and_a_second_settle_nothing_more(
    settler: Settler, kit: Kit, conn: Conn, told: Told
) -> None:
    enqueue(conn, 2)
    stale, mine = take(conn, register(conn), 2, lease=0.0)
    sweep_all(conn, dead_after=0.0)
    again = {job.id: job for job in take(conn, register(conn), 2)}
    assert {stale.id, mine.id} == set(again)
    settler.settle(Settlement(stale, noted(Completed("1"), 1)))
    settler.settle(Settlement(again[mine.id], noted(Completed("1"), 2)))
    await settler.tick()
    assert told == {stale.id_text: "lost", mine.id_text: "completed"}
    settler.settle(Settlement(again[mine.id], noted(Completed("1"), 2)))
    settler.settle(Settlement(again[mine.id], noted(Completed("1"), 3)))
    await settler.tick()
    assert [(r["job_id"], r["generation"], r["n"]) for r in written(kit)] == [(mine.id, 2, 2)]


async def test_a_job_that_somebody_holds_has_its_rows_when_it_is_settled(
    settler: Settler, kit: Kit, conn: Conn, told: Told
) -> None:
    enqueue(conn, 2)
    held, free = take(conn, register(conn), 2)
    with kit.connect() as other:
        other.execute("SELECT FROM holdfast.work WHERE id = %s FOR UPDATE", [held.id])
        for job in (held, free):
            settler.settle(Settlement(job, noted(Completed("1"), 1)))
        await settler.tick()
        assert [r["job_id"] for r in written(kit)] == [free.id]
        other.rollback()
    await settler.tick()
    assert {r["job_id"] for r in written(kit)} == {held.id, free.id} == set(map(type(held.id), told))


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ('{"n": -1}', 'violates check constraint "notes_n_check"'),
        ('{"n": "x"}', "invalid input syntax for type integer"),
        ('{"n": 1, "raise": true}', "the recorder of notes failed: KeyError: 'of the recorder itself'"),
    ],
)
@pytest.mark.parametrize("outcome", [Completed("1"), DeadLettered(BOOM)])
async def test_a_bad_row_harms_its_own_job_alone(
    settler: Settler, kit: Kit, conn: Conn, told: Told, bad: str, error: str, outcome: Outcome
) -> None:
    enqueue(conn, 9)
    jobs = take(conn, register(conn), 9)
    for job in jobs[:8]:
        settler.settle(Settlement(job, noted(Completed("1"), 1)))
    settler.settle(Settlement(jobs[8], replace(outcome, rows=(Recorded("notes", bad),))))
    await settler.tick()
    assert {r["job_id"] for r in written(kit)} == {job.id for job in jobs[:8]}
    assert [told[job.id_text] for job in jobs] == ["completed"] * 8 + ["dead_letter"]
    (buried,) = kit.sql("SELECT id, last_error FROM holdfast.dead_letters")
    assert buried["id"] == jobs[8].id
    assert (
        f"SettleRefused: its rows for notes were refused, and it was {type(outcome).__name__}"
        in buried["last_error"]
    )
    assert error in buried["last_error"]
    assert ("the attempt ended with ValueError: boom" in buried["last_error"]) == isinstance(
        outcome, DeadLettered
    )


async def test_jobs_wait_while_no_row_can_be_written_and_others_go_on(
    settler: Settler, kit: Kit, conn: Conn, told: Told, events: list[telemetry.Event]
) -> None:
    kit.sql("ALTER TABLE holdfast.notes RENAME TO elsewhere")
    enqueue(conn, 6)
    jobs = take(conn, register(conn), 6)
    for n, job in enumerate(jobs):
        settler.settle(Settlement(job, noted(NOTHING, 1) if n % 2 else Completed("1")))
    await settler.tick()
    await settler.tick()
    assert told == {job.id_text: "completed" for job in jobs[::2]}
    assert [e.fields["table"] for e in events if e.name == "record.stuck"] == ["notes"]
    kit.sql("ALTER TABLE holdfast.elsewhere RENAME TO notes")
    await settler.tick()
    assert told == {job.id_text: "completed" for job in jobs}
    assert {r["job_id"] for r in written(kit)} == {job.id for job in jobs[1::2]}


async def test_what_fails_before_the_rows_is_not_blamed_on_them(
    settler: Settler, kit: Kit, conn: Conn, told: Told
) -> None:
    kit.sql("INSERT INTO holdfast.counters VALUES ('a', 0)")
    enqueue(conn, 2)
    waits, refused = take(conn, register(conn), 2)
    with kit.connect() as other:
        other.execute("SELECT FROM holdfast.counters FOR UPDATE")
        settler.settle(Settlement(waits, noted(Completed("1"), 1, table="counters")))
        settler.settle(Settlement(refused, noted(Completed("no JSON"), 1)))
        await settler.tick()
        assert told == {refused.id_text: "dead_letter"}
        other.rollback()
    (row,) = kit.sql("SELECT last_error FROM holdfast.dead_letters")
    assert row["last_error"].startswith(
        "SettleRefused: Completed was refused by the database: invalid input syntax"
    )


async def test_a_locked_row_of_a_recorder_holds_up_its_own_job_alone(
    settler: Settler, kit: Kit, conn: Conn, told: Told
) -> None:
    kit.sql("INSERT INTO holdfast.counters VALUES ('a', 0)")
    enqueue(conn, 4)
    jobs = take(conn, register(conn), 4)
    with kit.connect() as other:
        other.execute("SELECT FROM holdfast.counters FOR UPDATE")
        for job in jobs[:3]:
            settler.settle(Settlement(job, noted(Completed("1"), 1)))
        settler.settle(Settlement(jobs[3], noted(Completed("1"), 1, table="counters")))
        await settler.tick()
        assert told == {job.id_text: "completed" for job in jobs[:3]}
        other.rollback()
    await settler.tick()
    assert told == {job.id_text: "completed" for job in jobs}
    assert one(conn, "SELECT n FROM holdfast.counters") == 1


async def test_a_batch_with_rows_costs_one_more_statement(settler: Settler, conn: Conn) -> None:
    def names(*outcomes: Outcome) -> list[str]:
        enqueue(conn, len(outcomes))
        jobs = take(conn, register(conn), len(outcomes))
        ran: list[str] = []

        def spy(statement: Any) -> Any:
            ran.append(statement.name)
            return run_one(conn, statement)

        batch = [Settlement(job, outcome) for job, outcome in zip(jobs, outcomes, strict=True)]
        with conn.transaction():
            walk(spy, settler._failed_batch.flow(batch, "w"))
        return ran

    without = names(*[Completed("1")] * 20)
    assert names(*[Completed("1")] * 10, *[noted(Completed("1"), 1, 2)] * 10) == [*without, "write_notes"]


async def test_a_call_of_a_recorder_has_a_bound(
    settler: Settler, kit: Kit, conn: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "_CALL_BYTES", 100)
    calls: list[int] = []
    write = notes.write_notes

    def counted(jobs: Any, rows: Any) -> Any:
        calls.append(sum(map(len, rows)))
        yield from write(jobs, rows)

    settler._failed_batch._recorders._by_table["notes"] = counted
    enqueue(conn, 20)
    jobs = take(conn, register(conn), 20)
    for job in jobs:
        settler.settle(Settlement(job, noted(NOTHING, 1)))
    await settler.tick()
    assert len(written(kit)) == 20
    assert len(calls) > 1
    assert max(calls) <= 100


def test_handlers_record_from_loop_thread_batch_and_process(kit: Kit) -> None:
    ids = {
        notes.note.enqueue(n=1).id: [
            (1, "async", "Completed", "completed"),
            (2, "async", "Completed", "completed"),
        ],
        notes.end_as.enqueue(how="return").id: [(1, "return", "Completed", "completed")],
        notes.end_as.enqueue(how="fail").id: [(1, "fail", "Failed", "pending")],
        notes.end_as.enqueue(how="snooze").id: [(1, "snooze", "Snoozed", "pending")],
        notes.end_as.enqueue(how="die").id: [(1, "die", "DeadLettered", "dead_letter")],
        notes.end_as.enqueue(how="cancel").id: [(1, "cancel", "Cancelled", "cancelled")],
        notes.together.enqueue(1).id: [(1, "batch", "Completed", "completed")],
        notes.together.enqueue(2).id: [(2, "batch", "DeadLettered", "dead_letter")],
        notes.apart.enqueue(n=1).id: [(1, "process", "Completed", "completed")],
        notes.apart.enqueue(n=2).id: [(2, "process", "Failed", "pending")],
    }
    kit.run_worker()
    found: dict[Any, list[tuple[Any, ...]]] = {}
    for row in written(kit):
        found.setdefault(row["job_id"], []).append(
            (row["n"], row["note"]["how"], row["outcome"], row["state"])
        )
    assert found == ids


async def test_what_is_recorded_after_the_end_of_the_attempt_is_refused(kit: Kit, akit: Kit) -> None:
    job = notes.too_late.enqueue()
    try:
        async with working(akit):
            await await_until(lambda: written(kit), "the attempt that timed out is settled")
            notes.late.set()
            await await_until(notes.ended.is_set, "its thread has ended")
        assert [(r["job_id"], r["note"]["how"], r["outcome"]) for r in written(kit)] == [
            (job.id, "in time", "Failed")
        ]
        (error,) = notes.said
        assert isinstance(error, JobSettled)
        assert str(error) == "job.record('notes', ...): the attempt has ended, and its rows with it"
    finally:
        notes.late.set()


async def test_a_released_attempt_keeps_its_rows(kit: Kit, akit: Kit) -> None:
    job = notes.endless.enqueue()
    async with working(akit):
        await await_until(notes.began.is_set, "the handler has recorded its row")
    assert [(r["job_id"], r["outcome"], r["state"]) for r in written(kit)] == [
        (job.id, "Released", "pending")
    ]


NOT_RECORDED = {
    "transacted": "ConfigurationError: job.record('notes', ...): a handler with a Transaction ends its job in that "
    "transaction. Write the row there",
    "stranger": "ConfigurationError: job.record('elsewhere', ...): no shape of this app writes rows for that; known: "
    "counters, notes, webhook_attempts, workflow_runs",
    "completes": "ConfigurationError: job.complete(): this attempt has recorded rows, which are written when the worker "
    "ends it. Let the handler return instead",
}


@pytest.mark.parametrize("task", NOT_RECORDED)
def test_where_no_row_can_be_recorded_the_handler_hears_why(kit: Kit, task: str) -> None:
    arguments: dict[str, Any] = {"url": kit.url, "before": True} if task == "completes" else {}
    getattr(notes, task).enqueue(**arguments)
    kit.run_worker()
    (row,) = kit.jobs()
    assert row["last_error"] == NOT_RECORDED[task]


def test_a_job_that_completed_itself_records_nothing_more(kit: Kit) -> None:
    notes.completes.enqueue(url=kit.url, before=False)
    kit.run_worker()
    (row,) = kit.jobs()
    assert row["last_error"] == f"JobSettled: job {row['id']} was already completed by this attempt"
    assert written(kit) == []


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ([1], "a row for notes is an object, not list [1]. Pass a dict: {column: value}"),
        (
            {"x": float("nan")},
            "the row for notes value x is nan, which JSON does not have. Pass None or a string",
        ),
        ({"x": {1}}, "the row for notes value x is set {1}, which is not JSON. "),
        ({"x": "\0"}, "the row for notes value x contains a NUL character"),
        (
            {"x": "a" * 70_000},
            "the row for notes is 70,009 bytes of JSON, more than the limit of 65,536 (64 KiB)",
        ),
    ],
)
def test_a_row_is_checked_when_it_is_recorded(row: Any, text: str) -> None:
    rows = Rows(Recorders(notes.SHAPE.recorders, dump))
    with pytest.raises(InvalidPayload) as error:
        rows.add("notes", row)
    assert text in str(error.value)
    assert rows.end(NOTHING) is NOTHING


def test_an_attempt_records_no_more_than_its_bound() -> None:
    rows = Rows(Recorders(notes.SHAPE.recorders, dump))
    for _ in range(4):
        rows.add("notes", {"x": "a" * 60_000})
    with pytest.raises(InvalidPayload) as error:
        rows.add("notes", {"x": "a" * 60_000})
    assert str(error.value) == (
        "an attempt records at most 1,000 rows and 262,144 bytes (256 KiB); this one would have 5 rows and 300,040 bytes. "
        "Record less"
    )
    rows = Rows(Recorders(notes.SHAPE.recorders, dump))
    for _ in range(1000):
        rows.add("notes", {})
    with pytest.raises(InvalidPayload, match="this one would have 1,001 rows"):
        rows.add("notes", {})
    assert len(rows.end(NOTHING).rows) == 1000


def test_an_app_without_recorders_says_so() -> None:
    with pytest.raises(ConfigurationError, match="no shape of this app writes rows for that; known: none"):
        Rows(Recorders()).add("notes", {})
