"""Every order of the statements of two actors on one stream, with claims cut between what they see and what they lock.

The checker reads the history of the rows. It knows nothing of the statements, only what a stream is: a job is taken when
every earlier one of its key is finished, or taken by the very same claim; nothing is put before a job that runs; a
parked key gives nothing; sequence is commit order; no job is lost.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.sql.interleave import (
    BEGIN,
    COMMIT,
    ROLLBACK,
    Change,
    Final,
    Harness,
    Mutant,
    Operation,
    Schedule,
    Script,
    State,
    harness,
    new_id,
    transaction,
    worker_row,
)
from tests.sql.support import run

from holdfast.model.job import Grant, NewRow
from holdfast.model.outcome import Completed, DeadLettered, ErrorText, Failed, Outcome, Released, Settlement
from holdfast.model.queue import OnDeadLetter, QueueRules
from holdfast.store import acts, dead, jobs, pause, queues, settle, streams, sweep
from holdfast.store.statement import Flow, Statement, nothing
from holdfast.testing import TestServer

pytestmark = [pytest.mark.versions, pytest.mark.slow]

POLICIES: tuple[OnDeadLetter, ...] = ("skip", "block", "park")
JOBS = tuple(sorted(new_id() for _ in range(3)))
ONE, TWO, THREE = JOBS
RUN = uuid4()  # the token under which W1 owns the first two
LEASE = 3600.0
BOOM = ErrorText("ValueError", "no")

_LOG_PARKED = """
CREATE FUNCTION harness.log_parked() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO harness.log (actor, statement, kind, op, id, new)
    VALUES (current_setting('application_name'), harness.statement(), 'parked', TG_OP, coalesce(NEW.job_id, OLD.job_id),
            jsonb_build_object('key', coalesce(NEW.partition_key, OLD.partition_key)));
    RETURN NULL;
END $$;
CREATE TRIGGER harness_parked AFTER INSERT OR DELETE ON holdfast.parked_keys
    FOR EACH ROW EXECUTE FUNCTION harness.log_parked();
"""

# Start states -------------------------------------------------------------------------------------------------------

_CLEAN = "DELETE FROM holdfast.parked_keys; DELETE FROM holdfast.paused_tasks; DELETE FROM harness.log;\n"
_WORKERS = worker_row("W1") + worker_row("W2")


def _rows(queue: str, jobs: Sequence[UUID], owned: int = 0) -> str:
    text = ""
    for place, job in enumerate(jobs):
        mine = place < owned
        text += (
            "INSERT INTO holdfast.work (id, queue, task, payload, partition_key, status, lease_generation, claim_token, seq,"
            f" available_at) VALUES ('{job}', '{queue}', 't{JOBS.index(job) + 1}', '{{}}', 'a',"
            f" '{'processing' if mine else 'pending'}', {int(mine)}, '{RUN if mine else UUID(int=0)}',"
            f" -{10 - JOBS.index(job)}, holdfast.now() - interval '1 minute');\n"
        )
    return text


def _claim(queue: str, jobs: Sequence[UUID], *, expired: bool = False) -> str:
    ids = ", ".join(f"'{j}'" for j in jobs)
    return (
        "INSERT INTO holdfast.claims (token, queue, worker, claimed_at, lease_expires_at, job_ids) VALUES"
        f" ('{RUN}', '{queue}', 'W1', holdfast.now(), holdfast.now() {'-' if expired else '+'} interval '1 hour',"
        f" ARRAY[{ids}]::uuid[]);\n"
    )


def _buried(queue: str, job: UUID, *, parked: bool) -> str:
    text = (
        "INSERT INTO holdfast.dead_letters (id, claim_token, seq, lease_generation, available_at, created_at, claimed_at,"
        " died_at, attempts, max_attempts, version, crashes, priority, queue, task, partition_key, payload, claimed_by,"
        " last_error)"
        f" VALUES ('{job}', '{RUN}', -{10 - JOBS.index(job)}, 1, now(), now(), now(), now(), 5, 5, 1, 0, 0, '{queue}', 't1',"
        " 'a', '{}', 'W1', 'no');\n"
    )
    if parked:
        text += f"INSERT INTO holdfast.parked_keys VALUES ('{queue}', 'a', '{job}', now());\n"
    return text


def _state(name: str, *parts: str, jobs: Sequence[UUID] = JOBS) -> State:
    return State(name, _CLEAN + _WORKERS + "".join(parts), tuple(jobs))


WAITING = _state("three jobs wait", _rows("skip", JOBS))
OWNED = {p: _state(f"W1 owns the first two ({p})", _rows(p, JOBS, 2), _claim(p, JOBS[:2])) for p in POLICIES}
EXPIRED = _state("the lease of W1 is over", _rows("skip", JOBS, 2), _claim("skip", JOBS[:2], expired=True))
PARKED = _state("the key is parked", _rows("park", JOBS[1:]), _buried("park", ONE, parked=True))
SKIPPED = _state(
    "the key went on without the first",
    _rows("skip", JOBS[1:], 1),
    _claim("skip", [TWO]),
    _buried("skip", ONE, parked=False),
)
EMPTY = _state("nothing waits", jobs=())

# Operations ---------------------------------------------------------------------------------------------------------


def _take(worker: str, most: int, queue: str = "skip") -> Operation:
    def script() -> Script:
        return transaction(streams.claim_streams(queue, worker, uuid4(), lease=LEASE, keys=["a"], run=most))

    return Operation(f"{worker} claims {most}", "claim", script)


def _settle(name: str, outcome: Outcome, *jobs: UUID, queue: str = "skip", commit: bool = True) -> Operation:
    def script() -> Script:
        yield from BEGIN
        ends = [Settlement(Grant(queue, job, 1, RUN), outcome) for job in jobs]
        answers = yield from settle.settle(ends, "W1")
        yield from COMMIT if commit else ROLLBACK
        return answers

    return Operation(f"W1 {name}", "settle", script)


def _sweep() -> Script:
    yield from sweep.revoke_expired(500)
    for claim in (yield from sweep.revoked_claims(500)):
        yield from sweep.sweep_take(claim, claim.job_ids, 3)
        yield from sweep.sweep_finish(claim.tokens)


def _act(apply: Callable[[Sequence[acts.Locked]], Flow[Any]], job: UUID) -> Script:
    places = yield from acts.locate_jobs([job])
    yield from BEGIN
    locked = yield from acts.lock(places)
    yield from apply([j for j in locked if not j.running])
    yield from COMMIT


def _hold(task: str) -> Script:
    yield from transaction(pause.pause_task(task, "op"))
    yield from transaction(_set_aside())


def _set_aside() -> Flow[None]:
    hold = pause.hold_paused("skip")
    next(hold)  # the settings of the session are no step
    yield hold.send(None)


def _look(job: UUID) -> Statement[None]:
    text = f"SELECT FROM holdfast.work WHERE queue = 'skip' AND id = '{job}' FOR UPDATE"
    return Statement("look", text, (), nothing)


def _enqueue(queue: str = "skip") -> Operation:
    row = NewRow("t", "{}", queue=queue, partition_key="a")
    return Operation("enqueue", "enqueue", lambda: transaction(jobs.enqueue([row])))


def _bounce() -> Script:
    """Claimed, released, claimed again, completed: what a snapshot saw before it holds no more."""
    for outcome in (Released(), Completed()):
        found = yield from streams.claim_streams("skip", "W1", uuid4(), lease=LEASE, keys=["a"], run=1)
        if found:
            yield from settle.settle([Settlement(found[0].grant, outcome)], "W1")


CLAIM_1, CLAIM_2, CLAIM_SHORT = _take("W1", 3), _take("W2", 3), _take("W1", 1)
SWEEP = Operation("sweep", "sweep", _sweep)
BOUNCE = Operation("W1 claims, releases, claims and completes the first", "sweep", _bounce)
COMPLETE = _settle("completes the first", Completed(), ONE)
COMPLETE_BOTH = _settle("completes both", Completed(), ONE, TWO)
UNDONE = _settle("completes the first and rolls back", Completed(), ONE, commit=False)
FAIL = _settle("fails the first", Failed(BOOM, 0.0), ONE)
RELEASE = _settle("releases the first", Released(), ONE)
RELEASE_BOTH = _settle("releases both", Released(), ONE, TWO)
REDRIVE = Operation("redrive", "redrive", lambda: transaction(dead.redrive([ONE], [0.0])))
ENQUEUE = _enqueue()


def _cancel(job: UUID) -> Operation:
    return Operation(f"cancel {JOBS.index(job) + 1}", "cancel", lambda: transaction(jobs.cancel(job, "skip")))


def _discard(job: UUID) -> Operation:
    return Operation(f"discard {JOBS.index(job) + 1}", "discard", lambda: _act(acts.discard, job), job=job)


def _pause(job: UUID) -> Operation:
    return Operation(f"hold {JOBS.index(job) + 1}", "hold", lambda: _hold(f"t{JOBS.index(job) + 1}"))


def _lock(job: UUID) -> Operation:
    return Operation(f"lock {JOBS.index(job) + 1}", "lock", lambda: transaction(_look(job)))


def _unpark() -> Operation:
    gone: Statement[None] = Statement("unpark", "DELETE FROM holdfast.parked_keys", (), nothing)
    return Operation("the key is released", "unpark", lambda: transaction(gone))


Case = tuple[State, Operation, Operation]
CASES: list[Case] = [
    *((WAITING, CLAIM_2, other) for other in (CLAIM_1, CLAIM_SHORT, BOUNCE, ENQUEUE)),
    *((WAITING, CLAIM_2, act(job)) for act in (_cancel, _discard, _pause, _lock) for job in (ONE, TWO)),
    *(
        (OWNED["skip"], CLAIM_2, other)
        for other in (COMPLETE, COMPLETE_BOTH, UNDONE, FAIL, RELEASE, RELEASE_BOTH, _cancel(ONE), ENQUEUE)
    ),
    *(
        (OWNED[p], _take("W2", 3, p), _settle(f"buries the first ({p})", DeadLettered(BOOM), ONE, queue=p))
        for p in POLICIES
    ),
    *((EXPIRED, CLAIM_2, other) for other in (SWEEP,)),
    *((EXPIRED, SWEEP, other) for other in (COMPLETE, RELEASE_BOTH, _cancel(ONE))),
    (PARKED, _take("W2", 3, "park"), REDRIVE),
    (PARKED, _take("W2", 3, "park"), _unpark()),
    (PARKED, REDRIVE, _unpark()),
    (SKIPPED, CLAIM_2, REDRIVE),
    (SKIPPED, ENQUEUE, REDRIVE),
    (EMPTY, ENQUEUE, ENQUEUE),
    (EMPTY, ENQUEUE, CLAIM_2),
]


# Checking -----------------------------------------------------------------------------------------------------------


@dataclass
class Stream:
    """The stream as the history says it was at one moment."""

    rows: dict[UUID, dict[str, Any]] = field(default_factory=dict)
    parked: set[str] = field(default_factory=set)

    def apply(self, change: Change) -> None:
        if change.kind == "parked":
            (self.parked.add if change.op == "INSERT" else self.parked.discard)(change.new["key"])
        elif change.kind == "work" and change.op == "DELETE":
            self.rows.pop(change.id, None)
        elif change.kind == "work":
            self.rows[change.id] = dict(change.new)

    def before(self, job: UUID) -> list[dict[str, Any]]:
        seq = self.rows[job]["seq"]
        return [row for row in self.rows.values() if row["seq"] < seq]


def check(state: State, final: Final, schedule: Schedule, done: Sequence[Operation]) -> Iterator[str]:
    yield from schedule.errors
    now = Stream()
    for at, change in enumerate(final.log):
        if _takes(change):
            if change.old["status"] != "pending":
                yield f"{change.actor} took a job that is {change.old['status']}"
            if now.parked:
                yield f"{change.actor} took a job of a parked key"
        if change.kind == "work" and change.op == "INSERT" and change.actor != "control":
            running = [r for r in now.rows.values() if r["status"] == "processing"]
            if any(r["seq"] > change.new["seq"] for r in running):
                yield f"{change.statement} put a job before one that runs"
        now.apply(change)
        following = final.log[at + 1] if at + 1 < len(final.log) else None
        if _takes(change) and (following is None or not _takes(following) or following.actor != change.actor):
            yield from _run(now, change)
        if _buries(change) and not any(c.kind == "parked" and c.actor == change.actor for c in final.log):
            yield f"{change.actor} buried a job, and its key goes on"
    yield from _places(state, final, done)
    yield from _commit_order(final, schedule, done)


def _takes(change: Change) -> bool:
    return change.kind == "work" and change.statement == "claim_streams" and change.op == "UPDATE"


def _buries(change: Change) -> bool:
    return change.op == "DELETE" and change.statement == "settle_fail" and change.old["queue"] == "park"


def _run(now: Stream, last: Change) -> Iterator[str]:
    """A claim has just taken its last job: all that is before any of them is in the same run."""
    token = last.new["claim_token"]
    for job, row in now.rows.items():
        if row["claim_token"] == token and row["status"] == "processing":
            for other in now.before(job):
                if (other["status"], other["claim_token"]) != ("processing", token):
                    yield (
                        f"{last.actor} took {row['task']} while {other['task']} before it is {other['status']}"
                        f" {'elsewhere' if other['status'] == 'processing' else ''}"
                    )


def _places(state: State, final: Final, done: Sequence[Operation]) -> Iterator[str]:
    found = [UUID(r[0]) for r in final.work + final.archive + final.dead]
    discarded = {o.job for o in done if o.kind == "discard"}
    for job in set(state.jobs) - discarded:
        if found.count(job) != 1:
            yield f"job {JOBS.index(job) + 1} is in {found.count(job)} places"
    new = len(set(found) - set(state.jobs))
    if new != sum(o.kind == "enqueue" for o in done):
        yield f"{new} jobs came"


def _commit_order(final: Final, schedule: Schedule, done: Sequence[Operation]) -> Iterator[str]:
    """Whoever committed first has the lower number."""
    if not all(o.kind in ("enqueue", "redrive") for o in done):
        return
    drawn = {c.actor: c.new["seq"] for c in final.log if c.op == "INSERT" and c.actor != "control"}
    ends = [step[0] for step in schedule.steps if step[2:].startswith("commit")]
    if sorted(drawn, key=lambda actor: drawn[actor]) != ends:
        yield f"numbers {drawn}, and the commits were {ends}"


@dataclass
class Count:
    schedules: int = 0
    blocked: int = 0
    taken: int = 0
    nothing: int = 0
    violations: list[str] = field(default_factory=list)


def explore(harnessed: Harness, case: Case, count: Count, *, stop_at_first: bool = False) -> None:
    state, a, b = case
    for schedule in harnessed.explore(state, a, b):
        count.schedules += 1
        count.blocked += schedule.blocked > 0
        final = harnessed.read()
        count.taken += any(_takes(c) for c in final.log)
        count.nothing += not any(_takes(c) for c in final.log)
        problems = list(check(state, final, schedule, (a, b)))
        if problems:
            where = f"{state.name}: A {a.name} x B {b.name}: {schedule}"
            count.violations.append(where + "".join(f"\n    {p}" for p in problems))
            if stop_at_first:
                return


@pytest.fixture(scope="module")
def _harness(holdfast_server: TestServer) -> Iterator[Harness]:
    name = holdfast_server.clone()
    with harness(holdfast_server.url(name)) as made:
        made.control.execute(_LOG_PARKED)
        for policy in POLICIES:
            run(made.control, queues.create_queue(policy, None, QueueRules("key", policy)))
        yield made
    holdfast_server.drop(name)


@pytest.fixture
def harnessed(_harness: Harness) -> Harness:
    _harness.whole()
    _harness.fold = True
    return _harness


@pytest.mark.timeout(900)
@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
def test_every_order_of_two_actors_keeps_the_stream_in_order(harnessed: Harness, cut: bool) -> None:
    """The floors say that the run had something to check."""
    harnessed.cut = cut
    count = Count()
    for case in CASES:
        explore(harnessed, case, count)
    print(
        f"{len(CASES)} pairs: {count.schedules} schedules, {count.blocked} waited, {count.taken} took something"
    )
    assert not count.violations, f"{len(count.violations)} go wrong:\n" + "\n".join(count.violations[:10])
    assert count.schedules > 250
    assert count.blocked >= 8
    assert count.taken > 80
    assert count.nothing > 40


_HEAD = "AND w.partition_key = k.key\n        ORDER BY w.seq LIMIT $6"
MUTANTS: dict[str, tuple[tuple[Mutant, ...], bool, Case]] = {
    "a front without those that run": (
        (("claim_streams", _HEAD, _HEAD.replace("\n", " AND w.status = 'pending'\n")),),
        False,
        (OWNED["skip"], CLAIM_2, _lock(THREE)),
    ),
    "a run with gaps": (
        (("claim_streams", "WHERE r.gapless", "WHERE r.place = ANY (ARRAY(SELECT place FROM free))"),),
        False,
        (WAITING, CLAIM_2, CLAIM_SHORT),
    ),
    "a run with gaps, an operator holds the job in the middle": (
        (("claim_streams", "WHERE r.gapless", "WHERE r.place = ANY (ARRAY(SELECT place FROM free))"),),
        True,
        (WAITING, CLAIM_2, _pause(TWO)),
    ),
    "a run that trusts what it saw": (
        (("claim_streams", "FOR NO KEY UPDATE SKIP LOCKED", ""),),
        True,
        (WAITING, CLAIM_2, CLAIM_SHORT),
    ),
    "a claim from a parked key": (
        (("claim_streams", "p.queue = $1 AND p.partition_key = u.key", "false"),),
        False,
        (PARKED, _take("W2", 3, "park"), REDRIVE),
    ),
    "a redrive to its old place in a stream that went on": (
        (("redrive", "THEN nextval('holdfast.work_seq')", "THEN g.seq"),),
        False,
        (SKIPPED, CLAIM_2, REDRIVE),
    ),
    "a redrive without the lock of the stream": (
        (("lock_dead_streams", "SELECT holdfast.lock_streams(o.queue, o.keys)", "SELECT 1"),),
        False,
        (SKIPPED, ENQUEUE, REDRIVE),
    ),
    "a dead letter that parks nobody": (
        (("settle_fail", "WHERE (SELECT on_dead_letter FROM rule) = 'park'", "WHERE false"),),
        False,
        (
            OWNED["park"],
            _take("W2", 3, "park"),
            _settle("buries both", DeadLettered(BOOM), ONE, TWO, queue="park"),
        ),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_checker_sees_a_broken_statement_of_a_stream(harnessed: Harness, name: str) -> None:
    mutants, cut, case = MUTANTS[name]
    harnessed.cut = cut
    whole = Count()
    explore(harnessed, case, whole)
    assert not whole.violations
    harnessed.mutants = mutants
    broken = Count()
    explore(harnessed, case, broken, stop_at_first=True)
    assert broken.violations, f"{broken.schedules} schedules, and none shows it"


def test_the_order_of_commits_is_seen(harnessed: Harness) -> None:
    """Two enqueues of one key: whoever comes second waits, whichever it is."""
    count = Count()
    explore(harnessed, (EMPTY, ENQUEUE, ENQUEUE), count)
    assert not count.violations
    assert (count.schedules, count.blocked) == (
        4,
        2,
    )  # one after the other, or the second waits for the first
