"""Enqueue: in the caller's transaction, refused before any SQL, and the same through every door."""

import asyncio
import gc
import multiprocessing
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb, JsonbDumper
from psycopg.types.string import TextLoader
from tests.conftest import QUICK, wait_until

from holdfast import (
    DatabaseUnavailable,
    DuplicateTask,
    EnqueueError,
    Holdfast,
    IdempotencyConflict,
    InvalidArguments,
    InvalidOption,
    InvalidPayload,
    NoDatabase,
    Registry,
    SchemaMissing,
    Settings,
    Task,
    UnboundTask,
    UnknownQueue,
    WrongConnection,
)
from holdfast.settings import load_settings
from holdfast.store.statement import Statement
from holdfast.testing import Kit, TestServer

Send = Task[..., str]
Conn = psycopg.Connection[Any]
AConn = psycopg.AsyncConnection[Any]


@pytest.fixture
def send(app: Holdfast) -> Send:
    @app.task
    async def send(order_id: int, note: str = "") -> str:
        return f"{order_id}{note}"

    return send


@pytest.fixture
def conn(kit: Kit) -> Iterator[Conn]:
    """The user's own connection, to a database with a table of their own."""
    kit.sql("CREATE TABLE orders (id int PRIMARY KEY)")
    with psycopg.connect(kit.url) as conn:
        yield conn


@pytest.fixture
async def aconn(akit: Kit) -> AsyncIterator[AConn]:
    akit.sql("CREATE TABLE orders (id int PRIMARY KEY)")
    async with await psycopg.AsyncConnection.connect(akit.url) as conn:
        yield conn


def orders(kit: Kit) -> list[int]:
    return [row["id"] for row in kit.sql("SELECT id FROM orders ORDER BY id")]


def payloads(kit: Kit) -> list[Any]:
    return [row["payload"] for row in kit.jobs()]


# One job --------------------------------------------------------------------------------------------------------


def test_enqueue_writes_one_waiting_job(app: Holdfast, kit: Kit, send: Send) -> None:
    handle = send.enqueue(7, note="x")
    row = kit.job(handle.id)
    assert handle.created
    assert (row["task"], row["queue"], row["status"]) == ("send", "inbox", "pending")
    assert (row["payload"], row["version"]) == ({"order_id": 7, "note": "x"}, 1)
    assert (row["priority"], row["attempts"], row["max_attempts"]) == (0, 0, 5)
    assert (row["partition_key"], row["tags"], row["metadata"]) == (None, None, None)
    assert row["available_at"] == row["created_at"]
    assert handle.id.version == 7
    assert repr(handle) == f"JobHandle(send {handle.id}, created=True)"


async def test_aenqueue_writes_the_same_row(app: Holdfast, akit: Kit, send: Send) -> None:
    first, second = send.enqueue(7), await send.aenqueue(7)
    differ = {"id", "seq", "created_at", "available_at", "partition_bucket"}
    one, two = akit.job(first.id), akit.job(second.id)
    assert {k: v for k, v in one.items() if k not in differ} == {
        k: v for k, v in two.items() if k not in differ
    }


def test_an_omitted_argument_is_not_stored_so_the_default_at_run_time_applies(kit: Kit, send: Send) -> None:
    assert kit.job(send.enqueue(order_id=7).id)["payload"] == {"order_id": 7}


def test_using_sets_every_option_of_one_job(kit: Kit, send: Send) -> None:
    kit.sql("SELECT holdfast.create_queue('mail')")
    at = datetime.now(UTC) + timedelta(hours=1)
    handle = send.using(
        queue="mail",
        partition_key="order:9182",
        idempotency_key="k1",
        idempotency_lifetime=timedelta(hours=2),
        run_after=at,
        priority=-3,
        max_attempts=9,
        tags=["a", "b"],
        metadata={"tenant": 4},
    ).enqueue(1)
    row = kit.job(handle.id)
    assert (row["queue"], row["partition_key"], row["partition_bucket"]) == ("mail", "order:9182", 751)
    assert (row["status"], row["available_at"]) == ("scheduled", at)
    assert (row["priority"], row["max_attempts"]) == (-3, 9)
    assert (row["tags"], row["metadata"]) == (["a", "b"], {"tenant": 4})
    (key,) = kit.sql("SELECT *, expires_at - holdfast.now() AS life FROM holdfast.idempotency")
    assert (key["queue"], key["key"], key["job_id"]) == ("mail", "k1", handle.id)
    assert timedelta(minutes=119) < key["life"] <= timedelta(hours=2)


def test_later_options_win_and_the_task_itself_is_unchanged(kit: Kit, send: Send) -> None:
    kit.sql("SELECT holdfast.create_queue('bulk')")
    bulk = send.using(queue="bulk", priority=1)
    handle = bulk.using(priority=2).enqueue(1)
    row = kit.job(handle.id)
    assert (row["queue"], row["priority"]) == ("bulk", 2)
    assert kit.job(send.enqueue(1).id)["queue"] == "inbox"
    assert kit.job(bulk.enqueue(1).id)["priority"] == 1


def test_seconds_in_run_after_count_from_the_clock_of_the_database(kit: Kit, send: Send) -> None:
    row = kit.job(send.using(run_after=90).enqueue(1).id)
    assert row["available_at"] - row["created_at"] == timedelta(seconds=90)
    row = kit.job(send.using(run_after=timedelta(minutes=2)).enqueue(1).id)
    assert row["available_at"] - row["created_at"] == timedelta(minutes=2)


# Registries -----------------------------------------------------------------------------------------------------


def test_a_registry_gives_its_name_to_its_tasks_and_is_bound_by_include(
    holdfast_kit: Callable[..., Kit],
) -> None:
    billing = Registry("billing")

    @billing.task(max_attempts=2, priority=5)
    def send_receipt(order_id: int) -> int:
        return order_id

    kit = holdfast_kit(Holdfast(include=[billing]), QUICK)
    handle = send_receipt.enqueue(order_id=3)
    row = kit.job(handle.id)
    assert (row["task"], row["max_attempts"], row["priority"]) == ("billing.send_receipt", 2, 5)
    kit.run_worker()
    assert handle.result(timeout=25) == 3


def test_a_module_named_in_include_is_imported_by_the_worker(
    holdfast_kit: Callable[..., Kit], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flow_shop_tasks.py").write_text(
        "from holdfast import Registry\n"
        "shop = Registry('shop')\n"
        "@shop.task\n"
        "def pack(item: str) -> str:\n"
        "    return item.upper()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    app = Holdfast(include=["flow_shop_tasks"])
    kit = holdfast_kit(app, QUICK)
    handle = app.send("shop.pack", {"item": "cup"})
    assert "flow_shop_tasks" not in sys.modules
    kit.run_worker()
    assert handle.result(timeout=25) == "CUP"
    monkeypatch.delitem(sys.modules, "flow_shop_tasks")


def test_a_duplicate_task_name_is_refused_and_both_places_are_named(kit: Kit, app: Holdfast) -> None:
    billing = Registry("billing")

    @app.task(name="billing.send")
    def ours() -> None: ...

    @billing.task
    def send() -> None: ...

    app._include(billing)
    here = Path(__file__)
    lines = here.read_text().splitlines()
    first = lines.index('    @app.task(name="billing.send")') + 1
    second = next(n for n in range(first + 1, len(lines)) if lines[n] == "    @billing.task") + 1
    where = "test_a_duplicate_task_name_is_refused_and_both_places_are_named.<locals>"
    with pytest.raises(DuplicateTask) as caught:
        kit.run_worker()
    assert str(caught.value) == (
        f"task 'billing.send' is declared twice: {where}.ours at {here}:{first}, "
        f"and {where}.send at {here}:{second}. Give one of them another name: task(name=...)"
    )


def test_a_task_of_a_registry_that_no_app_includes_says_which_include_is_missing() -> None:
    billing = Registry("billing")

    @billing.task
    def send() -> None: ...

    with pytest.raises(UnboundTask) as caught:
        send.enqueue()
    assert str(caught.value) == (
        "task 'billing.send' belongs to Registry(\"billing\"), which no app includes. "
        "Add it: Holdfast(..., include=[billing])"
    )


# Many, and by name ----------------------------------------------------------------------------------------------


def test_enqueue_many_writes_all_in_order_in_one_statement(app: Holdfast, kit: Kit, send: Send) -> None:
    kit.sql("SELECT holdfast.create_queue('mail')")
    handles = app.enqueue_many(
        (send.using(queue="mail") if n % 2 else send.using(priority=n)).job(n) for n in range(50)
    )
    rows = kit.jobs()
    assert [row["id"] for row in rows] == [handle.id for handle in handles]
    assert [row["payload"]["order_id"] for row in rows] == list(range(50))
    assert len({row["created_at"] for row in rows}) == 1
    assert [row["queue"] for row in rows] == ["inbox", "mail"] * 25
    assert app.enqueue_many([]) == []


async def test_aenqueue_many_does_the_same(app: Holdfast, akit: Kit, send: Send) -> None:
    handles = await app.aenqueue_many([send.job(1), send.job(2)])
    assert [row["id"] for row in akit.jobs()] == [handle.id for handle in handles]
    await akit.arun_worker()
    assert [await handle.aresult(timeout=25) for handle in handles] == ["1", "2"]


def test_enqueue_many_joins_the_callers_transaction(app: Holdfast, kit: Kit, send: Send, conn: Conn) -> None:
    app.enqueue_many([send.job(1), send.job(2)], conn=conn)
    assert kit.jobs() == []
    conn.commit()
    assert len(kit.jobs()) == 2


def test_enqueue_many_writes_nothing_when_one_job_conflicts(app: Holdfast, kit: Kit, send: Send) -> None:
    first = send.using(idempotency_key="k").enqueue(1)
    with pytest.raises(IdempotencyConflict) as caught:
        app.enqueue_many(
            [send.job(5), send.using(idempotency_key="new").job(6), send.using(idempotency_key="k").job(7)]
        )
    assert str(caught.value) == (
        f"idempotency key 'k' of queue 'inbox' was used by job {first.id} with another payload. Use a new key "
        "for new work, or the same payload to get that job back. Nothing of this call of 3 jobs was written"
    )
    assert payloads(kit) == [{"order_id": 1}]
    assert send.using(idempotency_key="new").enqueue(8).created


def test_the_same_key_twice_in_one_call_is_one_job(app: Holdfast, kit: Kit, send: Send) -> None:
    one = send.using(idempotency_key="k").job(1)
    first, second = app.enqueue_many([one, one])
    assert (first.id, first.created, second.created) == (second.id, True, False)
    assert len(kit.jobs()) == 1


def test_send_enqueues_by_name_without_the_code(app: Holdfast, kit: Kit) -> None:
    handle = app.send("billing.send_receipt", {"order_id": 1}, priority=3, max_attempts=2)
    row = kit.job(handle.id)
    assert (row["task"], row["payload"]) == ("billing.send_receipt", {"order_id": 1})
    assert (row["priority"], row["max_attempts"], row["version"]) == (3, 2, 1)


async def test_asend_takes_the_defaults_of_a_task_it_knows(app: Holdfast, akit: Kit) -> None:
    @app.task(
        name="old.name", aliases=["older.name"], priority=7, max_attempts=3, version=2, upgrade={1: dict}
    )
    async def current(a: int) -> int:
        return a

    handle = await app.asend("older.name", {"a": 1})
    row = akit.job(handle.id)
    assert (row["task"], row["priority"], row["max_attempts"], row["version"]) == ("older.name", 7, 3, 2)
    await akit.arun_worker()
    assert await handle.aresult(timeout=25) == 1


def test_send_joins_a_transaction_too(app: Holdfast, kit: Kit, conn: Conn) -> None:
    app.send("billing.send", {}, conn=conn)
    conn.rollback()
    assert kit.jobs() == []
    app.send("billing.send", {}, conn=conn)
    conn.commit()
    assert len(kit.jobs()) == 1


# In the caller's transaction ------------------------------------------------------------------------------------

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "dict_row": {"row_factory": dict_row},
    "no prepared statements": {"prepare_threshold": None},
    "prepared at once": {"prepare_threshold": 0},
    "repeatable read": {"isolation_level": psycopg.IsolationLevel.REPEATABLE_READ},
    "serializable": {"isolation_level": psycopg.IsolationLevel.SERIALIZABLE},
}


def test_a_job_is_there_exactly_when_its_transaction_commits(kit: Kit, send: Send) -> None:
    kit.sql("CREATE TABLE orders (id int)")
    for n, settings in enumerate(KINDS.values(), 1):
        with psycopg.connect(kit.url) as conn:
            for name, value in settings.items():
                setattr(conn, name, value)
            conn.execute("INSERT INTO orders VALUES (%s)", [n])
            handle = send.using(conn=conn).enqueue(n)
            assert isinstance(handle.id, UUID)
            assert (len(kit.jobs()), len(orders(kit))) == (n - 1, n - 1)
            conn.commit()
            assert (kit.jobs()[-1]["id"], orders(kit)[-1]) == (handle.id, n)

            conn.execute("INSERT INTO orders VALUES (0)")
            send.using(conn=conn).enqueue(0)
            conn.rollback()
            assert (len(kit.jobs()), len(orders(kit))) == (n, n)


async def test_the_same_holds_for_an_async_connection(akit: Kit, send: Send) -> None:
    akit.sql("CREATE TABLE orders (id int)")
    for n, settings in enumerate(KINDS.values(), 1):
        async with await psycopg.AsyncConnection.connect(akit.url) as conn:
            for name, value in settings.items():
                if name == "isolation_level":
                    await conn.set_isolation_level(value)
                else:
                    setattr(conn, name, value)
            await conn.execute("INSERT INTO orders VALUES (%s)", [n])
            handle = await send.using(conn=conn).aenqueue(n)
            assert isinstance(handle.id, UUID)
            assert (len(akit.jobs()), len(orders(akit))) == (n - 1, n - 1)
            await conn.commit()
            assert (akit.jobs()[-1]["id"], orders(akit)[-1]) == (handle.id, n)

            await conn.execute("INSERT INTO orders VALUES (0)")
            await send.using(conn=conn).aenqueue(0)
            await conn.rollback()
            assert (len(akit.jobs()), len(orders(akit))) == (n, n)


def test_a_worker_runs_nothing_of_an_open_transaction(kit: Kit, send: Send, conn: Conn) -> None:
    handle = send.using(conn=conn).enqueue(1)
    kit.run_worker()
    conn.commit()
    assert kit.job(handle.id)["status"] == "pending"
    kit.run_worker()
    assert handle.result(timeout=25) == "1"


def test_a_job_of_a_savepoint_goes_with_the_savepoint(kit: Kit, send: Send, conn: Conn) -> None:
    with conn.transaction():
        send.using(conn=conn).enqueue(1)
        with pytest.raises(ZeroDivisionError), conn.transaction():
            send.using(conn=conn).enqueue(2)
            raise ZeroDivisionError
        with conn.transaction():
            send.using(conn=conn).enqueue(3)
    assert payloads(kit) == [{"order_id": 1}, {"order_id": 3}]


async def test_a_job_of_an_async_savepoint_too(akit: Kit, send: Send, aconn: AConn) -> None:
    async with aconn.transaction():
        await send.using(conn=aconn).aenqueue(1)
        with pytest.raises(ZeroDivisionError):
            async with aconn.transaction():
                await send.using(conn=aconn).aenqueue(2)
                raise ZeroDivisionError
    assert payloads(akit) == [{"order_id": 1}]


def test_an_autocommit_connection_commits_each_job_unless_a_transaction_is_open(kit: Kit, send: Send) -> None:
    with psycopg.connect(kit.url, autocommit=True) as conn:
        send.using(conn=conn).enqueue(1)
        assert payloads(kit) == [{"order_id": 1}]
        assert conn.info.transaction_status == TransactionStatus.IDLE
        with pytest.raises(ZeroDivisionError), conn.transaction():
            send.using(conn=conn).enqueue(2)
            raise ZeroDivisionError
        assert payloads(kit) == [{"order_id": 1}]


async def test_an_async_autocommit_connection_too(akit: Kit, send: Send) -> None:
    async with await psycopg.AsyncConnection.connect(akit.url, autocommit=True) as conn:
        await send.using(conn=conn).aenqueue(1)
        assert payloads(akit) == [{"order_id": 1}]


SETTINGS = {
    "search_path": "pg_catalog",
    "statement_timeout": "7s",
    "lock_timeout": "6s",
    "TimeZone": "Asia/Kolkata",
    "DateStyle": "German, DMY",
    "IntervalStyle": "sql_standard",
    "bytea_output": "escape",
    "plan_cache_mode": "force_generic_plan",
    "default_transaction_isolation": "serializable",
    "synchronous_commit": "off",
    "application_name": "shop",
}


def test_the_callers_settings_stay_theirs(kit: Kit, send: Send, conn: Conn) -> None:
    for name, value in SETTINGS.items():
        conn.execute("SELECT set_config(%s, %s, false)", [name, value])
    conn.row_factory = dict_row
    conn.commit()
    seen = "SELECT name, setting FROM pg_settings WHERE source = 'session' ORDER BY name"
    before = conn.execute(seen).fetchall()
    at = datetime.now(UTC) + timedelta(days=1)
    handle = send.using(conn=conn, run_after=at, idempotency_key="ü\\'", tags=["ü\\'"]).enqueue(
        1, note="\\x41 'ü'"
    )
    assert conn.execute(seen).fetchall() == before
    assert conn.row_factory is dict_row
    assert conn.execute("SELECT current_setting('holdfast.clock_offset', true) AS now").fetchone() in (
        {"now": None},
        {"now": ""},
    )
    assert conn.info.transaction_status == TransactionStatus.INTRANS
    conn.commit()
    assert conn.execute(seen).fetchall() == before
    conn.rollback()
    row = kit.job(handle.id)
    assert (row["payload"]["note"], row["available_at"], row["tags"]) == ("\\x41 'ü'", at, ["ü\\'"])


def test_a_caller_with_old_string_literals_can_enqueue(kit: Kit, send: Send, conn: Conn) -> None:
    conn.execute("SET standard_conforming_strings = off")
    conn.execute("SET escape_string_warning = off")
    send.using(conn=conn).enqueue(1)
    conn.commit()
    assert len(kit.jobs()) == 1


def test_the_callers_own_adapters_do_not_reach_our_statements(kit: Kit, send: Send, conn: Conn) -> None:
    conn.adapters.register_loader("uuid", TextLoader)
    conn.adapters.register_dumper(list, JsonbDumper)
    conn.adapters.register_dumper(dict, JsonbDumper)
    handle = send.using(conn=conn, tags=["a"], metadata={"b": [1]}).enqueue(1)
    conn.commit()
    assert isinstance(handle.id, UUID)
    assert (kit.job(handle.id)["tags"], kit.job(handle.id)["metadata"]) == (["a"], {"b": [1]})
    row = conn.execute("SELECT %s, gen_random_uuid()", [[1]]).fetchone()
    assert row is not None
    assert (row[0], type(row[1])) == ([1], str)


def test_the_app_is_not_touched_by_what_the_role_or_the_caller_sets(kit: Kit, send: Send, conn: Conn) -> None:
    kit.sql("ALTER DATABASE " + conn.info.dbname + " SET default_transaction_isolation = 'serializable'")
    kit.sql("ALTER DATABASE " + conn.info.dbname + " SET synchronous_commit = off")
    kit.database.close()
    what = "SELECT current_setting('transaction_isolation'), current_setting('synchronous_commit')"
    own = kit.database.run(lambda: Statement("look", what, (), lambda rows: rows[0]))
    assert own == ("read committed", "on")


# Idempotency ----------------------------------------------------------------------------------------------------


def test_the_same_key_and_payload_is_the_same_job(kit: Kit, send: Send) -> None:
    keyed = send.using(idempotency_key="order-1")
    first, second = keyed.enqueue(1, note="a"), keyed.enqueue(order_id=1, note="a")
    assert (first.created, second.created) == (True, False)
    assert first.id == second.id
    assert len(kit.jobs()) == 1


def test_a_key_still_stands_when_its_job_is_finished(kit: Kit, send: Send) -> None:
    keyed = send.using(idempotency_key="order-1")
    first = keyed.enqueue(1)
    kit.run_worker()
    again = keyed.enqueue(1)
    assert (again.id, again.created) == (first.id, False)
    assert again.result(timeout=25) == "1"
    kit.run_worker()
    assert len(kit.jobs()) == 1


def test_a_key_is_free_again_after_its_lifetime(kit: Kit, send: Send) -> None:
    keyed = send.using(idempotency_key="order-1", idempotency_lifetime=60)
    first = keyed.enqueue(1)
    kit.clock.advance(30)
    assert keyed.enqueue(1).id == first.id
    kit.clock.advance(31)
    again = keyed.enqueue(2)
    assert again.created
    assert again.id != first.id


def test_keys_are_scoped_by_queue(kit: Kit, send: Send) -> None:
    kit.sql("SELECT holdfast.create_queue('mail')")
    keyed = send.using(idempotency_key="k")
    assert keyed.enqueue(1).id != keyed.using(queue="mail").enqueue(2).id


def _waits(kit: Kit) -> bool:
    return bool(
        kit.sql(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
    )


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_concurrent_duplicate_waits_for_the_first_transaction(
    kit: Kit, send: Send, conn: Conn, end: str
) -> None:
    keyed = send.using(idempotency_key="k")
    with psycopg.connect(kit.url) as other, ThreadPoolExecutor(1) as pool:
        first = keyed.using(conn=conn).enqueue(1)
        future = pool.submit(keyed.using(conn=other).enqueue, 1)
        try:
            wait_until(lambda: _waits(kit), "the second enqueue waits")
            assert not future.done()
        finally:
            getattr(conn, end)()
        second = future.result(timeout=50)
        other.commit()
    assert second.created == (end == "rollback")
    assert (second.id == first.id) == (end == "commit")
    assert [row["id"] for row in kit.jobs()] == [second.id]


def test_many_concurrent_duplicates_make_one_job(kit: Kit, send: Send) -> None:
    keyed = send.using(idempotency_key="k")
    gate = threading.Barrier(8)

    def one(_: int) -> tuple[UUID, bool]:
        gate.wait()
        handle = keyed.enqueue(1)
        return handle.id, handle.created

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(one, range(8)))
    assert len({job_id for job_id, _ in found}) == 1
    assert sorted(created for _, created in found) == [False] * 7 + [True]


def _conflict_text(first: UUID) -> str:
    return (
        f"idempotency key 'k' of queue 'inbox' was used by job {first} with another payload. "
        "Use a new key for new work, or the same payload to get that job back"
    )


def test_a_conflict_leaves_the_callers_transaction_usable(kit: Kit, send: Send, conn: Conn) -> None:
    keyed = send.using(idempotency_key="k")
    first = keyed.enqueue(1)
    conn.execute("INSERT INTO orders VALUES (1)")
    with pytest.raises(IdempotencyConflict) as caught:
        keyed.using(conn=conn).enqueue(2)
    assert str(caught.value) == _conflict_text(first.id)
    error = caught.value
    assert (error.job_id, error.key, error.queue) == (first.id, "k", "inbox")
    conn.execute("INSERT INTO orders VALUES (2)")
    send.using(conn=conn).enqueue(3)
    conn.commit()
    assert orders(kit) == [1, 2]
    assert payloads(kit) == [{"order_id": 1}, {"order_id": 3}]


async def test_a_conflict_leaves_an_async_transaction_usable_too(akit: Kit, send: Send, aconn: AConn) -> None:
    keyed = send.using(idempotency_key="k")
    first = await keyed.aenqueue(1)
    with pytest.raises(IdempotencyConflict) as caught:
        await keyed.using(conn=aconn).aenqueue(2)
    assert str(caught.value) == _conflict_text(first.id)
    await aconn.execute("INSERT INTO orders VALUES (2)")
    await aconn.commit()
    assert orders(akit) == [2]


def test_the_same_payload_for_another_task_is_a_conflict(app: Holdfast, kit: Kit, send: Send) -> None:
    first = send.using(idempotency_key="k").enqueue(1)
    with pytest.raises(IdempotencyConflict) as caught:
        app.send("other", {"order_id": 1}, idempotency_key="k")
    assert caught.value.job_id == first.id


# Refused before any SQL -----------------------------------------------------------------------------------------


def _deep(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


LONG = "x" * 600
REFUSALS: dict[str, tuple[Callable[[Any, Any, Conn], object], type[EnqueueError], str]] = {
    "payload too large": (
        lambda send, keep, conn: send.using(conn=conn).enqueue(1, note="x" * 300_000),
        InvalidPayload,
        (
            "payload is 300,027 bytes of JSON, more than the limit of 262,144 (256 KiB). "
            "Store it elsewhere (a table, a file, object storage) and pass a reference"
        ),
    ),
    "NUL": (
        lambda send, keep, conn: send.using(conn=conn).enqueue(1, note="a\0b"),
        InvalidPayload,
        (
            "payload value note contains a NUL character (str 'a\\x00b'), which PostgreSQL cannot store. "
            "Remove it, or send base64"
        ),
    ),
    "NUL in a key": (
        lambda send, keep, conn: keep.using(conn=conn).enqueue({"a": {"\0": 1}}),
        InvalidPayload,
        (
            "a key of payload value data.a contains a NUL character (str '\\x00'), which PostgreSQL cannot store. "
            "Remove it, or send base64"
        ),
    ),
    "NaN": (
        lambda send, keep, conn: keep.using(conn=conn).enqueue({"list": [1.0, float("nan")]}),
        InvalidPayload,
        "payload value data.list[1] is nan, which JSON does not have. Pass None or a string",
    ),
    "lone surrogate": (
        lambda send, keep, conn: send.using(conn=conn).enqueue(1, note="\udc80"),
        InvalidPayload,
        (
            "payload value note contains a lone surrogate (str '\\udc80'), which is not valid Unicode text. "
            "Decode the source with errors='replace', or send base64"
        ),
    ),
    "10,000 levels deep": (
        lambda send, keep, conn: keep.using(conn=conn).enqueue({"list": _deep(10_000)}),
        InvalidPayload,
        (
            "payload value data.list[0][0] ... [0][0] is nested more than 500 levels deep. "
            "Flatten it, or pass it as one string"
        ),
    ),
    "missing argument": (
        lambda send, keep, conn: send.using(conn=conn).enqueue(note="x"),
        InvalidArguments,
        "send: missing a required argument: 'order_id'. Call it as send(order_id: int, note: str = '')",
    ),
    "unknown argument": (
        lambda send, keep, conn: send.using(conn=conn).enqueue(1, nots="x"),
        InvalidArguments,
        "send: got an unexpected keyword argument 'nots'. Call it as send(order_id: int, note: str = '')",
    ),
    "argument of another type": (
        lambda send, keep, conn: send.using(conn=conn).enqueue("1"),
        InvalidArguments,
        "argument 'order_id' of send must be int, not str '1'",
    ),
    "option among the arguments": (
        lambda send, keep, conn: send.using(conn=conn).enqueue(1, queue="mail"),
        InvalidArguments,
        (
            "send: got an unexpected keyword argument 'queue'. Options go into using(queue=...), "
            "arguments into send(order_id: int, note: str = '')"
        ),
    ),
    "unknown queue": (
        lambda send, keep, conn: send.using(conn=conn, queue="mial").enqueue(1),
        UnknownQueue,
        "queue 'mial' does not exist (known: inbox, mail). Did you mean 'mail'? Create it: holdfast queue create mial",
    ),
    "partition key too long": (
        lambda send, keep, conn: send.using(conn=conn, partition_key=LONG).enqueue(1),
        InvalidOption,
        (
            "partition_key is 600 bytes, more than the limit of 512: "
            "str 'xxxxxxxxxxxxxxxxxxxxxxxxxxx...xxxxxxxxxxxxxxxxxxxxxxxxxxxx'. "
            "Use a hash of it"
        ),
    ),
    "idempotency key too long": (
        lambda send, keep, conn: send.using(conn=conn, idempotency_key="ü" * 300).enqueue(1),
        InvalidOption,
        (
            "idempotency_key is 600 bytes, more than the limit of 512: "
            "str 'üüüüüüüüüüüüüüüüüüüüüüüüüüü...üüüüüüüüüüüüüüüüüüüüüüüüüüüü'. "
            "Use a hash of it"
        ),
    ),
    "priority out of range": (
        lambda send, keep, conn: send.using(conn=conn, priority=101).enqueue(1),
        InvalidOption,
        "priority must be an integer from -100 to 100, not int 101",
    ),
    "unknown option": (
        lambda send, keep, conn: send.using(conn=conn, prioritty=1).enqueue(1),
        InvalidOption,
        (
            "enqueue has no option 'prioritty' (known: conn, idempotency_key, idempotency_lifetime, max_attempts, "
            "metadata, parent, partition_key, priority, queue, replace_key, run_after, tags, then). Did you mean 'priority'?"
        ),
    ),
}


def test_a_refusal_says_what_to_do_and_sends_nothing_to_the_callers_connection(
    app: Holdfast, kit: Kit, send: Send, conn: Conn
) -> None:
    @app.task
    def keep(data: dict[str, Any]) -> None: ...

    kit.sql("SELECT holdfast.create_queue('mail')")
    said = {}
    for case, (call, kind, _) in REFUSALS.items():
        with pytest.raises(EnqueueError) as caught:
            call(send, keep, conn)
        said[case] = str(caught.value)
        assert type(caught.value) is kind
        assert conn.info.transaction_status == TransactionStatus.IDLE  # not even BEGIN was sent
    assert said == {case: text for case, (_, _, text) in REFUSALS.items()}

    for n, (call, kind, _) in enumerate(REFUSALS.values()):
        conn.execute("INSERT INTO orders VALUES (%s)", [2 * n])
        with pytest.raises(kind):
            call(send, keep, conn)
        conn.execute("INSERT INTO orders VALUES (%s)", [2 * n + 1])
        conn.commit()
    assert (orders(kit), kit.jobs()) == (list(range(2 * len(REFUSALS))), [])


async def test_the_async_method_refuses_in_the_same_words(app: Holdfast, akit: Kit, send: Send) -> None:
    akit.sql("SELECT holdfast.create_queue('mail')")
    with pytest.raises(UnknownQueue) as caught:
        await send.using(queue="mial").aenqueue(1)
    assert str(caught.value) == REFUSALS["unknown queue"][2]
    with pytest.raises(InvalidPayload) as refused:
        await app.asend("x", {"note": "a\0b"})
    assert str(refused.value) == REFUSALS["NUL"][2]


def test_a_queue_that_was_dropped_since_is_an_unknown_queue(kit: Kit, send: Send, conn: Conn) -> None:
    kit.sql("SELECT holdfast.create_queue('mail')")
    send.using(queue="mail").enqueue(1)
    kit.sql("DROP TABLE holdfast.queue_mail")
    kit.sql("DELETE FROM holdfast.queues WHERE name = 'mail'")
    with pytest.raises(UnknownQueue) as caught:
        send.using(queue="mail", conn=conn).enqueue(1)
    assert str(caught.value) == "queue 'mail' does not exist. Create it: holdfast queue create mail"
    conn.execute("INSERT INTO orders VALUES (1)")
    conn.commit()
    assert orders(kit) == [1]


def test_the_largest_payload_that_is_allowed_fits_and_runs(app: Holdfast, kit: Kit) -> None:
    @app.task
    def measure(note: str) -> int:
        return len(note)

    room = 256 * 1024 - len('{"note": ""}')
    handle = measure.enqueue("x" * room)
    kit.run_worker()
    assert handle.result(timeout=25) == room
    with pytest.raises(InvalidPayload):
        measure.enqueue("x" * (room + 1))


# The wrong kind of connection -----------------------------------------------------------------------------------


async def test_the_wrong_kind_of_connection_names_the_right_method(
    app: Holdfast, akit: Kit, send: Send, aconn: AConn
) -> None:
    with psycopg.connect(akit.url) as conn:
        with pytest.raises(WrongConnection) as caught:
            send.using(conn=aconn).enqueue(1)
        assert (
            str(caught.value) == "enqueue() got an async connection (AsyncConnection); use await aenqueue()"
        )
        with pytest.raises(WrongConnection) as caught:
            await send.using(conn=conn).aenqueue(1)
        assert str(caught.value) == "aenqueue() got a sync connection (Connection); use enqueue()"
        with pytest.raises(WrongConnection):
            app.enqueue_many([send.job(1)], conn=aconn)
        with pytest.raises(WrongConnection):
            await app.asend("x", {}, conn=conn)
        assert conn.info.transaction_status == TransactionStatus.IDLE
    assert akit.jobs() == []


def test_an_object_that_is_no_known_connection_is_refused(kit: Kit, send: Send) -> None:
    advice = "pass a connection of psycopg 3, asyncpg, SQLAlchemy, SQLModel or Django"
    found = {
        "postgresql://": "conn= got builtins.str, which Holdfast cannot use; "
        "pass the connection object whose transaction the job should join",
        42: f"conn= got builtins.int, which Holdfast cannot use; {advice}",
    }
    for wrong, text in found.items():
        with pytest.raises(WrongConnection) as caught:
            send.using(conn=wrong).enqueue(1)
        assert str(caught.value) == text
    with psycopg.connect(kit.url) as conn, pytest.raises(WrongConnection):
        send.using(conn=conn.cursor()).enqueue(1)
    assert kit.jobs() == []


def test_a_subclass_of_a_psycopg_connection_is_one(kit: Kit, send: Send) -> None:
    class Mine(psycopg.Connection[Any]): ...

    with Mine.connect(kit.url) as conn:
        send.using(conn=conn).enqueue(1)
    assert len(kit.jobs()) == 1


# The database is not as it should be ----------------------------------------------------------------------------


def test_an_unmigrated_database_names_the_command(holdfast_server: TestServer) -> None:
    url = holdfast_server.url("postgres")
    text = (
        'the database has no current holdfast schema (schema "holdfast" does not exist). '
        "Run: holdfast migrate up"
    )
    with Holdfast(url, settings=QUICK) as app:

        @app.task
        def send() -> None: ...

        with pytest.raises(SchemaMissing) as caught:
            send.enqueue()
        assert str(caught.value).startswith("the database has no current holdfast schema (")
        assert str(caught.value).endswith("). Run: holdfast migrate up")
        with psycopg.connect(url) as conn, pytest.raises(SchemaMissing) as caught:
            send.using(conn=conn).enqueue()
        assert str(caught.value) == text
        with pytest.raises(SchemaMissing) as caught:
            asyncio.run(_aenqueue_and_close(app, send))
        assert str(caught.value) == text
        with pytest.raises(SchemaMissing) as caught:
            asyncio.run(_work_and_close(app))
        assert str(caught.value) == "The database has no current holdfast schema. Run: holdfast migrate up"


async def _aenqueue_and_close(app: Holdfast, task: Task[[], None]) -> None:
    async with app:
        await task.aenqueue()


async def _work_and_close(app: Holdfast) -> None:
    async with app:
        await app.run_worker(until_idle=True)


def test_a_database_that_is_away_is_unavailable_and_says_why(tmp_path: Path) -> None:
    url = f"postgresql:///shop?host={tmp_path}"
    with Holdfast(url, settings=Settings(connect_timeout=0.5)) as app:

        @app.task
        def send() -> None: ...

        with pytest.raises(DatabaseUnavailable) as caught:
            send.enqueue()
        assert str(caught.value).startswith("the database cannot be reached: ")
        assert str(tmp_path) in str(caught.value)
        with pytest.raises(DatabaseUnavailable) as caught:
            asyncio.run(_aenqueue_and_close(app, send))
        assert str(tmp_path) in str(caught.value)


def test_a_pool_that_is_used_up_is_not_called_an_outage(
    app: Holdfast, holdfast_kit: Callable[..., Kit], send: Send
) -> None:
    kit = holdfast_kit(app, Settings(pool_size=1, connect_timeout=0.5))
    with kit.database._ready()[1].connection(), pytest.raises(DatabaseUnavailable) as caught:
        send.enqueue(1)
    assert str(caught.value) == (
        "all 1 connections of the pool were in use for 0.5 s; raise pool_size or hold connections for less time"
    )
    send.enqueue(1)


def test_no_database_names_the_ways_to_name_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HOLDFAST_DATABASE_URL", "DATABASE_URL", "PGHOST", "PGHOSTADDR", "PGSERVICE", "PGDATABASE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    app = Holdfast()

    @app.task
    def send() -> None: ...

    with pytest.raises(NoDatabase) as caught:
        send.enqueue()
    assert str(caught.value) == (
        'no database was named. Pass Holdfast("postgresql://..."), or set HOLDFAST_DATABASE_URL, '
        'DATABASE_URL or PGHOST/PGDATABASE. To try it without one: Holdfast("embedded:")'
    )


def test_the_constructor_does_no_io_and_the_environment_names_the_database(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    app = Holdfast()

    @app.task
    def send() -> None: ...

    monkeypatch.setenv("HOLDFAST_DATABASE_URL", kit.url)
    assert load_settings().database_url == kit.url
    with app:
        handle = send.enqueue()
    assert kit.job(handle.id)["task"] == "send"


# In SQL ---------------------------------------------------------------------------------------------------------


def test_sql_enqueue_has_the_defaults_of_the_python_one(kit: Kit, send: Send) -> None:
    (got,) = kit.sql("""SELECT * FROM holdfast.enqueue('send', '{"order_id": 1}')""")
    assert (got["created"], got["conflict"]) == (True, None)
    ours = kit.job(send.enqueue(1).id)
    theirs = kit.job(got["id"])
    differ = {"id", "seq", "created_at", "available_at", "partition_bucket"}
    assert {k: v for k, v in ours.items() if k not in differ} == {
        k: v for k, v in theirs.items() if k not in differ
    }
    assert theirs["available_at"] == theirs["created_at"]
    kit.run_worker()
    assert kit.job(got["id"])["result"] == "1"


def test_sql_enqueue_takes_every_option_by_name(kit: Kit) -> None:
    kit.sql("SELECT holdfast.create_queue('mail')")
    (got,) = kit.sql(
        """SELECT * FROM holdfast.enqueue('a.b-c_D', queue => 'mail', partition_key => 'order:9182', priority => -100,
           delay => '90 seconds', idempotency_key => 'k', idempotency_lifetime => '7 days', max_attempts => 1000,
           version => 3, tags => ARRAY['x', 'y'], metadata => '{"m": 1}')"""
    )
    row = kit.job(got["id"])
    assert (row["task"], row["payload"], row["queue"], row["priority"]) == ("a.b-c_D", {}, "mail", -100)
    assert (row["partition_key"], row["partition_bucket"], row["max_attempts"]) == ("order:9182", 751, 1000)
    assert (row["version"], row["tags"], row["metadata"]) == (3, ["x", "y"], {"m": 1})
    assert row["available_at"] - row["created_at"] == timedelta(seconds=90)


def test_sql_enqueue_belongs_to_the_callers_transaction(kit: Kit, conn: Conn) -> None:
    conn.execute("SELECT holdfast.enqueue('a')")
    assert kit.jobs() == []
    conn.rollback()
    assert kit.jobs() == []
    conn.execute("SELECT holdfast.enqueue('a')")
    conn.commit()
    assert len(kit.jobs()) == 1


def test_sql_enqueue_answers_a_conflict_and_does_not_raise(kit: Kit, send: Send, conn: Conn) -> None:
    first = send.using(idempotency_key="k").enqueue(1)
    query = "SELECT * FROM holdfast.enqueue('send', %s, idempotency_key => 'k')"
    same = conn.execute(query, [Jsonb({"order_id": 1})]).fetchone()
    assert same == (first.id, False, None)
    other = conn.execute(query, [Jsonb({"order_id": 2})]).fetchone()
    assert other == (first.id, False, "payload")
    conn.execute("INSERT INTO orders VALUES (1)")
    conn.commit()
    assert (orders(kit), len(kit.jobs())) == ([1], 1)


SQL_REFUSALS = {
    "enqueue('')": "task name '' is not usable: 1 to 200 letters, digits and _ . -",
    "enqueue('a b')": "task name 'a b' is not usable: 1 to 200 letters, digits and _ . -",
    "enqueue(NULL)": "task name NULL is not usable: 1 to 200 letters, digits and _ . -",
    "enqueue(repeat('x', 201))": f"task name '{'x' * 201}' is not usable: 1 to 200 letters, digits and _ . -",
    "enqueue('a', '[1]')": "payload must be a JSON object of the handler's arguments",
    "enqueue('a', NULL)": "payload must be a JSON object of the handler's arguments",
    "enqueue('a', jsonb_build_object('k', repeat('x', 262144)))": (
        "payload is 262153 bytes, the limit is 262144: store it elsewhere and pass a reference"
    ),
    "enqueue('a', partition_key => repeat('ü', 257))": "partition_key is 514 bytes, the limit is 512",
    "enqueue('a', idempotency_key => repeat('k', 513))": "idempotency_key is 513 bytes, the limit is 512",
    "enqueue('a', idempotency_lifetime => '0.5 seconds')": (
        "idempotency_lifetime must be 1 second or more; more than 100 years is for ever"
    ),
    "enqueue('a', priority => 101)": "priority must be between -100 and 100, not 101",
    "enqueue('a', max_attempts => 0)": "max_attempts must be between 1 and 1000, not 0",
    "enqueue('a', version => 0)": "version must be 1 or more, not 0",
    "enqueue('a', run_at => 'infinity')": "run_at must be a time within 10 years",
    "enqueue('a', run_at => now() + interval '11 years')": "run_at must be a time within 10 years",
    "enqueue('a', delay => '-1 second')": "delay must be between 0 and 10 years",
    "enqueue('a', metadata => jsonb_build_object('k', repeat('x', 8192)))": "metadata is 8201 bytes, the limit is 8192",
    "enqueue('a', queue => 'mial')": "queue 'mial' does not exist. Create it: holdfast queue create mial",
}


def test_sql_enqueue_raises_for_a_value_that_cannot_be(kit: Kit) -> None:
    said: dict[str, str | None] = {}
    for call in SQL_REFUSALS:
        with pytest.raises(psycopg.errors.InvalidParameterValue) as caught:
            kit.sql("SELECT holdfast." + call)
        said[call] = caught.value.diag.message_primary
    assert said == SQL_REFUSALS
    assert kit.jobs() == []


def test_sql_enqueue_takes_values_on_the_limit(kit: Kit) -> None:
    kit.sql(
        """SELECT holdfast.enqueue(repeat('x', 200), jsonb_build_object('k', repeat('x', 262144 - 9)),
           partition_key => repeat('ü', 256), idempotency_key => repeat('k', 512), priority => 100,
           metadata => jsonb_build_object('k', repeat('x', 8192 - 9)))"""
    )
    assert len(kit.jobs()) == 1


def test_a_producer_role_needs_execute_and_nothing_else(kit: Kit, conn: Conn) -> None:
    name = f"producer_{conn.info.dbname}"
    conn.execute("DROP TABLE orders")
    conn.execute(f"CREATE ROLE {name}".encode())
    try:
        conn.execute(f"GRANT USAGE ON SCHEMA holdfast TO {name}".encode())
        conn.execute(f"GRANT EXECUTE ON FUNCTION holdfast.enqueue TO {name}".encode())
        conn.commit()
        conn.execute(f"SET ROLE {name}".encode())
        conn.execute("SELECT holdfast.enqueue('a')")
        conn.commit()
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute("SELECT FROM holdfast.work")
        conn.rollback()
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute("SELECT holdfast.create_queue('x')")
    finally:
        conn.rollback()
        conn.execute("RESET ROLE")
        conn.execute(f"DROP OWNED BY {name}; DROP ROLE {name}".encode())
        conn.commit()
    assert len(kit.jobs()) == 1


# Threads, loops and processes -----------------------------------------------------------------------------------


def test_one_app_serves_many_threads(kit: Kit, send: Send) -> None:
    gate = threading.Barrier(12)

    def one(n: int) -> UUID:
        gate.wait()
        return send.enqueue(n).id

    with ThreadPoolExecutor(12) as pool:
        ids = set(pool.map(one, range(12)))
    assert {row["id"] for row in kit.jobs()} == ids
    assert len(ids) == 12


async def test_many_tasks_of_one_loop_may_be_first_together(akit: Kit, send: Send) -> None:
    handles = await asyncio.gather(*(send.aenqueue(n) for n in range(30)))
    assert len({handle.id for handle in handles}) == 30


def test_one_app_serves_many_event_loops_at_once(kit: Kit, send: Send) -> None:
    gate = threading.Barrier(4)

    async def main(n: int) -> UUID:
        gate.wait()
        try:
            return (await send.aenqueue(n)).id
        finally:
            await kit.database.aclose()

    with ThreadPoolExecutor(4) as pool:
        ids = set(pool.map(lambda n: asyncio.run(main(n)), range(4)))
    assert {row["id"] for row in kit.jobs()} == ids


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_loop_that_ended_without_closing_leaves_no_connection_behind(kit: Kit, send: Send) -> None:
    """A script may call asyncio.run for each enqueue; the connections of the ended loops must not pile up."""

    async def main(n: int) -> None:
        await send.aenqueue(n)

    for n in range(6):
        asyncio.run(main(n))
    gc.collect()
    query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'holdfast'"
    wait_until(lambda: len(kit.sql(query)) <= 1, "the connections of ended loops are closed")
    assert len(kit.jobs()) == 6
    kit.database.close()


def _pid(app: Holdfast) -> int:
    found: int = app.database.run(
        lambda: Statement("pid", "SELECT pg_backend_pid()", (), lambda rows: int(rows[0][0]))
    )
    return found


def _child(app: Holdfast, task: Send, pipe: Any) -> None:
    async def main() -> None:
        await task.aenqueue(100)
        await app.database.aclose()

    try:
        for n in range(20):
            task.enqueue(n)
        asyncio.run(main())
        pipe.send(_pid(app))
        app.close()
    except BaseException as error:
        pipe.send(f"{type(error).__name__}: {error}")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_opens_its_own_connections(app: Holdfast, kit: Kit, send: Send) -> None:
    context = multiprocessing.get_context("fork")
    mine = _pid(app)
    ours, theirs = context.Pipe()
    child = context.Process(target=_child, args=(app, send, theirs))
    child.start()
    for n in range(20):
        send.enqueue(n)
    answer = ours.recv()
    child.join(100)
    assert child.exitcode == 0
    assert isinstance(answer, int), answer
    assert answer != mine
    assert _pid(app) == mine  # the parent's connection survived the child's end
    assert len(kit.jobs()) == 41


def test_an_app_that_was_closed_opens_again_at_the_next_use(app: Holdfast, kit: Kit, send: Send) -> None:
    with app:
        send.enqueue(1)
    send.enqueue(2)
    app.close()
    app.close()
    assert len(kit.jobs()) == 2


def test_a_connection_that_broke_in_the_pool_is_replaced(app: Holdfast, kit: Kit, send: Send) -> None:
    pid = _pid(app)
    kit.sql("SELECT pg_terminate_backend(%s, 60000)", [pid])
    send.enqueue(1)
    assert _pid(app) != pid
    assert len(kit.jobs()) == 1
