"""Retry, cancel and discard: what each does to a job in each state, all or none, and never against its owner."""

import contextlib
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.conftest import wait_until
from tests.sql.rows import archive_many, bury, bury_many, count_looks, one_of_each
from tests.sql.support import (
    BOOM,
    Conn,
    end,
    enqueue,
    keyed,
    later,
    load,
    one,
    put,
    register,
    row_of,
    run,
    status,
    sweep_all,
    take,
    take_one,
)

from holdfast.cli.refusals import worded, words
from holdfast.db.database import Database
from holdfast.db.faults import BadRow, LockTimeout
from holdfast.errors import ConfigurationError
from holdfast.model.job import Grant
from holdfast.model.outcome import Cancelled, Completed, DeadLettered, ErrorText, Failed, Released
from holdfast.operate import bulk, preview
from holdfast.operate.bulk import Done
from holdfast.operate.dead import DISCARD_DEAD, redrive_verb
from holdfast.operate.job_acts import DISCARD, RETRY, Verb, cancel_verb
from holdfast.operate.operator import Operator
from holdfast.operate.procedure import Procedure, wait
from holdfast.runtime.sweep import Sweeper
from holdfast.store import acts as store
from holdfast.store import housekeeping, jobs, owner
from holdfast.store.acts import JobLocation
from holdfast.store.dead import DeadFilter
from holdfast.store.queue_load import CAP, Count
from holdfast.store.search import Found, JobFilter
from holdfast.testing import Kit

pytestmark = pytest.mark.versions


@pytest.fixture
def worker(conn: Conn) -> str:
    return register(conn)


def act(database: Database, verb: Verb, **filters: Any) -> Done:
    return Operator(database, "ann").act_on_all(
        verb, Operator(database, "ann").select(verb, JobFilter(**filters))
    )


def refused(database: Database, verb: Verb, *job_ids: UUID) -> str:
    with pytest.raises(ConfigurationError) as caught:
        Operator(database, "ann").act_on(verb, job_ids)
    return words(caught.value)


def audited(conn: Conn) -> list[tuple[str, dict[str, Any], int]]:
    rows = conn.execute("SELECT action, selection, count FROM holdfast.audit ORDER BY id").fetchall()
    return [(r[0], r[1], r[2]) for r in rows]


def everything(conn: Conn) -> Any:
    """All rows of all tables an act may touch, to compare."""
    tables = ("work", "archive", "dead_letters", "quarantine", "claims", "errors", "once", "progress",
              "fences", "idempotency", "audit")  # fmt: skip
    return [
        one(conn, f"SELECT (SELECT jsonb_agg(t ORDER BY t::text) FROM holdfast.{name} t)") for name in tables
    ]


def places(conn: Conn) -> dict[UUID, int]:
    """In how many places each job is."""
    rows = conn.execute(
        "SELECT id, count(*) FROM (SELECT id FROM holdfast.work UNION ALL SELECT id FROM holdfast.archive"
        " UNION ALL SELECT id FROM holdfast.dead_letters) j GROUP BY id"
    ).fetchall()
    return {r[0]: r[1] for r in rows}


# Retry ------------------------------------------------------------------------------------------------------------


def test_retry_of_each_state(conn: Conn, database: Database, worker: str) -> None:
    jobs_of = one_of_each(conn, worker)
    able = ("scheduled", "pending", "quarantined", "dead_letter", "cancelled")
    done = Operator(database, "ann").act_on(RETRY, [jobs_of[state] for state in able])
    assert done.results == {"due_now": 1, "unchanged": 1, "freed": 1, "redriven": 1, "revived": 1}
    assert done.count == 4
    assert {status(conn, jobs_of[state]) for state in able} == {"pending"}
    assert audited(conn) == [
        ("jobs retry", {"ids": sorted(str(jobs_of[state]) for state in able)}, 4),
    ]
    assert done.audit == one(conn, "SELECT id FROM holdfast.audit")
    assert "is running" in refused(database, RETRY, jobs_of["processing"])
    assert "is held: unknown. It runs by itself when that is over" in refused(
        database, RETRY, jobs_of["held"]
    )
    said = f"completed. To run a copy of it: holdfast jobs copy {jobs_of['completed']}"
    assert said in refused(database, RETRY, jobs_of["completed"])
    assert Operator(database, "ann").act_on(RETRY, [jobs_of["pending"]]) == Done(
        "jobs retry", 0, {"unchanged": 1}, {}, None
    )
    assert len(audited(conn)) == 1


def test_a_job_that_backs_off_is_due_now_and_keeps_its_attempts(
    conn: Conn, database: Database, worker: str
) -> None:
    (job_id,) = enqueue(conn)
    end(conn, take_one(conn, worker).grant, Failed(BOOM, 3600.0), worker)
    assert take(conn, worker) == []
    assert Operator(database, "ann").act_on(RETRY, [job_id]).results == {"due_now": 1}
    assert take_one(conn, worker).attempt == 2


def test_a_cancelled_job_comes_back_as_the_same_job(conn: Conn, database: Database, worker: str) -> None:
    (job_id,) = enqueue(conn, partition_key="k", tags=("t",), metadata='{"a": 1}', priority=0)
    before = row_of(conn, job_id)
    last = take_one(conn, worker)
    end(conn, last.grant, Cancelled("no"), worker)
    assert Operator(database, "ann").act_on(RETRY, [job_id]).results == {"revived": 1}
    after = row_of(conn, job_id)
    moved = {"available_at", "claimed_at", "claimed", "lease_generation", "last_error"}
    assert {k: v for k, v in after.items() if k not in moved} == {
        k: v for k, v in before.items() if k not in moved
    }
    assert (
        end(conn, last.grant, Completed(), worker) == "lost"
    )  # whoever cancelled it has no part in it any more
    again = take_one(conn, worker)
    assert again.grant.generation == last.grant.generation + 1
    assert again.fence > last.fence
    assert places(conn) == {job_id: 1}


def test_named_jobs_are_retried_all_or_none(conn: Conn, database: Database, worker: str) -> None:
    dead = bury(conn, worker)
    (running,) = enqueue(conn)
    take_one(conn, worker)
    before = everything(conn)
    stranger = uuid4()
    said = refused(database, RETRY, dead, running, stranger)
    assert said.startswith(f"nothing was retried: there is no job {stranger}")
    assert f"job {running} is running" in said
    conn.execute("UPDATE holdfast.dead_letters SET queue = 'lost'")
    assert "belongs to queue lost, which does not exist" in refused(database, RETRY, dead)
    conn.execute("UPDATE holdfast.dead_letters SET queue = 'inbox'")
    assert everything(conn) == before


def test_retry_by_filter_means_no_cancelled_jobs_unless_they_are_named(
    conn: Conn, database: Database, worker: str
) -> None:
    jobs_of = one_of_each(conn, worker)
    assert act(database, RETRY, task="work").results == {"due_now": 1, "freed": 1, "redriven": 1}
    assert status(conn, jobs_of["cancelled"]) == "cancelled"
    assert act(database, RETRY, states=("cancelled",)).results == {"revived": 1}
    for state in ("held", "processing", "completed", "pending"):
        with pytest.raises(ConfigurationError, match=f"jobs retry cannot change jobs that are {state} "):
            act(database, RETRY, states=(state,))
    with pytest.raises(ConfigurationError, match="say which jobs"):
        act(database, RETRY)


# Quarantine -------------------------------------------------------------------------------------------------------


def quarantine_running(conn: Conn, worker: str) -> UUID:
    """A job whose settle the database refused: it says that it runs, and is left alone."""
    (job_id,) = enqueue(conn)
    take_one(conn, worker)
    conn.execute("INSERT INTO holdfast.quarantine VALUES (%s, 'inbox', 'bad')", [job_id])
    return job_id


def lose_claim(conn: Conn) -> None:
    conn.execute("UPDATE holdfast.claims SET lease_expires_at = holdfast.now() - interval '1 hour'")
    sweep_all(conn)
    assert one(conn, "SELECT count(*) FROM holdfast.claims") == 0


def test_a_quarantined_job_that_nobody_owns_waits_again(conn: Conn, database: Database, worker: str) -> None:
    job_id = quarantine_running(conn, worker)
    lose_claim(conn)
    assert Operator(database, "ann").act_on(RETRY, [job_id]).results == {"freed": 1}
    assert status(conn, job_id) == "pending"
    assert take_one(conn, worker).grant.id == job_id


def test_a_quarantined_job_that_somebody_owns_is_running(conn: Conn, database: Database, worker: str) -> None:
    job_id = quarantine_running(conn, worker)
    before = everything(conn)
    assert "is running" in refused(database, RETRY, job_id)
    assert "is running: cancel it first" in refused(database, DISCARD, job_id)
    assert everything(conn) == before
    assert Operator(database, "ann").act_on(cancel_verb(), [job_id]).results == {"asked_to_stop": 1}


def test_a_claim_is_not_revoked_while_we_look_at_it(
    conn: Conn, connect: Callable[[], Conn], worker: str
) -> None:
    """Else a sweep could give the claim up between our look and our commit, and nobody would find the job again."""
    job_id = quarantine_running(conn, worker)
    conn.execute("UPDATE holdfast.claims SET lease_expires_at = holdfast.now() - interval '1 hour'")
    other = connect()
    with other.transaction():
        (locked,) = run(other, store.lock([JobLocation(job_id, "inbox", "work")]))
        assert locked.running
        sweep_all(conn)
        assert one(conn, "SELECT count(*) FROM holdfast.claims WHERE revoked_at IS NULL") == 1


@pytest.mark.parametrize("verb", [cancel_verb("x"), DISCARD], ids=["cancel", "discard"])
def test_a_quarantined_job_that_nobody_owns_can_be_ended(
    conn: Conn, database: Database, worker: str, verb: Verb
) -> None:
    job_id = quarantine_running(conn, worker)
    lose_claim(conn)
    assert Operator(database, "ann").act_on(verb, [job_id]).count == 1
    assert status(conn, job_id) == ("cancelled" if verb is not DISCARD else "missing")
    assert one(conn, "SELECT count(*) FROM holdfast.quarantine") == 0


def quarantined(conn: Conn) -> list[UUID]:
    return [r[0] for r in conn.execute("SELECT id FROM holdfast.quarantine").fetchall()]


def test_a_job_that_left_by_the_front_door_is_in_no_quarantine(
    conn: Conn, database: Database, worker: str
) -> None:
    """Cancelled by its producer, ended by its owner and revived or redriven: it is not left alone any more."""
    (waiting,) = enqueue(conn)
    conn.execute("INSERT INTO holdfast.quarantine VALUES (%s, 'inbox', 'bad')", [waiting])
    assert run(conn, jobs.cancel(waiting, "inbox"))
    assert quarantined(conn) == []
    for outcome, verb in ((Cancelled("x"), RETRY), (DeadLettered(BOOM), redrive_verb())):
        (job_id,) = enqueue(conn)
        grant = take_one(conn, worker).grant
        conn.execute("INSERT INTO holdfast.quarantine VALUES (%s, 'inbox', 'bad')", [job_id])
        end(conn, grant, outcome, worker)
        assert Operator(database, "ann").act_on(verb, [job_id]).count == 1
        assert (status(conn, job_id), quarantined(conn)) == ("pending", [])
        end(conn, take_one(conn, worker).grant, Completed(), worker)


def test_a_quarantine_that_outlived_its_job_is_not_counted_and_goes(
    conn: Conn, database: Database, worker: str
) -> None:
    kept = quarantine_running(conn, worker)
    ended = []
    for outcome in (Completed(), DeadLettered(BOOM)):
        (job_id,) = enqueue(conn)
        grant = take_one(conn, worker).grant
        conn.execute("INSERT INTO holdfast.quarantine VALUES (%s, 'inbox', 'bad')", [job_id])
        end(conn, grant, outcome, worker)
        ended.append(job_id)
    (inbox,) = Operator(database, "ann").list_queues()
    assert inbox.quarantined == Count(1)
    assert Operator(database, "ann").act_on(DISCARD, ended[:1]).count == 1
    assert set(quarantined(conn)) == {kept, ended[1]}
    assert run(conn, housekeeping.prune_quarantine(1000)) == 1
    assert run(conn, housekeeping.prune_quarantine(1000)) == 0
    assert quarantined(conn) == [kept]


async def test_any_worker_forgets_the_quarantine_of_jobs_that_are_gone(
    conn: Conn, akit: Kit, database: Database
) -> None:
    (live,) = enqueue(conn)
    for job_id in (live, uuid4()):
        conn.execute("INSERT INTO holdfast.quarantine VALUES (%s, 'inbox', 'bad')", [job_id])
    sweeper = Sweeper(database, lambda: None)
    await sweeper.tidier.tidy_once(7, 60.0)
    await sweeper.finish()
    assert quarantined(conn) == [live]


def test_a_job_that_no_claim_holds_is_not_running(conn: Conn, database: Database, worker: str) -> None:
    (job_id,) = enqueue(conn)
    take_one(conn, worker)
    conn.execute("DELETE FROM holdfast.claims")
    before = everything(conn)
    for verb in (RETRY, cancel_verb(), DISCARD):
        assert refused(database, verb, job_id).endswith(
            f": job {job_id} says that it runs, but no claim holds it."
            " Put it back to waiting: holdfast doctor --fix stranded"
        )
    done = act(database, cancel_verb(), states=("processing",))
    assert (done.count, sum(done.left.values())) == (0, 1)
    assert everything(conn) == before


# Cancel -----------------------------------------------------------------------------------------------------------


def test_cancel_ends_what_waits_and_asks_what_runs(conn: Conn, database: Database, worker: str) -> None:
    jobs_of = one_of_each(conn, worker)
    live = ("pending", "scheduled", "held", "quarantined", "processing")
    done = Operator(database, "ann").act_on(cancel_verb("not needed"), [jobs_of[state] for state in live])
    assert (done.results, done.count) == ({"cancelled": 4, "asked_to_stop": 1}, 5)
    for state in live[:-1]:
        assert status(conn, jobs_of[state]) == "cancelled"
    reasons = one(
        conn, "SELECT array_agg(last_error) FROM holdfast.archive WHERE id <> %s AND status = 'cancelled'",
        jobs_of["cancelled"],
    )  # fmt: skip
    assert reasons == ["not needed"] * 4
    assert row_of(conn, jobs_of["processing"])["cancel_requested_at"] is not None
    (entry,) = audited(conn)
    assert (entry[0], entry[1]["reason"], entry[2]) == ("jobs cancel", "not needed", 5)
    assert "is a dead letter: it does not run" in refused(database, cancel_verb(), jobs_of["dead_letter"])
    assert "is finished: it completed" in refused(database, cancel_verb(), jobs_of["completed"])
    assert "is finished: it was cancelled" in refused(database, cancel_verb(), jobs_of["cancelled"])


def test_a_second_cancel_is_not_counted_again(conn: Conn, database: Database, worker: str) -> None:
    (first, second) = enqueue(conn, 2)
    take(conn, worker, 2)
    assert Operator(database, "ann").act_on(cancel_verb(), [first]).results == {"asked_to_stop": 1}
    asked = row_of(conn, first)["cancel_requested_at"]
    again = Operator(database, "ann").act_on(cancel_verb(), [first])
    assert (again.results, again.count, again.audit) == ({"asked_before": 1}, 0, None)
    both = act(database, cancel_verb(), queue="inbox")
    assert (both.results, both.count) == ({"asked_to_stop": 1, "asked_before": 1}, 1)
    assert [count for _, _, count in audited(conn)] == [1, 1]
    assert row_of(conn, first)["cancel_requested_at"] == asked
    assert run(conn, jobs.cancel(second, "inbox"))  # its producer asks again: it is still a live job


@pytest.mark.parametrize("failures", [0, 2])
def test_the_reason_of_a_cancel_is_not_the_error_of_the_job(
    conn: Conn, database: Database, worker: str, failures: int
) -> None:
    (job_id,) = enqueue(conn)
    for n in range(failures):
        end(conn, take_one(conn, worker).grant, Failed(ErrorText("Oops", f"number {n}", ""), 0.0), worker)
    Operator(database, "ann").act_on(cancel_verb("not needed"), [job_id])
    assert Operator(database, "ann").act_on(RETRY, [job_id]).results == {"revived": 1}
    assert row_of(conn, job_id)["last_error"] == ("Oops: number 1" if failures else None)


def test_cancel_by_filter_is_about_live_jobs(conn: Conn, database: Database, worker: str) -> None:
    jobs_of = one_of_each(conn, worker)
    assert act(database, cancel_verb(), queue="inbox").results == {"cancelled": 4, "asked_to_stop": 1}
    assert status(conn, jobs_of["dead_letter"]) == "dead_letter"
    assert places(conn) == dict.fromkeys(jobs_of.values(), 1)


# Discard ----------------------------------------------------------------------------------------------------------


def test_discard_leaves_nothing_of_a_job_and_all_of_the_others(
    conn: Conn, database: Database, worker: str
) -> None:
    (mine, other) = (a.id for a in put(conn, keyed("mine"), keyed("other")))
    assert mine
    assert other
    for claimed in take(conn, worker, 2):
        run(conn, owner.progress([(claimed.grant, 0.5, "half")]))
        run(conn, owner.once_put(claimed.grant, "email", "1"))
        run(conn, owner.guard(claimed.grant, "ledger", claimed.fence))
        end(conn, claimed.grant, Failed(BOOM, 0.0), worker)
    assert Operator(database, "ann").act_on(DISCARD, [mine]).results == {"discarded": 1}
    assert status(conn, mine) == "missing"
    for table in ("errors", "once", "progress", "fences", "idempotency"):
        assert one(conn, f"SELECT array_agg(job_id) FROM holdfast.{table}") == [other], table
    (again, same) = put(conn, keyed("mine"), keyed("other"))
    assert again.created
    assert not same.created


def test_a_key_is_free_again_also_when_the_clock_was_moved(conn: Conn, kit: Kit, database: Database) -> None:
    later(kit, 30 * 86_400, conn)
    (first,) = put(conn, keyed("mine", life=604_800.0))
    assert first.id
    assert Operator(database, "ann").act_on(DISCARD, [first.id]).count == 1
    assert put(conn, keyed("mine"))[0].created


def test_discard_of_each_state(conn: Conn, database: Database, worker: str) -> None:
    jobs_of = one_of_each(conn, worker)
    running = jobs_of.pop("processing")
    assert f"nothing was discarded: job {running} is running: cancel it first" in refused(
        database, DISCARD, running, *jobs_of.values()
    )
    assert len(places(conn)) == 8
    assert Operator(database, "ann").act_on(DISCARD, jobs_of.values()).results == {"discarded": 7}
    assert places(conn) == {running: 1}
    assert one(conn, "SELECT count(*) FROM holdfast.quarantine") == 0


def test_discard_by_filter(conn: Conn, database: Database, worker: str) -> None:
    one_of_each(conn, worker)
    bury_many(conn, 5, task="other")
    assert act(database, DISCARD, states=("completed",)).count == 1
    selection = Operator(database, "ann").select_dead(DeadFilter(task="other"))
    assert Operator(database, "ann").act_on_all(DISCARD_DEAD, selection).results == {"discarded": 5}
    before = everything(conn)
    with pytest.raises(ConfigurationError) as caught:
        act(database, DISCARD, task="work")
    assert words(caught.value) == (
        "say which states: --state pending, scheduled, held, blocked, quarantined, completed, cancelled or dead_letter"
        " (discard deletes for good)"
    )
    with pytest.raises(ConfigurationError, match="say which states"):
        Operator(database, "ann").preview_all(DISCARD, JobFilter(queue="inbox"))
    assert everything(conn) == before
    rest = ("pending", "scheduled", "held", "quarantined", "cancelled", "dead_letter")
    assert act(database, DISCARD, states=rest, task="work").results == {"discarded": 6}
    assert [r[0] for r in conn.execute("SELECT status FROM holdfast.jobs")] == ["processing"]
    with pytest.raises(ConfigurationError, match="jobs discard cannot change jobs that are processing"):
        act(database, DISCARD, states=("processing",))


# Many -------------------------------------------------------------------------------------------------------------


def test_a_dry_run_counts_and_changes_nothing(conn: Conn, database: Database, worker: str) -> None:
    jobs_of = one_of_each(conn, worker)
    archive_many(conn, CAP + 1, size=1)
    before = everything(conn)
    found = Operator(database, "ann").preview_all(cancel_verb(), JobFilter(task="work"))
    assert (found.count, found.dry_run) == (Count(5), True)
    assert found.by_state == dict.fromkeys(("pending", "scheduled", "quarantined", "processing", "held"), 1)
    assert [line.id for line in found.sample] == sorted((line.id for line in found.sample), reverse=True)
    many = Operator(database, "ann").preview_all(DISCARD, JobFilter(states=("completed",), task="work"))
    assert (many.count, len(many.sample)) == (Count(CAP, capped=True), 10)
    assert (many.by_state, many.at_least) == ({"completed": CAP}, ["completed"])
    named = Operator(database, "ann").preview_of(RETRY, [jobs_of["scheduled"], jobs_of["dead_letter"]])
    assert (named.count, named.by_state) == (Count(2), {"dead_letter": 1, "scheduled": 1})
    with pytest.raises(ConfigurationError, match="is running"):
        Operator(database, "ann").preview_of(RETRY, [jobs_of["processing"]])
    assert everything(conn) == before


def test_a_dry_run_of_more_than_it_counts_names_every_state(
    conn: Conn, database: Database, worker: str
) -> None:
    """The newest ones may all be of one state: what is older must not be left out of the question."""
    one_of_each(conn, worker)
    load(conn, preview.EACH + 1, available_at="holdfast.now() + interval '1 day'")
    archive_many(conn, CAP + 1, size=1)
    states = ("held", "scheduled", "completed", "cancelled")
    found = Operator(database, "ann").preview_all(DISCARD, JobFilter(states=states, queue="inbox"))
    assert found.count == Count(CAP, capped=True)
    assert found.by_state == {"held": 1, "scheduled": preview.EACH, "completed": preview.EACH, "cancelled": 1}
    assert found.at_least == ["scheduled", "completed"]


def test_many_are_done_in_batches_with_one_audit_row(
    conn: Conn, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "BATCH", 100)
    load(conn, 250, task="CASE WHEN n % 5 = 0 THEN 'other' ELSE 'work' END")
    steps: list[int] = []
    verb = cancel_verb()
    selection = Operator(database, "ann").select(verb, JobFilter(task="work", older_than=60))
    done = Operator(database, "ann").act_on_all(verb, selection, steps.append)
    assert steps == [100, 200]
    assert (done.count, done.left) == (200, {})
    states = ["pending", "scheduled", "processing", "held", "blocked", "quarantined"]
    assert audited(conn) == [
        ("jobs cancel", {"states": states, "task": "work", "older_than": 60}, 200),
    ]
    assert one(conn, "SELECT count(*) FROM holdfast.work") == 50
    assert act(database, verb, task="work") == Done("jobs cancel", 0, {}, {}, None)
    assert len(audited(conn)) == 1


def test_an_interrupted_act_has_counted_what_it_did(
    conn: Conn, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "BATCH", 10)
    load(conn, 30)

    def interrupt(count: int) -> None:
        if count == 20:
            raise KeyboardInterrupt

    verb = cancel_verb()
    with pytest.raises(KeyboardInterrupt):
        Operator(database, "ann").act_on_all(
            verb, Operator(database, "ann").select(verb, JobFilter(task="work")), interrupt
        )
    assert one(conn, "SELECT count(*) FROM holdfast.archive") == 20
    assert [count for _, _, count in audited(conn)] == [20]


@pytest.mark.parametrize("many", [False, True], ids=["named", "many"])
def test_an_act_that_cannot_be_audited_does_not_happen(conn: Conn, database: Database, many: bool) -> None:
    ids = enqueue(conn, 3)
    conn.execute(
        "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;"
        "CREATE TRIGGER refuse BEFORE INSERT ON holdfast.audit FOR EACH ROW EXECUTE FUNCTION public.refuse()"
    )
    if many:
        done = act(database, DISCARD, states=("pending",), task="work")
        assert (done.count, sum(done.left.values())) == (0, 3)
    else:
        with pytest.raises(BadRow):
            Operator(database, "ann").act_on(DISCARD, ids)
    assert places(conn) == dict.fromkeys(ids, 1)


def test_a_row_that_cannot_be_changed_keeps_nobody_else(
    conn: Conn, database: Database, bad_rows: Callable[[str], None]
) -> None:
    load(conn, 40, task="CASE WHEN n IN (3, 17) THEN 'bad' ELSE 'work' END")
    bad_rows("bad")
    done = act(database, cancel_verb(), queue="inbox")
    assert done.count == 38
    ((reason, count),) = done.left.items()
    assert reason.text.startswith("refused by the database: this row is bad")
    assert count == 2
    assert [count for _, _, count in audited(conn)] == [38]


def test_what_is_created_after_an_act_began_is_not_touched(conn: Conn, database: Database) -> None:
    old = enqueue(conn, 3)
    verb = cancel_verb()
    selection = Operator(database, "ann").select(verb, JobFilter(task="work"))
    conn.execute("SELECT pg_sleep(0.003)")  # the ids are by the millisecond
    new = enqueue(conn, 3)
    assert Operator(database, "ann").act_on_all(verb, selection).count == 3
    assert [status(conn, i) for i in (*old, *new)] == ["cancelled"] * 3 + ["pending"] * 3


def test_a_job_that_moved_on_is_left(conn: Conn, database: Database, worker: str) -> None:
    """Between the search and the lock: claimed, settled, gone."""
    verb = cancel_verb()
    ids = enqueue(conn, 3)
    selection = Operator(database, "ann").select(verb, JobFilter(states=("pending",)))
    found, place = Operator(database, "ann").run(selection.next(None, 1000))
    assert {job.id for job in found} == set(ids)
    first, second = take(conn, worker, 2)
    end(conn, first.grant, Completed(), worker)

    def once(_: object, limit: int) -> Procedure[tuple[list[Found], UUID | None]]:
        yield from wait(0)
        return found, place

    stale = bulk.Selection(selection.states, once, selection.given)
    done = Operator(database, "ann").act_on_all(verb, stale)
    assert done.results == {"cancelled": 1}
    assert worded(done.left) == {"in use by somebody else, or changed meanwhile": 2}
    assert row_of(conn, second.grant.id)["cancel_requested_at"] is None
    assert status(conn, first.grant.id) == "completed"


# Beside others ----------------------------------------------------------------------------------------------------


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return count_looks(monkeypatch)


BETWEEN: dict[str, tuple[Callable[[Conn, UUID, Grant], object], str | dict[str, int]]] = {
    "nothing": (lambda conn, i, grant: None, {"asked_to_stop": 1}),
    "completed": (lambda conn, i, grant: end(conn, grant, Completed()), "is finished: it completed"),
    "died": (lambda conn, i, grant: end(conn, grant, DeadLettered(BOOM)), "is a dead letter"),
    "backs off": (lambda conn, i, grant: end(conn, grant, Failed(BOOM, 60.0)), {"cancelled": 1}),
    "released": (lambda conn, i, grant: end(conn, grant, Released("stop")), {"cancelled": 1}),
    "asked before": (lambda conn, i, grant: run(conn, jobs.cancel(i, "inbox")), {"asked_before": 1}),
}


@pytest.mark.parametrize("what", BETWEEN)
def test_an_act_on_a_named_job_waits_and_sees_how_it_ended(
    conn: Conn, connect: Callable[[], Conn], database: Database, worker: str, looks: list[int], what: str
) -> None:
    """A settle holds the row: a named cancel waits, one by filter passes it, and then one of them has won."""
    (job_id,) = enqueue(conn)
    grant = take_one(conn, worker).grant
    between, expected = BETWEEN[what]
    other = connect()
    with ThreadPoolExecutor(1) as pool:
        with other.transaction():
            other.execute("SELECT FROM holdfast.work WHERE id = %s FOR UPDATE", [job_id])
            between(other, job_id, grant)
            named = pool.submit(Operator(database, "ann").act_on, cancel_verb("x"), [job_id])
            wait_until(lambda: len(looks) >= 2, "the act has looked twice")
            assert not named.done()
            passed = act(database, cancel_verb(), task="work")
            assert (passed.count, worded(passed.left)) == (
                0,
                {"in use by somebody else, or changed meanwhile": 1},
            )
        if isinstance(expected, dict):
            assert named.result(100).results == expected
        else:
            with pytest.raises(ConfigurationError, match=expected):
                named.result(100)
    assert places(conn) == {job_id: 1}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (RETRY, RETRY, {"unchanged": 1}),
        (RETRY, DISCARD, {"discarded": 1}),
        (DISCARD, RETRY, "there is no job"),
        (DISCARD, DISCARD, "there is no job"),
        (RETRY, redrive_verb(), "is no dead letter: it is pending"),
    ],
    ids=["retry retry", "retry discard", "discard retry", "discard discard", "retry redrive"],
)
def test_of_two_operators_one_is_first(
    conn: Conn,
    connect: Callable[[], Conn],
    database: Database,
    worker: str,
    looks: list[int],
    first: Verb,
    second: Verb,
    expected: str | dict[str, int],
) -> None:
    job_id = bury(conn, worker)
    other = connect()
    with ThreadPoolExecutor(1) as pool:
        with other.transaction():
            locked = run(other, store.lock([JobLocation(job_id, "inbox", "dead_letters")]))
            run(other, first.apply(locked, 0))
            named = pool.submit(Operator(database, "ann").act_on, second, [job_id])
            wait_until(lambda: len(looks) >= 3, "the act has looked twice")
            assert not named.done()
        if isinstance(expected, dict):
            assert named.result(100).results == expected
        else:
            with pytest.raises(ConfigurationError, match=expected):
                named.result(100)
    assert set(places(conn).values()) <= {1}
    assert len(places(conn)) == (0 if DISCARD in (first, second) else 1)


def test_a_job_that_is_held_for_long_is_named(
    conn: Conn, connect: Callable[[], Conn], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job_id,) = enqueue(conn)
    monkeypatch.setattr(bulk, "WAIT", 0.0)
    other = connect()
    with other.transaction():
        other.execute("SELECT FROM holdfast.work WHERE id = %s FOR UPDATE", [job_id])
        with pytest.raises(LockTimeout, match=f"nothing was changed: another session holds {job_id}"):
            Operator(database, "ann").act_on(cancel_verb(), [job_id])
    assert status(conn, job_id) == "pending"


def test_a_claim_passes_what_an_act_holds(conn: Conn, connect: Callable[[], Conn], worker: str) -> None:
    first, second = enqueue(conn, 2)
    other = connect()
    with other.transaction():
        locked = run(other, store.lock([JobLocation(first, "inbox", "work")]))
        assert [job.grant.id for job in take(conn, worker)] == [second]
        assert run(other, store.cancel(locked, "")) == (1, 0)
    assert places(conn) == {first: 1, second: 1}
    assert status(conn, first) == "cancelled"


def work(session: Conn) -> int:
    """A worker that ends its jobs in every way."""
    chance = random.Random(session.info.backend_pid)
    outcomes = [Completed(), Cancelled("x"), DeadLettered(BOOM), Failed(BOOM, 3600.0)]
    me = register(session)
    for _ in range(40):
        for job in take(session, me, 5):
            end(session, job.grant, chance.choice(outcomes), me)
    return 0


def operate(database: Database, ids: Sequence[UUID], chance: random.Random) -> int:
    """An operator who does everything there is; how many jobs he deleted."""
    gone = 0
    for _ in range(15):
        match chance.randrange(6):
            case 0:
                act(database, RETRY, task="work")
            case 1:
                act(database, RETRY, states=("cancelled",))
            case 2:
                act(database, cancel_verb(), task="work", newer_than=3600.0)
            case 3:
                Operator(database, "ann").act_on_all(
                    redrive_verb(), Operator(database, "ann").select_dead(DeadFilter())
                )
            case 4:
                with contextlib.suppress(ConfigurationError, LockTimeout):
                    Operator(database, "ann").act_on(
                        chance.choice((RETRY, cancel_verb())), chance.sample(ids, 3)
                    )
            case _:
                gone += act(database, DISCARD, states=(chance.choice(("completed", "dead_letter")),)).count
    return gone


def test_whatever_happens_together_each_job_is_in_one_place(
    conn: Conn, connect: Callable[[], Conn], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers that claim and settle against operators that retry, cancel, redrive and discard."""
    monkeypatch.setattr(bulk, "BATCH", 7)
    monkeypatch.setattr(bulk, "WAIT", 0.2)
    ids = enqueue(conn, 300, max_attempts=2)
    with ThreadPoolExecutor(5) as pool:
        running = [pool.submit(work, connect()) for _ in range(2)]
        running += [pool.submit(operate, database, ids, random.Random(n)) for n in range(3)]
        discarded = sum(done.result(300) for done in running)
    found = places(conn)
    assert set(found.values()) <= {1}
    assert len(found) == 300 - discarded
    assert set(found) <= set(ids)
    counted = one(
        conn, "SELECT coalesce(sum(count), 0)::int FROM holdfast.audit WHERE action = 'jobs discard'"
    )
    assert counted == discarded
    assert one(conn, "SELECT count(*) FROM holdfast.stranded_jobs") == 0
