"""Random walks over streams on a real server, beside a model that knows one thing: in which order the jobs of a key go.

The model keeps each stream as a list. Whatever the walk does (enqueue, claim, settle in every way, sweep, cancel, redrive),
a claim must answer exactly the gapless run of ready jobs at the front of the model's list, and the live rows of a key must
stand in the model's order. Time goes in whole units on the movable clock.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar
from uuid import UUID, uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from psycopg.rows import tuple_row
from tests.sql.support import register, run

from holdfast.model.job import Grant, NewRow
from holdfast.model.outcome import (
    Cancelled,
    Completed,
    DeadLettered,
    ErrorText,
    Failed,
    Outcome,
    Released,
    Settlement,
    Snoozed,
)
from holdfast.model.queue import OnDeadLetter, QueueRules
from holdfast.store import dead, jobs, queues, settle, streams, sweep
from holdfast.testing import TestServer

pytestmark = [pytest.mark.versions, pytest.mark.slow]

UNIT = 30.0
LEASE = 2  # units
KEYS = ("a", "b")
POLICIES: tuple[OnDeadLetter, ...] = ("skip", "block", "park")
BOOM = ErrorText("ValueError", "boom")
OUTCOMES: list[Outcome] = [
    Completed("1"),
    Cancelled("no"),
    Failed(BOOM, 0.0),
    Failed(BOOM, UNIT),
    Snoozed(UNIT),
    Released("stop"),
    DeadLettered(BOOM),
]
_TABLES = ["work", "claims", "archive", "dead_letters", "errors", "workers", "parked_keys"]
_RESET = "; ".join(f"DELETE FROM holdfast.{table}" for table in _TABLES)


@dataclass
class Row:
    """A live job."""

    id: UUID
    due: int  # unit
    token: UUID | None = None
    generation: int = 0
    attempts: int = 0
    blocked: bool = False


@dataclass
class Lane:
    """A stream, as the model has it."""

    rows: list[Row] = field(default_factory=list)
    parked: UUID | None = None
    dead: list[tuple[Row, int]] = field(default_factory=list)  # with how many live jobs stood before it


class Streams(RuleBasedStateMachine):
    url: ClassVar[str] = ""

    def __init__(self) -> None:
        super().__init__()
        self.conn = psycopg.connect(self.url, autocommit=True, row_factory=tuple_row)
        self.conn.execute(_RESET)
        self.now = 0
        self.lanes: dict[str, Lane] = {key: Lane() for key in KEYS}
        self.leases: dict[UUID, int] = {}  # token -> the unit in which it is over
        self.grants: list[tuple[str, Grant]] = []  # every grant there ever was, by key
        self.queue: OnDeadLetter = "skip"
        self.worker = ""

    def teardown(self) -> None:
        self.conn.close()

    @initialize(policy=st.sampled_from(POLICIES))
    def begin(self, policy: OnDeadLetter) -> None:
        self.queue = policy
        self.worker = register(self.conn)

    @rule(key=st.sampled_from(KEYS), delay=st.sampled_from([0, 0, 0, 1]), count=st.integers(1, 3))
    def enqueue(self, key: str, delay: int, count: int) -> None:
        row = NewRow("work", "{}", queue=self.queue, partition_key=key, delay=delay * UNIT, max_attempts=3)
        for answer in run(self.conn, jobs.enqueue([row] * count)):
            assert answer.id is not None
            self.lanes[key].rows.append(Row(answer.id, self.now + delay))

    @rule(most=st.integers(1, 4), keys=st.sampled_from([("a",), ("b",), ("a", "b")]))
    def claim(self, most: int, keys: tuple[str, ...]) -> None:
        token = uuid4()
        what = streams.claim_streams(self.queue, self.worker, token, lease=LEASE * UNIT, keys=keys, run=most)
        taken = {job.id: job for job in run(self.conn, what)}
        expected = [(key, row) for key in keys for row in self._run(self.lanes[key], most)]
        assert set(taken) == {row.id for _, row in expected}
        for key, row in expected:
            row.token, row.generation = token, row.generation + 1
            assert taken[row.id].grant == Grant(self.queue, row.id, row.generation, token)
            self.grants.append((key, taken[row.id].grant))
        if expected:
            self.leases[token] = self.now + LEASE

    def _run(self, lane: Lane, most: int) -> list[Row]:
        """What may be taken: from the front on, up to the first that is not ready."""
        found: list[Row] = []
        for row in lane.rows[:most] if lane.parked is None else []:
            if row.token is not None or row.due > self.now or row.blocked:
                break
            found.append(row)
        return found

    @precondition(lambda self: self.grants)
    @rule(data=st.data(), outcome=st.sampled_from(OUTCOMES))
    def settle(self, data: st.DataObject, outcome: Outcome) -> None:
        """Any grant there ever was: most are stale, and touch nothing."""
        key, grant = self.grants[-1 - data.draw(st.integers(0, min(5, len(self.grants) - 1)))]
        (answer,) = run(self.conn, settle.settle([Settlement(grant, outcome)], self.worker))
        lane = self.lanes[key]
        place = next((n for n, r in enumerate(lane.rows) if r.id == grant.id), None)
        row = lane.rows[place] if place is not None else None
        if row is None or place is None or (row.token, row.generation) != (grant.token, grant.generation):
            assert answer.already or answer.state == "lost"
            return
        assert not answer.already
        row.token = None
        match outcome:
            case Completed() | Cancelled():
                lane.rows.remove(row)
            case Failed(delay=delay) if row.attempts + 1 < 3:
                row.attempts, row.due = row.attempts + 1, self.now + round(delay / UNIT)
            case Failed() | DeadLettered():
                row.attempts += 1
                self._bury(lane, row, place, answer.state)
            case Snoozed():
                row.due = self.now + 1

    def _bury(self, lane: Lane, row: Row, place: int, state: str) -> None:
        if self.queue == "block":
            assert state == "blocked"
            row.blocked = True
            return
        lane.rows.remove(row)
        lane.dead.append((row, place))
        assert state == ("parked" if self.queue == "park" else "dead_letter")
        if self.queue == "park" and lane.parked is None:
            lane.parked = row.id

    @rule(units=st.integers(1, 3))
    def wait(self, units: int) -> None:
        """Time goes on, and a sweep gives back what is over."""
        self.now += units
        self.conn.execute(f"SET holdfast.clock_offset = '{self.now * UNIT} seconds'".encode())
        run(self.conn, sweep.revoke_expired(500))
        for claim in run(self.conn, sweep.revoked_claims(500)):
            run(self.conn, sweep.sweep_take(claim, claim.job_ids, 3))
            run(self.conn, sweep.sweep_finish(claim.tokens))
        over = {token for token, until in self.leases.items() if until <= self.now}  # a moment has passed
        for lane in self.lanes.values():
            for row in lane.rows:
                if row.token in over:
                    row.token = None

    @rule(key=st.sampled_from(KEYS), place=st.integers(0, 3))
    def cancel(self, key: str, place: int) -> None:
        rows = self.lanes[key].rows
        if place < len(rows) and rows[place].token is None:
            assert run(self.conn, jobs.cancel(rows[place].id, self.queue))
            rows.pop(place)

    @precondition(lambda self: any(lane.dead for lane in self.lanes.values()))
    @rule(data=st.data())
    def redrive(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from([k for k, lane in self.lanes.items() if lane.dead]))
        lane = self.lanes[key]
        row, _ = lane.dead.pop(data.draw(st.integers(0, len(lane.dead) - 1)))
        assert len(run(self.conn, dead.redrive([row.id], [0.0]))) == 1
        row.attempts, row.due = 0, self.now
        if lane.parked == row.id:  # nothing ran since: it was the first
            lane.parked = None
            lane.rows.insert(0, row)
        else:
            lane.rows.append(row)

    @invariant()
    def the_rows_stand_as_in_the_model(self) -> None:
        for key, lane in self.lanes.items():
            rows: list[Any] = self.conn.execute(
                "SELECT id, status FROM holdfast.work WHERE partition_key = %s ORDER BY seq", [key]
            ).fetchall()
            wanted = [
                (r.id, "processing" if r.token else "blocked" if r.blocked else "pending") for r in lane.rows
            ]
            assert rows == wanted


def test_streams_walk_in_order(holdfast_server: TestServer) -> None:
    name = holdfast_server.clone()
    Streams.url = holdfast_server.url(name)
    with psycopg.connect(Streams.url, autocommit=True) as conn:
        for policy in POLICIES:
            run(conn, queues.create_queue(policy, None, QueueRules("key", policy)))
    walks = 300 if os.environ.get("HOLDFAST_HYPOTHESIS") == "long" else 120
    limits = settings(
        max_examples=walks,
        stateful_step_count=40,
        deadline=None,
        database=None,
        phases=(Phase.generate,),  # shrinking takes longer than reading a walk
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    machine: Callable[[], Streams] = seed(5)(Streams)
    run_state_machine_as_test(machine, settings=limits)  # type: ignore[arg-type]
    holdfast_server.drop(name)
