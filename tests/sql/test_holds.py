"""Holds of keys, statement by statement: nothing of a held key is claimed, one trial is, the rest waits."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from uuid import UUID, uuid4

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
)

from holdfast.errors import ConfigurationError
from holdfast.model.job import ClaimedJob
from holdfast.model.outcome import Completed, DeadLettered, Failed, Outcome, Released, Snoozed
from holdfast.model.queue import Rate
from holdfast.runtime.claim.holds import try_held
from holdfast.store import breaker, holds, limits, streams
from holdfast.store.claim import Mark, claim_these
from holdfast.store.statement import Statement
from holdfast.testing import Kit

pytestmark = pytest.mark.versions

KINDS = ["fair", "ordered"]
Connect = Callable[[], Conn]


@pytest.fixture(params=KINDS)
def queue(request: pytest.FixtureRequest, conn: Conn) -> str:
    """A queue of each kind that can hold keys, named by it."""
    rules = {"ordering": "key"} if request.param == "ordered" else {"fair": True}
    make_queue(conn, request.param, **rules)
    return str(request.param)


@pytest.fixture
def worker(conn: Conn) -> str:
    return register(conn)


def put(conn: Conn, queue: str, key: str, count: int = 1) -> list[UUID]:
    return enqueue(conn, count, queue=queue, partition_key=key)


def statement(
    queue: str, worker: str, keys: Sequence[str], token: UUID, *, most: int = 1, trial: bool = False,
    suspects: bool = False,
) -> Statement[list[ClaimedJob]]:  # fmt: skip
    if queue == "ordered":
        return streams.claim_streams(
            queue, worker, token, lease=60, keys=keys, run=most, trial=trial, suspects=suspects
        )
    shares = [(key, most) for key in keys]
    return limits.claim_shares(
        queue, worker, token, lease=60, shares=shares, limit=100, trial=trial, suspects=suspects
    )


def take(conn: Conn, queue: str, worker: str, *keys: str, most: int = 10) -> list[UUID]:
    return [job.id for job in run(conn, statement(queue, worker, keys, uuid4(), most=most))]


def due(conn: Conn, queue: str, *, suspects: bool = False) -> list[holds.DueTrial]:
    look = holds.due_trials(queue, None, 500, ordered=queue == "ordered", suspects=suspects)
    return [found for found in run(conn, look) if found.open]


def trial(
    conn: Conn, queue: str, worker: str, found: Sequence[holds.DueTrial] | None = None, *, suspects: bool = False
) -> list[ClaimedJob]:  # fmt: skip
    """What a worker does for the trials that it found due."""
    token = uuid4()
    found = due(conn, queue, suspects=suspects) if found is None else found

    def claim(keys: Sequence[str]) -> Statement[list[ClaimedJob]]:
        return statement(queue, worker, keys, token, trial=True, suspects=suspects)

    return run(conn, try_held(queue, found, claim, token))


def hold(conn: Conn, queue: str, *keys: str, seconds: float | None = 60.0, **options: object) -> list[str]:
    return run(conn, holds.hold_keys(queue, keys, seconds, **options))  # type: ignore[arg-type]


def test_nothing_of_a_held_key_is_claimed_before_the_end(
    conn: Conn, kit: Kit, queue: str, worker: str
) -> None:
    ours, others = put(conn, queue, "a", 2), put(conn, queue, "b", 2)
    assert hold(conn, queue, "a", reason="later") == ["a"]
    assert sorted(take(conn, queue, worker, "a", "b")) == sorted(others)
    later(kit, 59, conn)
    assert take(conn, queue, worker, "a") == []
    later(kit, 2, conn)
    assert sorted(take(conn, queue, worker, "a")) == sorted(ours)


def test_a_held_key_is_not_proposed(conn: Conn, queue: str) -> None:
    put(conn, queue, "a", 3)
    put(conn, queue, "b", 3)
    hold(conn, queue, "a", seconds=None)
    marks = [(0, Mark(one(conn, "SELECT '1970-01-01'::timestamptz"), -1))]
    (found,) = run(conn, streams.due_streams(queue, marks, 100, None))
    assert (found.seen, found.keys) == (6, ["b"])
    scan = streams.scan_streams if queue == "ordered" else limits.scan_shares
    seen = run(conn, scan(queue, None, None, 100))
    assert (seen.seen, [ready.key for ready in seen.ready]) == (2, ["b"])


def test_a_claim_that_began_before_the_hold_committed_may_win(
    conn: Conn, connect: Connect, queue: str, worker: str
) -> None:
    first, second = put(conn, queue, "a", 2)
    other = connect()
    with other.transaction():
        run(other, holds.hold_keys(queue, ["a"], None))
        assert take(conn, queue, worker, "a", most=1) == [first]
    run(conn, holds.lift_keys(queue, ["b"]))
    end_all(conn, queue)
    assert take(conn, queue, worker, "a", most=1) == []
    assert status(conn, second) == "pending"


def end_all(conn: Conn, queue: str) -> None:
    """Whatever runs is over, as if it had completed."""
    conn.execute("DELETE FROM holdfast.work WHERE queue = %s AND status = 'processing'", [queue])


def test_a_lifted_key_is_claimed_again_and_sleepers_are_told(conn: Conn, queue: str, worker: str) -> None:
    ids = put(conn, queue, "a", 2)
    hold(conn, queue, "a", seconds=None)
    assert take(conn, queue, worker, "a") == []
    conn.execute(f"LISTEN holdfast_{queue}".encode())
    conn.execute("INSERT INTO holdfast.sleepers (queue, worker, poll) VALUES (%s, %s, 60)", [queue, worker])
    assert run(conn, holds.lift_keys(queue, ["a", "b"])) == ["a"]
    assert [n.channel for n in conn.notifies(timeout=10, stop_after=1)] == [f"holdfast_{queue}"]
    assert sorted(take(conn, queue, worker, "a")) == sorted(ids)


def test_one_job_is_tried_over_all_workers(conn: Conn, connect: Connect, kit: Kit, queue: str) -> None:
    put(conn, queue, "a", 20)
    hold(conn, queue, "a", seconds=1, trial=True)
    later(kit, 2, conn)
    crowd = [connect() for _ in range(6)]
    workers = [register(conn) for _ in crowd]
    start = Barrier(len(crowd))

    def race(place: int) -> list[UUID]:
        start.wait()
        return [job.id for _ in range(3) for job in trial(crowd[place], queue, workers[place])]

    with ThreadPoolExecutor(len(crowd)) as pool:
        taken = [job for jobs in pool.map(race, range(len(crowd))) for job in jobs]
    assert len(taken) == 1
    assert take(conn, queue, workers[0], "a") == []


def test_who_looked_before_another_claimed_the_trial_gets_none(
    conn: Conn, connect: Connect, kit: Kit, queue: str, worker: str
) -> None:
    put(conn, queue, "a", 3)
    hold(conn, queue, "a", seconds=1, trial=True)
    later(kit, 2, conn)
    late = connect()
    seen = due(late, queue)
    assert [found.key for found in seen] == ["a"]
    with conn.transaction():
        assert len(trial(conn, queue, worker)) == 1
        assert trial(late, queue, register(late), seen) == []  # locked
    assert trial(late, queue, register(late), seen) == []  # claimed
    assert due(late, queue) == []


@pytest.mark.parametrize("outcome", [Completed("1"), Failed(BOOM, 0.0), DeadLettered(BOOM), Snoozed(0.0)])
def test_the_rest_waits_until_the_trial_is_over_and_somebody_decides(
    conn: Conn, kit: Kit, queue: str, worker: str, outcome: Outcome
) -> None:
    put(conn, queue, "a", 3)
    hold(conn, queue, "a", seconds=1, trial=True)
    assert due(conn, queue) == []
    later(kit, 2, conn)
    (job,) = trial(conn, queue, worker)
    later(kit, 1, conn)
    assert due(conn, queue) == []
    end(conn, job.grant, outcome, worker)
    later(kit, 10, conn)
    assert due(conn, queue) == []
    assert take(conn, queue, worker, "a") == []
    hold(conn, queue, "a", seconds=1, trial=True)
    assert due(conn, queue) == []
    later(kit, 2, conn)
    (second,) = trial(conn, queue, worker)
    assert take(conn, queue, worker, "a") == []
    end(conn, second.grant, Completed("1"), worker)
    assert run(conn, holds.lift_keys(queue, ["a"], trial=second.grant.token)) == ["a"]
    assert len(take(conn, queue, worker, "a")) == (1 if isinstance(outcome, Completed | DeadLettered) else 2)


def test_a_trial_is_given_again_when_its_worker_dies(conn: Conn, kit: Kit, queue: str, worker: str) -> None:
    put(conn, queue, "a", 3)
    hold(conn, queue, "a", seconds=1, trial=True)
    later(kit, 2, conn)
    (job,) = trial(conn, queue, worker)
    later(kit, 7200, conn)
    sweep_all(conn)
    other = register(conn)
    (again,) = trial(conn, queue, other)
    assert again.id == job.id
    assert trial(conn, queue, other) == []


def test_a_trial_whose_worker_died_and_that_somebody_put_off_is_given_again(
    conn: Conn, kit: Kit, queue: str, worker: str
) -> None:
    put(conn, queue, "a", 2)
    hold(conn, queue, "a", seconds=1, trial=True)
    later(kit, 2, conn)
    (job,) = trial(conn, queue, worker)
    later(kit, 7200, conn)
    sweep_all(conn)
    conn.execute(
        "UPDATE holdfast.work SET available_at = holdfast.now() + interval '1 minute' WHERE id = %s", [job.id]
    )
    later(kit, 90, conn)
    assert len(trial(conn, queue, register(conn))) == 1


def test_a_trial_is_given_again_when_it_was_handed_back_before_it_ran(
    conn: Conn, kit: Kit, queue: str, worker: str
) -> None:
    put(conn, queue, "a", 3)
    hold(conn, queue, "a", seconds=1, trial=True)
    later(kit, 2, conn)
    (job,) = trial(conn, queue, worker)
    later(kit, 1, conn)
    end(conn, job.grant, Released("stop"), worker)
    (again,) = trial(conn, queue, worker)
    assert again.id == job.id


def test_a_hold_that_is_renewed_while_its_trial_runs_gives_no_second_one_beside_it(
    conn: Conn, kit: Kit, queue: str, worker: str
) -> None:
    put(conn, queue, "a", 3)
    hold(conn, queue, "a", seconds=1, trial=True)
    later(kit, 2, conn)
    (job,) = trial(conn, queue, worker)
    hold(conn, queue, "a", seconds=1, trial=True)
    later(kit, 2, conn)
    assert due(conn, queue) == []
    end(conn, job.grant, Completed("1"), worker)
    assert len(trial(conn, queue, worker)) == 1


def test_who_tried_lifts_only_the_hold_of_its_trial(conn: Conn, kit: Kit, queue: str, worker: str) -> None:
    put(conn, queue, "a", 3)
    hold(conn, queue, "a", seconds=1, trial=True)
    later(kit, 2, conn)
    (job,) = trial(conn, queue, worker)
    hold(conn, queue, "a", seconds=None, reason="paused by ann")
    assert run(conn, holds.lift_keys(queue, ["a"], trial=job.grant.token)) == []
    assert [h.reason for h in run(conn, holds.list_holds(queue))] == ["paused by ann"]


def test_a_hold_that_lasts_longer_stays(conn: Conn, queue: str) -> None:
    hold(conn, queue, "a", seconds=None, reason="paused")
    assert hold(conn, queue, "a", "b", seconds=60, reason="429", at_least=True) == ["b"]
    found = {h.key: (h.reason, h.until.year) for h in run(conn, holds.list_holds(queue))}
    assert found["a"] == ("paused", 9999)
    assert found["b"][0] == "429"
    assert hold(conn, queue, "a", seconds=60, reason="429") == ["a"]


def test_suspects_of_a_held_key_wait_too_and_may_be_its_trial(
    conn: Conn, kit: Kit, queue: str, worker: str
) -> None:
    (job,) = put(conn, queue, "a")
    conn.execute("UPDATE holdfast.work SET suspect = 1, crashes = 2")
    list_them = streams.suspect_streams if queue == "ordered" else limits.suspect_shares
    assert run(conn, list_them(queue, 10)) == ["a"]
    hold(conn, queue, "a", seconds=1, trial=True)
    assert run(conn, list_them(queue, 10)) == []
    assert run(conn, statement(queue, worker, ["a"], uuid4(), suspects=True)) == []
    later(kit, 2, conn)
    assert due(conn, queue) == []
    assert [found.id for found in trial(conn, queue, worker, suspects=True)] == [job]


def test_jobs_that_were_set_aside_are_not_taken_by_their_ids(conn: Conn, queue: str, worker: str) -> None:
    (job,) = put(conn, queue, "a")
    conn.execute("UPDATE holdfast.work SET status = 'held', hold_reason = 'unknown'")
    hold(conn, queue, "a")
    these = claim_these(queue, worker, uuid4(), lease=60, job_ids=[job])
    assert run(conn, these) == []
    find = breaker.find_trial(queue, "work", [1], suspects=True, ordered=queue == "ordered")
    assert run(conn, find) is None
    run(conn, holds.lift_keys(queue, ["a"]))
    find = breaker.find_trial(queue, "work", [1], suspects=True, ordered=queue == "ordered")
    assert run(conn, find) is not None
    assert [found.id for found in run(conn, these)] == [job]


def test_a_limit_holds_for_trials_too(conn: Conn, kit: Kit, worker: str) -> None:
    make_queue(conn, "slow", fair=True, key_rate=Rate(1, "1m"))
    ids = [*put(conn, "slow", "a", 2), *put(conn, "slow", "b", 2)]
    hold(conn, "slow", "a", "b", seconds=1, trial=True)
    later(kit, 2, conn)
    shares = [("a", 1), ("b", 1)]
    claim = limits.claim_shares("slow", worker, uuid4(), lease=60, shares=shares, limit=9, trial=True)
    assert run(conn, claim) == []  # not within its limits
    assert {status(conn, job) for job in ids} == {"pending"}


@pytest.mark.parametrize("rules", [{}, {"key_concurrency": 1}])
def test_keys_of_other_queues_are_refused_and_nothing_is_written(conn: Conn, rules: dict[str, int]) -> None:
    make_queue(conn, "others", **rules)
    with conn.transaction():
        with pytest.raises(ConfigurationError, match="no queue 'others' that is fair or ordered by key"):
            run(conn, holds.hold_keys("others", ["a"], 60))
        assert one(conn, "SELECT count(*) FROM holdfast.key_holds") == 0


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 1e12])
def test_a_hold_of_no_length_is_refused(conn: Conn, queue: str, seconds: float) -> None:
    with pytest.raises(ConfigurationError, match="cannot be held for"):
        hold(conn, queue, "a", seconds=seconds)


def test_a_hold_is_part_of_the_callers_transaction(conn: Conn, queue: str, worker: str) -> None:
    ids = put(conn, queue, "a")
    with conn.transaction(force_rollback=True):
        hold(conn, queue, "a")
    assert take(conn, queue, worker, "a") == ids


def test_holds_that_are_over_are_swept_but_for_those_that_wait_for_a_trial(
    conn: Conn, kit: Kit, queue: str
) -> None:
    hold(conn, queue, "over", seconds=1)
    hold(conn, queue, "tried", seconds=1, trial=True)
    hold(conn, queue, "for long", seconds=None)
    later(kit, 60, conn)
    assert run(conn, holds.prune_holds(100)) == 0  # workers may not have seen its end
    later(kit, 600, conn)
    assert run(conn, holds.prune_holds(100)) == 1
    assert sorted(h.key for h in run(conn, holds.list_holds(queue, over=True))) == ["for long", "tried"]


def test_what_a_worker_is_told_of_holds(conn: Conn, kit: Kit, queue: str) -> None:
    news = run(conn, holds.hold_news(queue, None, 10))
    assert news[1:] == (False, None, False, [])
    hold(conn, queue, "a", seconds=5)
    hold(conn, queue, "b", seconds=9, trial=True)
    hold(conn, queue, "c", seconds=None)
    told = run(conn, holds.hold_news(queue, news.now, 10))
    assert told.any
    assert told.next_in is not None
    assert 0 < told.next_in <= 5
    later(kit, 6, conn)
    assert run(conn, holds.hold_news(queue, told.now, 10)).ended == ["a"]
    later(kit, 6, conn)
    assert run(conn, holds.hold_news(queue, told.now, 10))[1:] == (True, None, True, ["a"])


def test_trials_are_looked_at_a_part_at_a_time(conn: Conn, kit: Kit, queue: str) -> None:
    """Keys without a job must not keep the others from their turn."""
    for n in range(7):
        hold(conn, queue, f"idle {n}", seconds=1, trial=True)
    put(conn, queue, "zz")
    hold(conn, queue, "zz", seconds=1, trial=True)
    later(kit, 5, conn)
    after, seen = None, []
    while found := run(conn, holds.due_trials(queue, after, 3, ordered=queue == "ordered", suspects=False)):
        seen += [(f.key, f.open) for f in found]
        after = (found[-1].until, found[-1].key)
    assert len(seen) == 8
    assert [key for key, is_open in seen if is_open] == ["zz"]


def test_jobs_of_a_key_are_counted_where_holds_are_listed(conn: Conn, queue: str) -> None:
    load(conn, 1200, queue=f"'{queue}'", partition_key="'a'")
    hold(conn, queue, "a", reason="why")
    (found,) = run(conn, holds.list_holds(queue))
    assert (found.key, found.reason, found.jobs.count, found.jobs.capped) == ("a", "why", 1000, True)
