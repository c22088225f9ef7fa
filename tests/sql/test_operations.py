"""Operations: an act over many outlives whoever began it, and does to each job what it does once, whoever carries it on."""

import itertools
import threading
from collections import Counter
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from tests.conftest import await_until
from tests.sql.support import Conn, end, enqueue, later, one, register, take

from holdfast.db.database import Database
from holdfast.errors import ConfigurationError, DatabaseUnavailable
from holdfast.model.actor import Actor
from holdfast.model.outcome import DeadLettered, ErrorText
from holdfast.operate import operations
from holdfast.operate.dead import DISCARD_DEAD, redrive_verb
from holdfast.operate.job_acts import DISCARD, RETRY, cancel_verb
from holdfast.operate.operations import SILENCE, VERBS, carry_on
from holdfast.operate.operator import Operator
from holdfast.operate.procedure import Runner
from holdfast.operate.refusal import Refused
from holdfast.runtime.tidy import Tidier
from holdfast.shapes.operations.service import Operations
from holdfast.shapes.operations.shape import SHAPE
from holdfast.store import operations as store
from holdfast.store.dead import DeadFilter
from holdfast.store.queue_load import Count
from holdfast.store.search import JobFilter
from holdfast.testing import Kit

WORK = JobFilter(task="work")


@pytest.fixture
def ann(database: Database) -> Operator:
    return Operator(database, Actor("ann", "web", "10.0.0.7", "a bad deploy"))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "BATCH", 10)


@pytest.fixture
def worker(conn: Conn) -> str:
    return register(conn)


def carry(database: Database, token: UUID | None = None) -> UUID | None:
    return Runner(database, "a worker").run(carry_on("a worker", token or uuid4()))


def bury(conn: Conn, worker: str, count: int) -> list[UUID]:
    made = enqueue(conn, count)
    for job in take(conn, worker, limit=count):
        end(conn, job.grant, DeadLettered(ErrorText("ValueError", "no", "")), worker)
    return made


def test_it_is_written_down_carried_on_and_counted_in_one_entry(
    conn: Conn, database: Database, ann: Operator
) -> None:
    enqueue(conn, 25)
    begun = ann.begin_operation(cancel_verb("late"), WORK)
    assert (begun.state, begun.total, begun.done, begun.per_second) == ("waiting", Count(25), 0, None)
    assert (begun.actor, begun.surface, begun.address, begun.reason) == (
        "ann",
        "web",
        "10.0.0.7",
        "a bad deploy",
    )
    assert one(conn, "SELECT count(*) FROM holdfast.work") == 25
    enqueue(conn, 3)  # came later
    assert carry(database) == begun.id
    found = ann.find_operation(begun.id)
    assert (found.state, found.done, found.looked_at, found.results) == ("done", 25, 25, {"cancelled": 25})
    assert (found.runner, found.runs, found.fault) == (None, 1, None)
    assert found.per_second is not None
    assert one(conn, "SELECT count(*) FROM holdfast.work") == 3
    (entry,) = ann.list_audit().entries
    assert (entry.id, entry.count, entry.action, entry.operation) == (
        found.audit,
        25,
        "jobs cancel",
        begun.id,
    )
    assert (entry.actor, entry.surface, entry.reason) == ("ann", "web", "a bad deploy")
    assert carry(database) is None


@pytest.mark.parametrize(
    ("verb", "wanted", "results"),
    [
        (RETRY, JobFilter(states=("dead",)), {"redriven": 12}),
        (DISCARD, JobFilter(states=("dead",)), {"discarded": 12}),
        (redrive_verb(), DeadFilter(), {"redriven": 12}),
        (redrive_verb(), DeadFilter(error="no", newer_than=3600.0), {"redriven": 12}),
        (DISCARD_DEAD, DeadFilter(task="work"), {"discarded": 12}),
    ],
)
def test_every_verb_runs_in_the_background(
    conn: Conn, database: Database, ann: Operator, worker: str, verb: Any, wanted: Any, results: Any
) -> None:
    bury(conn, worker, 12)
    begun = ann.begin_operation(verb, wanted)
    carry(database)
    found = ann.find_operation(begun.id)
    assert (found.state, found.results, found.done) == ("done", results, 12)
    assert one(conn, "SELECT count(*) FROM holdfast.dead_letters") == 0


def test_an_act_that_has_no_name_there_is_refused(ann: Operator) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ann.begin_operation(replace(RETRY, action="jobs juggle"), WORK)
    assert str(caught.value) == (
        f"'jobs juggle' does not run in the background (these do: {', '.join(VERBS)})"
    )


def test_another_goes_on_where_one_crashed_and_nothing_is_acted_on_twice(
    conn: Conn, database: Database, ann: Operator, worker: str, kit: Kit
) -> None:
    """The first is cut off in the middle of its third batch. A job that died again is not redriven a second time."""
    made = bury(conn, worker, 45)
    begun = ann.begin_operation(redrive_verb(), DeadFilter())
    procedure, batches = carry_on("first", uuid4()), 0
    step = next(procedure)
    runner = Runner(database, "first")
    while True:  # as a runner does, up to the third batch, which is lost with its transaction
        answer = step.do(runner)
        batches = ann.find_operation(begun.id).looked_at // 10
        if batches == 2:
            break
        step = procedure.send(answer)
    procedure.close()
    assert one(conn, "SELECT count(*) FROM holdfast.work") == 20
    for job in take(conn, worker, limit=20):
        end(conn, job.grant, DeadLettered(ErrorText("ValueError", "again", "")), worker)
    assert carry(database) is None, "its runner may be alive"
    later(kit, SILENCE + 1, conn)
    assert carry(database) == begun.id
    found = ann.find_operation(begun.id)
    assert (found.state, found.done, found.runs) == ("done", 45, 2)
    generations = conn.execute("SELECT id FROM holdfast.work").fetchall()
    assert {r[0] for r in generations} == set(made[20:]), "each was redriven once"
    assert one(conn, "SELECT count(*) FROM holdfast.dead_letters WHERE last_error LIKE '%%again%%'") == 20
    assert [entry.count for entry in ann.list_audit().entries] == [45]


def test_a_runner_that_lost_it_changes_nothing(
    conn: Conn, database: Database, ann: Operator, kit: Kit
) -> None:
    enqueue(conn, 30)
    begun = ann.begin_operation(cancel_verb(), WORK)
    runner = Runner(database, "first")
    procedure = carry_on("first", uuid4())
    step = next(procedure)
    step = procedure.send(step.do(runner))  # claimed it
    found = step.do(runner)  # and found its first batch, and stands still
    later(kit, SILENCE + 1, conn)
    assert carry(database) == begun.id
    before = conn.execute("SELECT * FROM holdfast.operations").fetchall()
    with pytest.raises(StopIteration):
        step = procedure.send(found)
        while True:
            step = procedure.send(step.do(runner))
    assert conn.execute("SELECT * FROM holdfast.operations").fetchall() == before
    assert [entry.count for entry in ann.list_audit().entries] == [30]


def test_two_at_the_same_time_do_each_job_once(
    conn: Conn, kit: Kit, database: Database, ann: Operator
) -> None:
    enqueue(conn, 120)
    for n in range(3):
        ann.begin_operation(cancel_verb(), JobFilter(task="work", queue="inbox"))
        assert n < 3
    found: list[UUID] = []

    def work() -> None:
        while (taken := carry(database)) is not None:
            found.append(taken)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(found).most_common(1)[0][1] == 1, "one runner each"
    operations_of = ann.list_operations().operations
    assert {o.state for o in operations_of} == {"done"}
    assert sum(o.done for o in operations_of) == 120
    assert sum(entry.count for entry in ann.list_audit().entries) == 120
    assert one(conn, "SELECT count(*) FROM holdfast.archive") == 120


def test_stop_counts_from_the_next_batch_on(conn: Conn, database: Database, ann: Operator) -> None:
    enqueue(conn, 50)
    begun = ann.begin_operation(cancel_verb(), WORK)
    runner = Runner(database, "first")
    procedure = carry_on("first", uuid4())
    step = next(procedure)
    while ann.find_operation(begun.id).looked_at < 20:
        step = procedure.send(step.do(runner))
    stopped, was_open = Operator(database, "bob").stop_operation(begun.id)
    assert (stopped.state, stopped.stopped_by, was_open) == ("stopped", "bob", True)
    with pytest.raises(StopIteration):
        while True:
            step = procedure.send(step.do(runner))
    found = ann.find_operation(begun.id)
    assert (found.state, found.done) == ("stopped", 20)
    assert one(conn, "SELECT count(*) FROM holdfast.work") == 30
    assert carry(database) is None
    assert ann.stop_operation(begun.id)[1] is False
    said = [(entry.action, entry.actor, entry.count, entry.operation) for entry in ann.list_audit().entries]
    assert said == [("operations stop", "bob", 1, begun.id), ("jobs cancel", "ann", 20, begun.id)]


def test_a_rate_goes_on_where_it_was_and_makes_no_burst(
    conn: Conn, database: Database, ann: Operator, worker: str, kit: Kit
) -> None:
    bury(conn, worker, 25)
    begun = ann.begin_operation(redrive_verb(1.0), DeadFilter())
    runner, procedure = Runner(database, "first"), carry_on("first", uuid4())
    step = next(procedure)
    while ann.find_operation(begun.id).looked_at < 10:
        step = procedure.send(step.do(runner))
    procedure.close()
    later(kit, 3600, conn)
    assert carry(database) == begun.id
    dues: list[datetime] = [
        r[0] for r in conn.execute("SELECT available_at FROM holdfast.work ORDER BY 1").fetchall()
    ]
    gaps = [(b - a).total_seconds() for a, b in itertools.pairwise(dues)]
    assert len([gap for gap in gaps if gap > 3000]) == 1, "the time in which nobody carried it on"
    assert min(gaps) > 0.5, "no two at once"
    assert max(gap for gap in gaps if gap < 3000) < 3, "and none is left waiting"


def test_a_row_that_cannot_be_changed_is_left_out_and_named(
    conn: Conn, database: Database, ann: Operator, bad_rows: Any
) -> None:
    enqueue(conn, 17)
    enqueue(conn, task="bad")
    enqueue(conn, 17)
    bad_rows("bad")
    begun = ann.begin_operation(cancel_verb(), JobFilter(queue="inbox"))
    carry(database)
    found = ann.find_operation(begun.id)
    assert (found.state, found.done, found.looked_at) == ("done", 34, 35)
    (left,) = found.left
    assert (left.code, left.count) == ("bad_row", 1)
    assert "this row is bad" in left.text


def test_what_cannot_go_on_says_why_and_is_tried_again(
    conn: Conn, database: Database, ann: Operator, kit: Kit
) -> None:
    enqueue(conn, 5)
    begun = ann.begin_operation(cancel_verb(), WORK)
    conn.execute("ALTER TABLE holdfast.audit RENAME TO away")
    assert carry(database) == begun.id
    found = ann.find_operation(begun.id)
    assert (found.state, found.done) == ("waiting", 0)
    assert "holdfast.audit" in (found.fault or "")
    assert one(conn, "SELECT count(*) FROM holdfast.work") == 5, (
        "an act that cannot be audited does not happen"
    )
    conn.execute("ALTER TABLE holdfast.away RENAME TO audit")
    assert carry(database) is None, "not at once"
    later(kit, 61, conn)
    assert carry(database) == begun.id
    found = ann.find_operation(begun.id)
    assert (found.state, found.done, found.fault) == ("done", 5, None)


def test_an_act_whose_entry_is_gone_does_not_happen(conn: Conn, database: Database, ann: Operator) -> None:
    enqueue(conn, 5)
    begun = ann.begin_operation(cancel_verb(), WORK)
    conn.execute("DELETE FROM holdfast.audit")
    carry(database)
    found = ann.find_operation(begun.id)
    assert (found.done, found.fault) == (
        0,
        "ConfigurationError: its entry in the audit is gone: start the act again",
    )
    assert one(conn, "SELECT count(*) FROM holdfast.work") == 5


def test_a_verb_of_a_newer_release_is_left_to_its_workers(
    conn: Conn, database: Database, ann: Operator
) -> None:
    enqueue(conn)
    begun = ann.begin_operation(cancel_verb(), WORK)
    conn.execute("UPDATE holdfast.operations SET verb = 'jobs juggle'")
    mine = ann.begin_operation(cancel_verb(), WORK)
    carry(database)
    found = ann.find_operation(begun.id)
    assert (found.state, found.fault, found.runs) == ("waiting", None, 0)
    assert one(conn, "SELECT retry_at FROM holdfast.operations WHERE id = %s", begun.id) is None
    assert ann.find_operation(mine.id).state == "done"


def test_a_verb_of_a_newer_release_is_refused_where_it_is_asked_for(conn: Conn, ann: Operator) -> None:
    enqueue(conn)
    begun = ann.begin_operation(cancel_verb(), WORK)
    conn.execute("UPDATE holdfast.operations SET verb = 'jobs juggle'")
    found = ann.run_operation(begun.id)
    assert (found.state, found.fault) == ("waiting", "this release has no verb 'jobs juggle'")


def test_it_is_run_here_when_it_is_asked_for(conn: Conn, database: Database, ann: Operator) -> None:
    enqueue(conn, 12)
    begun = ann.begin_operation(cancel_verb(), WORK)
    assert ann.run_operation(begun.id).done == 12
    with pytest.raises(Refused, match="has ended: it is done"):
        ann.run_operation(begun.id)
    with pytest.raises(Refused, match="there is no operation"):
        ann.run_operation(uuid4())
    second = ann.begin_operation(cancel_verb(), WORK)
    next_claim = store.claim_operation("somebody", uuid4(), SILENCE, None, ["jobs cancel"])
    assert database.run(lambda: next_claim) is not None
    with pytest.raises(Refused, match="is run by somebody"):
        ann.run_operation(second.id)


def test_they_are_listed_by_state_and_in_pages(conn: Conn, database: Database, ann: Operator) -> None:
    enqueue(conn, 2)
    made = [ann.begin_operation(cancel_verb(), WORK).id for _ in range(3)]
    ann.stop_operation(made[0])
    page = ann.list_operations(limit=2)
    assert [o.id for o in page.operations] == [made[2], made[1]]
    rest = ann.list_operations(limit=2, after=page.next)
    assert ([o.id for o in rest.operations], rest.next) == ([made[0]], None)
    assert [o.id for o in ann.list_operations(states=["stopped"]).operations] == [made[0]]
    with pytest.raises(ConfigurationError, match="there is no state 'lost' of operations"):
        ann.list_operations(states=["lost"])
    with pytest.raises(ConfigurationError, match="is not a place in the list"):
        ann.list_operations(after="yesterday")


async def test_a_worker_carries_it_on_and_hands_it_back_when_it_stops(akit: Kit, conn: Conn) -> None:
    ann = Operator(akit.database, "ann")
    enqueue(conn, 35)
    begun = await ann.begin_operation.arun(cancel_verb(), WORK)
    service = Operations(akit.database)
    assert await service.catch_up()
    assert (await ann.find_operation.arun(begun.id)).done == 35
    assert not await service.catch_up()
    enqueue(conn, 2)
    second = await ann.begin_operation.arun(cancel_verb(), WORK)

    def running() -> bool:
        return bool(
            one(conn, "SELECT state = 'running' FROM holdfast.operations ORDER BY created_at DESC LIMIT 1")
        )

    with conn.transaction():
        conn.execute("LOCK TABLE holdfast.archive IN ACCESS EXCLUSIVE MODE")  # its batch waits for this
        service.start()
        await await_until(running, "it was taken up")
        await service.stop()
    found = await ann.find_operation.arun(second.id)
    assert (found.state, found.runner, found.done) == ("waiting", None, 0)
    assert await service.catch_up()
    assert (await ann.find_operation.arun(second.id)).done == 2


async def test_what_an_outage_cut_off_is_taken_up_again_at_once(
    akit: Kit, conn: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the same worker, which would wait for its own silence to last, and leave as if there were nothing to do."""
    ann = Operator(akit.database, "ann")
    enqueue(conn, 15)
    begun = await ann.begin_operation.arun(cancel_verb(), WORK)
    service = Operations(akit.database)
    with monkeypatch.context() as patch:
        patch.setattr(store, "hold_operation", away)
        assert not await service.catch_up()
    for _ in range(2):  # the outage lasts: the first tries to take it up again find nobody either
        with monkeypatch.context() as patch:
            patch.setattr(store, "claim_operation", away)
            assert not await service.catch_up()
    assert (await ann.find_operation.arun(begun.id)).state == "running"
    assert await service.catch_up()
    found = await ann.find_operation.arun(begun.id)
    assert (found.state, found.done) == ("done", 15)


async def test_a_claim_whose_answer_was_lost_is_taken_up_again_at_once(
    akit: Kit, conn: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann = Operator(akit.database, "ann")
    enqueue(conn, 15)
    begun = await ann.begin_operation.arun(cancel_verb(), WORK)
    service = Operations(akit.database)
    claim = store.claim_operation

    def lost(*given: Any) -> Any:
        made = claim(*given)
        return replace(made, decode=away)  # it is committed, and nobody hears of it

    with monkeypatch.context() as patch:
        patch.setattr(store, "claim_operation", lost)
        assert not await service.catch_up()
    assert (await ann.find_operation.arun(begun.id)).state == "running"
    assert await service.catch_up()
    assert (await ann.find_operation.arun(begun.id)).done == 15


def away(*_: object) -> Any:
    raise DatabaseUnavailable("the database cannot be reached")


def test_a_worker_that_ends_when_it_is_idle_carries_it_on_first(kit: Kit, conn: Conn) -> None:
    ann = Operator(kit.database, "ann")
    enqueue(conn, 15, task="later", delay=3600.0)  # an act passes what the worker has locked, to hold it
    begun = ann.begin_operation(cancel_verb(), JobFilter(task="later"))
    kit.run_worker()
    found = ann.find_operation(begun.id)
    assert (found.state, found.done) == ("done", 15)


async def test_operations_that_ended_a_month_ago_are_forgotten(
    conn: Conn, akit: Kit, database: Database
) -> None:
    ann = Operator(database, "ann")
    enqueue(conn)
    ended = await ann.begin_operation.arun(cancel_verb(), WORK)
    await ann.stop_operation.arun(ended.id)
    still_open = await ann.begin_operation.arun(cancel_verb(), WORK)
    later(akit, 31 * 86_400, conn)
    session = database.session("tidy")
    await Tidier(session, SHAPE.prunes).tidy_once(7, 5.0)
    await session.close()
    assert [o.id for o in (await ann.list_operations.arun()).operations] == [still_open.id]


def test_a_worker_begins_none_and_writes_no_entry_of_its_own(
    conn: Conn, database: Database, ann: Operator
) -> None:
    """What it may count is the entry of an operation whose token it has."""
    enqueue(conn)
    begun = ann.begin_operation(cancel_verb(), WORK)
    count = "SELECT holdfast.audit_operation(%s, %s, 7)"
    assert conn.execute(count, [begun.id, uuid4()]).fetchone() == (None,)
    token = uuid4()
    assert database.run(lambda: store.claim_operation("w", token, SILENCE, begun.id)) is not None
    assert conn.execute(count, [begun.id, uuid4()]).fetchone() == (None,)
    assert conn.execute(count, [begun.id, token]).fetchone() == (begun.audit,)
    with pytest.raises(psycopg.Error):
        conn.execute("SELECT holdfast.audit_operation(%s, %s, 'x')", [begun.id, token])
