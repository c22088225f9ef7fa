"""A copy of a job that is finished or dead is a new job; the old one stays as it is, and what lives is not copied."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.sql.rows import one_of_each
from tests.sql.support import Conn, end, enqueue, one, register, row_of, status, take_one

from holdfast import Holdfast, Workflow
from holdfast.cli.refusals import words
from holdfast.db.database import Database
from holdfast.errors import ConfigurationError, InvalidPayload
from holdfast.model.outcome import Completed
from holdfast.operate.edit import Changes
from holdfast.operate.operator import Operator
from holdfast.testing import Kit

ENDED = ("completed", "cancelled", "dead_letter")


@pytest.fixture
def ann(database: Database) -> Operator:
    return Operator(database, "ann")


@pytest.fixture
def worker(conn: Conn) -> str:
    return register(conn)


def refused(ann: Operator, job_id: UUID, *changes: Any, **options: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        ann.copy_job(job_id, *changes, **options)
    return words(caught.value)


def shown(conn: Conn, job_id: UUID) -> Any:
    return one(conn, "SELECT to_jsonb(j) FROM holdfast.jobs j WHERE id = %s", job_id)


def test_a_copy_is_a_new_job_and_the_old_one_stays(conn: Conn, ann: Operator, worker: str) -> None:
    jobs_of = one_of_each(conn, worker)
    for state in ENDED:
        old = jobs_of[state]
        before = shown(conn, old)
        done = ann.copy_job(old)
        assert done.id != old
        assert shown(conn, old) == before
        made = row_of(conn, done.id)
        assert (made["task"], made["queue"], made["payload"]) == tuple(
            before[name] for name in ("task", "queue", "payload")
        )
        assert (made["status"], made["attempts"], made["lease_generation"]) == ("pending", 0, 0)
        assert made["metadata"] == {"copied_from": str(old)}
        entry = ann.list_audit(limit=1).entries[0]
        assert (entry.action, entry.selection, entry.count) == (
            "jobs copy",
            {"id": str(old), "copy": str(done.id)},
            1,
        )
        assert [line.id for line in ann.list_audit(target=str(done.id)).entries] == [
            entry.id
        ]  # found by both
    assert take_one(conn, worker)


def test_what_lives_is_not_copied(conn: Conn, ann: Operator, worker: str) -> None:
    jobs_of = one_of_each(conn, worker)
    count = one(conn, "SELECT count(*) FROM holdfast.work")
    for state, job_id in jobs_of.items():
        if state not in ENDED:
            assert f"job {job_id} is {state}: it runs once" in refused(ann, job_id), state
    assert "there is no job" in refused(ann, uuid4())
    assert one(conn, "SELECT count(*) FROM holdfast.work") == count
    assert ann.list_audit().entries == []


def test_a_copy_may_differ(conn: Conn, ann: Operator, worker: str) -> None:
    (old,) = enqueue(conn, tags=("a",), partition_key="k", max_attempts=3)
    number = "0.1234567890123456789012345678901234567890"  # more than a float holds
    payload = f'{{"keep": {number}, "gone": 1, "order_id": 1, "card_token": "tok_1"}}'
    trace = {"traceparent": "00-1-2-01", "tenant": "acme"}
    conn.execute(
        "UPDATE holdfast.work SET payload = %s, metadata = %s", [payload, str(trace).replace("'", '"')]
    )
    end(conn, take_one(conn, worker).grant, Completed(), worker)
    changes = Changes({"order_id": 2, "card_token": "tok_2"}, ("gone",), 7, 9, timedelta(hours=1), ["x", "y"])
    seen = ann.copy_job(old, changes, dry_run=True)
    assert one(conn, "SELECT count(*) FROM holdfast.work") == 0
    done = ann.copy_job(old, changes)
    assert sorted(done.changed) == sorted(seen.changed) == ["max_attempts", "payload", "priority", "tags"]
    text = one(conn, "SELECT payload::text FROM holdfast.work")
    assert text == f'{{"keep": {number}, "order_id": 2, "card_token": "tok_2"}}'
    made = row_of(conn, done.id)
    assert (made["priority"], made["max_attempts"], made["tags"], made["partition_key"]) == (
        7,
        9,
        ["x", "y"],
        "k",
    )
    assert made["metadata"] == {"tenant": "acme", "copied_from": str(old)}  # of the old trace it is no part
    assert status(conn, done.id) == "scheduled"
    (entry,) = ann.list_audit().entries
    assert entry.before is not None
    assert entry.before["payload"] == {"gone": 1, "order_id": 1, "card_token": "••••••••"}
    assert entry.after == {
        "priority": 7,
        "max_attempts": 9,
        "tags": ["x", "y"],
        "payload": {"order_id": 2, "card_token": "••••••••"},
    }


def test_a_copy_that_cannot_be_changes_nothing(conn: Conn, ann: Operator, worker: str) -> None:
    app = Holdfast("postgresql://unused.invalid/none")

    @app.task(name="work")
    def work(n: int = 1) -> None:
        pass

    (old,) = enqueue(conn)
    end(conn, take_one(conn, worker).grant, Completed(), worker)
    known = app.tasks.definition
    assert f"job {old} was not copied: parameter 'n' of work must be int" in refused(
        ann, old, Changes({"n": "seven"}), known
    )
    assert "has no argument 'x' to unset" in refused(ann, old, Changes(unset=("x",)))
    assert "is both set and unset" in refused(ann, old, Changes({"n": 1}, ("n",)))
    with pytest.raises(InvalidPayload):
        ann.copy_job(old, Changes({"n": "x" * 300_000}))
    conn.execute("UPDATE holdfast.archive SET queue = 'lost'")
    assert "belongs to queue lost, which does not exist. Create it" in refused(ann, old)
    conn.execute("UPDATE holdfast.archive SET queue = 'inbox', task = 'holdfast.webhook'")
    assert "belongs to something else" in refused(ann, old)
    assert one(conn, "SELECT count(*) FROM holdfast.work") == 0
    assert ann.list_audit().entries == []


def test_a_run_of_a_workflow_is_forked_and_not_copied(holdfast_kit: Callable[..., Kit]) -> None:
    app = Holdfast("postgresql://unused.invalid/none")

    @app.workflow(name="short")
    async def short(wf: Workflow) -> int:
        return 1

    kit = holdfast_kit(app)
    begun = short.using(id="one").start()
    kit.run_worker()
    said = refused(Operator(kit.database, "ann"), begun.run_id)
    assert said.endswith(f"is a run of a workflow: holdfast workflow fork {begun.run_id}")


def test_a_copy_of_a_job_with_any_json_as_metadata(conn: Conn, ann: Operator, worker: str) -> None:
    """From SQL metadata may be a list."""
    old = one_of_each(conn, worker)["completed"]
    conn.execute("UPDATE holdfast.archive SET metadata = '[1, 2]' WHERE id = %s", [old])
    assert row_of(conn, ann.copy_job(old).id)["metadata"] == {"copied_from": str(old)}
