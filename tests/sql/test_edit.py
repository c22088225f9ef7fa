"""An edit changes what it names and nothing else, of a job that nobody runs, or it changes nothing."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.conftest import wait_until
from tests.sql.rows import bury, count_looks, one_of_each
from tests.sql.support import Conn, enqueue, one, register, row_of, status, take, take_one

from holdfast import Holdfast
from holdfast.cli.refusals import words
from holdfast.db.database import Database
from holdfast.errors import ConfigurationError, InvalidOption, InvalidPayload
from holdfast.model import exact
from holdfast.operate.edit import Changes
from holdfast.operate.job_acts import RETRY
from holdfast.operate.operator import Operator


@pytest.fixture
def worker(conn: Conn) -> str:
    return register(conn)


def refused(database: Database, job_id: UUID, changes: Changes, **options: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        Operator(database, "ann").edit_job(job_id, changes, **options)
    return words(caught.value)


def row(conn: Conn, job_id: UUID) -> Any:
    """Wherever it is, with its payload as it is written."""
    return one(
        conn,
        "SELECT (SELECT to_jsonb(j) - 'payload' || jsonb_build_object('payload', j.payload::text) FROM"
        " (SELECT id, payload, priority, max_attempts, available_at, tags, status FROM holdfast.jobs) j"
        " WHERE id = %s)",
        job_id,
    )


def test_an_edit_changes_what_it_names_and_nothing_else(conn: Conn, database: Database) -> None:
    (job_id,) = enqueue(conn, tags=("a",), partition_key="k")
    number = "0.1234567890123456789012345678901234567890"  # more than a float holds
    payload = f'{{"keep": {number}, "gone": 1, "order_id": 1}}'
    conn.execute("UPDATE holdfast.work SET payload = %s WHERE id = %s", [payload, job_id])
    before = row_of(conn, job_id)
    done = Operator(database, "ann").edit_job(
        job_id,
        Changes({"order_id": 2, "note": "ü"}, ("gone",), priority=7, max_attempts=9, tags=["x", "y"]),
    )
    assert row(conn, job_id)["payload"] == f'{{"keep": {number}, "note": "ü", "order_id": 2}}'
    after = row_of(conn, job_id)
    assert (after["priority"], after["max_attempts"], after["tags"]) == (7, 9, ["x", "y"])
    changed = {"payload", "priority", "max_attempts", "tags"}
    assert {k: v for k, v in after.items() if k not in changed} == {
        k: v for k, v in before.items() if k not in changed
    }
    assert (done.before["priority"], done.after["priority"], done.checked) == (0, 7, False)
    assert (done.before["payload"]["order_id"], done.after["payload"]["order_id"]) == (1, 2)
    assert one(
        conn, "SELECT (SELECT jsonb_agg(jsonb_build_array(action, selection, count)) FROM holdfast.audit)"
    ) == [["jobs edit", {"id": str(job_id), "changed": ["max_attempts", "payload", "priority", "tags"]}, 1]]


def test_when_a_job_is_due_can_be_moved(conn: Conn, database: Database, worker: str) -> None:
    (job_id,) = enqueue(conn)
    Operator(database, "ann").edit_job(job_id, Changes(run_after=timedelta(hours=1)))
    assert status(conn, job_id) == "scheduled"
    assert take(conn, worker) == []
    at = datetime.now(UTC) + timedelta(days=1)
    assert Operator(database, "ann").edit_job(job_id, Changes(run_after=at)).after == {"available_at": at}
    Operator(database, "ann").edit_job(
        job_id, Changes(run_after=datetime(2001, 1, 1, tzinfo=UTC))
    )  # past is now
    assert one(conn, "SELECT available_at > holdfast.now() - interval '1 minute' FROM holdfast.work")
    assert take_one(conn, worker).id == job_id


def test_an_edit_that_changes_nothing_says_so_and_is_no_act(conn: Conn, database: Database) -> None:
    (job_id,) = enqueue(conn)
    done = Operator(database, "ann").edit_job(job_id, Changes({"n": 0}, priority=0))
    assert (done.before, done.after) == ({}, {})
    assert one(conn, "SELECT count(*) FROM holdfast.audit") == 0
    assert Operator(database, "ann").edit_job(job_id, Changes(tags=["t"])).after == {"tags": ["t"]}
    assert Operator(database, "ann").edit_job(job_id, Changes(tags=[])).after == {"tags": []}
    assert row_of(conn, job_id)["tags"] is None


def test_which_jobs_can_be_edited(conn: Conn, database: Database, worker: str) -> None:
    jobs_of = one_of_each(conn, worker)
    for state in ("pending", "scheduled", "held", "quarantined", "dead_letter"):
        assert (
            Operator(database, "ann").edit_job(jobs_of[state], Changes({"n": 5}, priority=3)).state == state
        )
        assert (row(conn, jobs_of[state])["payload"], row(conn, jobs_of[state])["priority"]) == (
            '{"n": 5}',
            3,
        )
    before = {state: row(conn, job_id) for state, job_id in jobs_of.items()}
    assert f"job {jobs_of['processing']} is running" in refused(
        database, jobs_of["processing"], Changes({"n": 5})
    )
    for state, said in (
        ("completed", "it completed. Change and run a copy of it"),
        ("cancelled", "it was cancelled"),
    ):
        assert said in refused(database, jobs_of[state], Changes({"n": 5}))
    assert "is a dead letter: it waits for no time" in refused(
        database, jobs_of["dead_letter"], Changes(run_after=timedelta(seconds=5))
    )
    assert "there is no job" in refused(database, uuid4(), Changes({"n": 5}))
    assert {state: row(conn, job_id) for state, job_id in jobs_of.items()} == before


def test_a_quarantined_job_whose_owner_is_gone_can_be_edited(
    conn: Conn, database: Database, worker: str
) -> None:
    (job_id,) = enqueue(conn)
    take_one(conn, worker)
    conn.execute("INSERT INTO holdfast.quarantine VALUES (%s, 'inbox', 'bad')", [job_id])
    assert "is running" in refused(database, job_id, Changes({"n": 5}))
    conn.execute("DELETE FROM holdfast.claims")
    assert Operator(database, "ann").edit_job(job_id, Changes({"n": 5})).after == {"payload": {"n": 5}}
    assert status(conn, job_id) == "quarantined"  # still left alone
    assert Operator(database, "ann").act_on(RETRY, [job_id]).results == {"freed": 1}
    assert take_one(conn, worker).payload == '{"n": 5}'


def test_a_job_that_no_claim_holds_is_not_edited(conn: Conn, database: Database, worker: str) -> None:
    (job_id,) = enqueue(conn)
    take_one(conn, worker)
    conn.execute("DELETE FROM holdfast.claims")
    said = refused(database, job_id, Changes({"n": 5}))
    assert said.endswith("no claim holds it. Put it back to waiting: holdfast doctor --fix stranded")


@pytest.mark.parametrize(
    ("old", "new"),
    [("1", 1.0), ("0.10000000000000000000000001", 0.1), ("1" * 5001, 5), ("1" * 401 + ".5", 7)],
    ids=["a point", "more than a float", "more than an int", "beyond a float"],
)
def test_an_edit_compares_numbers_as_they_are_written(
    conn: Conn, database: Database, old: str, new: object
) -> None:
    (job_id,) = enqueue(conn)
    conn.execute("UPDATE holdfast.work SET payload = %s", [f'{{"n": {old}, "keep": {old}}}'])
    done = Operator(database, "ann").edit_job(job_id, Changes({"n": new}))
    assert exact.dumps(done.before["payload"]) == f'{{"n": {old}, "keep": {old}}}'
    assert exact.dumps(done.after["payload"]) == f'{{"n": {new}, "keep": {old}}}'
    assert row(conn, job_id)["payload"] == f'{{"n": {new}, "keep": {old}}}'
    assert Operator(database, "ann").edit_job(job_id, Changes({"n": new})).after == {}


def test_what_cannot_be_stored_changes_nothing(conn: Conn, database: Database) -> None:
    (job_id,) = enqueue(conn)
    Operator(database, "ann").edit_job(job_id, Changes({"text": "x" * 200_000}))
    before = row(conn, job_id)
    wrong: list[tuple[Changes, type[Exception], str]] = [
        (Changes({"more": "x" * 70_000}), InvalidPayload, "payload would be 270,0"),
        (Changes({"n": float("nan")}), InvalidPayload, "is nan, which JSON does not have"),
        (Changes({"n": "a\x00"}), InvalidPayload, "contains a NUL character"),
        (Changes({"n": 1}, priority=101), InvalidOption, "priority must be an integer from -100 to 100"),
        (Changes({"n": 1}, max_attempts=0), InvalidOption, "max_attempts must be an integer from 1 to 1000"),
        (Changes({"n": 1}, tags=["x" * 101]), InvalidOption, "each tag must be"),
        (Changes({"n": 1}, run_after=timedelta(days=9999)), InvalidOption, "at most 10 years ahead"),
        (Changes(unset=["none"]), ConfigurationError, "has no argument 'none' to unset (it has: n, text)"),
        (Changes({"n": 1}, unset=["n"]), ConfigurationError, "argument 'n' is both set and unset"),
        (Changes(), ConfigurationError, "say what to change"),
    ]
    for changes, kind, said in wrong:
        with pytest.raises(kind) as caught:
            Operator(database, "ann").edit_job(job_id, changes)
        assert said in str(caught.value)
    assert row(conn, job_id) == before


def test_arguments_are_checked_against_the_handler(conn: Conn, app: Holdfast, database: Database) -> None:
    @app.task(name="work", version=2, upgrade={1: lambda old: {**old, "note": "old"}})
    def work(n: int, note: str, extra: list[int] | None = None) -> None: ...

    (old,) = enqueue(conn)  # version 1: the upgrade adds its note
    (new,) = enqueue(conn, version=2)
    known = app.tasks.definition
    assert Operator(database, "ann").edit_job(old, Changes({"n": 3}), known).checked
    assert "was not changed: the payload lacks 'note'" in refused(
        database, new, Changes({"n": 3}), known=known
    )
    assert Operator(database, "ann").edit_job(new, Changes({"note": "x", "extra": [1]}), known).checked
    assert "parameter 'n' of work must be int" in refused(database, new, Changes({"n": "x"}), known=known)
    assert "has no parameter 'm'" in refused(database, new, Changes({"m": 1}), known=known)
    assert row(conn, new)["payload"] == '{"n": 0, "note": "x", "extra": [1]}'
    (other,) = enqueue(conn, task="unknown")
    assert not Operator(database, "ann").edit_job(other, Changes({"m": 1}), known).checked


def test_an_edit_waits_for_who_holds_the_job(
    conn: Conn,
    connect: Callable[[], Conn],
    database: Database,
    worker: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A claim that is under way is waited for, and then the job is running."""
    dead = bury(conn, worker)
    (job_id,) = enqueue(conn)
    looks = count_looks(monkeypatch)
    other = connect()
    with ThreadPoolExecutor(1) as pool:
        with other.transaction():
            take_one(other, worker)
            edited = pool.submit(Operator(database, "ann").edit_job, job_id, Changes({"n": 9}))
            wait_until(lambda: len(looks) >= 2, "the edit has looked twice")
            assert not edited.done()
        with pytest.raises(ConfigurationError, match="is running"):
            edited.result(100)
    assert row_of(conn, job_id)["payload"] == {"n": 0}
    assert Operator(database, "ann").edit_job(dead, Changes({"n": 9})).state == "dead_letter"
