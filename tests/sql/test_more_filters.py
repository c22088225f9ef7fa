"""Jobs by the worker that has them, by their attempts, and by a field of the payload."""

import json
from typing import Any
from uuid import UUID

import pytest
from tests.sql.rows import archive_many, bury_many
from tests.sql.support import BOOM, Conn, end, enqueue, load, register, run, take_one

from holdfast.db.database import Database
from holdfast.errors import ConfigurationError
from holdfast.model.job import NewRow
from holdfast.model.outcome import Completed, DeadLettered, Failed
from holdfast.operate import job_acts
from holdfast.operate import search as searching
from holdfast.operate.operator import Operator
from holdfast.store import jobs, search
from holdfast.store.search import JobFilter

pytestmark = pytest.mark.versions


def listed(database: Database, **filters: Any) -> list[UUID]:
    return [job.id for job in Operator(database, "ann").list_jobs(JobFilter(**filters)).jobs]


def put(conn: Conn, payload: dict[str, Any], **options: Any) -> UUID:
    (answer,) = run(conn, jobs.enqueue([NewRow("pay", json.dumps(payload), **options)]))
    assert answer.id is not None
    return answer.id


def test_a_worker_has_what_it_runs_and_what_ended_with_it(conn: Conn, database: Database) -> None:
    mine, other = register(conn, "mine"), register(conn, "other")
    done, dead, runs, passed_on = enqueue(conn, 4)
    end(conn, take_one(conn, mine).grant, Completed(), mine)
    end(conn, take_one(conn, mine).grant, DeadLettered(BOOM), mine)
    take_one(conn, mine)
    end(conn, take_one(conn, mine).grant, Failed(BOOM, 0.0), mine)
    assert take_one(conn, other).grant.id == passed_on
    held, quarantined = enqueue(conn, 2)  # of nobody
    conn.execute("UPDATE holdfast.work SET status = 'held', hold_reason = 'x' WHERE id = %s", [held])
    conn.execute("INSERT INTO holdfast.quarantine VALUES (%s, 'inbox', 'bad')", [quarantined])
    # What a claim of theirs named, and has since gone to another.
    conn.execute("UPDATE holdfast.claims SET job_ids = job_ids || %s WHERE worker = %s", [passed_on, mine])
    assert listed(database, worker=mine) == [runs, dead, done]
    assert listed(database, worker=other) == [passed_on]
    assert listed(database, worker=mine[:-1]) == []
    for state, job_id in (("processing", runs), ("dead_letter", dead), ("completed", done)):
        assert listed(database, worker=mine, states=(state,)) == [job_id]
    for state in ("pending", "scheduled", "held", "quarantined", "cancelled"):
        assert listed(database, worker=mine, states=(state,)) == []
    assert listed(database, worker=mine, queue="inbox", states=("processing",)) == [runs]


def test_attempts_at_least(conn: Conn, database: Database) -> None:
    worker = register(conn)
    fresh, once, gone = enqueue(conn, 3, max_attempts=9)
    for job_id in (fresh, once, gone):
        grant = take_one(conn, worker).grant
        assert grant.id == job_id
        if job_id == once:
            end(conn, grant, Failed(BOOM, 3600.0), worker)
        if job_id == gone:
            end(conn, grant, DeadLettered(BOOM), worker)
    conn.execute("UPDATE holdfast.dead_letters SET attempts = 4")
    assert listed(database, min_attempts=1) == [gone, once]
    assert listed(database, min_attempts=2) == [gone]
    assert listed(database, min_attempts=5) == []
    assert listed(database, min_attempts=1, states=("scheduled",)) == [once]


def test_a_field_of_the_payload(conn: Conn, database: Database) -> None:
    """Texts, numbers and true, by names from the outside in; a whole object or list is never compared."""
    payloads: list[dict[str, Any]] = [
        {"order": 17, "customer": {"id": "c-1"}, "paid": True, "note": None, "a=b": 1},
        {"order": "17", "customer": {"id": "c-2"}, "paid": False, "items": [{"sku": "x"}]},
        {"order": 170, "customer": "c-1", "price": 1.5},
    ]
    ids = [put(conn, payload) for payload in payloads]
    cases: list[tuple[str, list[int]]] = [
        ("order=17", [1, 0]),
        ("customer.id=c-1", [0]),
        ("customer=c-1", [2]),
        ("paid=true", [0]),
        ("note=null", [0]),
        ("items.0.sku=x", [1]),
        ("price=1.5", [2]),
        ('customer={"id": "c-1"}', []),
        ('items=[{"sku": "x"}]', []),
        ("nothing=null", []),
        ("order=", []),
        ("order=1%", []),
    ]
    for said, expected in cases:
        assert listed(database, task="pay", field=said) == [ids[n] for n in expected], said


def test_a_field_in_every_place(conn: Conn, database: Database) -> None:
    worker = register(conn)
    found: dict[str, UUID] = {}
    for state in ("completed", "dead_letter", "processing", "held", "pending"):
        for order in (17, 18):
            job_id = put(conn, {"order": order})
            if order == 17:
                found[state] = job_id
            if state == "held":
                conn.execute(
                    "UPDATE holdfast.work SET status = 'held', hold_reason = 'x' WHERE id = %s", [job_id]
                )
            if state in ("completed", "dead_letter", "processing"):
                grant = take_one(conn, worker).grant
                if state != "processing":
                    end(conn, grant, Completed() if state == "completed" else DeadLettered(BOOM), worker)
    for state, job_id in found.items():
        assert listed(database, states=(state,), field="order=17") == [job_id], state
    assert set(listed(database, queue="inbox", field="order=17")) == set(found.values())


@pytest.mark.parametrize(
    ("filters", "sentence"),
    [
        ({"field": "order=17"}, "field needs a queue, a task or a state beside it. Name one of them"),
        (
            {"field": "order", "task": "pay"},
            "field takes NAME=VALUE, or names from the outside in as customer.id=17, not 'order'",
        ),
        (
            {"field": "a..b=1", "task": "pay"},
            "field takes NAME=VALUE, or names from the outside in as customer.id=17, not 'a..b=1'",
        ),
        ({"min_attempts": 0}, "min_attempts must be between 1 and 2147483647, not 0"),
        ({"min_attempts": 2**31}, "min_attempts must be between 1 and 2147483647, not 2147483648"),
        ({"worker": "a\0"}, r"worker 'a\x00' is not valid text. Leave out NUL and broken characters"),
    ],
)
def test_what_cannot_be_asked_for(database: Database, filters: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        listed(database, **filters)
    assert str(caught.value) == sentence


@pytest.mark.parametrize("state", ["pending", "held", "completed", "dead_letter"])
def test_payloads_are_looked_into_a_bounded_number_at_a_time(
    conn: Conn, database: Database, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """However few fit, and wherever they are: a step reads no more, and the next one goes on where it ended."""
    if state in ("pending", "held"):
        load(
            conn,
            25,
            status=f"'{state}'",
            hold_reason="'x'" if state == "held" else "NULL",
            payload="""'{"n": 1}'""",
        )
    elif state == "completed":
        archive_many(conn, 25)
    else:
        bury_many(conn, 25)
    table = {"completed": "archive", "dead_letter": "dead_letters"}.get(state, "work")
    conn.execute(f"UPDATE holdfast.{table} SET payload = jsonb_build_object('n', 1)".encode())
    first = f"(SELECT min(id::text)::uuid FROM holdfast.{table})"
    rare = f"UPDATE holdfast.{table} SET payload = jsonb_build_object('n', 2) WHERE id = {first} RETURNING id"
    row = conn.execute(rare.encode()).fetchone()
    assert row is not None
    monkeypatch.setattr(search, "PAYLOADS", 10)
    monkeypatch.setattr(searching, "PATIENCE", -1.0)
    wanted = JobFilter(states=(state,), field="n=2")
    seen, after, steps = [], None, 0
    while steps == 0 or after is not None:
        page = Operator(database, "ann").list_jobs(wanted, after=after)
        seen += [job.id for job in page.jobs]
        after, steps = page.next, steps + 1
    assert (seen, steps) == ([row[0]], 3)


def test_an_act_over_many_takes_the_same_filters_and_goes_on_by_itself(
    conn: Conn, database: Database
) -> None:
    """What an operation keeps of a filter is what it goes on with."""
    wanted, other = (put(conn, {"order": n}, delay=3600.0) for n in (17, 18))
    conn.execute("UPDATE holdfast.work SET attempts = 2")
    ann = Operator(database, "ann")
    which = JobFilter(states=("scheduled",), min_attempts=2, field="order=17")
    retry = job_acts.RETRY
    assert ann.preview_all(retry, which).count.count == 1
    begun = ann.begin_operation(retry, which)
    assert begun.selection == {"states": ["scheduled"], "min_attempts": 2, "field": "order=17"}
    ann.run_operation(begun.id)
    due = conn.execute("SELECT id FROM holdfast.work WHERE available_at <= holdfast.now()").fetchall()
    assert due == [(wanted,)]
    assert other in listed(database, states=("scheduled",))
