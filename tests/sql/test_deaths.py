"""Deaths and silences, as the statements count them: who becomes a suspect, who is buried, who is cleared again."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
from tests.sql.support import (
    BOOM,
    Conn,
    end,
    enqueue,
    later,
    load,
    make_queue,
    one,
    register,
    run,
    status,
    sweep_all,
    take,
    take_one,
)

from holdfast import Holdfast
from holdfast.model.outcome import Completed, DeadLettered, ErrorText, Failed, Outcome, Released, Snoozed
from holdfast.runtime.claim.claimer import Ask
from holdfast.runtime.claim.queues import Queues
from holdfast.runtime.claim.suspects import SuspectClaimer
from holdfast.runtime.sweep import Sweeper
from holdfast.store import sweep
from holdfast.store.claim import claim_these
from holdfast.store.owner import count_crash
from holdfast.store.streams import claim_streams
from holdfast.testing import Kit

pytestmark = pytest.mark.versions


@pytest.fixture
def worker(conn: Conn) -> str:
    return register(conn)


@pytest.fixture
async def claimer(app: Holdfast, akit: Kit) -> AsyncIterator[Queues]:
    @app.task(name="work")
    def work(n: int) -> None: ...

    made = Queues(akit.database, app.tasks, {"inbox": 60.0})
    yield made
    await made.close()


def die(kit: Kit, conn: Conn) -> set[str]:
    """Nobody is heard of any more; where their jobs went."""
    later(kit, 60, conn)
    return {s.state for s in sweep_all(conn, dead_after=12)}


def count(conn: Conn, table: str) -> int:
    return int(one(conn, f"SELECT count(*) FROM holdfast.{table}"))


def marks_of(conn: Conn) -> list[tuple[int, int]]:
    return conn.execute("SELECT DISTINCT crashes, suspect FROM holdfast.work ORDER BY 1, 2").fetchall()


async def test_a_job_runs_as_any_other_after_a_first_death_and_apart_after_a_second(
    akit: Kit, claimer: Queues, conn: Conn
) -> None:
    enqueue(conn, 10)
    dying = register(conn)
    take(conn, dying, 4)
    take(conn, dying)  # in two claims: all of them are counted
    assert die(akit, conn) == {"pending"}
    assert marks_of(conn) == [(1, 0)]
    assert len(take(conn, register(conn))) == 10
    assert die(akit, conn) == {"pending"}
    assert marks_of(conn) == [(2, 1)]
    assert await claimer.claim(Ask(register(conn), 10)) == []
    assert len(await SuspectClaimer(claimer).claim(Ask(register(conn), 10))) == 10, "several at once"
    assert one(conn, "SELECT array_agg(DISTINCT kind) FROM holdfast.errors") == ["WorkerSilent"]
    assert count(conn, "errors") == 20


async def test_a_suspect_is_buried_by_its_fourth_death_and_nobody_else_by_any(
    akit: Kit, claimer: Queues, conn: Conn
) -> None:
    load(conn, 1, crashes="2", suspect="1")
    crasher = one(conn, "SELECT id FROM holdfast.work")
    for states in ({"pending"}, {"dead_letter"}):
        (job,) = await SuspectClaimer(claimer).claim(Ask(register(conn), 10))
        assert job.id == crasher
        assert die(akit, conn) == states
    row = one(conn, "SELECT to_jsonb(d) FROM holdfast.dead_letters d")
    assert (row["crashes"], row["attempts"]) == (4, 0)
    assert row["last_error"] == (
        "WorkerSilent: processes that had this job died or fell silent 4 times; the last one fell silent"
    )
    # However many deaths: it was not tried apart yet.
    load(conn, 1, crashes="9")
    take(conn, register(conn))
    assert die(akit, conn) == {"pending"}
    assert marks_of(conn) == [(10, 1)]


async def test_a_plain_claim_leaves_suspects_alone(claimer: Queues, conn: Conn, worker: str) -> None:
    load(conn, 3, suspect="1")
    (good,) = enqueue(conn)
    assert [job.id for job in await claimer.claim(Ask(worker, 10))] == [good]


def test_a_claim_that_was_given_back_before_the_silence_counts_no_death(
    kit: Kit, conn: Conn, worker: str
) -> None:
    enqueue(conn)
    run(conn, sweep.disown(worker, [take_one(conn, worker).grant.token]))
    later(kit, 60, conn)
    run(conn, sweep.fence_workers(12))
    sweep_all(conn)
    assert marks_of(conn) == [(0, 0)]


@pytest.mark.parametrize("outcome", [Failed(BOOM, 0), Snoozed(0)])
def test_an_attempt_that_ends_by_itself_clears_the_job(conn: Conn, worker: str, outcome: Outcome) -> None:
    load(conn, 1, crashes="2", suspect="1", max_attempts="5")
    job_id = one(conn, "SELECT id FROM holdfast.work")
    (job,) = run(conn, claim_these("inbox", worker, uuid4(), lease=60, job_ids=[job_id]))
    end(conn, job.grant, outcome)
    assert marks_of(conn) == [(0, 0)]


def test_only_the_owner_counts_the_death_of_its_child(kit: Kit, conn: Conn, worker: str) -> None:
    enqueue(conn)
    job = take_one(conn, worker)
    died = ErrorText("ProcessDied", "the process ended with exit code 3")
    assert run(conn, count_crash(job.grant, 3, worker, died)) == 1
    assert marks_of(conn) == [(1, 1)]
    assert run(conn, count_crash(job.grant, 2, worker, died)) == 2
    assert count(conn, "errors") == 1, "of the last one the dead letter tells"
    later(kit, 100, conn)
    sweep_all(conn)
    assert run(conn, count_crash(job.grant, 3, worker, died)) is None


# A worker that was only silent ------------------------------------------------------------------------------------


def test_a_worker_that_turns_up_takes_back_what_its_silence_counted(
    kit: Kit, conn: Conn, worker: str
) -> None:
    make_queue(conn, "second")
    enqueue(conn, queue="second")
    waiting, claimed, ended = enqueue(conn, 3)
    take(conn, worker)
    take(conn, worker, queue="second")
    die(kit, conn)
    assert marks_of(conn) == [(1, 0)]
    other = register(conn)
    taken = {job.id: job for job in take(conn, other)}
    end(conn, taken[ended].grant, Completed())
    end(conn, taken[waiting].grant, Released("stop"))
    assert run(conn, sweep.take_back_blame(worker)) == []
    assert marks_of(conn) == [(0, 0)]
    assert status(conn, claimed) == "processing"
    assert end(conn, taken[claimed].grant, Completed(), other) == "completed"
    texts = conn.execute("SELECT DISTINCT kind, message FROM holdfast.errors").fetchall()
    assert texts == [
        (
            "WorkerFrozen",
            "the worker that had this job was stopped or cut off, and came back: this counts no death",
        )
    ]
    conn.execute("UPDATE holdfast.work SET crashes = 1")
    assert run(conn, sweep.take_back_blame(worker)) == []
    assert marks_of(conn) == [(1, 0)], "once"


def test_a_suspicion_goes_with_the_silence_that_caused_it(kit: Kit, conn: Conn, worker: str) -> None:
    load(conn, 1, crashes="1")
    take(conn, worker)
    die(kit, conn)
    assert marks_of(conn) == [(2, 1)]
    run(conn, sweep.take_back_blame(worker))
    assert marks_of(conn) == [(1, 0)]


def test_a_job_that_its_handler_buried_stays_a_dead_letter(kit: Kit, conn: Conn, worker: str) -> None:
    (job_id,) = enqueue(conn)
    take(conn, worker)
    die(kit, conn)
    (again,) = take(conn, register(conn))
    end(conn, again.grant, DeadLettered(BOOM))
    assert run(conn, sweep.take_back_blame(worker)) == []
    assert status(conn, job_id) == "dead_letter"
    assert one(conn, "SELECT crashes FROM holdfast.dead_letters") == 0


def test_a_worker_that_turns_up_before_its_jobs_are_taken_is_not_counted(
    kit: Kit, conn: Conn, worker: str
) -> None:
    enqueue(conn)
    take(conn, worker)
    later(kit, 60, conn)
    assert run(conn, sweep.fence_workers(12)) == [worker]
    run(conn, sweep.take_back_blame(worker))
    assert [s.state for s in sweep_all(conn)] == ["pending"]
    assert marks_of(conn) == [(0, 0)]


@pytest.mark.parametrize("policy", ["skip", "block", "park"])
def test_a_job_that_only_silence_buried_comes_back_with_its_worker(
    kit: Kit, conn: Conn, worker: str, policy: str
) -> None:
    make_queue(conn, "keyed", ordering="key", on_dead_letter=policy)
    (job_id,) = enqueue(conn, queue="keyed", partition_key="a")
    conn.execute("UPDATE holdfast.work SET crashes = 3, suspect = 1")
    run(conn, claim_streams("keyed", worker, uuid4(), lease=60, keys=["a"], run=1, suspects=True))
    assert die(kit, conn) == {"blocked" if policy == "block" else "dead_letter"}
    assert run(conn, sweep.take_back_blame(worker)) == ([] if policy == "block" else [job_id])
    assert status(conn, job_id) == "pending"
    assert count(conn, "parked_keys") == 0
    (again,) = run(
        conn, claim_streams("keyed", register(conn), uuid4(), lease=60, keys=["a"], run=1, suspects=True)
    )
    assert (again.id, again.generation) == (job_id, 2)


async def test_a_sweep_of_hundreds_of_claims_takes_few_statements_and_tells_as_it_goes(
    akit: Kit, conn: Conn, worker: str
) -> None:
    make_queue(conn, "second")
    for queue in ("inbox", "second"):
        enqueue(conn, 150, queue=queue)
        for n in range(150):
            (job,) = take(conn, worker, 1, queue=queue)
            if n % 3:  # settled, and its claim row is still there
                end(conn, job.grant, Completed())
    assert count(conn, "claims") == 300
    told: list[int] = []
    sweeper = Sweeper(akit.database, lambda: told.append(processing(conn)))
    ran = recorded(sweeper)
    later(akit, 60, conn)
    assert await sweeper.sweep_once() == 100
    assert told == [50, 0], "each queue as soon as its jobs are free"
    assert count(conn, "claims") == 0
    assert ran == [
        "fence_workers",
        "revoke_expired",
        "revoked_claims",
        *["sweep_take", "wake"] * 2,
        "sweep_finish",
    ]
    await sweeper.finish()


def processing(conn: Conn) -> int:
    return int(one(conn, "SELECT count(*) FROM holdfast.work WHERE status = 'processing'"))


def recorded(sweeper: Sweeper) -> list[str]:
    """The names of the statements that it runs from here on."""
    names: list[str] = []
    session = sweeper._session
    run_one, run_flow = session.run, session.flow

    def noted(flow: Any) -> Any:
        answer = None
        while True:
            try:
                statement = flow.send(answer)
            except StopIteration as end:
                return end.value
            names.append(statement.name)
            answer = yield statement

    async def run_and_note(statement: Any) -> Any:
        names.append(statement.name)
        return await run_one(statement)

    async def flow_and_note(make: Any) -> Any:
        return await run_flow(lambda: noted(make()))

    session.run, session.flow = run_and_note, flow_and_note  # type: ignore[method-assign,assignment]
    return names
