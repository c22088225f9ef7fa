"""What an operator does that makes jobs due is told to those who sleep, in the same transaction, and nothing else is."""

from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

import pytest
from tests.sql.keyed import fail_key, put_key
from tests.wake.conftest import Ear

from holdfast.db.database import Database
from holdfast.model.queue import OnDeadLetter, QueueRules
from holdfast.operate.dead import redrive_verb
from holdfast.operate.edit import Changes
from holdfast.operate.job_acts import DISCARD, RETRY, cancel_verb
from holdfast.operate.keys import How
from holdfast.operate.operator import Operator
from holdfast.store.queues import create_queue
from holdfast.testing import Kit

Act = Callable[[Database, UUID], object]
TOLD = [("holdfast_inbox", "")]


@pytest.fixture
def job(sleepy: Kit) -> UUID:
    """One that waits for an hour. Somebody sleeps, and was not told of it."""
    (row,) = sleepy.sql("SELECT id FROM holdfast.enqueue('note', '{\"n\": 1}', delay => interval '1 hour')")
    sleepy.sql("INSERT INTO holdfast.sleepers VALUES ('inbox', 'somebody', 1)")
    found: UUID = row["id"]
    return found


def buried(kit: Kit, job: UUID) -> None:
    kit.sql(
        """WITH gone AS (DELETE FROM holdfast.work WHERE id = %s RETURNING *)
           INSERT INTO holdfast.dead_letters
               (id, claim_token, seq, lease_generation, available_at, created_at, claimed_at, died_at,
                attempts, max_attempts, version, crashes, priority, queue, task, payload)
           SELECT id, claim_token, seq, lease_generation, available_at, created_at, claimed_at, now(),
                  attempts, max_attempts, version, crashes, priority, queue, task, payload FROM gone""",
        [job],
    )


@pytest.mark.parametrize(
    "act",
    [
        lambda database, job: Operator(database, "ann").act_on(RETRY, [job]),
        lambda database, job: Operator(database, "ann").edit_job(
            job, Changes(run_after=timedelta(seconds=0))
        ),
    ],
)
def test_a_job_that_is_made_due(sleepy: Kit, ear: Ear, job: UUID, act: Act) -> None:
    act(sleepy.database, job)
    assert ear.heard() == TOLD


@pytest.mark.parametrize(
    ("verb", "told"), [(RETRY, TOLD), (redrive_verb(), TOLD), (redrive_verb(0.001), TOLD), (DISCARD, [])]
)
def test_a_dead_letter(sleepy: Kit, ear: Ear, job: UUID, verb: object, told: list[tuple[str, str]]) -> None:
    buried(sleepy, job)
    Operator(sleepy.database, "ann").act_on(verb, [job])  # type: ignore[arg-type]
    assert ear.heard() == told


def test_a_queue_that_is_resumed(sleepy: Kit, ear: Ear, job: UUID) -> None:
    Operator(sleepy.database, "ann").pause_queue("inbox")
    assert ear.heard() == []
    Operator(sleepy.database, "ann").resume_queue("inbox")
    assert ear.heard() == TOLD
    Operator(sleepy.database, "ann").resume_queue("inbox")  # it was not paused
    assert ear.heard() == []


def test_a_task_that_is_resumed(sleepy: Kit, ear: Ear, job: UUID) -> None:
    Operator(sleepy.database, "ann").act_on(RETRY, [job])
    Operator(sleepy.database, "ann").pause_task("note")
    assert sleepy.job(job)["status"] == "held"
    ear.heard()
    Operator(sleepy.database, "ann").resume_task("note")
    assert ear.heard() == TOLD * 2  # by the resume itself, and with the jobs that were put back
    assert sleepy.job(job)["status"] == "pending"


def test_a_job_that_is_cancelled_or_deleted_wakes_nobody(sleepy: Kit, ear: Ear, job: UUID) -> None:
    Operator(sleepy.database, "ann").act_on(cancel_verb(), [job])
    Operator(sleepy.database, "ann").act_on(DISCARD, [job])
    assert ear.heard() == []


@pytest.mark.parametrize(
    ("policy", "how"), [("block", "retry"), ("block", "skip"), ("park", None), ("park", "retry")]
)
def test_a_key_that_is_released(sleepy: Kit, ear: Ear, policy: OnDeadLetter, how: How) -> None:
    sleepy.database.run(lambda: create_queue("orders", rules=QueueRules("key", policy)))
    with sleepy.connect(autocommit=True) as conn:
        put_key(conn, "k", 2, queue="orders")
        fail_key(conn, "k", queue="orders")
    sleepy.sql("INSERT INTO holdfast.sleepers VALUES ('orders', 'somebody', 1)")
    Operator(sleepy.database, "ann").release_keys("orders", ["k"], how)
    assert ear.heard() == [("holdfast_orders", "")]
