# ruff: noqa: E501
"""Signals, timeouts and cancels, row by row, for senders of both isolation levels; and races of a suspend against senders."""

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Literal
from uuid import UUID

import psycopg
import pytest
from tests.workflows.support import QUEUE, TYPE, Runs, step, waits

from holdfast.model.job import Grant
from holdfast.shapes.workflows import store
from holdfast.shapes.workflows.journal import NewChild, Record, Wait

LEVELS = (psycopg.IsolationLevel.READ_COMMITTED, psycopg.IsolationLevel.REPEATABLE_READ)
END = "SELECT holdfast.workflow_end(%s, '{completed}', '{42}', '{NULL}')"
SEND = "SELECT holdfast.workflow_signal(%s, %s, 'go', %s, %s)"

# The suspend that looks and locks in one statement: its snapshot is older than its locks. Kept to see that the race finds it.
NAIVE = """
CREATE OR REPLACE FUNCTION holdfast.workflow_suspend(of_queue text, runs uuid[], generations bigint[], tokens uuid[], names jsonb, untils timestamptz[],
                                                     cancellable boolean[])
    RETURNS TABLE (ordinal int, answer text) LANGUAGE sql VOLATILE AS $$
    WITH w AS MATERIALIZED (
        SELECT w.id FROM holdfast.work w WHERE w.queue = of_queue AND w.id = runs[1] AND w.lease_generation = generations[1] AND w.claim_token = tokens[1]
           AND w.status = 'processing' FOR NO KEY UPDATE
    ), r AS MATERIALIZED (SELECT r.id FROM holdfast.workflow_runs r, w WHERE r.id = w.id FOR UPDATE OF r
    ), none AS MATERIALIZED (
        SELECT id FROM r WHERE NOT EXISTS (SELECT FROM holdfast.workflow_signals s WHERE s.run_id = runs[1] AND s.taken_by IS NULL
                                             AND s.name IN (SELECT jsonb_array_elements_text(names->0)))
    ), u AS (UPDATE holdfast.workflow_runs SET waits = ARRAY(SELECT jsonb_array_elements_text(names->0)), asleep = generations[1] WHERE id IN (SELECT id FROM none)
    ), v AS (UPDATE holdfast.work SET status = 'pending', available_at = '9999-01-01Z' WHERE queue = of_queue AND id IN (SELECT id FROM none) RETURNING 1)
    SELECT 1, CASE WHEN EXISTS (SELECT FROM v) THEN 'suspended' ELSE 'go_on' END $$;
"""


@pytest.fixture
def runs(dsn: str) -> Iterator[Runs]:
    made = Runs.on(dsn)
    yield made
    made.conn.close()


@pytest.fixture(params=LEVELS, ids=("read_committed", "repeatable_read"))
def sender(request: pytest.FixtureRequest, dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection that is not in autocommit mode."""
    with psycopg.connect(dsn) as conn:
        conn.isolation_level = request.param
        yield conn


def send(conn: psycopg.Connection[Any], key: str, payload: object = 1, once: str | None = None) -> str:
    found = conn.execute(SEND, [TYPE, key, json.dumps(payload), once]).fetchone()
    assert found is not None
    return str(found[0])


def outcome(found: store.Decision) -> tuple[str, Any]:
    assert found.stored is not None
    record = found.stored.record
    return record.outcome, None if record.result is None else json.loads(record.result)["value"]


def receive(runs: Runs, owner: Grant, key: str = "go.received", *rows: Record) -> tuple[str, Any]:
    answer, found = runs.run(store.receive(owner, Wait(key, 0, "signal", "go"), rows))
    return answer, None if found is None else json.loads(found.record.result)


def test_all_signals_that_are_there_are_one_record_and_each_is_read_a_few_times(runs: Runs) -> None:
    owner = runs.started()
    many = "SELECT holdfast.workflow_signal(%s, %s, 'go', to_jsonb(n)) FROM generate_series(1, 3000) AS n"
    runs.conn.execute(many, [TYPE, runs.key(owner.id)])
    runs.signal(owner.id, "other")
    read = "SELECT idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'workflow_signals'"
    with runs.conn.transaction():
        assert receive(runs, owner, "go.received", step("beside")) == ("decided", list(range(1, 3001)))
        assert 3000 <= runs.one(read) <= 4 * 3000
    assert [row["key"] for row in runs.steps(owner.id)] == ["beside", "go.received"]
    # An answer that was lost: the same again, and nothing that came since.
    runs.signal(owner.id, payload="late")
    assert receive(runs, owner) == ("decided", list(range(1, 3001)))
    assert receive(runs, owner, "go.received#2") == ("decided", ["late"])
    assert receive(runs, owner, "go.received#3") == ("decided", [])
    runs.signal(owner.id)
    runs.take_over(owner)
    assert receive(runs, owner, "go.received#4") == ("lost", None)
    unread = "SELECT array_agg(name ORDER BY name) FROM holdfast.workflow_signals WHERE taken_by IS NULL"
    assert runs.one(unread) == ["go", "other"]


def test_what_another_owner_has_received_is_not_taken_again(runs: Runs) -> None:
    owner = runs.started()
    runs.signal(owner.id)
    assert receive(runs, owner) == ("decided", [1])
    runs.signal(owner.id)
    assert receive(runs, runs.take_over(owner)) == ("lost", None)


def test_large_signals_are_received_in_parts(runs: Runs) -> None:
    owner = runs.started()
    many = "SELECT holdfast.workflow_signal(%s, %s, 'go', to_jsonb(repeat('x', 262142))) FROM generate_series(1, 70)"
    runs.conn.execute(many, [TYPE, runs.key(owner.id)])
    parts = [receive(runs, owner, f"go.received#{n}")[1] for n in range(1, 4)]
    assert [len(part) for part in parts] == [64, 6, 0]


def test_the_table_of_signals(runs: Runs, sender: psycopg.Connection[Any]) -> None:
    owner = runs.started()
    key = runs.key(owner.id)
    # Sent before the wait: taken at once, oldest first, no suspend.
    assert [send(sender, key, n) for n in (1, 2)] == ["sent", "sent"]
    assert runs.decide(owner, waits()).answer == "wait"  # not committed
    sender.commit()
    assert runs.suspend(owner, waits()) == "go_on"
    assert outcome(runs.decide(owner, waits())) == ("done", 1)
    assert outcome(runs.decide(owner, waits(key="wait#2"))) == ("done", 2)
    # Sent twice under one key: one row. Without a key: two.
    assert [send(sender, key, n, "click") for n in (3, 4)] == ["sent", "duplicate"]
    sender.commit()
    assert send(sender, key, 5, "click") == "duplicate"
    sender.commit()
    assert outcome(runs.decide(owner, waits(key="wait#3"))) == ("done", 3)
    assert runs.decide(owner, waits(key="wait#4")).answer == "wait"
    # Rolled back: nothing happened.
    assert send(sender, key, 6) == "sent"
    sender.rollback()
    assert runs.suspend(owner, waits(key="wait#4")) == "suspended"
    assert not runs.is_due(owner.id)
    # It sleeps, and is due with the commit.
    assert send(sender, key, 7) == "sent"
    assert not runs.is_due(owner.id)
    sender.commit()
    assert runs.is_due(owner.id)
    newer = runs.claim(owner.id)
    assert outcome(runs.decide(newer, waits(key="wait#4"))) == ("done", 7)
    assert runs.decide(owner, waits(key="wait#5")).answer == "lost"


def test_a_signal_that_is_under_way_keeps_the_run_from_going_to_sleep(
    runs: Runs, sender: psycopg.Connection[Any]
) -> None:
    """`busy`: it asks again in a moment, and finds what was committed, or that nothing was."""
    owner = runs.started()
    key = runs.key(owner.id)
    for end, then in ((sender.rollback, "suspended"), (sender.commit, "go_on")):
        assert send(sender, key) == "sent"
        assert runs.suspend(owner, waits()) == "busy"
        assert runs.record(owner, step(f"beside {then}")).missing == [], "records do not wait for senders"
        end()
        if then == "suspended":
            assert runs.suspend(owner, waits()) == then
            assert send(sender, key) == "sent"
            sender.commit()
            owner = runs.claim(owner.id)
            assert outcome(runs.decide(owner, waits())) == ("done", 1)
        else:
            assert runs.suspend(owner, waits()) == then


def test_a_cancel_that_comes_after_the_function_returned_changes_nothing(
    runs: Runs, sender: psycopg.Connection[Any]
) -> None:
    """Its end is on its way: completed stands, before and after the sender's commit."""
    owner = runs.started()
    cancel = "SELECT holdfast.workflow_cancel(%s, %s, 'enough')"
    found = sender.execute(cancel, [TYPE, runs.key(owner.id)]).fetchone()
    assert found == ("requested",)
    sender.commit()
    runs.one("SELECT holdfast.workflow_end(%s, '{completed}', '{1}', '{NULL}')", [owner.id])
    assert runs.of(owner.id)["state"] == "completed"
    assert sender.execute(cancel, [TYPE, runs.key(owner.id)]).fetchone() == ("ended",)


def test_a_signal_that_nobody_waits_for_wakes_nobody(runs: Runs, sender: psycopg.Connection[Any]) -> None:
    owner = runs.started()
    assert runs.suspend(owner, waits("other")) == "suspended"
    assert send(sender, runs.key(owner.id)) == "sent"
    sender.commit()
    assert not runs.is_due(owner.id)


def test_a_signal_does_not_shorten_the_pause_of_a_run_that_failed(runs: Runs) -> None:
    owner = runs.started()
    assert runs.suspend(owner, waits()) == "suspended"
    runs.signal(owner.id)
    newer = runs.claim(owner.id)
    pause = "UPDATE holdfast.work SET status = 'pending', available_at = holdfast.now() + interval '1 h' WHERE id = %s"
    runs.conn.execute(pause, [newer.id])
    assert runs.signal(owner.id) == "sent"
    assert not runs.is_due(owner.id)


def test_deadline_and_signal_together(runs: Runs, sender: psycopg.Connection[Any]) -> None:
    owner = runs.started()
    key = runs.key(owner.id)
    over = runs.one("SELECT holdfast.now()") - timedelta(seconds=1)
    send(sender, key, 1)
    sender.commit()
    # A signal that is there wins, also after the deadline.
    assert outcome(runs.decide(owner, waits(until=over))) == ("done", 1)
    assert outcome(runs.decide(owner, waits(key="wait#2", until=over))) == ("timed_out", None)
    # After `timed_out` was recorded it stays unread, and the next wait takes it.
    send(sender, key, 2)
    sender.commit()
    assert outcome(runs.decide(owner, waits(key="wait#2", until=over))) == ("timed_out", None)
    assert outcome(runs.decide(owner, waits(key="wait#3"))) == ("done", 2)


def test_a_run_that_ends_while_a_sender_is_under_way(runs: Runs, sender: psycopg.Connection[Any]) -> None:
    owner = runs.started()
    key = runs.key(owner.id)
    assert send(sender, key) == "sent"
    runs.one(
        "SELECT holdfast.workflow_end(%s, '{completed}', '{1}', '{NULL}')", [owner.id]
    )  # waits for nobody
    sender.commit()
    assert send(sender, key) == "ended"
    sender.rollback()
    unread = runs.one(
        "SELECT count(*) FROM holdfast.workflow_signals WHERE run_id = %s AND taken_by IS NULL", owner.id
    )
    assert unread == 1
    assert send(sender, "nobody") == "unknown"


def test_cancel(runs: Runs, sender: psycopg.Connection[Any]) -> None:
    def cancel(key: str) -> str:
        found = sender.execute("SELECT holdfast.workflow_cancel(%s, %s, 'enough')", [TYPE, key]).fetchone()
        sender.commit()
        assert found is not None
        return str(found[0])

    # While it runs: its next wait is decided by it, once.
    owner = runs.started()
    assert cancel(runs.key(owner.id)) == "requested"
    assert cancel(runs.key(owner.id)) == "already"
    assert runs.suspend(owner, waits()) == "go_on"
    assert outcome(runs.decide(owner, waits())) == ("cancelled", None)
    # In a compensation it says nothing.
    assert runs.decide(owner, waits(key="undo", cancellable=False)).answer == "wait"
    assert runs.suspend(owner, waits(key="undo", cancellable=False)) == "suspended"
    # While it sleeps, and before it was ever claimed: due at once.
    asleep = runs.started()
    assert runs.suspend(asleep, waits()) == "suspended"
    assert cancel(runs.key(asleep.id)) == "requested"
    assert runs.is_due(asleep.id)
    later = runs.start(delay=timedelta(hours=1))
    assert not runs.is_due(later)
    assert cancel(runs.key(later)) == "requested"
    assert runs.is_due(later)
    work = runs.work(later)
    assert work is not None
    assert work["metadata"]["workflow"]["cancel"] is True
    # Terminate: no code of it runs, also not of one that compensates.
    terminate = "SELECT holdfast.workflow_terminate(%s, %s)"
    for answer in ("terminated", "ended"):
        with sender.transaction():
            assert sender.execute(terminate, [TYPE, runs.key(owner.id)]).fetchone() == (answer,)
    assert runs.work(owner.id) is None
    assert runs.of(owner.id)["state"] == "terminated"
    # One that has ended, and one that never was.
    runs.one("SELECT holdfast.workflow_end(%s, '{completed}', '{1}', '{NULL}')", [later])
    assert cancel(runs.key(later)) == "ended"
    assert cancel("nobody") == "unknown"


def test_a_timeout_of_the_whole_run_cancels_it(runs: Runs) -> None:
    owner = runs.started(timeout=timedelta(hours=1))
    assert runs.suspend(owner, waits()) == "suspended"
    runs.conn.execute("SELECT set_config('holdfast.clock_offset', '3601 s', false)")
    assert runs.is_due(owner.id)
    assert outcome(runs.decide(runs.claim(owner.id), waits())) == ("cancelled", None)


def test_a_child_that_ends_while_its_parent_suspends(runs: Runs, sender: psycopg.Connection[Any]) -> None:
    parent = runs.started()
    made = runs.run(
        store.child(parent, NewChild(TYPE, "kid", 1, "{}", QUEUE), step("ship", None, kind="child"))
    )
    with runs.conn.transaction():
        assert (
            runs.one(
                "SELECT answer FROM holdfast.workflow_suspend(%s, %s, %s, %s, '[[\"child:ship\"]]', '{NULL}', '{true}')",
                QUEUE,
                [parent.id],
                [parent.generation],
                [parent.token],
            )
            == "suspended"
        )
        with pytest.raises(psycopg.errors.LockNotAvailable), sender.transaction():
            sender.execute(END, [[made.child]])
    with sender.transaction():
        sender.execute(END, [[made.child]])
    assert runs.is_due(parent.id)
    newer = runs.claim(parent.id)
    found = runs.decide(newer, Wait("ship/result", 1, "child", "child:ship"))
    assert found.stored is not None
    assert (found.stored.record.outcome, found.stored.record.result) == ("done", "42")


def test_the_end_of_a_parent_cancels_its_children_but_for_those_left_alone(runs: Runs) -> None:
    parent = runs.started()
    kids = []
    kinds: tuple[Literal["cancel", "abandon"], ...] = ("cancel", "abandon")
    for name in kinds:
        new = NewChild(TYPE, name, 1, "{}", QUEUE, on_cancel=name)
        kids.append(runs.run(store.child(parent, new, step(name, None, kind="child"))).child)
    runs.one("SELECT holdfast.workflow_end(%s, '{completed}', '{1}', '{NULL}')", [parent.id])
    assert [runs.of(kid)["cancel_requested_at"] is not None for kid in kids] == [True, False]


class Race:
    """A run suspends while somebody sends to it; each waits, or commits late, by chance."""

    def __init__(self, dsn: str, rounds: int, level: psycopg.IsolationLevel = LEVELS[0]) -> None:
        self.runs = Runs.on(dsn)
        self.conn = psycopg.connect(dsn)
        self.conn.isolation_level = level
        self.again = 0  # times that a sender was told to send again
        self.rounds = rounds
        self.gate = threading.Barrier(2)
        self.run: UUID | None = None
        self.found: Counter[str] = Counter()
        self.dice = random.Random(rounds)

    def _sender(self) -> None:
        dice = random.Random(7)
        for _ in range(self.rounds):
            self.gate.wait(60)
            time.sleep(dice.choice((0.0, dice.random() * 0.003)))
            while not self._sent(dice):
                self.again += 1
            self.gate.wait(60)

    def _sent(self, dice: random.Random) -> bool:
        """At REPEATABLE READ it may be told that the run has changed: nothing was sent then, and it knows."""
        try:
            with self.conn.transaction():
                self.conn.execute("SELECT 1")  # its snapshot
                time.sleep(dice.choice((0.0, dice.random() * 0.003)))
                self.conn.execute("SELECT holdfast.workflow_send(%s, 'go', '1', NULL)", [self.run])
                time.sleep(dice.choice((0.0, dice.random() * 0.003)))
        except psycopg.errors.SerializationFailure:
            return False
        return True

    def race(self) -> Counter[str]:
        sender = threading.Thread(target=self._sender)
        sender.start()
        try:
            for _ in range(self.rounds):
                self._round()
        finally:
            sender.join(60)
            self.conn.close()
            self.runs.conn.close()
        return self.found

    def _round(self) -> None:
        runs = self.runs
        owner: Grant = runs.started()
        self.run = owner.id
        self.gate.wait(60)
        time.sleep(self.dice.choice((0.0, self.dice.random() * 0.003)))
        answer = runs.suspend(owner, waits())
        self.gate.wait(60)
        lost = answer == "suspended" and not runs.is_due(owner.id)
        self.found["lost" if lost else answer] += 1


@pytest.mark.parametrize("level", LEVELS, ids=("read_committed", "repeatable_read"))
def test_no_signal_is_lost_in_a_race_with_a_suspend(dsn: str, level: psycopg.IsolationLevel) -> None:
    found = Race(dsn, 200, level).race()
    assert found["lost"] == 0
    assert found["suspended"] > 0
    assert found["go_on"] + found["busy"] > 0


def test_the_race_finds_a_suspend_that_looks_before_it_locks(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(NAIVE)
    assert any(Race(dsn, 100).race()["lost"] for _ in range(10))


@pytest.mark.long
@pytest.mark.parametrize("level", LEVELS, ids=("read_committed", "repeatable_read"))
def test_no_signal_is_lost_in_ten_thousand_races(dsn: str, level: psycopg.IsolationLevel) -> None:
    race = Race(dsn, 10_000, level)
    assert race.race()["lost"] == 0
    assert (race.again > 0) is (level == LEVELS[1])
