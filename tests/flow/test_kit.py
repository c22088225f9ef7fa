"""The test kit that users get: a database per test, a worker in process, a clock to move."""

import asyncio
import concurrent.futures
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from tests.conftest import QUICK, wait_until

from holdfast import Holdfast, Task
from holdfast.testing import Kit, TestServer

Send = Task[..., int]


@pytest.fixture
def send(app: Holdfast) -> Send:
    @app.task
    def send(order_id: int, note: str = "", at: datetime | None = None) -> int:
        return order_id

    return send


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_has_a_migrated_database_of_its_own(kit: Kit, send: Send, turn: int) -> None:
    assert kit.jobs() == []
    send.enqueue(turn)
    assert len(kit.jobs()) == 1


def test_clones_of_one_server_do_not_see_each_other_and_are_dropped(holdfast_server: TestServer) -> None:
    names = [holdfast_server.clone(), holdfast_server.clone()]
    with psycopg.connect(holdfast_server.url(names[0])) as conn:
        conn.execute("SELECT holdfast.enqueue('a')")
    with psycopg.connect(holdfast_server.url(names[1])) as conn:
        assert conn.execute("SELECT count(*) FROM holdfast.jobs").fetchone() == (0,)
    for name in names:
        holdfast_server.drop(name)
        with pytest.raises(psycopg.OperationalError, match="does not exist"):
            psycopg.connect(holdfast_server.url(name))


def test_a_kit_gives_the_app_back_as_it_was(holdfast_url: str) -> None:
    app = Holdfast("postgresql://production.invalid/shop")
    before = app.database
    kit = Kit(app, holdfast_url, QUICK)
    assert app.database is kit.database
    kit.close()
    assert app.database is before
    assert app.database.url == "postgresql://production.invalid/shop"


def test_questions_are_asked_in_one_session_that_is_left_as_it_was(kit: Kit) -> None:
    """A new session for each would read the catalog anew each time, and a test that waits asks often."""
    who = "SELECT pg_backend_pid() AS pid"
    first = kit.sql(who)
    kit.sql("SET search_path = nowhere")
    kit.sql("SELECT pg_advisory_lock(1)")
    kit.sql("CREATE TEMP TABLE mine ()")
    assert kit.sql(who) == first
    left = """SELECT current_setting('search_path') AS path, to_regclass('pg_temp.mine') AS mine,
                     (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()) AS locks"""
    assert kit.sql(left) == [{"path": '"$user", public', "mine": None, "locks": 0}]
    kit.clock.advance(3600)
    assert kit.sql("SELECT holdfast.now() > now() + interval '59 min' AS later") == [{"later": True}]


def test_a_question_after_a_lost_session_or_a_mistake_has_a_new_one(kit: Kit) -> None:
    (first,) = kit.sql("SELECT pg_backend_pid() AS pid")
    with psycopg.connect(kit.url) as conn:
        conn.execute("SELECT pg_terminate_backend(%s, 100000)", [first["pid"]])
    (second,) = kit.sql("SELECT pg_backend_pid() AS pid")
    with pytest.raises(psycopg.errors.DivisionByZero):
        kit.sql("SELECT 1/0")
    (third,) = kit.sql("SELECT pg_backend_pid() AS pid")
    assert len({first["pid"], second["pid"], third["pid"]}) == 3


def test_a_question_that_waits_holds_up_no_other(kit: Kit) -> None:
    kit.sql("CREATE TABLE gate ()")
    with psycopg.connect(kit.url) as conn, concurrent.futures.ThreadPoolExecutor(1) as thread:
        conn.execute("LOCK gate")
        waits = thread.submit(kit.sql, "SELECT FROM gate")
        blocked = "SELECT FROM pg_locks WHERE NOT granted AND relation = 'gate'::regclass"
        wait_until(lambda: kit.sql(blocked), "it waits")
        conn.commit()
        assert waits.result(100) == []


def test_run_worker_runs_what_is_due_and_returns(kit: Kit, send: Send) -> None:
    due, later = send.enqueue(1), send.using(run_after=60).enqueue(2)
    kit.run_worker()
    assert due.result(timeout=0) == 1
    assert kit.job(later.id)["status"] == "scheduled"
    kit.run_worker(queues=["inbox"], concurrency=1)
    assert kit.job(later.id)["status"] == "scheduled"


def test_run_worker_also_runs_what_the_jobs_enqueue(app: Holdfast, kit: Kit) -> None:
    ran: list[int] = []

    @app.task
    def countdown(n: int) -> None:
        ran.append(n)
        if n:
            countdown.enqueue(n - 1)

    countdown.enqueue(3)
    kit.run_worker()
    assert ran == [3, 2, 1, 0]


def test_assert_enqueued_takes_a_subset_of_the_arguments_and_answers_the_row(kit: Kit, send: Send) -> None:
    at = datetime(2031, 5, 6, 7, 8, tzinfo=UTC)
    handle = send.using(priority=4).enqueue(1, note="a", at=at)
    send.enqueue(2)
    assert kit.assert_enqueued(send, order_id=1)["id"] == handle.id
    assert kit.assert_enqueued(send, note="a")["priority"] == 4
    assert kit.assert_enqueued(send, at=at, order_id=1)["id"] == handle.id
    assert kit.assert_enqueued("send", order_id=2)["payload"] == {"order_id": 2}
    assert kit.assert_enqueued(send)["id"] == handle.id


def test_assert_enqueued_lists_the_waiting_jobs_when_none_fits(kit: Kit, send: Send) -> None:
    send.enqueue(1)
    send.using(run_after=60).enqueue(2, note="x")
    with pytest.raises(AssertionError) as caught:
        kit.assert_enqueued(send, order_id=3)
    assert str(caught.value) == (
        'no waiting job of send with {"order_id": 3}; waiting jobs of it:\n'
        '  {"order_id": 1}\n'
        '  {"note": "x", "order_id": 2}'
    )
    with pytest.raises(AssertionError) as caught:
        kit.assert_enqueued("other")
    assert str(caught.value) == "no waiting job of other with {}; waiting jobs of it:\n  none"


def test_a_finished_job_is_not_enqueued_any_more(kit: Kit, send: Send) -> None:
    send.enqueue(1)
    kit.run_worker()
    kit.assert_not_enqueued(send)
    with pytest.raises(AssertionError):
        kit.assert_enqueued(send, order_id=1)


def test_assert_not_enqueued_names_the_job_it_found(kit: Kit, send: Send) -> None:
    handle = send.enqueue(1)
    kit.assert_not_enqueued(send, order_id=2)
    with pytest.raises(AssertionError) as caught:
        kit.assert_not_enqueued(send, order_id=1)
    assert str(caught.value) == f'job {handle.id} of send waits with {{"order_id": 1}}'


def test_a_misspelt_argument_is_an_error_in_both_asserts(kit: Kit, send: Send) -> None:
    send.enqueue(1)
    for check in (kit.assert_enqueued, kit.assert_not_enqueued):
        with pytest.raises(TypeError, match="send has no parameter 'ordre_id'"):
            check(send, ordre_id=1)


def test_the_clock_moves_in_python_and_in_sql(kit: Kit, send: Send) -> None:
    before = kit.clock.now()
    (start,) = kit.sql("SELECT holdfast.now() AS now")
    kit.clock.advance(3600)
    (moved,) = kit.sql("SELECT holdfast.now() AS now")
    assert timedelta(hours=1) <= kit.clock.now() - before < timedelta(hours=1, minutes=1)
    assert timedelta(hours=1) <= moved["now"] - start["now"] < timedelta(hours=1, minutes=1)
    row = kit.job(send.enqueue(1).id)
    assert row["created_at"] - start["now"] >= timedelta(hours=1)
    with pytest.raises(ValueError, match="the clock goes forward only, not by -1 seconds"):
        kit.clock.advance(-1)


def test_a_scheduled_job_runs_when_the_clock_gets_there(kit: Kit, send: Send) -> None:
    handle = send.using(run_after=timedelta(days=3)).enqueue(1)
    kit.clock.advance(3 * 86400 - 60)
    kit.run_worker()
    assert kit.job(handle.id)["status"] == "scheduled"
    kit.clock.advance(61)
    kit.run_worker()
    row = kit.job(handle.id)
    assert row["status"] == "completed"
    assert row["completed_at"] - row["created_at"] >= timedelta(days=3)


def test_the_clock_reaches_connections_that_are_already_open(kit: Kit, send: Send) -> None:
    send.enqueue(1)
    kit.clock.advance(100)
    first, second = kit.job(send.enqueue(2).id), kit.jobs()[0]
    assert first["created_at"] - second["created_at"] >= timedelta(seconds=100)


async def test_the_clock_reaches_a_worker_that_runs(akit: Kit, send: Send) -> None:
    handle = send.using(run_after=3600).enqueue(5)
    worker = asyncio.create_task(akit.arun_worker(until_idle=False))
    try:
        akit.clock.advance(3601)
        assert await handle.aresult(timeout=50) == 5
    finally:
        worker.cancel()
        await asyncio.wait([worker])


def test_several_kits_of_one_test_share_its_database(holdfast_kit: Callable[..., Kit]) -> None:
    first, second = Holdfast(), Holdfast()

    @first.task(name="shared")
    def ours() -> str:
        return "ours"

    one, two = holdfast_kit(first, QUICK), holdfast_kit(second, QUICK)
    handle = second.send("shared", {})
    one.run_worker()
    assert handle.result(timeout=25) == "ours"
    assert one.url == two.url
