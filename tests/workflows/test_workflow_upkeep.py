"""Runs whose job is gone: all workers together look through the runs once."""

import uuid
from collections.abc import Iterator

import psycopg
import pytest
from tests.workflows.support import QUEUE, Runs

from holdfast.db.executors import drive
from holdfast.shapes.workflows import ends, service
from holdfast.testing import Kit

ZERO = uuid.UUID(int=0)


@pytest.fixture
def runs(dsn: str) -> Iterator[Runs]:
    made = Runs.on(dsn)
    yield made
    made.conn.close()


def reached(runs: Runs) -> uuid.UUID:
    found = runs.one("SELECT reached FROM holdfast.workflow_upkeep")
    assert isinstance(found, uuid.UUID)
    return found


def let_time_pass(runs: Runs) -> None:
    runs.conn.execute("UPDATE holdfast.workflow_upkeep SET looked_at = looked_at - interval '1 minute'")


async def test_of_two_workers_one_looks_and_the_other_goes_on_where_it_stopped(
    runs: Runs, akit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MOST_RUNS", 2)
    ids = sorted(runs.start(f"order:{n}") for n in range(5))
    one, other = (service.Upkeep(akit.database, []) for _ in range(2))
    for place in (ids[1], ids[3], ZERO):
        await one.tick()
        assert reached(runs) == place
        await other.tick()
        assert reached(runs) == place, "it was not its turn"
        let_time_pass(runs)
        one, other = other, one
    await one.tick()
    assert reached(runs) == ids[1], "and from the start again"


def test_who_has_not_the_turn_reads_nothing_and_waits_for_nobody(runs: Runs, dsn: str) -> None:
    run = runs.start("order:1")
    runs.conn.execute("DELETE FROM holdfast.work WHERE queue = %s", [QUEUE])
    with psycopg.connect(dsn) as busy, busy.transaction():
        assert drive(busy, ends.settle_lost(1000, 10.0)) == ends.Lost(1, 1)
        runs.conn.execute("SET statement_timeout = '5s'")
        assert runs.run(ends.settle_lost(1000, 10.0)) == ends.Lost(0, 0)
    assert runs.of(run)["state"] == "terminated"
    assert runs.run(ends.settle_lost(1000, 10.0)) == ends.Lost(0, 0)
    let_time_pass(runs)
    assert runs.run(ends.settle_lost(1000, 10.0)) == ends.Lost(0, 1)


def test_a_day_that_the_ring_has_come_round_to_loses_its_old_rows_alone(runs: Runs) -> None:
    runs.conn.execute(
        "INSERT INTO holdfast.workflow_history (slot, run_id, era, at, steps, signals)"
        " SELECT holdfast.archive_slot(holdfast.now()), gen_random_uuid(), n, holdfast.now() - n * interval '32 days',"
        " '[]', '[]' FROM unnest(ARRAY[1, 1, 1, 0]) n"
    )
    left = "SELECT array_agg(era ORDER BY era) FROM holdfast.workflow_history"
    runs.one("SELECT holdfast.empty_workflow_slots(2)")
    assert runs.one(left) == [0, 1], "two at a time"
    runs.one("SELECT holdfast.empty_workflow_slots(2)")
    assert runs.one(left) == [0]
    runs.conn.execute(
        "UPDATE holdfast.workflow_history SET at = at - interval '20 days', slot = (slot + 12) % 32"
    )
    runs.one("SELECT holdfast.empty_workflow_slots(2)")
    assert runs.one(left) is None, "a day that is past goes as a whole"
