"""Every order of the statements of two operations, on two connections, from every start state that matters."""

import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from tests.sql.interleave import (
    BEGIN,
    COMMIT,
    ROLLBACK,
    Harness,
    Mutant,
    Operation,
    Script,
    State,
    Tally,
    claim_row,
    effect,
    harness,
    job_row,
    new_id,
    shape_of,
    transaction,
    worker_row,
)

from holdfast.db.executors import drive
from holdfast.model.job import Grant
from holdfast.model.outcome import (
    NOTHING,
    Cancelled,
    Completed,
    ErrorText,
    Failed,
    Outcome,
    Released,
    Settled,
    Settlement,
)
from holdfast.store import claim as claims
from holdfast.store import jobs, owner, renew, settle, sweep
from holdfast.store.settle import settle_done
from holdfast.store.statement import Flow, Statement
from holdfast.testing import TestServer

pytestmark = [pytest.mark.versions, pytest.mark.slow]

ONE, TWO = sorted((new_id(), new_id()))
OLD, NEW = uuid4(), uuid4()  # the tokens of W1: of its claim, and of the claim it made after losing that
LEASE = 3600.0

FIRST = Grant("inbox", ONE, 1, OLD)
SECOND = Grant("inbox", TWO, 1, OLD)
AGAIN = Grant("inbox", ONE, 2, NEW)

# Start states -----------------------------------------------------------------------------------------------------

_BOTH_ALIVE = worker_row("W1") + worker_row("W2")
_OWNED = job_row(ONE, generation=1, token=OLD)
_TWO_OWNED = _OWNED + job_row(TWO, generation=1, token=OLD)

WAITING = State("one job waits", _BOTH_ALIVE + job_row(ONE), (ONE,))
TWO_WAITING = State("two jobs wait", _BOTH_ALIVE + job_row(ONE) + job_row(TWO), (ONE, TWO))
LIVE = State("W1 owns a job", _BOTH_ALIVE + _OWNED + claim_row(OLD, "W1", [ONE]), (ONE,))
EXPIRED = State(
    "W1 owns a job, its lease is over",
    _BOTH_ALIVE + _OWNED + claim_row(OLD, "W1", [ONE], expired=True),
    (ONE,),
)
SILENT = State(
    "W1 owns a job and is not heard of",
    worker_row("W1", silent=True) + worker_row("W2") + _OWNED + claim_row(OLD, "W1", [ONE]),
    (ONE,),
)
GONE = State(
    "W1 owns a job and is gone",
    worker_row("W1", status="gone") + worker_row("W2") + _OWNED + claim_row(OLD, "W1", [ONE]),
    (ONE,),
)
REVOKED = State(
    "W1 owns a job under a revoked claim",
    _BOTH_ALIVE + _OWNED + claim_row(OLD, "W1", [ONE], expired=True, revoked=True),
    (ONE,),
)
PAIR = State(
    "W1 owns two jobs under one claim, its lease is over",
    _BOTH_ALIVE + _TWO_OWNED + claim_row(OLD, "W1", [ONE, TWO], expired=True),
    (ONE, TWO),
)
PAIR_REVOKED = State(
    "W1 owns two jobs under one revoked claim",
    _BOTH_ALIVE + _TWO_OWNED + claim_row(OLD, "W1", [ONE, TWO], expired=True, revoked=True),
    (ONE, TWO),
)
LAST_ATTEMPT = State(
    "W1 owns a job in its last attempt, its lease is over",
    _BOTH_ALIVE
    + job_row(ONE, generation=1, token=OLD, attempts=2)
    + claim_row(OLD, "W1", [ONE], expired=True),
    (ONE,),
)
# The claim row of the lost claim is still there, revoked, and leads to the job that W1 holds again under another token.
RECLAIMED = State(
    "W1 owns a job again, its lease is over, and the row of its lost claim is still there",
    _BOTH_ALIVE
    + job_row(ONE, generation=2, token=NEW)
    + claim_row(OLD, "W1", [ONE], expired=True, revoked=True)
    + claim_row(NEW, "W1", [ONE], expired=True),
    (ONE,),
)

# Operations -------------------------------------------------------------------------------------------------------


def _claim(worker: str, limit: int) -> Operation:
    def script() -> Script:
        return transaction(
            claims.claim("inbox", worker, uuid4(), lease=LEASE, limit=limit, marks=[(0, None)])
        )

    return Operation(f"{worker} claims {limit}", "claim", script)


def _claim_these(worker: str, *ids: UUID) -> Operation:
    def script() -> Script:
        return transaction(claims.claim_these("inbox", worker, uuid4(), lease=LEASE, job_ids=ids))

    return Operation(f"{worker} claims these {len(ids)}", "claim", script)


def _settle(name: str, outcome: Outcome, *grants: Grant) -> Operation:
    def script() -> Script:
        return transaction(settle.settle([Settlement(g, outcome) for g in grants], "W1"))

    return Operation(f"W1 {name}", "settle", script, grants)


def _settle_done(name: str, *grants: Grant) -> Operation:
    """The quick way, by itself, then the usual one for what it left. It waits for as long as it must: worse than it is."""

    def script() -> Script:
        batch = [Settlement(g, NOTHING) for g in grants]
        quick = settle_done(batch, "W1")
        ended = yield from replace(quick, text=quick.text.replace("'50ms'", "'20s'"))
        left = (
            [] if ended is None else [s for s in batch if (s.grant.id_text, s.grant.generation) not in ended]
        )
        answers = [Settled(UUID(s.grant.id_text), "completed") for s in batch if s not in left]
        if left:
            answers += yield from transaction(settle.settle(left, "W1"))
        return answers

    return Operation(f"W1 {name} quickly", "settle", script, grants)


def _settle_in(name: str, grant: Grant) -> Operation:
    """A handler's transaction: its own write first, then the completion; rolled back when the job is not its own."""

    def script() -> Script:
        yield from BEGIN
        yield from effect(grant)
        done = yield from settle.settle_in(Settlement(grant, Completed()), "W1")
        yield from COMMIT if done else ROLLBACK
        return done

    return Operation(f"W1 {name} in its transaction", "settle_in", script, (grant,))


def _guard(name: str, grant: Grant) -> Operation:
    def script() -> Script:
        yield from BEGIN
        held = yield from owner.guard(grant, "r", f"{grant.generation:020}")
        owned = not [r for r in (yield from renew._check_owned([grant])) if r[2]]
        yield from COMMIT if held else ROLLBACK
        return held, owned

    return Operation(f"W1 guards {name}", "guard", script, (grant,))


def _once(name: str, grant: Grant) -> Operation:
    return Operation(
        f"W1 records {name}", "once", lambda: transaction(owner.once_put(grant, "step", "1")), (grant,)
    )


def _renew(name: str, *grants: Grant) -> Operation:
    return Operation(
        f"W1 renews {name}", "renew", lambda: transaction(renew.renew("W1", grants, LEASE)), grants
    )


def _cancel(job: UUID) -> Operation:
    return Operation("cancel", "cancel", lambda: transaction(jobs.cancel(job, "inbox")), job=job)


def _revoke() -> Flow[None]:
    yield from sweep.fence_workers(60.0)
    yield from sweep.revoke_expired(500)


def _take() -> Flow[list[sweep.Revoked]]:
    found = yield from sweep.revoked_claims(500)
    for claim in found:
        yield from sweep.sweep_take(claim, claim.job_ids, 3)
    return found


def _sweep() -> Script:
    """As the sweeper does it: every statement by itself."""
    yield from _revoke()
    for claim in (yield from sweep.revoked_claims(500)):
        yield from sweep.sweep_take(claim, claim.job_ids, 3)
        yield from sweep.sweep_finish(claim.tokens)


def _slow_sweep() -> Script:
    """The same, each part in a transaction that may stay open for a while."""
    yield from transaction(sweep.revoke_expired(500))
    for claim in (yield from transaction(_take())):
        yield from transaction(sweep.sweep_finish(claim.tokens))


SWEEP = Operation("sweep", "sweep", _sweep)
SLOW_SWEEP = Operation("sweep in transactions", "sweep", _slow_sweep)
REVOKE = Operation("sweep: fence and revoke", "sweep", lambda: transaction(_revoke()))
TAKE = Operation("sweep: take", "sweep", lambda: transaction(_take()))
FINISH = Operation("sweep: finish", "sweep", lambda: transaction(sweep.sweep_finish([OLD])))
TIDY = Operation("W1 tidies its claims", "sweep", lambda: transaction(_tidy()))
CLAIM_1, CLAIM_2, CLAIM_BOTH = _claim("W1", 1), _claim("W2", 1), _claim("W2", 2)
CLAIM_THESE = _claim_these("W2", ONE, TWO)
COMPLETE = _settle("completes", Completed(), FIRST)
CANCELLED = _settle("ends as cancelled", Cancelled(), FIRST)
FAIL = _settle("fails", Failed(ErrorText("ValueError", "no")), FIRST)
RELEASE = _settle("releases", Released(), FIRST)
COMPLETE_IN = _settle_in("completes", FIRST)
DONE, DONE_BOTH = _settle_done("completes", FIRST), _settle_done("completes both", FIRST, SECOND)
DONE_AGAIN = _settle_done("completes again", AGAIN)
GUARD, ONCE = _guard("the job", FIRST), _once("a step", FIRST)
RENEW = _renew("its claim", FIRST)
CANCEL = _cancel(ONE)
COMPLETE_BOTH = _settle("completes both", Completed(), FIRST, SECOND)
COMPLETE_SECOND = _settle("completes the second", Completed(), SECOND)
RENEW_BOTH = _renew("its claim of two", FIRST, SECOND)


def _tidy() -> Flow[Any]:
    return (yield from renew.renew("W1", [], LEASE))


def _bounce() -> Script:
    """Claimed, released and claimed again: a canceller that looks in the wrong moments sees neither state."""
    for _ in range(2):
        found = yield from claims.claim("inbox", "W2", uuid4(), lease=LEASE, limit=1, marks=[(0, None)])
        if found:
            yield from settle.settle([Settlement(found[0].grant, Released())], "W2")
    yield from claims.claim("inbox", "W2", uuid4(), lease=LEASE, limit=1, marks=[(0, None)])


BOUNCE = Operation("W2 claims and releases, twice, and claims", "sweep", _bounce)

OWNER: Sequence[Operation] = (RENEW, COMPLETE, FAIL, RELEASE, COMPLETE_IN, GUARD, ONCE)
OTHERS: Sequence[Operation] = (CLAIM_1, CLAIM_2, REVOKE, TAKE, FINISH, SWEEP, CANCEL)
STALE: Sequence[Operation] = (RENEW, COMPLETE, FAIL, RELEASE, COMPLETE_IN, GUARD, ONCE)
CURRENT: Sequence[Operation] = (
    _renew("its new claim", AGAIN),
    _settle("completes again", Completed(), AGAIN),
    _settle("releases again", Released(), AGAIN),
    _settle_in("completes again", AGAIN),
)

Case = tuple[State, Operation, Operation]
LONG = os.environ.get("HOLDFAST_HYPOTHESIS") == "long"


def _cross(
    state: State, left: Sequence[Operation], right: Sequence[Operation], *, always: bool = True
) -> Iterator[Case]:
    """Each pair once, in either order; an operation meets itself only where it stands on both sides."""
    seen: set[frozenset[str]] = set()
    for a, b in itertools.product(left, right):
        if (pair := frozenset((a.name, b.name))) not in seen and (always or LONG):
            seen.add(pair)
            yield state, a, b


SETTLES: Sequence[Operation] = (COMPLETE, FAIL, RELEASE, COMPLETE_IN)

# Those marked `always=False` meet nothing that others do not meet too; HOLDFAST_HYPOTHESIS=long runs them as well.
CASES: dict[str, list[Case]] = {
    "waiting": [
        *_cross(WAITING, (CLAIM_1, CLAIM_2, CANCEL), (CLAIM_1, CLAIM_2, CANCEL, SWEEP)),
        *_cross(TWO_WAITING, (CLAIM_BOTH, CLAIM_1, CLAIM_THESE), (CLAIM_BOTH, CLAIM_1, CLAIM_THESE, CANCEL)),
        (WAITING, CANCEL, BOUNCE),
    ],
    "owned": [
        *_cross(LIVE, OWNER, (CLAIM_2, REVOKE, TAKE, CANCEL)),
        *_cross(LIVE, (COMPLETE, RELEASE, COMPLETE_IN), (COMPLETE, FAIL, RELEASE, GUARD, TIDY, RENEW)),
        *_cross(LIVE, (RENEW,), (RENEW,)),
        *_cross(LIVE, (CANCEL,), (SWEEP, TIDY, CLAIM_2, CANCELLED)),
        *_cross(LIVE, OWNER, (FINISH,), always=False),
    ],
    "expired": [
        *_cross(EXPIRED, OWNER, (REVOKE, SWEEP)),
        *_cross(EXPIRED, (CANCEL, REVOKE, CLAIM_2, TIDY), (REVOKE, SWEEP)),
        *_cross(LAST_ATTEMPT, (FAIL,), (SWEEP, CANCEL, REVOKE)),
        (EXPIRED, COMPLETE, SLOW_SWEEP),
        *_cross(EXPIRED, OWNER, (TAKE, SLOW_SWEEP), always=False),
    ],
    "gone": [
        *_cross(SILENT, (RENEW, COMPLETE, CLAIM_1), (SWEEP,)),
        *_cross(GONE, (RENEW, COMPLETE, RELEASE, COMPLETE_IN), (SWEEP,)),
        *_cross(GONE, (CLAIM_1, CANCEL), (SWEEP,)),
        *_cross(SILENT, (*OWNER, CLAIM_1), (SWEEP, REVOKE), always=False),
        *_cross(GONE, (*OWNER, CLAIM_1, CLAIM_2, SWEEP), (SWEEP, REVOKE), always=False),
    ],
    "revoked": [
        *_cross(REVOKED, OWNER, (TAKE, FINISH)),
        *_cross(REVOKED, (CLAIM_2, CANCEL, TAKE, FINISH, TIDY), (TAKE, FINISH, CLAIM_1)),
        *_cross(REVOKED, (SWEEP,), (COMPLETE, RELEASE, CLAIM_2)),
    ],
    "pair": [
        *_cross(PAIR, (COMPLETE, COMPLETE_BOTH, RENEW_BOTH), (SWEEP,)),
        *_cross(PAIR, (COMPLETE, RELEASE), (COMPLETE_BOTH, COMPLETE_SECOND, TIDY)),
        *_cross(
            PAIR_REVOKED, (COMPLETE, COMPLETE_BOTH, RENEW_BOTH, COMPLETE_IN, CANCEL, GUARD), (TAKE, FINISH)
        ),
        *_cross(PAIR_REVOKED, (TAKE, CLAIM_BOTH), (TAKE, FINISH)),
        *_cross(PAIR, (COMPLETE_SECOND, RELEASE, RENEW), (SWEEP, REVOKE, TIDY), always=False),
        *_cross(
            PAIR_REVOKED, (COMPLETE_BOTH, RENEW_BOTH, COMPLETE_IN, CANCEL, GUARD), (SWEEP,), always=False
        ),
    ],
    "reclaimed": [
        *_cross(RECLAIMED, STALE, CURRENT[1:3]),
        *_cross(RECLAIMED, (RENEW, COMPLETE, COMPLETE_IN), (CANCEL, TAKE, FINISH)),
        *_cross(RECLAIMED, CURRENT, (FINISH, TAKE)),
        *_cross(RECLAIMED, CURRENT[1:3], (SWEEP, TIDY)),
        *_cross(RECLAIMED, STALE, (*CURRENT, CANCEL, TAKE, FINISH, REVOKE), always=False),
        *_cross(RECLAIMED, CURRENT, (SWEEP, TIDY), always=False),
    ],
}

# One statement by itself: few orders, so each pair of them is always run.
CASES["quick"] = [
    *_cross(
        LIVE, (DONE,), (DONE, COMPLETE, FAIL, RELEASE, COMPLETE_IN, GUARD, ONCE, RENEW, CANCEL, CLAIM_2, TIDY)
    ),
    *_cross(EXPIRED, (DONE,), (REVOKE, SWEEP, SLOW_SWEEP)),
    *_cross(GONE, (DONE,), (SWEEP,)),
    *_cross(REVOKED, (DONE,), (TAKE, FINISH, SWEEP)),
    *_cross(PAIR, (DONE, DONE_BOTH), (SWEEP, COMPLETE_BOTH, DONE_BOTH, TIDY)),
    *_cross(PAIR_REVOKED, (DONE, DONE_BOTH), (TAKE, FINISH, CANCEL)),
    *_cross(RECLAIMED, (DONE,), (DONE_AGAIN, *CURRENT[1:3], TAKE, FINISH, CANCEL)),
    *_cross(RECLAIMED, (DONE_AGAIN,), (COMPLETE, RELEASE, TAKE, FINISH, SWEEP)),
]

# The moment between a statement's snapshot and its locks: what each pair of statements does to the other there.
CUT_CASES: dict[str, list[Case]] = {
    "waiting": [
        *_cross(WAITING, (CLAIM_1, CLAIM_2, CANCEL), (CLAIM_1, CLAIM_2, CANCEL)),
        *_cross(TWO_WAITING, (CLAIM_BOTH, CLAIM_THESE), (CLAIM_1, CLAIM_THESE)),
    ],
    "owned": [
        *_cross(LIVE, SETTLES, (*SETTLES, CANCEL)),
        *_cross(LIVE, (COMPLETE, COMPLETE_IN), (GUARD, ONCE)),
        *_cross(LIVE, SETTLES, (GUARD, ONCE, CLAIM_2), always=False),
        *_cross(LIVE, (CANCEL,), (GUARD, TIDY), always=False),
    ],
    "expired": [
        *_cross(EXPIRED, (RENEW, COMPLETE), (REVOKE,)),
        *_cross(SILENT, (CLAIM_1,), (REVOKE,)),
        *_cross(LAST_ATTEMPT, (FAIL,), (CANCEL,)),
        *_cross(EXPIRED, (REVOKE, CANCEL, *SETTLES), (REVOKE,), always=False),
        *_cross(GONE, (RENEW, COMPLETE, REVOKE), (REVOKE,), always=False),
        *_cross(SILENT, (RENEW,), (REVOKE,), always=False),
    ],
    "revoked": [
        *_cross(REVOKED, (*SETTLES, GUARD, CANCEL), (TAKE, FINISH)),
        *_cross(REVOKED, (TAKE, FINISH), (TAKE, FINISH)),
        *_cross(PAIR_REVOKED, (COMPLETE_BOTH, RELEASE), (TAKE, FINISH)),
        *_cross(REVOKED, (ONCE, CLAIM_2, TIDY), (TAKE, FINISH), always=False),
    ],
    "reclaimed": [
        *_cross(RECLAIMED, (COMPLETE, RELEASE, COMPLETE_IN), CURRENT[1:3]),
        *_cross(RECLAIMED, (FINISH, TIDY), CURRENT[1:3]),
        *_cross(RECLAIMED, (COMPLETE, RELEASE, COMPLETE_IN, GUARD), (*CURRENT[1:], TAKE), always=False),
        *_cross(RECLAIMED, (FINISH, TIDY), (CURRENT[3], TAKE), always=False),
    ],
}

CUT_CASES["quick"] = [
    *_cross(LIVE, (DONE,), (DONE, *SETTLES, CANCEL, GUARD)),
    *_cross(EXPIRED, (DONE,), (REVOKE,)),
    *_cross(REVOKED, (DONE,), (TAKE, FINISH)),
    *_cross(PAIR_REVOKED, (DONE_BOTH,), (TAKE,)),
    *_cross(RECLAIMED, (DONE, DONE_AGAIN), (DONE_AGAIN, CURRENT[2], TAKE)),
]


def _drain(conn: psycopg.Connection[Any]) -> None:
    """Two days later: sweep, claim what is there, end it. After this nothing may be left."""
    conn.execute("SELECT set_config('holdfast.clock_offset', '2 days', false)")
    try:
        drive(conn, sweep.fence_workers(60.0))
        conn.execute(worker_row("W3").encode())
        drive(conn, sweep.revoke_expired(500))
        for claim in drive(conn, sweep.revoked_claims(500)):
            drive(conn, sweep.sweep_take(claim, claim.job_ids, 1_000_000))
            drive(conn, sweep.sweep_finish(claim.tokens))
        left = [r[0] for r in conn.execute("SELECT id FROM holdfast.work").fetchall()]
        taken = drive(conn, claims.claim_these("inbox", "W3", uuid4(), lease=LEASE, job_ids=left))
        ends = [Settlement(j.grant, Cancelled() if j.cancel_requested else Completed()) for j in taken]
        drive(conn, settle.settle(ends, "W3"))
        drive(conn, renew.renew("W3", [], LEASE))
    finally:
        conn.execute("SELECT set_config('holdfast.clock_offset', '', false)")


# Tests ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def _harness(holdfast_server: TestServer) -> Iterator[Harness]:
    name = holdfast_server.clone()
    with harness(holdfast_server.url(name)) as made:
        yield made
    holdfast_server.drop(name)


@pytest.fixture
def harnessed(_harness: Harness) -> Harness:
    """The two connections, with whole and unbroken statements."""
    _harness.whole()
    return _harness


def _run(harnessed: Harness, cases: Sequence[Case]) -> Tally:
    total = Tally()
    for state, a, b in cases:
        total += harnessed.check_pair(state, a, b, drain=_drain, fold=not LONG)
    assert not total.violations, f"{len(total.violations)} schedules go wrong:\n" + "\n".join(
        total.violations[:10]
    )
    return total


def test_the_explorer_runs_every_order_once(harnessed: Harness) -> None:
    """Three steps against three that never meet: 20 orders, all different."""
    one: Statement[list[Any]] = Statement("one", "SELECT 1", (), list)
    a = Operation("a", "sweep", lambda: transaction(one))
    orders = [tuple(s.steps) for s in harnessed.explore(WAITING, a, a)]
    assert len(orders) == len(set(orders)) == math.comb(6, 3)
    for order in orders:
        for name in "AB":
            assert [s for s in order if s.startswith(name)] == [
                f"{name} begin",
                f"{name} one",
                f"{name} commit",
            ]


def test_a_step_that_waits_ends_after_the_commit_of_the_other(harnessed: Harness) -> None:
    """Two updates of one row: the second is seen to wait, and goes on by itself."""
    touch: Statement[list[Any]] = Statement(
        "touch", "UPDATE holdfast.workers SET pid = pid + 1 WHERE id = 'W1' RETURNING pid", (), list
    )
    a = Operation("a", "sweep", lambda: transaction(touch))
    waited = 0
    for schedule in harnessed.explore(WAITING, a, a):
        waited += schedule.blocked
        assert sorted(x.answer[0][0] for x in harnessed.actors) == [2, 3]
        assert not schedule.errors
    assert waited >= 2


def test_two_steps_that_wait_for_each_other_are_reported(harnessed: Harness) -> None:
    """A circle is ended by the server, and is an error of the schedule."""

    def touch(first: str, second: str) -> Flow[None]:
        for worker in (first, second):
            text = f"UPDATE holdfast.workers SET pid = pid + 1 WHERE id = '{worker}'"
            yield from Statement("touch", text, (), lambda _: None)

    a = Operation("a", "sweep", lambda: transaction(touch("W1", "W2")))
    b = Operation("b", "sweep", lambda: transaction(touch("W2", "W1")))
    tally = harnessed.check_pair(WAITING, a, b)
    assert tally.violations
    assert all("DeadlockDetected" in v for v in tally.violations)


@pytest.mark.parametrize(
    "pair",
    [(LIVE, COMPLETE, CANCEL), (WAITING, CLAIM_1, CLAIM_2), (REVOKED, RELEASE, TAKE)],
    ids=lambda pair: pair[0].name,
)
def test_the_place_of_begin_changes_nothing(harnessed: Harness, pair: Case) -> None:
    """So it needs no step of its own: with one there are more orders, and they end in the same ways."""
    ends = {}
    for fold in (False, True):
        harnessed.fold = fold
        ends[fold] = [shape_of(harnessed.read()) for _ in harnessed.explore(*pair)]
    assert set(ends[True]) == set(ends[False])
    assert len(ends[True]) < len(ends[False])


@pytest.mark.timeout(3600 if LONG else 900)
def test_every_order_of_two_operations_keeps_the_promises(
    harnessed: Harness, record_property: Callable[[str, object], None]
) -> None:
    """Whole statements as steps. BEGIN takes no snapshot and no lock: it is a step of its own in the long run alone.

    The floors say that the run had something to check.
    """
    total = Tally()
    for name, cases in CASES.items():
        part = _run(harnessed, cases)
        record_property(f"schedules: {name}", part.schedules)
        total += part
    record_property("schedules", total.schedules)
    print(f"{sum(map(len, CASES.values()))} pairs: {total}")
    assert total.schedules > 2000
    assert total.blocked > 30
    assert total.taken > 300
    assert total.refused > 150
    assert total.busy > 100
    assert total.claimed > 100
    assert total.drained > 10


@pytest.mark.timeout(3600 if LONG else 900)
def test_every_order_with_statements_cut_between_snapshot_and_lock(
    harnessed: Harness, record_property: Callable[[str, object], None]
) -> None:
    """The same, with a step between what a statement sees and what it locks."""
    harnessed.cut = True
    total = Tally()
    for name, cases in CUT_CASES.items():
        part = _run(harnessed, cases)
        record_property(f"schedules: {name}", part.schedules)
        total += part
    record_property("schedules", total.schedules)
    print(f"{sum(map(len, CUT_CASES.values()))} pairs: {total}")
    assert total.schedules > 1000
    assert total.blocked > 50
    assert total.taken > 50
    assert total.refused > 100


_GUARD = " AND w.lease_generation = d.generation AND w.claim_token = d.token"
_SETTLES = ("settle_finish", "settle_fail", "settle_back")
_IN_USE = "NOT EXISTS (SELECT FROM unnest(c.job_ids) AS j(id)"

MUTANTS: dict[str, tuple[tuple[Mutant, ...], bool, Case]] = {
    "settle without its guard": (
        tuple((name, _GUARD, "") for name in _SETTLES),
        False,
        (RECLAIMED, COMPLETE, CURRENT[2]),
    ),
    "a quick settle without its guard": (
        (("settle_done", _GUARD, ""),),
        False,
        (RECLAIMED, DONE, CURRENT[2]),
    ),
    "a quick settle without its status": (
        (("settle_done", f"{_GUARD} AND w.status = 'processing'", _GUARD),),
        False,
        (LIVE, DONE, RELEASE),
    ),
    "settle without its status": (
        tuple((name, f"{_GUARD} AND w.status = 'processing'", _GUARD) for name in _SETTLES),
        False,
        (LIVE, COMPLETE, RELEASE),
    ),
    "a sweep that deletes a claim row still in use": (
        (("sweep_finish", f"AND {_IN_USE}", f"AND (true OR {_IN_USE}"),),
        False,
        (PAIR, COMPLETE, SWEEP),
    ),
    "an owner that deletes a claim row still in use": (
        (("tidy_claims", f"OR {_IN_USE}", f"OR (true OR {_IN_USE}"),),
        False,
        (PAIR, COMPLETE, TIDY),
    ),
    "a sweep that takes without revoking": (
        (("revoked_claims", "revoked_at IS NOT NULL", "true"),),
        False,
        (LIVE, COMPLETE, TAKE),
    ),
    "a sweep that takes whatever the token": (
        (
            ("revoked_claims", "AND w.claim_token = c.token AND", "AND"),
            ("sweep_take", "AND w.claim_token = ANY ($2::uuid[]) AND", "AND $2::uuid[] IS NOT NULL AND"),
        ),
        False,
        (RECLAIMED, CURRENT[1], TAKE),
    ),
    "a renewal of revoked claims": (
        (("renew", " AND c.revoked_at IS NULL", ""),),
        False,
        (REVOKED, RENEW, TAKE),
    ),
    "a claim of what is owned": (
        (("claim", "AND j.status = 'pending' AND", "AND"),),
        False,
        (LIVE, CLAIM_2, RENEW),
    ),
    "a claim that keeps the generation": (
        (("claim", "lease_generation = lease_generation + 1", "lease_generation = lease_generation"),),
        False,
        (WAITING, CLAIM_1, CLAIM_2),
    ),
    "a cancel of a running job as if it waited": (
        (
            ("lock_live", "SELECT status = 'processing'", "SELECT false"),
            ("cancel_waiting", " AND status <> 'processing'", ""),
        ),
        False,
        (LIVE, CANCEL, COMPLETE),
    ),
    "a cancel that looks without a lock": (
        (("lock_live", "FOR UPDATE", ""),),
        False,
        (WAITING, CANCEL, CLAIM_2),
    ),
    "a revocation that does not look again": (
        (
            (
                "revoke_expired",
                "AND (c.lease_expires_at < holdfast.now() OR EXISTS (SELECT",
                "AND (true OR EXISTS (SELECT",
            ),
        ),
        True,
        (EXPIRED, RENEW, REVOKE),
    ),
    "a guard without a lock": ((("guard", "FOR SHARE", ""),), False, (REVOKED, GUARD, TAKE)),
    "a take without a lock": (
        (("sweep_take", "FOR UPDATE SKIP LOCKED", ""),),
        True,
        (REVOKED, RELEASE, TAKE),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_checker_sees_a_broken_statement(harnessed: Harness, name: str) -> None:
    """The same harness with a guard taken out must find a schedule that goes wrong; whole, it finds none."""
    mutants, cut, (state, a, b) = MUTANTS[name]
    harnessed.cut = cut
    harnessed.mutants = tuple((s, o, n) for s, o, n in mutants)
    broken = harnessed.check_pair(state, a, b, drain=_drain, stop_at_first=True)
    assert broken.violations, f"{broken.schedules} schedules, and none shows it"
    harnessed.mutants = ()
    assert not harnessed.check_pair(state, a, b, drain=_drain).violations
