"""then=, parent= and groups: what a job sets off when it ends, and when it does not."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from tests.conftest import await_until

from holdfast import (
    AsyncTransaction,
    Cancel,
    DeadLetter,
    Holdfast,
    InvalidOption,
    Job,
    ResultExpired,
    Transaction,
    UnknownQueue,
)
from holdfast.operate.dead import redrive_verb
from holdfast.operate.job_acts import DISCARD, RETRY, cancel_verb
from holdfast.operate.operator import Operator
from holdfast.tasks.newjob import NewJob
from holdfast.tasks.task import Task
from holdfast.testing import Kit

Ran = list[tuple[str, int, UUID | None]]


class Tasks:
    """`step` notes what it ran; `moody` dies unless it is cured."""

    def __init__(self, app: Holdfast) -> None:
        self.ran: Ran = []
        self.cured = False

        @app.task
        async def step(job: Job, n: int) -> int:
            self.ran.append(("step", n, job.parent_id))
            return n

        @app.task
        async def report(job: Job, name: str = "report") -> None:
            self.ran.append((name, 0, job.parent_id))

        @app.task
        async def moody(n: int) -> None:
            if not self.cured:
                raise DeadLetter("moody")

        @app.task
        async def quits(n: int) -> None:
            if not self.cured:
                raise Cancel("had enough")

        self.step, self.report, self.moody, self.quits = step, report, moody, quits

    def numbers(self) -> list[int]:
        return [n for name, n, _ in self.ran if name == "step"]

    def reports(self) -> int:
        return sum(name == "report" for name, _, _ in self.ran)


@pytest.fixture
def tasks(app: Holdfast) -> Tasks:
    return Tasks(app)


# then ---------------------------------------------------------------------------------------------------------------


def test_a_chain_of_three_runs_in_order_each_the_parent_of_the_next(kit: Kit, tasks: Tasks) -> None:
    step = tasks.step
    first = step.using(then=step.using(then=step.job(3)).job(2)).enqueue(1)
    kit.run_worker()
    assert tasks.numbers() == [1, 2, 3]
    one, two, three = kit.jobs(step)
    assert [j["parent_id"] for j in (one, two, three)] == [None, one["id"], two["id"]]
    assert one["id"] == first.id
    assert [parent for _, _, parent in tasks.ran] == [None, one["id"], two["id"]]
    assert {j["status"] for j in (one, two, three)} == {"completed"}


def test_a_follow_up_takes_every_option_and_its_delay_counts_from_the_completion(
    kit: Kit, tasks: Tasks
) -> None:
    kit.database.run(lambda: _create_queue("slow"))
    at = datetime(2031, 2, 3, 4, 5, 6, 789, tzinfo=UTC)
    follow = tasks.step.using(
        queue="slow",
        partition_key="k",
        priority=7,
        max_attempts=3,
        run_after=600,
        tags=["a"],
        metadata={"m": 1},
    )
    tasks.step.using(then=[follow.job(2), tasks.step.using(run_after=at).job(3)], run_after=60).enqueue(1)
    kit.clock.advance(60)
    kit.run_worker()
    kit.clock.advance(1)
    (made,) = [j for j in kit.jobs() if j["payload"] == {"n": 2}]
    wanted = {
        "queue": "slow",
        "partition_key": "k",
        "priority": 7,
        "max_attempts": 3,
        "tags": ["a"],
        "metadata": {"m": 1},
    }
    assert {name: made[name] for name in wanted} == wanted
    assert timedelta(seconds=590) < made["available_at"] - _now(kit) < timedelta(seconds=600)
    (other,) = [j for j in kit.jobs() if j["payload"] == {"n": 3}]
    assert other["available_at"] == at


def test_a_payload_of_a_follow_up_arrives_to_the_last_digit(kit: Kit, app: Holdfast, tasks: Tasks) -> None:
    seen: list[Any] = []

    @app.task
    async def keep(big: int, small: float, text: str) -> None:
        seen.append((big, small, text))

    values = (2**70 + 1, 1e-7, 'quote " brace } back \\ ü \u2028')
    tasks.step.using(then=keep.job(*values)).enqueue(1)
    kit.run_worker()
    assert seen == [values]


def test_a_dead_job_keeps_its_follow_ups_and_a_redrive_that_completes_enqueues_them(
    kit: Kit, tasks: Tasks
) -> None:
    dead = tasks.moody.using(then=tasks.step.job(1), parent=uuid4()).enqueue(0)
    before = kit.job(dead.id)
    kit.run_worker()
    assert (kit.job(dead.id)["status"], tasks.numbers()) == ("dead_letter", [])
    kept = kit.job(dead.id)
    assert (kept["follow_ups"], kept["parent_id"]) == (before["follow_ups"], before["parent_id"])
    tasks.cured = True
    Operator(kit.database, "ann").act_on(redrive_verb(), [dead.id])
    kit.run_worker()
    assert (kit.job(dead.id)["status"], tasks.ran) == ("completed", [("step", 1, dead.id)])
    assert kit.job(dead.id)["parent_id"] == before["parent_id"]


@pytest.mark.parametrize("how", ["handle", "operator", "handler"])
def test_a_cancelled_job_enqueues_nothing_and_one_that_is_revived_does(
    kit: Kit, tasks: Tasks, how: str
) -> None:
    job = tasks.quits.using(then=tasks.step.job(1)).enqueue(0)
    if how == "handle":
        assert job.cancel()
    elif how == "operator":
        Operator(kit.database, "ann").act_on(cancel_verb("no"), [job.id])
    kit.run_worker()
    assert (kit.job(job.id)["status"], tasks.numbers()) == ("cancelled", [])
    tasks.cured = True
    Operator(kit.database, "ann").act_on(RETRY, [job.id])
    kit.run_worker()
    assert (kit.job(job.id)["status"], tasks.ran) == ("completed", [("step", 1, job.id)])


def test_a_retry_does_not_enqueue_follow_ups(kit: Kit, app: Holdfast, tasks: Tasks) -> None:
    tries: list[int] = []

    @app.task(max_attempts=3)
    async def twice(job: Job) -> None:
        tries.append(job.attempt)
        if job.attempt < 2:
            raise RuntimeError("once more")

    twice.using(then=tasks.step.job(1)).enqueue()
    kit.run_worker()
    assert (tries, len(kit.jobs())) == ([1], 1)
    kit.clock.advance(3600)
    kit.run_worker()
    assert (tries, tasks.numbers()) == ([1, 2], [1])


def test_a_handlers_own_transaction_enqueues_its_follow_ups(kit: Kit, app: Holdfast, tasks: Tasks) -> None:
    @app.task
    def in_tx(tx: Transaction, n: int) -> None:
        tx.execute("SELECT 1")

    @app.task
    async def in_atx(tx: AsyncTransaction, n: int) -> None:
        await tx.execute("SELECT 1")

    @app.task
    def by_hand(job: Job, n: int) -> None:
        with psycopg.connect(kit.url) as conn:
            job.complete(conn=conn)
            (inside,) = (
                conn.execute("SELECT count(*) FROM holdfast.work WHERE parent_id = %s", [job.id]).fetchone()
                or ()
            )
            assert inside == 1
            assert kit.sql("SELECT count(*) AS n FROM holdfast.jobs WHERE parent_id = %s", [job.id]) == [
                {"n": 0}
            ]

    made = [t.using(then=tasks.step.job(n)).enqueue(n) for n, t in enumerate((in_tx, in_atx, by_hand))]
    kit.run_worker()
    assert sorted(tasks.ran) == sorted(("step", n, h.id) for n, h in enumerate(made))


def test_a_completion_that_is_rolled_back_takes_its_follow_ups_with_it(
    kit: Kit, app: Holdfast, tasks: Tasks
) -> None:
    @app.task(max_attempts=1)
    def changes_its_mind(job: Job) -> None:
        with psycopg.connect(kit.url) as conn:
            job.complete(conn=conn)
            conn.rollback()
        raise DeadLetter("after all")

    job = changes_its_mind.using(then=tasks.step.job(1)).enqueue()
    kit.run_worker()
    assert kit.job(job.id)["status"] == "dead_letter"
    assert len(kit.jobs()) == 1


def test_a_follow_up_whose_queue_is_gone_buries_its_job_alone_and_says_why(kit: Kit, tasks: Tasks) -> None:
    kit.database.run(lambda: _create_queue("doomed"))
    bad = tasks.step.using(then=tasks.step.using(queue="doomed").job(99)).enqueue(0)
    good = [tasks.step.using(then=tasks.report.job()).enqueue(n) for n in range(1, 6)]
    _drop_queue(kit, "doomed")
    kit.run_worker(queues=["inbox"])
    row = kit.job(bad.id)
    assert row["status"] == "dead_letter"
    why = "follow-up step cannot be enqueued: queue 'doomed' does not exist. Create it: holdfast queue create doomed"
    assert why in row["last_error"]
    assert {kit.job(h.id)["status"] for h in good} == {"completed"}
    assert tasks.reports() == 5
    kit.database.run(lambda: _create_queue("doomed"))
    Operator(kit.database, "ann").act_on(redrive_verb(), [bad.id])
    kit.run_worker(queues=["inbox", "doomed"])
    assert 99 in tasks.numbers()


def test_a_handler_that_completes_itself_gets_the_reason_and_its_writes_go_back(
    kit: Kit, app: Holdfast, tasks: Tasks
) -> None:
    kit.database.run(lambda: _create_queue("doomed"))
    kit.sql("CREATE TABLE notes (n int)")

    @app.task(max_attempts=1)
    def writes(tx: Transaction) -> None:
        tx.execute("INSERT INTO notes VALUES (1)")

    job = writes.using(then=tasks.step.using(queue="doomed").job(1)).enqueue()
    _drop_queue(kit, "doomed")
    kit.run_worker(queues=["inbox"])
    assert "queue 'doomed' does not exist" in kit.job(job.id)["last_error"]
    assert kit.job(job.id)["status"] == "dead_letter"
    assert kit.sql("SELECT * FROM notes") == []


def test_the_queue_of_a_follow_up_is_checked_when_it_is_given(kit: Kit, tasks: Tasks) -> None:
    nested = tasks.step.using(then=tasks.step.using(queue="nowhere").job(3)).job(2)
    with pytest.raises(UnknownQueue, match="'nowhere'"):
        tasks.step.using(then=nested).enqueue(1)
    assert kit.jobs() == []


def test_a_follow_up_with_an_idempotency_key_that_was_used_is_that_job(kit: Kit, tasks: Tasks) -> None:
    keyed = tasks.step.using(idempotency_key="k", run_after=3600)
    there = keyed.enqueue(5)
    tasks.step.using(then=keyed.job(5)).enqueue(1)
    kit.run_worker()
    assert [j["id"] for j in kit.jobs() if j["payload"] == {"n": 5}] == [there.id]
    other = tasks.step.using(then=keyed.job(6)).enqueue(2)
    kit.run_worker()
    assert "its idempotency key was used with another payload" in kit.job(other.id)["last_error"]


def test_what_then_and_parent_refuse(kit: Kit, tasks: Tasks) -> None:
    step = tasks.step
    wrong: dict[str, tuple[dict[str, Any], str]] = {
        "a task": ({"then": step}, "then must be what task.job"),
        "a call": ({"then": [1]}, "each job of then must be what task.job(...) returns, not int 1"),
        "a connection": ({"then": step.using(conn=object()).job(1)}, "Leave conn out"),
        "a parent": ({"then": step.using(parent=uuid4()).job(1)}, "Leave parent out"),
        "too many": ({"then": [step.job(1)] * 101}, "then has 101 jobs, more than the limit of 100"),
        "no parent": ({"parent": "x"}, "parent must be a job, its handle or its id (a UUID), not str 'x'"),
        "both keys": ({"replace_key": "a", "idempotency_key": "b"}, "do not go together"),
        "no key": ({"replace_key": ""}, "replace_key must not be empty"),
        "long key": ({"replace_key": "x" * 513}, "replace_key is 513 bytes"),
    }
    for case, (options, text) in wrong.items():
        with pytest.raises(InvalidOption) as caught:
            step.using(**options).job(1)
        assert text in str(caught.value), case
    long: NewJob[int] = step.job(0)
    for n in range(1, 20):
        long = step.using(then=long).job(n)
    with pytest.raises(InvalidOption, match="chain of 21 jobs, more than the limit of 20"):
        step.using(then=step.using(then=long).job(1))
    step.using(then=long).enqueue(100)  # twenty follow
    kit.run_worker()
    assert tasks.numbers() == [100, *range(19, -1, -1)]

    big = tasks.report
    with pytest.raises(InvalidOption, match="bytes with everything that follows"):
        step.using(then=[big.job("x" * 200_000)] * 2)


def test_a_parent_is_given_by_id_handle_or_job(kit: Kit, app: Holdfast, tasks: Tasks) -> None:
    made: list[UUID] = []

    @app.task
    async def mother(job: Job) -> None:
        made.append((await tasks.step.using(parent=job).aenqueue(1)).id)
        made.append((await tasks.step.aenqueue(2)).id)

    handle = mother.enqueue()
    by_handle = tasks.step.using(parent=handle).enqueue(3)
    by_id = tasks.step.using(parent=handle.id).enqueue(4)
    kit.run_worker()
    assert [kit.job(i)["parent_id"] for i in (made[0], by_handle.id, by_id.id)] == [handle.id] * 3
    assert kit.job(made[1])["parent_id"] is None  # nothing is guessed


# Groups -------------------------------------------------------------------------------------------------------------


def test_a_group_is_followed_once_when_all_have_completed(kit: Kit, app: Holdfast, tasks: Tasks) -> None:
    group = app.group([tasks.step.job(n) for n in range(5)], then=tasks.report.job())
    assert (group.status().open, group.status().total, len(group.jobs)) == (5, 5, 5)
    assert {kit.job(h.id)["group_id"] for h in group.jobs} == {group.id}
    kit.run_worker()
    status = group.status()
    assert (status.open, status.state, tasks.reports()) == (0, "finished", 1)
    (callback,) = kit.jobs(tasks.report)
    assert status.callback_ids == [callback["id"]]
    assert callback["parent_id"] in {h.id for h in group.jobs}  # the one whose end brought it about
    assert group.jobs[2].result() == 2


async def test_an_async_group_on_a_connection_of_ones_own_commits_or_not(
    akit: Kit, app: Holdfast, tasks: Tasks
) -> None:
    async with await psycopg.AsyncConnection.connect(akit.url) as conn:
        gone = await app.agroup([tasks.step.job(1)], then=tasks.report.job(), conn=conn)
        await conn.rollback()
        kept = await app.agroup([tasks.step.job(2)], then=tasks.report.job(), conn=conn)
    with pytest.raises(ResultExpired, match="nothing is kept of group"):
        await gone.astatus()
    await akit.arun_worker()
    assert ((await kept.astatus()).state, tasks.numbers(), tasks.reports()) == ("finished", [2], 1)


def test_an_empty_group_is_followed_at_once(kit: Kit, app: Holdfast, tasks: Tasks) -> None:
    group = app.group([], then=[tasks.report.job(), tasks.report.job("again")])
    assert (group.status().state, len(group.status().callback_ids)) == ("finished", 2)
    kit.run_worker()
    assert [name for name, _, _ in tasks.ran] == ["report", "again"]


def test_a_group_without_a_callback_only_counts(kit: Kit, app: Holdfast, tasks: Tasks) -> None:
    group = app.group([tasks.step.job(1)])
    kit.run_worker()
    assert (group.status().state, len(kit.jobs())) == ("finished", 1)


def test_a_dead_member_keeps_a_group_open_until_a_redrive_completes_it(
    kit: Kit, app: Holdfast, tasks: Tasks
) -> None:
    group = app.group([tasks.step.job(1), tasks.moody.job(2), tasks.quits.job(3)], then=tasks.report.job())
    kit.run_worker()
    assert (group.status().open, group.status().state, tasks.reports()) == (2, "open", 0)
    tasks.cured = True
    Operator(kit.database, "ann").act_on(redrive_verb(), [group.jobs[1].id])
    kit.run_worker()
    assert (group.status().open, tasks.reports()) == (1, 0)
    Operator(kit.database, "ann").act_on(RETRY, [group.jobs[2].id])
    kit.run_worker()
    assert (group.status().state, tasks.reports()) == ("finished", 1)


def test_where_any_end_counts_a_dead_member_counts_once(kit: Kit, app: Holdfast, tasks: Tasks) -> None:
    jobs = [tasks.step.using(run_after=3600).job(1), tasks.moody.job(2), tasks.quits.job(3)]
    group = app.group(jobs, then=tasks.report.job(), when="finished")
    kit.run_worker()
    assert group.status().open == 1
    tasks.cured = True
    Operator(kit.database, "ann").act_on(redrive_verb(), [group.jobs[1].id])
    Operator(kit.database, "ann").act_on(RETRY, [group.jobs[2].id])
    kit.run_worker()
    assert {kit.job(h.id)["status"] for h in group.jobs[1:]} == {"completed"}
    assert (group.status().open, tasks.reports()) == (1, 0)
    kit.clock.advance(3600)
    kit.run_worker()
    assert (group.status().state, tasks.reports()) == ("finished", 1)


@pytest.mark.parametrize(("when", "left", "state"), [("completed", 2, "broken"), ("finished", 0, "finished")])
def test_a_discarded_member_is_gone_for_good(
    kit: Kit, app: Holdfast, tasks: Tasks, when: Any, left: int, state: str
) -> None:
    """Where all have to complete, the group says that it never will; where any end counts, this is one, and only one."""
    jobs = [tasks.step.using(run_after=3600).job(1), tasks.moody.job(2), tasks.step.job(3)]
    group = app.group(jobs, then=tasks.report.job(), when=when)
    kit.run_worker()
    Operator(kit.database, "ann").act_on(DISCARD, [h.id for h in group.jobs])
    status = group.status()
    assert (status.open, status.state) == (left, state)
    if when == "completed":
        assert status.discarded == 2
    kit.run_worker()
    assert tasks.reports() == (1 if when == "finished" else 0)


def test_cancelling_the_last_open_member_follows_the_group_that_takes_any_end(
    kit: Kit, app: Holdfast, tasks: Tasks
) -> None:
    both = [
        app.group(
            [tasks.step.job(n), tasks.step.using(run_after=3600).job(n)],
            then=tasks.report.job(),
            when="finished",
        )
        for n in range(2)
    ]
    kit.run_worker()
    assert both[0].jobs[1].cancel()
    Operator(kit.database, "ann").act_on(cancel_verb(), [both[1].jobs[1].id])
    assert [g.status().state for g in both] == ["finished", "finished"]
    kit.run_worker()
    assert tasks.reports() == 2


async def test_a_hundred_members_on_four_workers_are_followed_once(
    akit: Kit, app: Holdfast, tasks: Tasks
) -> None:
    group = await app.agroup([tasks.step.job(n) for n in range(100)], then=tasks.report.job())
    workers = [asyncio.create_task(akit.arun_worker(concurrency=5, until_idle=False)) for _ in range(4)]
    try:
        await await_until(tasks.reports, "the callback ran")
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    assert sorted(tasks.numbers()) == list(range(100))
    assert (len(akit.jobs(tasks.report)), (await group.astatus()).open) == (1, 0)


async def test_a_group_that_a_stranger_holds_delays_its_own_members_only(
    akit: Kit, app: Holdfast, tasks: Tasks
) -> None:
    group = await app.agroup([tasks.step.job(1)], then=tasks.report.job())
    others = [await tasks.step.aenqueue(n) for n in range(2, 8)]
    with psycopg.connect(akit.url) as stranger:
        stranger.execute("SELECT 1 FROM holdfast.groups FOR UPDATE")
        worker = asyncio.create_task(akit.arun_worker(until_idle=False))
        try:
            await await_until(
                lambda: all(akit.job(h.id)["status"] == "completed" for h in others), "the others are settled"
            )
            assert akit.job(group.jobs[0].id)["status"] == "processing"
            stranger.rollback()
            await await_until(tasks.reports, "the callback ran")
        finally:
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)
    assert akit.job(group.jobs[0].id)["attempts"] == 1


async def test_a_key_that_a_stranger_holds_delays_its_own_job_only(
    akit: Kit, app: Holdfast, tasks: Tasks
) -> None:
    """The follow-up wants an idempotency key that an open transaction has just used."""
    keyed = tasks.report.using(idempotency_key="k")
    with psycopg.connect(akit.url) as stranger:
        keyed.using(conn=stranger).enqueue()
        first = await tasks.step.using(then=keyed.job()).aenqueue(1)
        others = [await tasks.step.using(then=tasks.step.job(0)).aenqueue(n) for n in range(2, 8)]
        worker = asyncio.create_task(akit.arun_worker(until_idle=False))
        try:
            await await_until(
                lambda: all(akit.job(h.id)["status"] == "completed" for h in others), "the others are settled"
            )
            after = await tasks.step.aenqueue(9)
            await await_until(lambda: akit.job(after.id)["status"] == "completed", "and later ones")
            assert akit.job(first.id)["status"] == "processing"
            stranger.rollback()
            await await_until(tasks.reports, "the follow-up ran")
        finally:
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)
    assert (akit.job(first.id)["attempts"], len(akit.jobs(tasks.report))) == (1, 1)


async def test_a_callback_that_cannot_be_enqueued_harms_no_member_and_is_tried_again(
    akit: Kit, app: Holdfast, tasks: Tasks
) -> None:
    kit = akit
    kit.database.run(lambda: _create_queue("doomed"))
    group = app.group([tasks.step.job(1)], then=tasks.report.using(queue="doomed").job())
    _drop_queue(kit, "doomed")
    await kit.arun_worker(queues=["inbox"])
    assert kit.job(group.jobs[0].id)["status"] == "completed"
    status = group.status()
    assert (status.state, status.open) == ("stuck", 0)
    assert (
        status.fault
        == "report cannot be enqueued: queue 'doomed' does not exist. Create it: holdfast queue create doomed"
    )
    kit.database.run(lambda: _create_queue("doomed"))
    kit.clock.advance(61)  # the next time that a worker tidies up
    worker = asyncio.create_task(kit.arun_worker(queues=["inbox", "doomed"], until_idle=False))
    try:
        await await_until(tasks.reports, "the callback ran")
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
    assert group.status().state == "finished"


def test_what_a_group_refuses(kit: Kit, app: Holdfast, tasks: Tasks) -> None:
    step: Task[Any, int] = tasks.step
    with pytest.raises(InvalidOption, match="when must be 'completed' or 'finished', not str 'done'"):
        app.group([step.job(1)], when="done")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"group takes what task\.job"):
        app.group([1])  # type: ignore[list-item]
    with pytest.raises(InvalidOption, match="has idempotency_key='k'"):
        app.group([step.using(idempotency_key="k").job(1)])
    with pytest.raises(InvalidOption, match="has replace_key='k'"):
        app.group([step.using(replace_key="k").job(1)])
    with pytest.raises(InvalidOption, match=r"Pass it there: group\(jobs, conn=conn\)"):
        app.group([step.using(conn=object()).job(1)])
    with pytest.raises(UnknownQueue):
        app.group([step.job(1)], then=step.using(queue="nowhere").job(1))
    with pytest.raises(UnknownQueue):
        app.group([step.using(queue="nowhere").job(1)], then=step.job(1))
    assert kit.jobs() == []
    assert kit.sql("SELECT * FROM holdfast.groups") == []


def _create_queue(name: str) -> Any:
    from holdfast.store import queues

    return queues.create_queue(name)


def _drop_queue(kit: Kit, name: str) -> None:
    kit.sql(f"ALTER TABLE holdfast.work DETACH PARTITION holdfast.queue_{name}")
    kit.sql(f"DROP TABLE holdfast.queue_{name}")
    kit.sql("DELETE FROM holdfast.queues WHERE name = %s", [name])


def _now(kit: Kit) -> datetime:
    now: datetime = kit.sql("SELECT holdfast.now() AS now")[0]["now"]
    return now
