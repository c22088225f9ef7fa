# ruff: noqa: E501
"""The SQL functions: from plain SQL, inside a trigger, and what becomes of runs whose job ends without their code."""

import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Literal

import psycopg
import pytest
from tests.workflows.support import QUEUE, TYPE, Runs, step, waits

from holdfast.shapes.workflows import ends, store
from holdfast.shapes.workflows.timeline import timeline


@pytest.fixture
def runs(dsn: str) -> Iterator[Runs]:
    made = Runs.on(dsn)
    yield made
    made.conn.close()


def begin(runs: Runs, key: str, **options: object) -> tuple[uuid.UUID, bool, str | None]:
    names = "".join(f", {name} => %s" for name in options)
    text = f"SELECT run_id, created, conflict FROM holdfast.workflow_start(%s, '{{}}', %s, 1, %s{names})"
    found = runs.conn.execute(text, [TYPE, key, QUEUE, *options.values()]).fetchone()
    assert found is not None
    return found["run_id"], found["created"], found["conflict"]


def end(runs: Runs, run: uuid.UUID, state: str = "completed") -> None:
    runs.conn.execute("DELETE FROM holdfast.work WHERE id = %s", [run])
    runs.one("SELECT holdfast.workflow_end(%s, %s, '{1}', '{NULL}')", [run], [state])


def test_what_a_second_start_of_an_id_gives(runs: Runs) -> None:
    first, created, _ = begin(runs, "a")
    assert created
    assert begin(runs, "a") == (first, False, None)
    assert begin(runs, "a", if_exists="refuse") == (first, False, "exists")
    assert begin(runs, "a", if_exists="restart_ended") == (first, False, None)
    end(runs, first)
    assert begin(runs, "a") == (first, False, None)
    second, created, _ = begin(runs, "a", if_exists="restart_ended")
    assert created
    assert second != first
    assert runs.of(first)["replaced_by"] == second
    assert runs.one("SELECT run_id FROM holdfast.workflow_result(%s, 'a')", TYPE) == second


def test_two_transactions_that_start_one_id_get_one_run(runs: Runs, dsn: str) -> None:
    with psycopg.connect(dsn) as other:
        text = "SELECT run_id FROM holdfast.workflow_start(%s, '{}', 'both', 1, %s)"
        (first,) = other.execute(text, [TYPE, QUEUE]).fetchone() or (None,)
        runs.conn.execute("SET lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            begin(runs, "both")
        other.commit()
    assert begin(runs, "both") == (first, False, None)
    assert runs.one("SELECT count(*) FROM holdfast.work WHERE task = %s", TYPE) == 1


def test_a_start_says_what_is_wrong_and_writes_nothing(runs: Runs) -> None:
    for options, said in (
        ({"if_exists": "perhaps"}, "if_exists must be same, restart_ended or refuse, not 'perhaps'"),
        ({"timeout": timedelta(0)}, "timeout must be more than 0"),
        ({"priority": 500}, "priority must be between"),
    ):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match=said):
            begin(runs, "wrong", **options)
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="no worker has said yet that it knows"):
        runs.conn.execute("SELECT holdfast.workflow_start('unheard_of')")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="queue 'nowhere' does not exist"):
        runs.conn.execute("SELECT holdfast.workflow_start('x', version => 1, queue => 'nowhere')")
    found = runs.one(
        "SELECT conflict FROM holdfast.workflow_start('x', version => 1, queue => 'nowhere', quiet => true)"
    )
    assert found == "queue"
    assert runs.one("SELECT count(*) FROM holdfast.workflow_runs") == 0


def test_the_newest_version_that_a_worker_has_is_started(runs: Runs) -> None:
    runs.run(ends.seen([(TYPE, 1, QUEUE, None), (TYPE, 3, QUEUE, '{"n": "int"}')]))
    run = runs.one("SELECT run_id FROM holdfast.workflow_start(%s)", TYPE)
    assert (runs.of(run)["version"], runs.of(run)["key"]) == (3, str(run))


def test_a_trigger_starts_signals_and_cancels(runs: Runs) -> None:
    runs.conn.execute("CREATE TABLE public.orders (id int PRIMARY KEY, state text)")
    runs.conn.execute(
        """CREATE FUNCTION public.on_order() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF TG_OP = 'INSERT' THEN
                PERFORM holdfast.workflow_start('checkout', jsonb_build_object('n', NEW.id), 'order:' || NEW.id, 1, 'workflows');
            ELSIF NEW.state = 'paid' THEN
                PERFORM holdfast.workflow_signal('checkout', 'order:' || NEW.id, 'paid', to_jsonb(NEW.state));
            ELSE
                PERFORM holdfast.workflow_cancel('checkout', 'order:' || NEW.id);
            END IF;
            RETURN NEW;
        END $$"""
    )
    runs.conn.execute(
        "CREATE TRIGGER t AFTER INSERT OR UPDATE ON public.orders FOR EACH ROW EXECUTE FUNCTION public.on_order()"
    )
    runs.conn.execute("INSERT INTO public.orders VALUES (1, 'new'), (2, 'new')")
    runs.conn.execute("UPDATE public.orders SET state = 'paid' WHERE id = 1")
    runs.conn.execute("UPDATE public.orders SET state = 'gone' WHERE id = 2")
    assert runs.one("SELECT count(*) FROM holdfast.workflow_runs") == 2
    assert runs.one("SELECT payload FROM holdfast.workflow_signals") == "paid"
    assert (
        runs.one("SELECT key FROM holdfast.workflow_runs WHERE cancel_requested_at IS NOT NULL") == "order:2"
    )
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="name of a signal"):
        runs.conn.execute("SELECT holdfast.workflow_signal('checkout', 'order:1', 'child:x')")


def test_pause_and_resume(runs: Runs) -> None:
    owner = runs.started()
    assert runs.run(store.act("pause", TYPE, runs.key(owner.id))) == "paused"
    assert runs.run(store.act("pause", TYPE, runs.key(owner.id))) == "already"
    assert runs.suspend(owner, waits()) == "suspended"  # though a cancel or a signal is there
    assert runs.signal(owner.id) == "sent"
    assert not runs.is_due(owner.id)
    found = runs.run(store.look(TYPE, runs.key(owner.id)))
    assert found.state == "paused"
    assert runs.run(store.act("resume", TYPE, runs.key(owner.id))) == "resumed"
    assert runs.is_due(owner.id)
    later = runs.start(delay=timedelta(hours=1))
    acts: tuple[Literal["pause", "resume"], ...] = ("pause", "resume")
    for act in acts:
        runs.run(store.act(act, TYPE, runs.key(later)))
        assert not runs.is_due(later)
    due = "SELECT available_at < holdfast.now() + interval '2 h' FROM holdfast.work WHERE id = %s"
    assert runs.one(due, later)


def test_terminate_ends_a_run_whatever_it_does(runs: Runs) -> None:
    owner = runs.started()
    runs.record(owner, step("a"))
    assert runs.run(store.act("terminate", TYPE, runs.key(owner.id), "by hand")) == "terminated"
    assert runs.work(owner.id) is None
    assert runs.of(owner.id)["state"] == "terminated"
    assert runs.record(owner, step("b")).missing == [0]
    assert runs.run(store.act("terminate", TYPE, runs.key(owner.id))) == "ended"


def test_a_run_whose_job_ended_without_its_code_ends_too(runs: Runs) -> None:
    dead, deleted, well = (runs.start() for _ in range(3))
    runs.conn.execute(
        "INSERT INTO holdfast.dead_letters (id, claim_token, seq, lease_generation, available_at, created_at, claimed_at, died_at, attempts,"
        " max_attempts, version, crashes, priority, queue, task, payload, last_error) SELECT id, claim_token, seq, 3, available_at, created_at,"
        " claimed_at, holdfast.now(), 0, 5, 1, 3, 0, queue, task, payload, 'ProcessDied: three times' FROM holdfast.work WHERE id = %s",
        [dead],
    )
    runs.conn.execute("DELETE FROM holdfast.work WHERE id = ANY (%s)", [[dead, deleted]])
    found = runs.run(ends.settle_lost(1000, 0.0))
    assert (found.ended, found.looked) == (2, 3)
    states = {run: runs.of(run)["state"] for run in (dead, deleted, well)}
    assert states == {dead: "failed", deleted: "terminated", well: "open"}
    assert "three times" in runs.of(dead)["error"]["message"]
    # Brought back, it is open again with what it had recorded.
    runs.conn.execute(
        "INSERT INTO holdfast.work (id, queue, task, payload, lease_generation) VALUES (%s, %s, %s, '{}', 3)",
        [dead, QUEUE, TYPE],
    )
    assert runs.run(store.reopen(dead))
    assert runs.of(dead)["state"] == "open"


def test_what_is_folded_and_opened_again_is_as_it_was(runs: Runs) -> None:
    owner = runs.started()
    runs.signal(owner.id, payload={"a": [1, None, "x"]})
    runs.record(
        owner,
        step("a", '{"n": 1.5}', input_hash=b"\x00\xff"),
        step("b", None, outcome="failed", error='{"kind": "E"}'),
    )
    runs.decide(owner, waits())
    before = runs.steps(owner.id)
    signals = "SELECT * FROM holdfast.workflow_signals WHERE run_id = %s"
    mail = runs.conn.execute(signals, [owner.id]).fetchall()
    recorded = runs.run(timeline(owner.id))
    runs.one("SELECT holdfast.workflow_end(%s, '{failed}', '{NULL}', '{NULL}')", [owner.id])
    assert runs.run(timeline(owner.id)) == recorded
    assert runs.steps(owner.id) == []
    assert runs.run(store.reopen(owner.id))
    assert runs.steps(owner.id) == before
    assert runs.conn.execute(signals, [owner.id]).fetchall() == mail


def test_the_next_era_keeps_what_was_not_taken(runs: Runs) -> None:
    owner = runs.started()
    runs.record(owner, step("a"))
    runs.signal(owner.id, payload=1)
    runs.signal(owner.id, payload=2)
    runs.decide(owner, waits())
    answer, at = runs.run(store.next_era(owner, 0, '{"n": 2}'))
    assert answer == "ours"
    assert runs.run(store.next_era(owner, 0, '{"n": 2}')) == ("ours", at)  # its answer was lost
    assert runs.steps(owner.id) == []
    found = runs.decide(owner, waits())
    assert found.stored is not None
    work = runs.work(owner.id)
    assert work is not None
    assert (work["payload"], runs.of(owner.id)["era"]) == ({"n": 2}, 1)
    assert runs.one("SELECT count(*) FROM holdfast.workflow_history WHERE run_id = %s", owner.id) == 1


def test_ended_runs_and_old_days_of_the_history_go(runs: Runs) -> None:
    old, kept, open_run = (runs.started(tags=tags) for tags in ([], ["forever"], []))
    for owner in (old, kept):
        end(runs, owner.id)
    assert runs.run(ends.prune(7, 1000)) == 0
    runs.conn.execute("SELECT set_config('holdfast.clock_offset', '20 days', false)")
    assert runs.run(ends.prune(7, 1000)) > 0
    left = {row["id"] for row in runs.conn.execute("SELECT id FROM holdfast.workflow_runs").fetchall()}
    assert left == {kept.id, open_run.id}
    assert runs.one("SELECT count(*) FROM holdfast.workflow_history") == 0
