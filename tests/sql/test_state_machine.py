"""Random walks over the store on a real server, beside a model in Python that says what each answer must be.

The model knows the rules (design, sections 5 and 6), not the SQL. After each step all tables are read and must be as the
model says; the invariants that need no model are checked on the rows themselves.

Time goes in whole units of 30 seconds on the movable clock, and every delay and lease is such a multiple: the real time that
a walk takes never decides anything.
"""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar, TypeVar, cast
from uuid import UUID, uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, seed, settings
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

from holdfast.db.executors import drive
from holdfast.model.job import ClaimedJob, Enqueued, Grant, NewRow
from holdfast.model.outcome import (
    Cancelled,
    Completed,
    DeadLettered,
    ErrorText,
    Failed,
    Held,
    Outcome,
    Released,
    Settled,
    Settlement,
    Snoozed,
)
from holdfast.model.worker import WorkerIdentity
from holdfast.store import claim, jobs, owner, renew, settle, sweep, workers
from holdfast.store.statement import Flow, Statement

pytestmark = [pytest.mark.versions, pytest.mark.slow]

T = TypeVar("T")

UNIT = 30.0
LEASE = 2  # units
DEAD_AFTER = 2
KEY_LIFETIME = 4
MAX_CRASHES = 1  # of a suspect: it is buried by its next death
NIL = UUID(int=0)
_NOWHERE = datetime.max.replace(tzinfo=UTC)
PRIORITIES = (5, 0, -1)
BOOM = ErrorText("ValueError", "boom")

_TABLES = (
    "work, claims, archive, dead_letters, errors, once, fences, progress, idempotency, workers, quarantine"
)
_RESET = "TRUNCATE " + ", ".join(f"holdfast.{t.strip()}" for t in _TABLES.split(","))
_READ = """
SELECT (SELECT coalesce(json_agg(json_build_array(w.id, w.status, w.lease_generation, w.claim_token, w.attempts, w.suspect,
                                                  w.crashes, w.cancel_requested_at IS NOT NULL)), '[]')
        FROM holdfast.work w),
       (SELECT coalesce(json_agg(json_build_array(a.id, a.status, a.lease_generation, a.claim_token, a.attempts)), '[]')
        FROM holdfast.archive a),
       (SELECT coalesce(json_agg(json_build_array(d.id, 'dead_letter', d.lease_generation, d.claim_token, d.attempts)), '[]')
        FROM holdfast.dead_letters d),
       (SELECT coalesce(json_agg(json_build_array(c.token, c.worker, c.revoked_at IS NOT NULL, c.job_ids)), '[]')
        FROM holdfast.claims c),
       (SELECT coalesce(json_agg(json_build_array(v.id, v.status)), '[]') FROM holdfast.workers v),
       (SELECT count(*) FROM holdfast.errors), (SELECT count(*) FROM holdfast.once)
"""

OUTCOMES: list[Outcome] = [
    Completed("1"),
    Cancelled("no"),
    Failed(BOOM, 0.0),
    Failed(BOOM, UNIT),
    Failed(BOOM, 2 * UNIT),
    Snoozed(UNIT),
    Released("stop"),
    Held("unknown"),
    DeadLettered(BOOM),
]


@dataclass
class ModelJob:
    id: UUID
    priority: int
    max_attempts: int
    due: int  # unit
    available_at: datetime  # the database's own value; the model only sorts by it
    seq: int
    status: str = "pending"
    generation: int = 0
    token: UUID = NIL
    attempts: int = 0
    suspect: int = 0
    crashes: int = 0
    cancel: bool = False

    @property
    def live(self) -> bool:
        return self.status in ("pending", "held", "processing")

    @property
    def place(self) -> tuple[datetime, int]:
        return self.available_at, self.seq


@dataclass
class ModelClaim:
    token: UUID
    worker: str
    expires: int
    job_ids: frozenset[UUID]
    revoked: bool = False
    counts: bool = False  # revoked after its worker fell silent
    ran_out: bool = False  # its lease was over when it was revoked


@dataclass
class ModelWorker:
    id: str
    seen: int
    status: str = "alive"
    left: bool = False  # said that it leaves, before it was gone
    fenced: bool = False  # fell silent, and has not turned up
    blamed: list[UUID] = field(default_factory=list)

    @property
    def answer(self) -> str:
        """What a heartbeat says to it."""
        return "draining" if self.status == "gone" and self.left else self.status


@dataclass
class Model:
    now: int = 0
    jobs: dict[UUID, ModelJob] = field(default_factory=dict)
    claims: dict[UUID, ModelClaim] = field(default_factory=dict)
    workers: dict[str, ModelWorker] = field(default_factory=dict)
    keys: dict[str, tuple[UUID, str, int]] = field(default_factory=dict)  # job, payload, until
    once: dict[tuple[UUID, str], str] = field(default_factory=dict)
    errors: int = 0

    def owns(self, grant: Grant) -> bool:
        job = self.jobs[grant.id]
        return (job.status, job.generation, job.token) == ("processing", grant.generation, grant.token)

    def carried(self, token: UUID) -> list[ModelJob]:
        return [j for j in self.jobs.values() if j.status == "processing" and j.token == token]

    def due(self, job: ModelJob) -> bool:
        return job.due <= self.now

    def may_revoke(self, c: ModelClaim) -> bool:
        return not c.revoked and (c.expires <= self.now or self.workers[c.worker].status == "gone")


def pick(items: Sequence[T], index: int) -> T:
    return items[index % len(items)]


small = st.integers(0, 11)


class StoreMachine(RuleBasedStateMachine):
    """One walk. The connection is given by the test; each walk starts with empty tables."""

    conn: ClassVar[psycopg.Connection[Any]]
    seen: ClassVar[Counter[str]]  # what happened over all walks

    def __init__(self) -> None:
        super().__init__()
        self.conn.execute(_RESET.encode())
        self.m = Model()
        self.grants: list[Grant] = []  # every grant ever given, in order
        self.fences: dict[UUID, str] = {}
        self.before: dict[str, tuple[int, int]] = {}
        self.may_fail: set[UUID] = set()  # jobs whose attempts the last rule may have raised
        self.may_claim: set[UUID] = set()
        self._set_clock()
        self.slots = [self._register() for _ in range(3)]

    def do(self, what: Statement[T] | Flow[T]) -> T:
        if isinstance(what, Statement):
            return drive(self.conn, what)
        with self.conn.transaction():
            return drive(self.conn, what)

    def _set_clock(self) -> None:
        self.conn.execute(
            "SELECT set_config('holdfast.clock_offset', %s, false)", [f"{self.m.now * UNIT} seconds"]
        )

    def _register(self) -> str:
        identity = WorkerIdentity.create()
        self.do(workers.register(identity, queues=["inbox"], tasks=["t"], concurrency=4, release="1"))
        self.m.workers[identity.id] = ModelWorker(identity.id, self.m.now)
        return identity.id

    def _placed(self, ids: Sequence[UUID]) -> None:
        """Take the place in the queue that the database gave these jobs; when they are due, the model knows itself."""
        rows = self.conn.execute(
            "SELECT id, available_at, seq FROM holdfast.work WHERE id = ANY(%s)", [list(ids)]
        ).fetchall()
        for job_id, available_at, seq in rows:
            self.m.jobs[job_id].available_at = available_at
            self.m.jobs[job_id].seq = seq

    @property
    def current(self) -> list[Grant]:
        return [g for g in self.grants if self.m.owns(g)]

    @property
    def stale(self) -> list[Grant]:
        return [g for g in self.grants if not self.m.owns(g)]

    # Producers

    @initialize(
        priorities=st.lists(st.sampled_from(PRIORITIES), min_size=3, max_size=6), limit=st.integers(1, 3)
    )
    def begin(self, priorities: list[int], limit: int) -> None:
        """Each walk begins with work, and with somebody who has some of it."""
        for priority in priorities:
            self.enqueue(priority, 0, 2, 1)
        self.claim(0, limit, 0, 1)

    @rule(
        priority=st.sampled_from(PRIORITIES),
        delay=st.sampled_from((0, 0, 1, 2)),
        attempts=st.integers(1, 3),
        count=st.integers(1, 3),
    )
    def enqueue(self, priority: int, delay: int, attempts: int, count: int) -> None:
        row = NewRow("t", "{}", priority=priority, delay=delay * UNIT, max_attempts=attempts)
        answers = self.do(jobs.enqueue([row] * count))
        assert [(a.created, a.conflict) for a in answers] == [(True, None)] * count
        for answer in answers:
            self._created(answer, row, delay)

    def _created(self, answer: Enqueued, row: NewRow, delay: int) -> None:
        assert answer.id is not None
        assert answer.id not in self.m.jobs
        found = ModelJob(answer.id, row.priority, row.max_attempts, self.m.now + delay, _NOWHERE, 0)
        self.m.jobs[answer.id] = found
        self._placed([answer.id])

    @rule(key=st.sampled_from(("k1", "k2")), payload=st.sampled_from(('{"a": 1}', '{"a": 2}')))
    def enqueue_with_key(self, key: str, payload: str) -> None:
        row = NewRow("t", payload, idempotency_key=key, idempotency_lifetime=KEY_LIFETIME * UNIT)
        (answer,) = self.do(jobs.enqueue([row]))
        known = self.m.keys.get(key)
        if known is not None and known[2] > self.m.now:
            conflict = None if known[1] == payload else "payload"
            assert answer == Enqueued(str(known[0]), False, conflict)
            self.seen["key " + (conflict or "repeated")] += 1
            return
        assert (answer.created, answer.conflict) == (True, None)
        self._created(answer, row, 0)
        assert answer.id is not None
        self.m.keys[key] = (answer.id, payload, self.m.now + KEY_LIFETIME)

    @precondition(lambda self: self.m.jobs)
    @rule(which=small)
    def cancel(self, which: int) -> None:
        job = pick(list(self.m.jobs.values()), which)
        assert self.do(jobs.cancel(job.id, "inbox")) == job.live
        if job.status == "processing":
            job.cancel = True
            self.seen["cancel asked"] += 1
        elif job.live:
            job.status = "cancelled"
            self.seen["cancel at once"] += 1

    # Workers

    @precondition(lambda self: self.m.jobs)
    @rule(slot=st.integers(0, 2), limit=st.integers(1, 4), how=st.integers(0, 3), which=small)
    def claim(self, slot: int, limit: int, how: int, which: int) -> None:
        """From the start, at one priority, or from marks at the place of some job."""
        self._come_back(slot, which)
        at = pick(list(self.m.jobs.values()), which)
        mark = claim.Mark(at.available_at, at.seq)
        marks: list[claim.PriorityMark] = [(p, mark if how == 3 else None) for p in PRIORITIES]
        if how == 2:
            marks = [(0, None)]
        expected: list[ModelJob] = []
        for priority, start in marks:
            ready = [
                j for j in self.m.jobs.values()
                if j.status == "pending" and not j.suspect and j.priority == priority and self.m.due(j)
                and (start is None or j.place >= start)
            ]  # fmt: skip
            expected += sorted(ready, key=lambda j: j.place)
        token = uuid4()
        what = claim.claim("inbox", self.slots[slot], token, lease=LEASE * UNIT, limit=limit, marks=marks)
        self._claimed(slot, token, expected[:limit], self.do(what))

    @rule(slot=st.integers(0, 2), limit=st.integers(1, 3))
    def claim_suspects(self, slot: int, limit: int) -> None:
        suspects = [j for j in self.m.jobs.values() if j.status == "pending" and j.suspect and self.m.due(j)]
        suspects.sort(key=lambda j: j.place)
        found = self.do(claim.find_suspects("inbox", limit))
        assert found == [j.id for j in suspects[:limit]]
        if found:
            self._come_back(slot, 1)
            self._claim_these(slot, found)
            self.seen["suspect claimed"] += 1

    @precondition(lambda self: self.m.jobs)
    @rule(slot=st.integers(0, 2), which=st.sets(small, min_size=1, max_size=3))
    def claim_these(self, slot: int, which: set[int]) -> None:
        """Named jobs, whatever they are: only those that wait or are held, and are due, may come back."""
        self._claim_these(slot, [pick(list(self.m.jobs), n) for n in which])

    def _claim_these(self, slot: int, ids: Sequence[UUID]) -> None:
        free = [self.m.jobs[i] for i in set(ids)]
        free = [j for j in free if j.status in ("pending", "held") and self.m.due(j)]
        token = uuid4()
        what = claim.claim_these("inbox", self.slots[slot], token, lease=LEASE * UNIT, job_ids=ids)
        self._claimed(slot, token, free, self.do(what))

    def _claimed(self, slot: int, token: UUID, expected: list[ModelJob], got: list[ClaimedJob]) -> None:
        worker = self.slots[slot]
        if self.m.workers[worker].status != "alive":
            expected = []
        expected = sorted(expected, key=lambda j: (-j.priority, *j.place))
        assert [j.id for j in got] == [j.id for j in expected]
        for row, job in zip(got, expected, strict=True):
            job.status, job.token = "processing", token
            job.generation += 1
            self.may_claim.add(job.id)
            assert (row.grant.generation, row.grant.token) == (job.generation, token)
            assert (row.attempts, row.crashes, row.suspect) == (job.attempts, job.crashes, job.suspect)
            assert row.cancel_requested == job.cancel
            assert row.fence > self.fences.get(job.id, "")
            self.fences[job.id] = row.fence
            self.grants.append(row.grant)
        if got:
            ids = frozenset(j.id for j in got)
            self.m.claims[token] = ModelClaim(token, worker, self.m.now + LEASE, ids)
            self.seen["claimed"] += 1

    @rule(slot=st.integers(0, 2))
    def heartbeat(self, slot: int) -> None:
        worker = self.m.workers[self.slots[slot]]
        assert self.do(renew.heartbeat(worker.id)) == worker.answer
        worker.seen = self.m.now

    @rule(slot=st.integers(0, 2), stale=small)
    def renew(self, slot: int, stale: int) -> None:
        """What the worker holds, and one grant that it should have forgotten."""
        worker = self.slots[slot]
        mine = [g for g in self.current if self.m.claims[g.token].worker == worker]
        lost = [pick(self.stale, stale)] if self.stale and stale % 2 else []
        assert self.do(renew.heartbeat(worker)) == self.m.workers[worker].answer
        self.m.workers[worker].seen = self.m.now
        got_lost, got_cancel = self.do(renew.renew(worker, mine + lost, LEASE * UNIT))
        assert got_lost == lost
        assert {g.id for g in got_cancel} == {g.id for g in mine if self.m.jobs[g.id].cancel}
        tokens = {g.token for g in mine + lost}
        for c in self.m.claims.values():
            if c.token in tokens and not c.revoked:
                c.expires = self.m.now + LEASE
        self._tidied(worker, tokens)

    @rule(slot=st.integers(0, 2))
    def tidy_claims(self, slot: int) -> None:
        """An owner that forgot what it holds: its claims that are in use stay."""
        self.do(renew.renew(self.slots[slot], [], LEASE * UNIT))
        self._tidied(self.slots[slot], set())

    def _tidied(self, worker: str, tokens: set[UUID]) -> None:
        for c in list(self.m.claims.values()):
            if c.worker == worker and c.token not in tokens and not c.revoked and not self.m.carried(c.token):
                del self.m.claims[c.token]
                self.seen["claim tidied"] += 1

    def _come_back(self, slot: int, how: int) -> None:
        """A process whose identity is gone, or drained, goes on under a new one; mostly it has before it claims."""
        if self.m.workers[self.slots[slot]].status != "alive" and how != 0:
            self.slots[slot] = self._register()

    @precondition(lambda self: len(self.m.claims) > 1)
    @rule(slot=st.integers(0, 2), leave=st.booleans())
    def drain(self, slot: int, leave: bool) -> None:
        worker = self.m.workers[self.slots[slot]]
        if leave:
            assert self.do(workers.leave(worker.id)) == (worker.status != "gone")
            worker.left = worker.left or worker.status != "gone"
            worker.status = "gone"
        else:
            assert self.do(workers.drain(worker.id)) == (worker.status == "alive")
            worker.status = "draining" if worker.status == "alive" else worker.status

    # Settling

    @precondition(lambda self: self.current)
    @rule(which=st.lists(st.tuples(small, st.sampled_from(OUTCOMES)), min_size=1, max_size=4), stale=small)
    def settle(self, which: list[tuple[int, Outcome]], stale: int) -> None:
        """Some of what is held, mixed with one that is not held any more."""
        batch = {g.id: (g, outcome) for n, outcome in which for g in [pick(self.current, n)]}
        if self.stale and stale % 3 == 0:
            g = pick(self.stale, stale)
            batch.setdefault(g.id, (g, which[0][1]))
        self._settle([Settlement(g, outcome) for g, outcome in batch.values()])

    @precondition(lambda self: self.stale)
    @rule(which=small, outcome=st.sampled_from(OUTCOMES))
    def settle_stale(self, which: int, outcome: Outcome) -> None:
        self._settle([Settlement(pick(self.stale, which), outcome)])

    def _settle(self, batch: list[Settlement]) -> None:
        answers = self.do(settle.settle(batch, "somebody"))
        for s, answer in zip(batch, answers, strict=True):
            grant = cast(Grant, s.grant)
            expected = self._ended(s) if self.m.owns(grant) else self._refused(grant)
            assert answer == expected, s
        self._placed([UUID(s.grant.id_text) for s in batch])

    def _refused(self, grant: Grant) -> Settled:
        """Not the owner: 'already' when the job still shows this very attempt as its last one, else lost."""
        job = self.m.jobs[grant.id]
        if (job.generation, job.token) == (grant.generation, grant.token):
            self.seen["already"] += 1
            return Settled(job.id, job.status, True)
        self.seen["lost"] += 1
        return Settled(job.id, "lost")

    def _ended(self, s: Settlement) -> Settled:
        job = self.m.jobs[UUID(s.grant.id_text)]
        match s.outcome:
            case Completed():
                job.status, job.attempts = "completed", job.attempts + 1
                self.may_fail.add(job.id)
            case Cancelled():
                job.status, job.attempts = "cancelled", job.attempts + 1
                self.may_fail.add(job.id)
            case Failed(delay=delay):
                self._failed(job, job.attempts + 1 >= job.max_attempts, delay)
            case DeadLettered():
                self._failed(job, True, 0.0)
            case Snoozed(delay):
                job.status, job.suspect, job.crashes = "pending", 0, 0
                job.due = job.due if job.cancel else self.m.now + int(delay / UNIT)
            case Held():
                job.status = (
                    "pending" if job.cancel else "held"
                )  # the next claim ends what is to be cancelled
            case _:
                job.status = "pending"
        self.seen[f"settled {job.status}"] += 1
        return Settled(job.id, job.status)

    def _failed(self, job: ModelJob, dies: bool, delay: float) -> None:
        job.attempts += 1
        self.may_fail.add(job.id)
        self.m.errors += 1
        if dies:
            job.status = "dead_letter"
        else:
            job.status, job.suspect, job.crashes = "pending", 0, 0
            job.due = self.m.now + (0 if job.cancel else int(delay / UNIT))

    @precondition(lambda self: self.grants)
    @rule(which=small, stale=st.booleans(), outcome=st.sampled_from(OUTCOMES))
    def settle_in_a_transaction(self, which: int, stale: bool, outcome: Outcome) -> None:
        grants = self.stale if stale else self.current
        if grants:
            grant = pick(grants, which)
            expected = self.m.owns(grant)
            assert self.do(settle.settle_in(Settlement(grant, outcome), "somebody")) == expected
            if expected:
                self._ended(Settlement(grant, outcome))
                self._placed([grant.id])

    @precondition(lambda self: self.grants)
    @rule(which=small, stale=st.booleans(), name=st.sampled_from(("a", "b")), value=st.integers(1, 9))
    def once(self, which: int, stale: bool, name: str, value: int) -> None:
        """The first record under a name wins; who does not own the job records nothing."""
        if grants := self.stale if stale else self.current:
            grant = pick(grants, which)
            got = self.do(owner.once_put(grant, name, str(value)))
            if self.m.owns(grant):
                assert got == (True, self.m.once.setdefault((grant.id, name), str(value)))
            else:
                assert got == (False, None)
                self.seen["once refused"] += 1

    @precondition(lambda self: self.grants)
    @rule(which=small, stale=st.booleans(), resource=st.sampled_from(("r", "s")))
    def guard(self, which: int, stale: bool, resource: str) -> None:
        if grants := self.stale if stale else self.current:
            grant = pick(grants, which)
            fence = self.fences[grant.id]  # the highest: a stale owner is refused by its grant alone
            assert self.do(owner.guard(grant, resource, fence)) == self.m.owns(grant)
            self.seen["guard " + ("held" if self.m.owns(grant) else "refused")] += 1

    # Time and recovery

    @rule(units=st.sampled_from((1, 1, 2, 3)))
    def advance(self, units: int) -> None:
        self.m.now += units
        self._set_clock()

    @rule(slot=st.integers(0, 2))
    def die(self, slot: int) -> None:
        """One worker falls silent for long enough; the others are heard of, and renew."""
        self.advance(DEAD_AFTER)
        for other in range(3):
            if other != slot:
                self.renew(other, 0)
        self.fence()

    @rule()
    def sweep(self) -> None:
        """All of it, as the sweeper does."""
        self.fence()
        self.revoke(500)
        self.take(False)
        for c in [c for c in self.m.claims.values() if c.revoked]:
            self._finish(c)

    @rule()
    def fence(self) -> None:
        silent = [
            w for w in self.m.workers.values() if w.status != "gone" and self.m.now - w.seen >= DEAD_AFTER
        ]
        fenced = self.do(sweep.fence_workers(DEAD_AFTER * UNIT))
        assert sorted(fenced) == sorted(w.id for w in silent)
        for worker in silent:
            worker.left = worker.status == "draining"
            worker.status, worker.fenced = "gone", True
            self.seen["fenced"] += 1

    @precondition(lambda self: any(j.status == "pending" for j in self.m.jobs.values()))
    @rule(which=small, crashes=st.integers(1, 3))
    def remember_deaths(self, which: int, crashes: int) -> None:
        """A job that was in deaths before; to wait for those would take every walk."""
        job = pick([j for j in self.m.jobs.values() if j.status == "pending"], which)
        job.crashes, job.suspect = crashes, int(crashes > 1)
        changed = "UPDATE holdfast.work SET crashes = %s, suspect = %s WHERE id = %s"
        self.conn.execute(changed, [job.crashes, job.suspect, job.id])

    @precondition(lambda self: any(w.fenced for w in self.m.workers.values()))
    @rule(which=small)
    def turn_up(self, which: int) -> None:
        """A worker that was only silent takes back what that counted, whoever has its jobs now."""
        worker = pick([w for w in self.m.workers.values() if w.fenced], which)
        jobs = [self.m.jobs[job_id] for job_id in worker.blamed]
        if any(job.status == "dead_letter" for job in jobs):
            return  # it would be redriven
        assert self.do(sweep.take_back_blame(worker.id)) == []
        worker.fenced, worker.blamed = False, []
        self.seen["turned up"] += 1
        for job in jobs:
            job.suspect = 0 if job.crashes <= 2 else job.suspect
            job.crashes = max(0, job.crashes - 1)
            self.seen["cleared"] += 1

    @rule(limit=st.sampled_from((1, 2, 500)))
    def revoke(self, limit: int) -> None:
        due = sorted((c for c in self.m.claims.values() if self.m.may_revoke(c)), key=lambda c: str(c.token))
        revoked = self.do(sweep.revoke_expired(limit))
        assert len(revoked) == len(set(revoked)) == min(limit, len(due))
        for token in revoked:
            c = self.m.claims[token]
            assert c in due
            c.revoked, c.counts = True, self.m.workers[c.worker].fenced
            c.ran_out = c.expires <= self.m.now
            self.seen["revoked"] += 1

    @precondition(lambda self: self.m.claims)
    @rule(which=small)
    def disown(self, which: int) -> None:
        c = pick(list(self.m.claims.values()), which)
        assert self.do(sweep.disown(c.worker, [c.token])) == ([] if c.revoked else [c.token])
        if not c.revoked:
            c.counts, c.ran_out = self.m.workers[c.worker].fenced, c.expires <= self.m.now
        c.revoked = True

    @rule(part=st.booleans())
    def take(self, part: bool) -> None:
        """Jobs of revoked claims, all or only the first of each."""
        found = self.do(sweep.revoked_claims(500))
        revoked = [c for c in self.m.claims.values() if c.revoked]
        assert sorted(token for r in found for token in r.tokens) == sorted(c.token for c in revoked)
        for r in found:
            mine = [self.m.claims[token] for token in r.tokens]
            assert {c.worker for c in mine} == {r.worker}
            assert set(r.job_ids) == {j.id for c in mine for j in self.m.carried(c.token)}
            ids = r.job_ids[:1] if part else r.job_ids
            expected = {
                Settled(j.id, self._taken(j, c)) for c in mine for j in self.m.carried(c.token) if j.id in ids
            }
            taken = self.do(sweep.sweep_take(r, ids, MAX_CRASHES))
            assert (len(taken), set(taken)) == (len(expected), expected)

    def _taken(self, job: ModelJob, claim: ModelClaim) -> str:
        self.seen["taken"] += 1
        worker = self.m.workers[claim.worker]
        counts = claim.counts and worker.fenced
        self.m.errors += counts or claim.ran_out  # its death, or that its lease ran out
        worker.blamed += [job.id] * counts
        if counts and job.suspect and job.crashes >= MAX_CRASHES:
            job.status = "dead_letter"
            self.seen["crasher"] += 1
            return job.status
        job.status, job.token = "pending", NIL
        if counts and job.crashes:
            job.suspect = 1
        job.crashes += counts
        return job.status

    @precondition(lambda self: self.m.claims)
    @rule(which=small)
    def finish(self, which: int) -> None:
        self._finish(pick(list(self.m.claims.values()), which))

    def _finish(self, c: ModelClaim) -> None:
        over = c.revoked and not self.m.carried(c.token)
        assert self.do(sweep.sweep_finish([c.token])) == ([c.token] if over else [])
        if over:
            del self.m.claims[c.token]
            self.seen["claim finished"] += 1
        elif c.revoked:
            self.seen["claim kept"] += 1

    # What must hold after each step

    @invariant()
    def the_tables_are_as_the_model_says(self) -> None:
        row = self.conn.execute(_READ).fetchone()
        assert row is not None
        work, archive, dead, claims, registry, errors, once = row
        self._conserved(work, archive, dead, claims)
        live = [j for j in self.m.jobs.values() if j.live]
        assert _rows(work) == _rows(
            (j.id, j.status, j.generation, j.token, j.attempts, j.suspect, j.crashes, j.cancel) for j in live
        )
        ended = [j for j in self.m.jobs.values() if not j.live]
        assert _rows(archive + dead) == _rows(
            (j.id, j.status, j.generation, j.token, j.attempts) for j in ended
        )
        assert _rows((*c[:3], sorted(c[3])) for c in claims) == _rows(
            (c.token, c.worker, c.revoked, sorted(map(str, c.job_ids))) for c in self.m.claims.values()
        )
        assert _rows(registry) == _rows((w.id, w.status) for w in self.m.workers.values())
        assert (errors, once) == (self.m.errors, len(self.m.once))

    def _conserved(self, work: list[Any], archive: list[Any], dead: list[Any], claims: list[Any]) -> None:
        """Without the model: each job in one place, generations and attempts by the rules, each claim leads to its jobs."""
        everything = work + archive + dead
        assert sorted(r[0] for r in everything) == sorted(map(str, self.m.jobs)), (
            "a job is lost, doubled or invented"
        )
        now = {r[0]: (r[2], r[4]) for r in everything}
        for job_id, (generation, attempts) in self.before.items():
            new_generation, new_attempts = now[job_id]
            assert new_generation - generation == (UUID(job_id) in self.may_claim), "generation"
            assert new_attempts - attempts in ((0, 1) if UUID(job_id) in self.may_fail else (0,)), "attempts"
        self.before = now
        self.may_fail.clear()
        self.may_claim.clear()
        tokens = {c[0]: c[3] for c in claims}
        for r in work:
            assert r[1] != "processing" or r[0] in tokens.get(r[3], ()), (
                "a processing job that no claim leads to"
            )

    def teardown(self) -> None:
        """Whatever the walk left: a sweep and a claim bring every job to its end, once."""
        self.m.now += 100
        self._set_clock()
        worker = self._register()
        self.do(sweep.fence_workers(DEAD_AFTER * UNIT))
        self.do(sweep.revoke_expired(500))
        for c in self.do(sweep.revoked_claims(500)):
            self.do(sweep.sweep_take(c, c.job_ids, 1_000_000))
            finished = self.do(sweep.sweep_finish(c.tokens))
            assert sorted(finished) == c.tokens
        left = [r[0] for r in self.conn.execute("SELECT id FROM holdfast.work").fetchall()]
        taken = self.do(claim.claim_these("inbox", worker, uuid4(), lease=UNIT, job_ids=left))
        self.do(settle.settle([Settlement(j.grant, Completed()) for j in taken], worker))
        self.do(renew.renew(worker, [], UNIT))
        row = self.conn.execute(_READ).fetchone()
        assert row is not None
        work, archive, dead, claims = row[:4]
        assert (work, claims) == ([], [])
        assert sorted(r[0] for r in archive + dead) == sorted(map(str, self.m.jobs))
        self.seen["walks"] += 1


def _rows(rows: Any) -> list[tuple[str, ...]]:
    return sorted(tuple(map(str, r)) for r in rows)


LONG = os.environ.get("HOLDFAST_HYPOTHESIS") == "long"


@pytest.mark.timeout(7200 if LONG else 900)
def test_the_store_keeps_its_books(dsn: str, record_property: Callable[[str, object], None]) -> None:
    """Random walks; HOLDFAST_HYPOTHESIS=long takes many more, each time others."""
    with psycopg.connect(dsn, autocommit=True, row_factory=tuple_row) as conn:
        conn.execute("SET plan_cache_mode = force_custom_plan")
        bound = type("BoundMachine", (StoreMachine,), {"conn": conn, "seen": Counter()})
        for number in range(1, 2 if LONG else 7):
            # the same walks every time, and more of them until every kind of event was met: those of 1 meet them all
            run_state_machine_as_test(
                bound if LONG else seed(number)(bound),
                settings=settings(
                    max_examples=2000 if LONG else 100,
                    stateful_step_count=80 if LONG else 40,
                    database=None,
                    deadline=None,
                    print_blob=True,
                    suppress_health_check=list(HealthCheck),
                ),
            )
            if all(bound.seen[what] for what in _NOT_VACUOUS):  # type: ignore[attr-defined]
                break
    seen: Counter[str] = bound.seen  # type: ignore[attr-defined]
    for what, times in sorted(seen.items()):
        record_property(what, times)
    print(dict(sorted(seen.items())))
    missing = [what for what in _NOT_VACUOUS if not seen[what]]
    assert not missing, f"no walk came to: {', '.join(missing)}"


_NOT_VACUOUS = (
    "claimed", "settled completed", "settled cancelled", "settled pending", "settled held", "settled dead_letter",
    "lost", "already", "taken", "revoked", "fenced", "claim finished", "claim kept", "claim tidied",
    "suspect claimed", "turned up",
    "cancel asked", "cancel at once", "once refused", "guard held", "guard refused", "key repeated", "key payload",
)  # fmt: skip
