"""Lists of jobs: every filter, pages that leave nothing out, and looks whose cost does not grow with the archive."""

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from tests.sql.keyed import fail_key, ordered, put_key
from tests.sql.rows import archive_many, bury_many, one_of_each
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
    take,
    take_one,
)

from holdfast.db.connect import CONFIGURE
from holdfast.db.database import Database
from holdfast.errors import ConfigurationError, UnknownQueue
from holdfast.model.outcome import Cancelled, Completed, DeadLettered, ErrorText, Failed
from holdfast.model.state import STATES
from holdfast.operate import job_acts
from holdfast.operate import search as searching
from holdfast.operate.operator import Operator
from holdfast.sql import query
from holdfast.store import dead, owner, search
from holdfast.store.queue_load import CAP, Count, prefer_indexes
from holdfast.store.search import JobFilter, Search, Window
from holdfast.store.statement import Flow
from holdfast.testing import Kit, TestServer

pytestmark = pytest.mark.versions


@pytest.fixture
def worker(conn: Conn) -> str:
    return register(conn)


def create_queue(conn: Conn, name: str) -> None:
    make_queue(conn, name)


def listed(database: Database, **filters: Any) -> list[UUID]:
    return [job.id for job in Operator(database, "ann").list_jobs(JobFilter(**filters)).jobs]


# Lists ------------------------------------------------------------------------------------------------------------


def test_each_state_lists_its_job(conn: Conn, database: Database, worker: str) -> None:
    expected = one_of_each(conn, worker)
    create_queue(conn, "outbox")
    ordered(conn, "block")
    put_key(conn, "k")
    expected["blocked"] = fail_key(conn, "k")
    for state in STATES:
        wanted = JobFilter(states=(state,))
        page = Operator(database, "ann").list_jobs(wanted)
        assert [(j.id, j.state) for j in page.jobs] == [(expected[state], state)], state
        assert (page.next, page.cut) == (None, False)
        assert Operator(database, "ann").list_jobs(replace(wanted, task="other")).jobs == []
        assert Operator(database, "ann").list_jobs(replace(wanted, queue="outbox")).jobs == []
    everything = Operator(database, "ann").list_jobs()
    assert {j.state: j.id for j in everything.jobs} == expected
    assert [j.id for j in everything.jobs] == sorted(expected.values(), reverse=True)


def test_dead_is_taken_for_dead_letter(conn: Conn, database: Database, worker: str) -> None:
    dead = one_of_each(conn, worker)["dead_letter"]
    assert listed(database, states=("dead",)) == [dead]
    wanted = JobFilter(states=("dead", "dead_letter"))
    assert wanted.states == ("dead_letter",)  # once
    assert wanted.given() == {"states": ("dead_letter",)}  # as the audit has it
    assert replace(wanted, states=("dead", "held")).states == ("dead_letter", "held")


def failed_in_each_state(conn: Conn, worker: str, error: ErrorText, **options: Any) -> dict[str, UUID]:
    """A job in every state but scheduled, each after one failed attempt."""
    found = {}
    ends = {"completed": Completed(), "cancelled": Cancelled(), "dead_letter": DeadLettered(error)}
    for state in (*ends, "processing", "pending", "quarantined", "held"):
        (job_id,) = enqueue(conn, max_attempts=9, **options)
        found[state] = job_id
        end(conn, take_one(conn, worker).grant, Failed(error, 0.0), worker)
        if state in ends:
            end(conn, take_one(conn, worker).grant, ends[state], worker)
        elif state == "processing":
            take_one(conn, worker)
        else:  # out of the way of the next claim
            conn.execute("UPDATE holdfast.work SET priority = 9 WHERE id = %s", [job_id])
    conn.execute("INSERT INTO holdfast.quarantine VALUES (%s, 'inbox', 'bad')", [found["quarantined"]])
    conn.execute("UPDATE holdfast.work SET status = 'held', hold_reason = 'x' WHERE id = %s", [found["held"]])
    return found


def test_every_filter_in_every_place(conn: Conn, database: Database, worker: str) -> None:
    """Jobs that fit and jobs that do not: live, finished, dead, running, held and quarantined."""
    timeout = ErrorText("Timeout", "after 5 s, 100% of_it", "")
    ids = failed_in_each_state(conn, worker, timeout, task="mine", partition_key="order:1", tags=("vip", "x"))
    failed_in_each_state(conn, worker, BOOM, task="other", partition_key="order:2", tags=("x",))
    filters: list[dict[str, Any]] = [
        {"task": "mine"},
        {"key": "order:1"},
        {"tag": "vip"},
        {"error": "TIMEOUT: after"},
        {"error": "100% of_it"},
        {"task": "mine", "key": "order:1", "tag": "x", "error": "5 s", "queue": "inbox"},
    ]
    for given in filters:
        for state, job_id in ids.items():
            assert listed(database, states=(state,), **given) == [job_id], (given, state)
        assert set(listed(database, **given)) == set(ids.values()), given
    for given in (
        {"key": "order:"},
        {"tag": "vi"},
        {"error": "100%%"},
        {"error": "of-it"},
        {"error": "of_i_"},
    ):
        assert listed(database, **given) == [], given


def test_pages_leave_nothing_out_and_repeat_nothing(
    conn: Conn, database: Database, worker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = []
    for n in range(21):  # live, finished and dead jobs interleaved
        (job_id,) = enqueue(conn, task="odd" if n % 2 else "work")
        expected.append(job_id)
        if n % 3:
            outcome = Completed() if n % 3 == 1 else DeadLettered(BOOM)
            end(conn, take_one(conn, worker).grant, outcome, worker)
        else:
            conn.execute("UPDATE holdfast.work SET priority = 50 WHERE id = %s", [job_id])
    for limit, look in itertools.product((1, 3, 7, 50), (2, 100)):
        monkeypatch.setattr(search, "LOOK", look)
        for task in (None, "odd", "work"):
            seen: list[UUID] = []
            after = None
            while True:
                page = Operator(database, "ann").list_jobs(JobFilter(task=task), after=after, limit=limit)
                seen += [j.id for j in page.jobs]
                after = page.next
                if after is None:
                    break
                assert len(seen) <= len(expected)
            wanted = [i for n, i in enumerate(expected) if task is None or (n % 2 == 1) == (task == "odd")]
            assert seen == sorted(wanted, reverse=True), (limit, look, task)


def test_a_long_search_stops_and_says_where(
    conn: Conn, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(conn, task="rare")
    enqueue(conn, 30)
    rare = JobFilter(task="rare")
    monkeypatch.setattr(search, "LOOK", 10)
    monkeypatch.setattr(searching, "PATIENCE", -1.0)
    first = Operator(database, "ann").list_jobs(rare)
    assert (first.jobs, first.cut) == ([], True)
    assert first.next is not None
    assert Operator(database, "ann").preview_all(job_acts.cancel_verb(), rare).count == Count(0, capped=True)
    monkeypatch.setattr(searching, "PATIENCE", 10.0)
    rest = Operator(database, "ann").list_jobs(rare, after=first.next)
    assert ([j.task for j in rest.jobs], rest.next) == (["rare"], None)
    assert Operator(database, "ann").preview_all(job_acts.cancel_verb(), rare).count == Count(1)


def test_few_that_are_many_are_found_all_the_same(
    conn: Conn, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held jobs are found by an index of their own, unless there are too many of them to be looked up."""
    monkeypatch.setattr(search, "FEW", 5)
    load(conn, 30, status="CASE WHEN n % 2 = 0 THEN 'held' ELSE 'pending' END",
         hold_reason="CASE WHEN n % 2 = 0 THEN 'unknown' END")  # fmt: skip
    seen: list[UUID] = []
    after = None
    while True:
        page = Operator(database, "ann").list_jobs(JobFilter(states=("held",)), after=after, limit=4)
        seen += [job.id for job in page.jobs]
        after = page.next
        if after is None:
            break
    held = conn.execute("SELECT id FROM holdfast.work WHERE status = 'held' ORDER BY id DESC").fetchall()
    assert [(i,) for i in seen] == held
    assert len(seen) == 15


def test_a_processing_job_without_a_claim_is_listed_too(conn: Conn, database: Database, worker: str) -> None:
    """Hands in the tables may leave one. It says that it runs, so it is among those that do."""
    stranded, running = enqueue(conn, 2)
    enqueue(conn, 3)
    take_one(conn, worker)
    conn.execute("DELETE FROM holdfast.claims")
    take_one(conn, worker)
    for wanted in (JobFilter(states=("processing",)), JobFilter(states=("processing",), queue="inbox")):
        found = Operator(database, "ann").list_jobs(wanted).jobs
        assert [(job.id, job.claimed_by) for job in found] == [(running, worker), (stranded, None)]


def test_a_queue_that_is_not_there_is_refused_unless_its_jobs_may_outlive_it(
    conn: Conn, database: Database
) -> None:
    create_queue(conn, "mail")
    archive_many(conn, 1, size=1)
    conn.execute("UPDATE holdfast.archive SET queue = 'lost'")
    slip = JobFilter(queue="mial")
    for look in (
        lambda: Operator(database, "ann").list_jobs(slip),
        lambda: Operator(database, "ann").preview_all(job_acts.RETRY, slip),
        lambda: Operator(database, "ann").select(job_acts.cancel_verb(), slip),
    ):
        with pytest.raises(UnknownQueue, match=r"queue 'mial' does not exist .* Did you mean 'mail'\?"):
            look()
    assert len(Operator(database, "ann").search_archive(JobFilter(queue="lost")).jobs) == 1
    assert Operator(database, "ann").search_archive(slip).jobs == []
    assert (
        Operator(database, "ann").no_queue_now("mial") == "queue 'mial' does not exist (known: inbox, mail)"
    )
    assert Operator(database, "ann").no_queue_now("mail") is None


def test_a_list_that_makes_no_sense_is_refused(database: Database) -> None:
    wrong = [
        (JobFilter(states=("done",)), "there is no state 'done' (known: pending, scheduled,"),
        (JobFilter(older_than=-1), "older_than must be between 0 seconds and 100 years, not -1 seconds"),
        (JobFilter(newer_than=1e12), "newer_than must be between 0 seconds and 100 years, not 1e+12 seconds"),
        (JobFilter(older_than=60, newer_than=60), "nothing is older than 60 s and newer than 60 s"),
        (JobFilter(task="a\x00b"), "task 'a\\x00b' is not valid text"),
        (JobFilter(error="\udcff"), "error '\\udcff' is not valid text"),
    ]
    for wanted, said in wrong:
        with pytest.raises(ConfigurationError) as caught:
            Operator(database, "ann").list_jobs(wanted)
        assert said in str(caught.value)
    for limit in (0, 1001):
        with pytest.raises(ConfigurationError):
            Operator(database, "ann").list_jobs(limit=limit)
    with pytest.raises(ConfigurationError, match=r"no state 'pending' \(known: completed, cancelled\)"):
        Operator(database, "ann").search_archive(JobFilter(states=("pending",)))


def test_the_archive_holds_finished_jobs_alone(conn: Conn, database: Database, worker: str) -> None:
    expected = one_of_each(conn, worker)
    found = Operator(database, "ann").search_archive().jobs
    assert {j.state: j.id for j in found} == {s: expected[s] for s in ("completed", "cancelled")}
    (only,) = Operator(database, "ann").search_archive(JobFilter(states=("cancelled",))).jobs
    assert only.id == expected["cancelled"]
    assert Operator(database, "ann").find_archived(only.id).job.state == "cancelled"
    with pytest.raises(ConfigurationError, match="is not in the archive: it is pending, in queue inbox"):
        Operator(database, "ann").find_archived(expected["pending"])
    with pytest.raises(ConfigurationError, match="is no dead letter: it is completed, in the archive"):
        Operator(database, "ann").find_dead(expected["completed"])
    assert Operator(database, "ann").find_dead(expected["dead_letter"]).place == "dead_letters"
    with pytest.raises(ConfigurationError, match="there is no job"):
        Operator(database, "ann").find_job(uuid4())


# Ages -------------------------------------------------------------------------------------------------------------


def id_of(ago: str) -> str:
    """SQL: an id as it would have been made so long ago."""
    return (
        "encode(substr(int8send((extract(epoch FROM clock_timestamp() - interval '"
        + ago
        + "') * 1000)::bigint), 3)"
        " || substr(uuid_send(gen_random_uuid()), 7), 'hex')::uuid"
    )


def test_ages_are_counted_from_creation(conn: Conn, database: Database) -> None:
    for ago in ("10 seconds", "10 minutes", "3 hours", "5 days"):
        load(conn, 1, id=id_of(ago), created_at=f"holdfast.now() - interval '{ago}'", task=f"'{ago}'")

    def found(**ages: Any) -> list[str]:
        return [job.task for job in Operator(database, "ann").list_jobs(JobFilter(**ages)).jobs]

    assert found(older_than=60) == ["10 minutes", "3 hours", "5 days"]
    assert found(older_than=3600) == ["3 hours", "5 days"]
    assert found(newer_than=3600) == ["10 seconds", "10 minutes"]
    assert found(older_than=60, newer_than=86_400) == ["10 minutes", "3 hours"]
    assert found(older_than=0) == ["10 seconds", "10 minutes", "3 hours", "5 days"]
    assert found(newer_than=36_500 * 86_400.0) == found(older_than=0)


def test_ages_follow_a_clock_that_was_moved(conn: Conn, kit: Kit, database: Database) -> None:
    (old,) = enqueue(conn)
    later(kit, 7200, conn)
    (new,) = enqueue(conn)
    assert listed(database, older_than=3600) == [old]
    assert listed(database, newer_than=3600) == [new]


def test_an_age_is_a_place_among_the_ids(
    conn: Conn, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one row to look at per step, it is found in two: the walk begins and ends where the age says."""
    monkeypatch.setattr(search, "LOOK", 1)
    monkeypatch.setattr(searching, "PATIENCE", -1.0)
    load(conn, 20, id=id_of("5 days"), created_at="holdfast.now() - interval '5 days'")
    load(conn, 1, id=id_of("3 hours"), created_at="holdfast.now() - interval '3 hours'", task="'it'")
    load(conn, 20)
    page = Operator(database, "ann").list_jobs(
        JobFilter(task="it", older_than=7200, newer_than=86_400), limit=1
    )
    assert [job.task for job in page.jobs] == ["it"]
    rest = Operator(database, "ann").list_jobs(JobFilter(older_than=7200, newer_than=86_400), after=page.next)
    assert (rest.jobs, rest.next) == ([], None)


# One job ----------------------------------------------------------------------------------------------------------


def test_show_tells_who_holds_a_job_and_until_when(conn: Conn, database: Database, worker: str) -> None:
    (job_id,) = enqueue(conn, partition_key="order:9182", metadata='{"a": 1}', tags=("x",))
    claimed = take_one(conn, worker, lease=30.0)
    run(conn, owner.progress([(claimed.grant, 0.5, "half")]))
    run(conn, owner.once_put(claimed.grant, "email", "1"))
    report = Operator(database, "ann").show_job(job_id)
    assert report is not None
    job = report.job
    assert (job.state, job.claimed_by, job.generation, job.fence) == ("processing", worker, 1, claimed.fence)
    assert job.lease_left_seconds == pytest.approx(30, abs=5)
    assert (job.partition_bucket, job.payload, job.metadata, job.tags) == (751, {"n": 0}, {"a": 1}, ["x"])
    assert report.progress is not None
    assert (report.progress.fraction, report.progress.message) == (0.5, "half")
    assert [step.name for step in report.steps] == ["email"]
    assert report.place == "queue"


def test_show_has_every_failed_attempt(conn: Conn, database: Database, worker: str) -> None:
    (job_id,) = enqueue(conn, max_attempts=3)
    for _ in range(3):
        end(conn, take_one(conn, worker).grant, Failed(BOOM, 0.0), worker)
    report = Operator(database, "ann").show_job(job_id)
    assert report is not None
    assert (report.job.state, report.job.attempts, report.job.fence) == ("dead_letter", 3, None)
    assert [(e.attempt, e.generation, e.kind, e.trace) for e in report.errors] == [
        (n, n, "ValueError", BOOM.trace) for n in (1, 2, 3)
    ]


def test_show_knows_finished_jobs_and_says_when_there_is_none(
    conn: Conn, database: Database, worker: str
) -> None:
    (job_id,) = enqueue(conn)
    end(conn, take_one(conn, worker).grant, Completed('{"ok": true}'), worker)
    report = Operator(database, "ann").show_job(job_id)
    assert report is not None
    assert (report.job.state, report.job.result, report.job.claimed_by) == ("completed", {"ok": True}, worker)
    assert report.place == "archive"
    assert Operator(database, "ann").show_job(uuid4()) is None


def test_show_tells_a_reason_from_an_old_error(conn: Conn, database: Database, worker: str) -> None:
    named, unnamed = enqueue(conn, 2)
    for outcome in (Cancelled("not needed"), Cancelled()):
        end(conn, take_one(conn, worker).grant, Failed(BOOM, 0.0), worker)
        end(conn, take_one(conn, worker).grant, outcome, worker)
    reasons = [Operator(database, "ann").find_job(i).cancel_reason for i in (named, unnamed)]
    assert sorted(reasons, key=str) == [None, "not needed"]


# Plans ------------------------------------------------------------------------------------------------------------


ALL = (None,) * 11
RARE = (None, None, "rare", "k", "t", "%e%", None, None, 3, ["customer", "id"], "17")
LOOKS: list[tuple[str, tuple[Any, ...]]] = [
    ("queue_load", ("inbox", CAP + 1, CAP + 1)),
    ("search_live", (None, None, 100_000, 50, *ALL, None)),
    ("search_live", (None, None, 100_000, 50, *ALL, True)),
    ("search_live", (UUID(int=2**127), UUID(int=7), 100_000, 50, *RARE, None)),
    ("search_these", (None, None, [UUID(int=7)], 50, *ALL)),
    ("search_these", (None, None, [UUID(int=7)], 50, *RARE)),
    ("search_archive", (None, None, 100_000, 50, *ALL, None)),
    ("search_archive", (UUID(int=2**127), UUID(int=7), 100_000, 50, *RARE, "w1")),
    ("search_dead", (None, None, 100_000, 50, *ALL, None)),
    ("search_dead", (UUID(int=2**127), UUID(int=7), 100_000, 50, *RARE, "w1")),
    ("ids_of_worker", ("w1", None, 100_000)),
    ("held_ids", (None, None, 10_000)),
    ("unclaimed_ids", (None, 100_000, 10_000)),
    ("quarantined_ids", (None, 10_000)),
    ("list_dead", (None, None, 100_000, 50, *(None,) * 8)),
    ("next_dead", (None, None, 100_000, 50, *(None,) * 8)),
    ("show_job", (UUID(int=7),)),
    ("locate_jobs", ([UUID(int=7)],)),
]


def test_no_look_scans_or_sorts_a_table(conn: Conn) -> None:
    load(conn, 3000, priority="n % 3")
    archive_many(conn, 500)
    bury_many(conn, 1000)
    conn.execute("ANALYZE holdfast.work, holdfast.archive, holdfast.dead_letters")
    for name, params in LOOKS:
        with conn.transaction(), psycopg.RawCursor(conn) as cursor:
            run(conn, prefer_indexes())
            cursor.execute(f"EXPLAIN (FORMAT JSON) {query(name)}".encode(), params)
            row: Any = cursor.fetchone()
        for node in _nodes(row[0][0]["Plan"]):
            big = str(node.get("Relation Name", "")).startswith(("inbox", "archive", "dead_letters"))
            assert not (big and node["Node Type"] in ("Seq Scan", "Bitmap Heap Scan")), (name, node)
            # The rows of named ids are sorted once they are found; nothing else is.
            assert node["Node Type"] != "Sort" or name == "search_these", (name, node)


def _nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for child in plan.get("Plans", ()) for node in _nodes(child))]


@pytest.fixture(scope="module")
def vast(holdfast_server: TestServer) -> Iterator[Conn]:
    """70,000 finished jobs over a week (2,600 buffers) and 30,000 dead letters (900), never analyzed."""
    name = holdfast_server.clone()
    with psycopg.connect(holdfast_server.url(name), autocommit=True) as conn:
        with psycopg.RawCursor(conn) as cursor:
            cursor.execute(
                CONFIGURE.encode(), ("60000", "", False, conn.info.backend_pid, "force_custom_plan")
            )
        for day in range(7):
            archive_many(conn, 10_000, f"interval '{day} days'", size=20)
        bury_many(conn, 30_000)
        yield conn
    holdfast_server.drop(name)


def cost(conn: Conn, make: Callable[[], Flow[Any]]) -> int:
    """Buffers that all statements of a flow touch."""
    total = 0
    with conn.transaction(force_rollback=True):
        flow = make()
        answer: Any = None
        while True:
            try:
                statement = flow.send(answer)
            except StopIteration:
                return total
            with psycopg.RawCursor(conn) as cursor:
                cursor.execute(
                    f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {statement.text}".encode(),
                    statement.params,
                )
                ((plan,),) = cursor.fetchall()
                found = plan if isinstance(plan, list) else json.loads(plan)
                top = found[0]["Plan"]
                total += top["Shared Hit Blocks"] + top["Shared Read Blocks"]
                cursor.execute(statement.text.encode(), statement.params)
                answer = statement.decode(cursor.fetchall() if cursor.description else [])


def stepping(
    wanted: JobFilter, below: UUID | None = None, limit: int = 50, rows: int = search.LOOK
) -> Callable[[], Flow[Any]]:
    step = Search(wanted, Window(), below, limit, rows)
    return lambda: searching._step(step, search.searchers(wanted.states))


def test_a_page_costs_the_same_anywhere_in_the_archive(vast: Conn) -> None:
    middle: UUID = one(vast, "SELECT id FROM holdfast.archive ORDER BY id OFFSET 35000 LIMIT 1")
    for wanted in (JobFilter(), JobFilter(states=("completed",)), JobFilter(task="work", queue="inbox")):
        for below in (None, middle):
            assert cost(vast, stepping(wanted, below)) < 400, (wanted, below)


def test_a_search_that_finds_nothing_reads_what_it_may_and_no_more(vast: Conn) -> None:
    for wanted in (
        JobFilter(task="rare"),
        JobFilter(error="rare"),
        JobFilter(tag="rare"),
        JobFilter(key="rare"),
        JobFilter(worker="rare"),
        JobFilter(min_attempts=99),
        JobFilter(task="work", field="customer.id=17"),
    ):
        assert cost(vast, stepping(wanted, rows=2000)) < 600, wanted
    assert cost(vast, stepping(JobFilter(task="rare"), rows=100)) < 250


def test_a_count_stops_at_the_cap(vast: Conn) -> None:
    wanted = JobFilter(states=("completed",))
    assert cost(vast, stepping(wanted, limit=CAP + 1)) < 800


def test_dead_letters_are_grouped_by_looking_at_the_newest(vast: Conn) -> None:
    def group() -> Flow[Any]:
        yield from prefer_indexes()
        return (yield from dead.group_dead(dead.DeadFilter(), dead.DeadWindow(), 50))

    assert cost(vast, group) < 500


def test_jobs_that_back_off_are_a_filter(conn: Conn, database: Database, kit: Kit) -> None:
    """What was enqueued for later does not, nor a job that failed before and is due, nor a run that waits for a signal."""
    worker = register(conn)
    failed, due, waits = enqueue(conn, 3)
    for job in take(conn, worker):
        delay = {failed: 3600.0, due: 1.0, waits: 3600.0}[job.grant.id]
        end(conn, job.grant, Failed(BOOM, delay), worker)
    conn.execute("UPDATE holdfast.work SET available_at = '9999-06-01Z' WHERE id = %s", [waits])
    enqueue(conn, delay=3600.0)
    later(kit, 5, conn)
    ann = Operator(database, "ann")

    def found(wanted: JobFilter) -> list[UUID]:
        return [line.id for line in ann.list_jobs(wanted).jobs]

    assert found(JobFilter(backing_off=True)) == [failed]
    assert found(JobFilter(states=("scheduled",), backing_off=True)) == [failed]
    assert len(found(JobFilter(states=("scheduled",), backing_off=False))) == 3
    with pytest.raises(ConfigurationError) as caught:
        found(JobFilter(states=("held",), backing_off=True))
    assert str(caught.value) == "only scheduled jobs back off, not held. Leave the state out"
    retry = job_acts.RETRY
    assert ann.act_on_all(retry, ann.select(retry, JobFilter(backing_off=True))).results == {"due_now": 1}
    assert found(JobFilter(backing_off=True)) == []
