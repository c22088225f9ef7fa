"""Connections of handlers: the server ends them between two jobs, and the next job has a good one."""

import asyncio
import gc
import logging
import threading
import time
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from django.db import connections
from tests.conftest import await_until, within
from tests.django_app.stock.models import Part
from tests.django_app.stock.tasks import (
    ahang_up,
    areceive,
    count,
    hang_up,
    meet,
    move,
    promise,
    receive,
    receive_apart,
    swallow,
)

from holdfast.contrib.django import app
from holdfast.contrib.django import connections as ours
from holdfast.testing import Kit


def end_backends(kit: Kit) -> int:
    """End every connection of the ORM, as a restart or a failover does. Ours have a name of their own."""
    rows = kit.sql(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND application_name = '' AND backend_type = 'client backend'"
    )
    return len(rows)


def backends(kit: Kit) -> int:
    """How many connections the ORM has."""
    (row,) = kit.sql(
        "SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND application_name = '' AND backend_type = 'client backend'"
    )
    return int(row["n"])


def names() -> list[str]:
    return sorted(Part.objects.values_list("name", flat=True))


async def run_around_an_end(kit: Kit, task: Any) -> tuple[int, list[dict[str, Any]]]:
    """One worker, so the same threads: a job, the end of every connection, two more jobs."""
    ended = 0
    handles = []
    worker = asyncio.create_task(kit.arun_worker(until_idle=False, concurrency=1))
    try:
        for number in range(3):
            handles.append(await task.aenqueue(name=f"bolt {number}"))
            await handles[-1].aresult(timeout=60)
            if number == 0:
                ended = await asyncio.to_thread(end_backends, kit)
        for hang in (hang_up, ahang_up):
            await (await hang.aenqueue()).aresult(timeout=60)
    finally:
        worker.cancel()
        await asyncio.wait([worker])
        await kit.database.aclose()
    return ended, kit.jobs(task)


@pytest.mark.parametrize("task", [receive, areceive], ids=["sync", "async"])
async def test_without_persistent_connections_no_attempt_is_lost(stock: Kit, task: Any) -> None:
    """CONN_MAX_AGE is 0: the connection is closed when the handler has returned, as after a request."""
    ended, jobs = await run_around_an_end(stock, task)
    assert ended == 0
    assert [job["attempts"] for job in jobs] == [1, 1, 1]


@pytest.mark.parametrize("task", [receive, areceive], ids=["sync", "async"])
async def test_a_persistent_connection_that_broke_costs_one_attempt_and_no_more(
    stock: Kit, task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", None)
    ended, jobs = await run_around_an_end(stock, task)
    assert ended == 1
    assert [job["attempts"] for job in jobs] == [1, 2, 1]


@pytest.mark.parametrize("task", [receive, areceive], ids=["sync", "async"])
async def test_with_health_checks_a_persistent_connection_that_broke_costs_nothing(
    stock: Kit, task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", None)
    monkeypatch.setitem(connections.settings["default"], "CONN_HEALTH_CHECKS", True)
    ended, jobs = await run_around_an_end(stock, task)
    assert ended == 1
    assert [job["attempts"] for job in jobs] == [1, 1, 1]


@pytest.mark.parametrize("task", [receive, move, areceive], ids=["sync", "transaction", "async"])
async def test_a_worker_that_has_stopped_leaves_no_connection_behind(
    stock: Kit, task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a test runner cannot drop its database. The garbage collector is not what closes them."""
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", None)
    gc.disable()
    try:
        await task.aenqueue(name="bolt")
        await stock.arun_worker()
        await await_until(lambda: backends(stock) == 0, "the threads of its handlers have ended")
    finally:
        gc.enable()
        await stock.database.aclose()


def test_an_old_connection_is_replaced(stock: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """CONN_MAX_AGE in seconds: kept until then, and not longer."""
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", 3600)

    async def three() -> list[Any]:
        worker = asyncio.create_task(stock.arun_worker(until_idle=False, concurrency=1))
        found = []
        try:
            for number in range(3):
                if number == 2:
                    later = SimpleNamespace(monotonic=lambda: time.monotonic() + 3601, time=time.time)
                    monkeypatch.setattr("django.db.backends.base.base.time", later)
                found.append(await (await receive.aenqueue(name=str(number))).aresult(timeout=60))
            await (await hang_up.aenqueue()).aresult(timeout=60)
        finally:
            worker.cancel()
            await asyncio.wait([worker])
            await stock.database.aclose()
        return found

    first, second, third = asyncio.run(three())
    assert first == second
    assert third != second


async def test_async_handlers_do_not_wait_for_each_other(stock: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a thread for its calls of Django, and the next ones have these threads with their connections."""
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", None)
    worker = asyncio.create_task(stock.arun_worker(until_idle=False, concurrency=2))
    try:
        backends = []
        for _ in range(2):
            pair = [await meet.aenqueue(seconds=within(10)) for _ in range(2)]
            backends.append({await handle.aresult(timeout=within(30)) for handle in pair})
    finally:
        worker.cancel()
        await asyncio.wait([worker])
        await stock.database.aclose()
    assert len(backends[0]) == 2
    assert backends[0] == backends[1]
    assert [t.name for t in threading.enumerate() if t.name.startswith("holdfast-django")] == []
    assert end_backends(stock) == 0  # a worker leaves no connection behind


async def test_the_connections_of_process_handlers_are_the_childs(
    stock: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOCK_MAX_AGE", "none")  # of the child, which reads the settings anew
    ended, jobs = await run_around_an_end(stock, receive_apart)
    assert ended == 1
    assert [job["attempts"] for job in jobs] == [1, 2, 1]
    assert len({job["result"][0] for job in jobs}) == 1  # the same child
    assert stock.sql("SELECT name FROM stock_part ORDER BY 1") == [{"name": f"bolt {n}"} for n in range(3)]


def test_what_the_orm_writes_commits_with_the_completion(stock: Kit) -> None:
    handle = move.enqueue(name="nut")
    stock.run_worker()
    assert names() == ["after nut", "nut", "nut by tx"]
    assert stock.job(handle.id)["status"] == "completed"
    assert [job["status"] for job in stock.jobs(receive)] == ["completed"]


def test_or_nothing_of_it_stays(stock: Kit) -> None:
    handle = move.using(max_attempts=1).enqueue(name="nut", fail=True)
    stock.run_worker()
    assert names() == []
    assert stock.jobs(receive) == []
    assert stock.job(handle.id)["last_error"] == "ValueError: fell off"


def test_an_error_of_the_orm_that_was_caught_fails_the_attempt(stock: Kit) -> None:
    """Django would roll back without a word, and the job would count as done, or run again for ever."""
    handle = swallow.enqueue(name="nut")
    stock.run_worker()
    assert names() == []
    job = stock.job(handle.id)
    assert (job["status"], job["attempts"]) == ("dead_letter", 1)
    assert job["last_error"].startswith("TransactionManagementError: ")


def test_what_raises_after_the_commit_is_logged_and_undoes_nothing(
    stock: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    handle = promise.enqueue(name="nut")
    with caplog.at_level(logging.ERROR, "holdfast"):
        stock.run_worker()
    assert names() == ["after nut", "nut"]
    assert stock.job(handle.id)["status"] == "completed"
    (record,) = caplog.records
    fields: Any = record.__dict__["fields"]
    assert record.__dict__["event"] == "django.on_commit_failed"
    assert fields["error"] == "ValueError: invalid literal for int() with base 10: 'nut'"
    assert (fields["call"], fields["job"]) == ("promise.<locals>.<lambda>", str(handle.id))
    assert "Traceback" in fields["trace"]


def test_a_connection_that_broke_under_a_transaction_spends_no_attempt(
    stock: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it was committed is not known, as with a connection of our own: the job is handed back."""
    from tests.django_app.stock import tasks

    real = tasks.write
    broken: list[int] = []

    def write(name: str) -> int:
        found = real(name)
        if not broken:
            broken.append(end_backends_in_transaction(stock))
            return real(name)  # the ORM meets it first
        return found

    monkeypatch.setattr(tasks, "write", write)
    handle = move.enqueue(name="nut")
    stock.run_worker()
    job = stock.job(handle.id)
    assert broken == [1]
    assert (job["status"], job["attempts"]) == ("completed", 1)
    assert names() == ["after nut", "nut", "nut by tx"]


def end_backends_in_transaction(kit: Kit) -> int:
    with psycopg.connect(kit.url, autocommit=True) as conn:
        return conn.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE state = 'idle in transaction'"
            " AND datname = current_database() AND application_name = '' AND pid <> pg_backend_pid()"
        ).rowcount


def test_a_registry_in_tasks_py_belongs_to_the_app(stock: Kit) -> None:
    handle = count.enqueue()
    stock.run_worker()
    assert handle.result(timeout=25) == 0
    assert {task.name for task in (receive, areceive, move, count)} <= {n for n, _ in app.tasks.known()}
    assert ours.usable_connections is not None
