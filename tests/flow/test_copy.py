"""Jobs that are loaded by COPY are like any others, and what cannot go that way is refused."""

import itertools
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import psycopg
import pytest

from holdfast import Holdfast, InvalidOption, InvalidPayload, NewJob, UnknownQueue
from holdfast.store.copy import Loadable, _ids, load_begin
from holdfast.store.jobs import enqueue
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
    made = _ids(now)
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
