"""Jobs that are loaded by COPY are like any others, and what cannot go that way is refused."""

import itertools
import tracemalloc
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import psycopg
import pytest

from holdfast import Holdfast, InvalidOption, InvalidPayload, NewJob, UnknownQueue
from holdfast.db.executors import listen_in
from holdfast.db.faults import ConnectionLost
from holdfast.model.job import NewRow
from holdfast.store.copy import Loadable, load_begin, new_ids
from holdfast.store.jobs import enqueue
from holdfast.tasks.copy import LEAST
from holdfast.testing import Kit

ODD = 'a\\b "c"\td\ne\\N {f},é🎈'


@pytest.fixture
def note(app: Holdfast) -> Any:
    @app.task(max_attempts=3, priority=4)
    def note(n: int, text: str = "") -> None: ...

    return note


@pytest.fixture
def parent() -> UUID:
    return uuid4()


def everything(note: Any, parent: UUID) -> list[NewJob[None]]:
    return [
        note.job(1),
        note.job(2, text=ODD),
        note.using(partition_key=ODD, tags=["x", ODD, "NULL"], metadata={"a": ODD}).job(3),
        note.using(run_after=60, priority=-7, max_attempts=9, parent=parent).job(4),
        note.using(run_after=datetime(1960, 1, 1, tzinfo=UTC)).job(5),
        note.using(run_after=datetime.now(UTC) + timedelta(days=3000)).job(6),
    ]


COLUMNS = """
    task, version, payload, partition_key, priority, max_attempts, status, attempts, suspect, crashes, lease_generation,
    claim_token, tags, metadata, parent_id, group_id, follow_ups, hold_reason, created_at = claimed_at AS new,
    round(extract(epoch FROM available_at - greatest(created_at, 'epoch')))::int AS wait"""


def check_same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Some are due at a fixed moment, so their waits differ by the time in between."""
    assert [row.pop("wait") for row in found] == pytest.approx([row.pop("wait") for row in expected], abs=30)
    assert found == expected


def test_it_writes_what_enqueue_many_writes(kit: Kit, note: Any, parent: UUID) -> None:
    jobs = everything(note, parent)
    kit.app.enqueue_many(jobs)
    expected = kit.sql(f"SELECT {COLUMNS} FROM holdfast.work ORDER BY seq")
    kit.sql("TRUNCATE holdfast.work")
    assert kit.app.enqueue_copy(iter(jobs)) == len(jobs)
    check_same(kit.sql(f"SELECT {COLUMNS} FROM holdfast.work ORDER BY seq"), expected)
    bad = kit.sql(
        "SELECT 1 FROM holdfast.work WHERE partition_bucket <> coalesce(holdfast.bucket(partition_key), 0)"
    )
    assert not bad


def test_one_job_alone_is_written_as_many_are(kit: Kit, note: Any, parent: UUID) -> None:
    """One job goes to the database in another statement than several."""
    jobs = everything(note, parent)
    kit.app.enqueue_many(jobs)
    expected = kit.sql(f"SELECT {COLUMNS} FROM holdfast.work ORDER BY seq")
    kit.sql("TRUNCATE holdfast.work")
    for job in jobs:
        assert enqueue([job.row]).name == "enqueue_one"
        kit.app.enqueue_many([job])
    check_same(kit.sql(f"SELECT {COLUMNS} FROM holdfast.work ORDER BY seq"), expected)


async def test_they_run(akit: Kit, app: Holdfast) -> None:
    ran: list[int] = []

    @app.task
    async def run(n: int) -> None:
        ran.append(n)

    assert await app.aenqueue_copy(run.job(n) for n in range(500)) == 500
    await app.run_worker(until_idle=True)
    assert sorted(ran) == list(range(500))


def test_all_or_none(kit: Kit, note: Any) -> None:
    def jobs() -> Iterator[NewJob[None]]:
        for n in range(20_000):
            yield note.job(n)
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        kit.app.enqueue_copy(jobs())
    assert kit.sql("SELECT count(*) FROM holdfast.work") == [{"count": 0}]
    assert kit.app.enqueue_copy([]) == 0
    assert kit.app.enqueue_copy([note.job(1)]) == 1  # the connection is as good as new


@pytest.mark.parametrize("option", ["idempotency_key", "replace_key", "then", "conn"])
def test_what_must_look_at_what_is_there_is_refused(kit: Kit, note: Any, option: str) -> None:
    values: dict[str, Any] = {
        option: note.job(2) if option == "then" else object() if option == "conn" else "k"
    }
    with pytest.raises(InvalidOption, match=rf"using\({option}=.*Use enqueue_many"):
        kit.app.enqueue_copy([note.job(1), note.using(**values).job(1)])
    assert kit.sql("SELECT count(*) FROM holdfast.work") == [{"count": 0}]


def test_queues(app: Holdfast, kit: Kit, note: Any) -> None:
    for name, keyed in (("lines", "ordering => 'key'"), ("shared", "by_key => true")):
        kit.sql(f"SELECT holdfast.create_queue('{name}', {keyed.replace('ordering', 'key_ordering')})")
    with pytest.raises(UnknownQueue, match=r"'liens' does not exist.*Did you mean 'lines'"):
        app.enqueue_copy([note.using(queue="liens").job(1)])
    with pytest.raises(InvalidOption, match="'lines' is ordered by key"):
        app.enqueue_copy([note.using(queue="lines", partition_key="k").job(1)])
    with pytest.raises(InvalidOption, match="'shared' is claimed key by key"):
        app.enqueue_copy([note.using(queue="shared").job(1)])
    assert app.enqueue_copy([note.using(queue="shared", partition_key="k").job(1), note.job(2)]) == 2
    with pytest.raises(TypeError, match="enqueue_copy takes what"):
        app.enqueue_copy([1])  # type: ignore[list-item]
    with pytest.raises(InvalidPayload):
        app.enqueue_copy(note.job(1, text="x" * 300_000) for _ in range(2))


def test_a_queue_that_becomes_ordered_meanwhile_is_noticed(kit: Kit, note: Any) -> None:
    kit.sql("SELECT holdfast.create_queue('orders')")

    def jobs() -> Iterator[NewJob[None]]:
        yield note.job(1)  # the load has begun
        assert kit.sql("SELECT holdfast.order_queue('orders', 'key', 'skip') AS wrong") == [{"wrong": None}]
        yield note.using(queue="orders", partition_key="k").job(2)

    with pytest.raises(InvalidOption, match="'orders' is ordered by key"):
        kit.app.enqueue_copy(jobs())
    assert kit.sql("SELECT count(*) FROM holdfast.work") == [{"count": 0}]


def test_whoever_sleeps_is_told_once(kit: Kit, note: Any) -> None:
    kit.sql("INSERT INTO holdfast.sleepers VALUES ('inbox', 'somebody', 5)")
    with psycopg.connect(kit.url, autocommit=True) as ear:
        ear.execute("LISTEN holdfast_inbox")
        kit.app.enqueue_copy(note.using(run_after=3600).job(n) for n in range(10))
        assert list(ear.notifies(timeout=0.2)) == []
        kit.app.enqueue_copy([note.using(run_after=3600).job(1), note.job(2), note.job(3)])
        assert len(list(ear.notifies(timeout=10, stop_after=1))) == 1
        assert list(ear.notifies(timeout=0.2)) == []


def test_memory_stays_the_same(kit: Kit, note: Any) -> None:
    tracemalloc.start()
    kit.app.enqueue_copy(note.using(partition_key=f"k{n}").job(n) for n in range(30_000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8_000_000


def test_ids_are_of_version_7_by_the_clock_of_the_database_and_grow() -> None:
    now = datetime(2031, 5, 6, tzinfo=UTC)
    made = new_ids(now)
    ids = [UUID(int=high << 64 | low) for high, low in itertools.islice(made, 10_000)]
    assert ids == sorted(set(ids))
    assert {i.version for i in ids} == {7}
    assert {i.variant for i in ids} == {uuid4().variant}
    assert 0 <= (ids[0].int >> 80) - now.timestamp() * 1000 < 5000


def test_what_it_needs_to_know(kit: Kit) -> None:
    kit.sql("SELECT holdfast.create_queue('lines', key_ordering => 'key')")
    known = kit.database.run(load_begin)
    assert known == Loadable(
        known.now, frozenset({"inbox", "lines"}), frozenset({"lines"}), frozenset({"lines"})
    )


def test_the_two_of_a_repeated_hour_are_an_hour_apart(kit: Kit, note: Any) -> None:
    """To Python they are equal."""
    first = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    jobs = [note.using(run_after=at).job(1) for at in (first, first.replace(fold=1))]
    kit.app.enqueue_many(jobs)
    kit.app.enqueue_copy(jobs)
    due = [row["available_at"] for row in kit.sql("SELECT available_at FROM holdfast.work ORDER BY seq")]
    assert due == [first.astimezone(UTC), first.replace(fold=1).astimezone(UTC)] * 2


def plain(note: Any, parent: UUID) -> list[NewJob[None]]:
    """As many as go by COPY, of every kind that may."""
    kinds = everything(note, parent)
    return [kinds[n % len(kinds)] for n in range(LEAST)]


@pytest.fixture
def ran(app: Holdfast) -> Iterator[list[str]]:
    """The names of the statements that run on connections of this process."""
    names: list[str] = []
    stop = listen_in(lambda statement, rows, seconds: names.append(statement.name))
    yield names
    stop()


@pytest.mark.parametrize("way", ["sync", "async"])
async def test_many_jobs_go_by_copy_and_are_as_the_function_writes_them(
    akit: Kit, app: Holdfast, note: Any, parent: UUID, ran: list[str], way: str
) -> None:
    jobs = plain(note, parent)
    with psycopg.connect(akit.url) as conn:
        app.enqueue_many(jobs, conn=conn)  # in the transaction of somebody else: by the function
    assert "enqueue" in ran
    expected = akit.sql(f"SELECT {COLUMNS} FROM holdfast.work ORDER BY seq")
    akit.sql("TRUNCATE holdfast.work")
    ran.clear()
    handles = app.enqueue_many(jobs) if way == "sync" else await app.aenqueue_many(jobs)
    assert "bulk_begin" in ran
    assert "enqueue" not in ran
    check_same(akit.sql(f"SELECT {COLUMNS} FROM holdfast.work ORDER BY seq"), expected)
    ids = [row["id"] for row in akit.sql("SELECT id FROM holdfast.work ORDER BY seq")]
    assert [handle.id for handle in handles] == ids
    assert all(handle.created for handle in handles)


def test_many_jobs_of_which_one_has_a_key_go_by_the_function(kit: Kit, note: Any, ran: list[str]) -> None:
    jobs = [note.job(n) for n in range(LEAST)]
    for options in ({"idempotency_key": "k"}, {"replace_key": "r"}, {"then": note.job(1)}):
        kit.app.enqueue_many([*jobs, note.using(**options).job(0)])
    assert "bulk_begin" not in ran
    again = kit.app.enqueue_many([*jobs, note.using(idempotency_key="k").job(0)])
    assert not again[-1].created


def test_many_jobs_of_a_queue_that_is_ordered_or_not_there(kit: Kit, note: Any, ran: list[str]) -> None:
    kit.sql("SELECT holdfast.create_queue('lines', key_ordering => 'key')")
    made = [note.using(queue="lines", partition_key=f"k{n % 7}").job(n) for n in range(LEAST)]
    kit.app.enqueue_many(made)
    assert ran.count("enqueue") == 1
    assert kit.sql("SELECT count(*) FROM holdfast.work") == [{"count": LEAST}]
    with pytest.raises(InvalidOption, match="'lines' is claimed key by key"):
        kit.app.enqueue_many([note.using(queue="lines").job(n) for n in range(LEAST)])
    with pytest.raises(UnknownQueue, match="'liens' does not exist"):
        kit.app.enqueue_many([note.using(queue="liens").job(n) for n in range(LEAST)])
    assert kit.sql("SELECT count(*) FROM holdfast.work") == [{"count": LEAST}]


def test_many_jobs_for_a_queue_that_becomes_ordered_meanwhile(kit: Kit, note: Any, ran: list[str]) -> None:
    kit.sql("SELECT holdfast.create_queue('orders')")
    rows = [note.using(queue="orders", partition_key="k").job(n).row for n in range(LEAST)]

    class Late(Sequence[NewRow]):
        """Read when the load has begun, and nothing of it is written."""

        def __len__(self) -> int:
            return len(rows)

        def __getitem__(self, place: Any) -> Any:
            return rows[place]

        def __iter__(self) -> Iterator[NewRow]:
            if "bulk_begin" in ran and kit.sql("SELECT 1 FROM holdfast.queues WHERE ordering = 'none'"):
                kit.sql("SELECT holdfast.order_queue('orders', 'key', 'skip')")
            return iter(rows)

    kit.app._writer.enqueue(Late(), None)
    assert ran.count("enqueue") == 1
    assert kit.sql("SELECT count(*), count(DISTINCT seq) AS places FROM holdfast.work") == [
        {"count": LEAST, "places": LEAST}
    ]


def test_a_copy_that_cannot_be_committed_is_no_reason_to_write_twice(
    kit: Kit, note: Any, monkeypatch: pytest.MonkeyPatch, ran: list[str]
) -> None:
    """The connection is lost with the commit: the jobs may be there, and the caller is told."""
    load = kit.app._writer.database.load

    def lost(*args: Any) -> None:
        load(*args)
        raise ConnectionLost("the reply to COMMIT never came")

    monkeypatch.setattr(kit.app._writer.database, "load", lost)
    with pytest.raises(ConnectionLost):
        kit.app.enqueue_many(note.job(n) for n in range(LEAST))
    assert "enqueue" not in ran
    assert kit.sql("SELECT count(*) FROM holdfast.work") == [{"count": LEAST}]
