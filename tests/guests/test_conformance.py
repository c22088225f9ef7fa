"""One suite over every kind of connection: a job is part of the caller's transaction, whatever library runs it."""

import contextlib
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from tests.guests.conftest import KINDS, MORE, Open, orders, waiting
from tests.guests.kinds import AsyncKind, Kind, Undo

from holdfast import (
    Holdfast,
    IdempotencyConflict,
    InvalidPayload,
    Job,
    LeaseLost,
    SchemaMissing,
    UnknownQueue,
    WrongConnection,
)
from holdfast.tasks.task import Task
from holdfast.testing import Kit

Send = Task[[int], str]
Write = Callable[[Kind, Holdfast, Send, int], Any]

# The three ways to write jobs, each of one order.
WRITES: dict[str, Write] = {
    "enqueue": lambda kind, app, send, n: kind.enqueue(send, n),
    "enqueue_many": lambda kind, app, send, n: kind.enqueue_many(app, [send.job(n)]),
    "send": lambda kind, app, send, n: kind.send(app, "send", {"order_id": n}),
}


def steal(kit: Kit, job_id: UUID) -> None:
    """Another owner took the job, as a claim after a sweep would."""
    kit.sql(
        "UPDATE holdfast.work SET lease_generation = lease_generation + 1, claim_token = gen_random_uuid() WHERE id = %s",
        [job_id],
    )


# Jobs in the caller's transaction -------------------------------------------------------------------------------


def test_invisible_before_the_commit_there_after_it(kind: Kind, app: Holdfast, kit: Kit, send: Send) -> None:
    for n, (name, write) in enumerate(WRITES.items()):
        with kind.block():
            kind.write(2 * n)
            write(kind, app, send, n)
            kind.write(2 * n + 1)
            assert waiting(kit) == list(range(n)), name
            assert orders(kit) == list(range(2 * n)), name
        assert waiting(kit) == list(range(n + 1)), name
        assert orders(kit) == list(range(2 * n + 2)), name


def test_gone_after_a_rollback(kind: Kind, app: Holdfast, kit: Kit, send: Send) -> None:
    for write in WRITES.values():
        with pytest.raises(Undo), kind.block():
            kind.write(1)
            write(kind, app, send, 1)
            raise Undo
        assert (waiting(kit), orders(kit)) == ([], [])


def test_a_job_that_is_the_first_word_of_the_transaction(
    kind: Kind, app: Holdfast, kit: Kit, send: Send
) -> None:
    """Nothing but the job says BEGIN here, and the commit must still be the caller's."""
    for n, write in enumerate(WRITES.values()):
        with pytest.raises(Undo), kind.block():
            write(kind, app, send, n)
            assert waiting(kit) == list(range(n))
            raise Undo
        assert waiting(kit) == list(range(n))
        with kind.block():
            write(kind, app, send, n)
            assert waiting(kit) == list(range(n))
        assert waiting(kit) == list(range(n + 1))


def test_all_of_enqueue_many_or_none(kind: Kind, app: Holdfast, kit: Kit, send: Send) -> None:
    with kind.block():
        handles = kind.enqueue_many(app, [send.job(n) for n in range(50)])
    assert [row["id"] for row in kit.jobs()] == [handle.id for handle in handles]
    taken = send.using(idempotency_key="k")
    taken.enqueue(99)
    with kind.block():
        kind.write(1)
        with pytest.raises(IdempotencyConflict):
            kind.enqueue_many(app, [send.job(100), taken.job(101)])
    assert (len(kit.jobs()), orders(kit)) == (51, [1])


def test_the_transaction_wrote_the_row(kind: Kind, kit: Kit, send: Send) -> None:
    """Not one beside it on another connection."""
    with kind.block():
        mine = kind.one("SELECT pg_current_xact_id()::text")
        kind.enqueue(send, 1)
        assert kind.one("SELECT count(*) FROM holdfast.work") == 1
    assert kit.sql("SELECT xmin::text AS xmin FROM holdfast.work") == [{"xmin": mine}]


@pytest.mark.parametrize("kind_class", MORE, indirect=True)
def test_wrappers_and_subclasses_of_sessions(opened: Open, app: Holdfast, kit: Kit, send: Send) -> None:
    @app.task
    def work(job: Job) -> None:
        with opened() as kind:
            for end in (Undo, None):
                with contextlib.suppress(Undo), kind.block():
                    for n, write in enumerate(WRITES.values()):
                        write(kind, app, send, n)
                    kind.write(1)
                    kind.guard(job, "ledger")
                    kind.complete(job)
                    assert kit.jobs(send) == []
                    if end:
                        raise end
                assert len(kit.jobs(send)) == (0 if end else 3)

    handle = work.enqueue()
    kit.run_worker()
    assert (kit.job(handle.id)["status"], orders(kit)) == ("completed", [1])
    assert [row["payload"]["order_id"] for row in kit.jobs(send)] == [0, 1, 2]


def test_a_job_of_a_savepoint_goes_with_it(kind: Kind, app: Holdfast, kit: Kit, send: Send) -> None:
    with kind.block():
        kind.enqueue(send, 1)
        with pytest.raises(Undo), kind.nested():
            for write in WRITES.values():
                write(kind, app, send, 2)
            raise Undo
        with kind.nested():
            kind.enqueue(send, 3)
        kind.write(1)
    assert (waiting(kit), orders(kit)) == ([1, 3], [1])


def test_what_was_enqueued_runs_as_any_job(kind: Kind, kit: Kit, send: Send) -> None:
    with kind.block():
        handle = kind.enqueue(send, 7, priority=5, tags=["ü"], metadata={"a": [1]}, idempotency_key="k")
        again = kind.enqueue(send, 7, idempotency_key="k")
        kit.run_worker()
    assert (handle.created, again.created, again.id) == (True, False, handle.id)
    row = kit.job(handle.id)
    assert (row["status"], row["priority"], row["tags"], row["metadata"]) == ("pending", 5, ["ü"], {"a": [1]})
    kit.run_worker()
    assert handle.result(timeout=25) == "7"


# Bad input ------------------------------------------------------------------------------------------------------


def test_bad_input_leaves_the_transaction_usable(kind: Kind, app: Holdfast, kit: Kit, send: Send) -> None:
    @app.task
    def keep(order_id: int, note: str) -> None: ...

    send.using(idempotency_key="taken").enqueue(0)
    kit.sql("SELECT holdfast.create_queue('mail')")
    send.using(queue="mail").enqueue(1)  # known to the app from here on
    kit.sql("DROP TABLE holdfast.queue_mail")
    kit.sql("DELETE FROM holdfast.queues WHERE name = 'mail'")
    bad: dict[str, tuple[type[Exception], Callable[[], Any]]] = {
        "key with another payload": (
            IdempotencyConflict,
            lambda: kind.enqueue(send, 1, idempotency_key="taken"),
        ),
        "the same by name": (
            IdempotencyConflict,
            lambda: kind.send(app, "send", {"order_id": 1}, idempotency_key="taken"),
        ),
        "no such queue": (UnknownQueue, lambda: kind.enqueue(send, 1, queue="mial")),
        "a queue that was dropped": (UnknownQueue, lambda: kind.enqueue(send, 1, queue="mail")),
        "too large": (InvalidPayload, lambda: kind.enqueue(keep, 1, "x" * 300_000)),
        "NUL": (InvalidPayload, lambda: kind.enqueue(keep, 1, "a\0b")),
        "NUL by name": (InvalidPayload, lambda: kind.send(app, "send", {"note": "a\0b"})),
    }
    for n, (name, (error, call)) in enumerate(bad.items(), 1):
        with kind.block():
            if n % 2:
                kind.write(2 * n)
            with pytest.raises(error):
                call()
            kind.enqueue(send, n)
            kind.write(2 * n + 1)
        assert waiting(kit) == list(range(n + 1)), name
        assert orders(kit)[-1] == 2 * n + 1, name


def test_a_missing_schema_is_named(kind: Kind, kit: Kit, send: Send) -> None:
    kit.sql("DROP SCHEMA holdfast CASCADE")
    with pytest.raises(SchemaMissing) as caught, kind.block():
        kind.enqueue(send, 1)
    assert (
        str(caught.value)
        == 'the database has no current holdfast schema (schema "holdfast" does not exist). Run: holdfast migrate up'
    )
    with kind.block():
        kind.write(1)
    assert orders(kit) == [1]


def test_an_error_of_the_server_is_raised_as_the_callers_library_raises_it(
    kind: Kind, kit: Kit, send: Send
) -> None:
    """So that the caller's own retry finds it; the driver's error is its cause."""
    with pytest.raises(kind.read_only) as caught, kind.block():
        kind.one("SELECT set_config('transaction_read_only', 'on', true)")
        kind.enqueue(send, 1)
    assert type(caught.value) is kind.read_only
    assert "cannot execute" in str(caught.value)
    found = [caught.value, getattr(caught.value, "orig", None), caught.value.__cause__]
    assert "25006" in [getattr(error, "sqlstate", None) for error in found]
    with kind.block():
        kind.write(1)
        kind.enqueue(send, 1)
    assert (orders(kit), waiting(kit)) == ([1], [1])


# The owner of a job ---------------------------------------------------------------------------------------------


def test_guard_and_complete_commit_with_the_callers_transaction(
    opened: Open, app: Holdfast, kit: Kit, send: Send
) -> None:
    seen: list[Any] = []

    @app.task
    def work(job: Job) -> dict[str, int]:
        with opened() as kind:
            with kind.block():
                kind.guard(job, "ledger")
                kind.write(1)
                kind.enqueue(send, 1)
                kind.complete(job, {"n": 1})
                seen.append((kit.job(job.id)["status"], orders(kit), len(kit.jobs(send))))
            seen.append((kit.job(job.id)["status"], orders(kit), len(kit.jobs(send))))
        return {"n": 2}  # too late: the job has its result

    handle = work.enqueue()
    kit.run_worker()
    assert seen == [("processing", [], 0), ("completed", [1], 1)]
    assert handle.result(timeout=25) == {"n": 1}
    assert kit.sql("SELECT count(*) AS n FROM holdfast.fences WHERE resource = 'ledger'") == [{"n": 1}]
    assert kit.job(handle.id)["attempts"] == 1


def test_a_bad_word_of_the_owner_leaves_the_transaction_usable(opened: Open, app: Holdfast, kit: Kit) -> None:
    said: list[str] = []

    @app.task
    def work(job: Job) -> Any:
        with opened() as kind, kind.block():
            for resource in ("a\0b", "\udc80", "x" * 513, ""):
                with pytest.raises(ValueError, match="of 1 to 512 bytes without NUL") as caught:
                    kind.guard(job, resource)
                said.append(str(caught.value).partition("(")[0])
            for result in ("\0", "x" * 100_000, object()):
                with pytest.raises(InvalidPayload):
                    kind.complete(job, result)
            kind.write(1)
            kind.complete(job, "done")

    handle = work.enqueue()
    kit.run_worker()
    assert set(said) <= {"job.guard", "job.aguard"}
    assert (kit.job(handle.id)["result"], orders(kit)) == ("done", [1])


def test_a_lost_lease_rolls_the_handlers_transaction_back(
    opened: Open, app: Holdfast, kit: Kit, send: Send
) -> None:
    lost: list[str] = []

    @app.task
    def work(job: Job, verb: str) -> None:
        with opened() as kind, kind.block():
            kind.write(1)
            kind.enqueue(send, 1)
            steal(kit, job.id)
            try:
                if verb == "guard":
                    kind.guard(job, "ledger")
                else:
                    kind.complete(job)
            except LeaseLost:
                lost.append(verb)
                raise

    for verb in ("guard", "complete"):
        handle = work.enqueue(verb)
        kit.run_worker()
        assert lost.pop() == verb
        assert (orders(kit), kit.jobs(send)) == ([], [])
        assert kit.job(handle.id)["status"] == "processing"  # the new owner's
    assert kit.sql("SELECT * FROM holdfast.fences") == []


def test_a_completion_that_is_rolled_back_is_none(
    opened: Open, app: Holdfast, kit: Kit, events: list[Any]
) -> None:
    @app.task(max_attempts=1)
    def work(job: Job) -> None:
        with opened() as kind, kind.block():
            kind.write(1)
            kind.complete(job)
            raise Undo

    handle = work.enqueue()
    kit.run_worker()
    assert orders(kit) == []
    assert kit.job(handle.id)["status"] == "dead_letter"


@pytest.mark.parametrize(
    "kind_class", [k for k, c in KINDS.items() if issubclass(c, AsyncKind)], indirect=True
)
async def test_an_async_handler_on_the_workers_own_loop(
    kind_class: type[AsyncKind], app: Holdfast, akit: Kit
) -> None:
    """As users write it: no loop beside the worker's."""
    akit.sql("CREATE TABLE orders (id int PRIMARY KEY, note text)")

    @app.task
    async def send(order_id: int) -> None: ...

    @app.task
    async def work(job: Job, stolen: bool) -> str:
        kind = kind_class(akit.url)
        await kind.aopen()
        try:
            async with kind.ablock():
                await kind.awrite(int(stolen))
                await send.using(conn=kind.conn, run_after=3600).aenqueue(int(stolen))
                if stolen:
                    steal(akit, job.id)
                await job.aguard(conn=kind.conn, resource="ledger")
                await job.acomplete(conn=kind.conn, result="done")
        finally:
            await kind.aclose()
        return ""

    kept, lost = await work.aenqueue(False), await work.aenqueue(True)
    await akit.arun_worker()
    assert (orders(akit), [j["payload"]["order_id"] for j in akit.jobs(send)]) == ([0], [0])
    assert akit.job(kept.id)["result"] == "done"
    assert akit.job(lost.id)["status"] == "processing"


# Without a transaction ------------------------------------------------------------------------------------------


def test_in_autocommit_each_job_commits_by_itself_and_the_mode_stays(
    opened: Open, app: Holdfast, kit: Kit, send: Send
) -> None:
    with opened(autocommit=True) as kind:
        for n, write in enumerate(WRITES.values()):
            write(kind, app, send, n)
            assert waiting(kit) == list(range(n + 1))
            kind.write(n)
            assert orders(kit) == list(range(n + 1))


def test_guard_and_complete_refuse_autocommit(opened: Open, app: Holdfast, kit: Kit) -> None:
    said: list[str] = []
    wanted: list[str] = []

    @app.task
    def work(job: Job) -> None:
        with opened(autocommit=True) as kind:
            prefix = "a" if isinstance(kind, AsyncKind) else ""
            for verb, call in (("complete", kind.complete), ("guard", lambda job: kind.guard(job, "r"))):
                with pytest.raises(WrongConnection) as caught:
                    call(job)
                said.append(str(caught.value))
                wanted.append(
                    f"job.{prefix}{verb}() needs an open transaction, and this connection is in autocommit mode without "
                    f"one; {kind.advice}"
                )
            kind.write(1)

    handle = work.enqueue()
    kit.run_worker()
    assert said == wanted
    assert len(said) == 2
    assert (kit.job(handle.id)["status"], orders(kit)) == ("completed", [1])


# The caller's settings ------------------------------------------------------------------------------------------

SEEN = (
    "SELECT concat_ws(' ', current_setting('transaction_isolation'), current_setting('search_path'), "
    "current_setting('TimeZone'), current_setting('DateStyle'), current_setting('statement_timeout'), "
    "current_setting('jit'), current_setting('holdfast.clock_offset', true))"
)


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_the_callers_isolation_holds_for_the_job_and_stays(
    opened: Open, kit: Kit, send: Send, level: str
) -> None:
    with opened(isolation=level) as kind:
        for n in range(2):  # and in the next transaction
            with kind.block():
                kind.enqueue(send, n)
                assert kind.one("SHOW transaction_isolation") == level.lower()
                mine = kind.one("SELECT pg_current_xact_id()::text")
                kind.write(n)
            assert kit.sql("SELECT xmin::text AS xmin FROM holdfast.work ORDER BY seq")[n]["xmin"] == mine
    assert orders(kit) == [0, 1]


def test_a_changed_session_does_not_matter_and_stays_changed(kind: Kind, kit: Kit, send: Send) -> None:
    changes = {
        "search_path": "nowhere",
        "TimeZone": "Asia/Kolkata",
        "DateStyle": "German, DMY",
        "statement_timeout": "7s",
        "standard_conforming_strings": "off",
        "escape_string_warning": "off",
    }
    with kind.block():
        for name, value in changes.items():
            kind.one(f"SELECT set_config('{name}', '{value}', true)")
        before = kind.one(SEEN)
        handle = kind.enqueue(send, 1, idempotency_key="ü\\'", tags=["ü\\'", '"', ",", "{}", "NULL"])
        assert kind.one(SEEN) == before
    row = kit.job(handle.id)
    assert row["tags"] == ["ü\\'", '"', ",", "{}", "NULL"]


def test_a_time_is_the_same_moment_on_every_kind(kind: Kind, kit: Kit, send: Send) -> None:
    from datetime import datetime, timedelta, timezone

    at = datetime(2030, 7, 1, 12, 0, 0, 123456, timezone(timedelta(hours=5, minutes=30)))
    with kind.block():
        kind.one("SELECT set_config('DateStyle', 'SQL, DMY', true)")
        kind.one("SELECT set_config('TimeZone', 'Asia/Kolkata', true)")
        handle = kind.enqueue(send, 1, run_after=at)
        later = kind.enqueue(send, 1, run_after=0.5)
    assert kit.job(handle.id)["available_at"] == at
    row = kit.job(later.id)
    assert row["available_at"] - row["created_at"] == timedelta(seconds=0.5)
