"""A claim has a budget of bytes: what goes over the line and into a worker's memory, not what lies on disk."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from uuid import UUID, uuid4

import pytest
from tests.conftest import QUICK
from tests.sql.support import Conn, make_queue, put, register, run, take

from holdfast import Holdfast
from holdfast.model.job import ClaimedJob, NewRow
from holdfast.runtime.claim.claimer import Ask
from holdfast.runtime.claim.queues import Queues
from holdfast.store.claim import claim, claim_these
from holdfast.store.streams import claim_streams
from holdfast.testing import Kit

pytestmark = pytest.mark.versions

LONG = 100_000  # of one letter: a few hundred bytes where it is stored


def enqueue(conn: Conn, count: int, length: int, queue: str = "inbox", key: str | None = None) -> list[UUID]:
    payload = json.dumps({"text": "a" * length})
    rows = [NewRow("work", payload, queue=queue, partition_key=key) for _ in range(count)]
    return [made.id for made in put(conn, *rows) if made.id is not None]


def take_bytes(conn: Conn, worker: str, most: int, limit: int = 100) -> list[ClaimedJob]:
    what = claim("inbox", worker, uuid4(), lease=60, limit=limit, marks=[(0, None)], most_bytes=most)
    return run(conn, what)


def lengths(jobs: Sequence[ClaimedJob]) -> list[int]:
    return [len(job.payload) // 1000 for job in jobs]


def test_a_claim_ends_where_its_bytes_are_enough(conn: Conn) -> None:
    worker = register(conn)
    ids = enqueue(conn, 10, LONG) + enqueue(conn, 2, 10)
    first = take_bytes(conn, worker, 3 * LONG)
    assert lengths(first) == [100, 100, 100]
    assert [job.id for job in first] == ids[:3]
    assert first[0].locked == 12  # there is more
    assert [job.id for job in take_bytes(conn, worker, 10**9)] == ids[3:]


def test_one_job_is_always_taken(conn: Conn) -> None:
    worker = register(conn)
    ids = enqueue(conn, 2, LONG)
    assert [job.id for job in take_bytes(conn, worker, 1)] == ids[:1]


def test_short_payloads_are_not_counted(conn: Conn) -> None:
    worker = register(conn)
    enqueue(conn, 50, 1000)
    assert len(take_bytes(conn, worker, 1)) == 50


def test_named_jobs_too(conn: Conn) -> None:
    worker = register(conn)
    ids = enqueue(conn, 5, LONG)
    what = claim_these("inbox", worker, uuid4(), lease=60, job_ids=ids, most_bytes=2 * LONG)
    assert len(run(conn, what)) == 2
    assert len(take(conn, worker)) == 3


def test_a_stream_gives_the_first_job_of_each_key_before_the_second_of_any(conn: Conn) -> None:
    make_queue(conn, "orders", ordering="key")
    worker = register(conn)
    firsts = []
    for key in "abc":
        firsts += enqueue(conn, 3, LONG, "orders", key)[:1]

    def claim_keys(most: int) -> list[ClaimedJob]:
        what = claim_streams(
            "orders", worker, uuid4(), lease=60, keys=["a", "b", "c"], run=3, most_bytes=most * LONG
        )
        return run(conn, what)

    taken = claim_keys(4)
    assert {job.id for job in taken} >= set(firsts)
    assert len(taken) == 4
    assert taken[0].locked == 9


async def test_jobs_of_a_claim_in_doubt_go_back_before_the_next_claim(
    app: Holdfast, akit: Kit, conn: Conn
) -> None:
    @app.task(name="work")
    def work(text: str) -> None: ...

    worker, token = register(conn), uuid4()
    ids = enqueue(conn, 3, 10)
    assert len(take(conn, worker, token=token)) == 3
    claimer = Queues(akit.database, app.tasks, {"inbox": 60.0})
    claimer.lost_replies._in_doubt.append((worker, token))
    taken = await claimer.claim(Ask(worker, 10))
    assert [job.id for job in taken] == ids
    assert {job.attempts for job in taken} == {0}
    await claimer.close()
    await akit.database.aclose()


async def test_a_claim_that_ended_at_its_bytes_is_not_enough(
    app: Holdfast, holdfast_kit: Callable[..., Kit]
) -> None:
    """Whoever claimed has free slots and knows that there may be more: it comes again at once."""
    kit = holdfast_kit(app, replace(QUICK, claim_bytes=3 * LONG))
    queues = Queues(kit.database, app.tasks, {"inbox": 60.0})
    found = []
    with kit.connect(autocommit=True) as conn:
        worker = register(conn)
        enqueue(conn, 5, LONG)
        for _ in range(3):
            jobs = await queues.claim(Ask(worker, 10))
            found.append((len(jobs), queues.cut))
    await queues.close()
    await kit.database.aclose()
    assert found == [(3, True), (2, False), (0, False)]
