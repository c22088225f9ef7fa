"""The recorder: one statement for all runs of a worker, and what befalls one of them alone."""

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import pytest
from tests.workflows.support import QUEUE, Runs, step, waits

from holdfast import failpoints
from holdfast.db.faults import ConnectionLost
from holdfast.model.job import Grant
from holdfast.shapes.workflows.faults import Evicted
from holdfast.shapes.workflows.journal import RecordRefused
from holdfast.shapes.workflows.lanes import LEAST_RUNS, MOST_ROWS, Asked, Lane, Part
from holdfast.shapes.workflows.recorder import Recorder
from holdfast.shapes.workflows.store import Seen
from holdfast.shapes.workflows.working import StepProgress
from holdfast.testing import Kit


@pytest.fixture
async def runs(akit: Kit) -> AsyncIterator[Runs]:
    made = Runs.on(akit.url)
    yield made
    made.conn.close()


@pytest.fixture
async def recorder(akit: Kit, runs: Runs) -> AsyncIterator[Recorder]:
    made = Recorder(akit.database)
    yield made
    await made.close()


def keys(runs: Runs, run: UUID) -> list[str]:
    return [row["key"] for row in runs.steps(run)]


class Watching:
    """A run that is at work."""

    def heard(self, seen: Seen) -> None: ...

    def at_work(self, before: float) -> StepProgress:
        return StepProgress(str(UUID(int=0)), 0, 0, None)


async def test_one_statement_writes_what_all_runs_have_ready(runs: Runs, recorder: Recorder) -> None:
    owners = [runs.started() for _ in range(20)]
    at_work = [Watching() for _ in range(40)]
    for n, run in enumerate(at_work):
        recorder.watch(str(UUID(int=n)), run)
    writes: list[str] = []
    failpoints.arm("record.before", lambda: writes.append("record"))
    await asyncio.gather(*(recorder.record(o, [step("a"), step("b")], None) for o in owners))
    assert len(writes) <= 2  # the first was on its way alone, perhaps
    assert all(keys(runs, owner.id) == ["a", "b"] for owner in owners)


async def test_half_of_the_runs_go_on_while_the_others_are_written(runs: Runs, recorder: Recorder) -> None:
    """Or the worker would wait for the server, and the server for the worker, in turns."""
    owners = [runs.started() for _ in range(2 * LEAST_RUNS + 20)]
    at_work = [Watching() for _ in owners]
    for owner, run in zip(owners, at_work, strict=True):
        recorder.watch(owner.id_text, run)
    writes: list[str] = []
    failpoints.arm("record.before", lambda: writes.append("record"))
    await asyncio.gather(*(recorder.record(owner, [step("a")], None) for owner in owners))
    assert len(writes) == 2
    assert all(keys(runs, owner.id) == ["a"] for owner in owners)


async def test_few_runs_are_not_split(runs: Runs, recorder: Recorder) -> None:
    """Two statements cost nearly twice as much as one, and runs that were split stay so."""
    owners = [runs.started() for _ in range(50)]
    at_work = [Watching() for _ in owners]
    for owner, run in zip(owners, at_work, strict=True):
        recorder.watch(owner.id_text, run)
    writes: list[str] = []
    failpoints.arm("record.before", lambda: writes.append("record"))
    await asyncio.gather(*(recorder.record(owner, [step("a")], None) for owner in owners))
    assert len(writes) == 1
    assert all(keys(runs, owner.id) == ["a"] for owner in owners)


def test_runs_that_ended_together_do_not_split_the_others() -> None:
    part = Part()
    assert part.of(50) == LEAST_RUNS
    assert part.of(500) == 250
    assert part.of(250) > 245  # the other half has ended, and the next ones are being claimed
    for _ in range(200):
        part.of(60)
    assert part.of(60) == LEAST_RUNS  # and it is forgotten


async def test_a_bad_a_locked_and_a_lost_row_harm_themselves_alone(
    runs: Runs, recorder: Recorder, akit: Kit
) -> None:
    good, bad, locked, lost = (runs.started() for _ in range(4))
    newer = runs.take_over(lost)
    with akit.connect() as holder:
        holder.execute("SELECT FROM holdfast.work WHERE id = %s FOR UPDATE", [locked.id])
        waiting = asyncio.ensure_future(recorder.record(locked, [step("a")], None))
        results = await asyncio.gather(
            recorder.record(good, [step("a")], '"half way"'),
            recorder.record(bad, [step("a", '"\\u0000"'), step("b")], None),
            recorder.record(lost, [step("a")], None),
            recorder.record(newer, [step("b")], None),
            return_exceptions=True,
        )
        assert keys(runs, locked.id) == []
        assert not waiting.done()
        holder.rollback()
    await waiting
    assert [type(result) for result in results[1:3]] == [RecordRefused, Evicted]
    assert keys(runs, good.id) == ["a"]
    assert keys(runs, bad.id) == []
    assert keys(runs, locked.id) == ["a"]
    assert keys(runs, lost.id) == ["b"]
    assert runs.of(good.id)["shown"] == "half way"


async def test_a_record_whose_answer_was_lost_is_taken_as_it_is(runs: Runs, recorder: Recorder) -> None:
    owner = runs.started()
    cut = iter([True])

    def lose() -> None:
        if next(cut, False):
            raise ConnectionLost("the answer was lost")

    failpoints.arm("record.done", lose)
    at = await recorder.record(owner, [step("a")], None)
    assert keys(runs, owner.id) == ["a"]
    assert at == runs.steps(owner.id)[0]["ended_at"]


async def test_a_retry_replaces_its_row_and_an_end_does_not_change(runs: Runs, recorder: Recorder) -> None:
    owner = runs.started()
    await recorder.record(owner, [step("a", None, outcome="retrying", error='{"kind": "E"}')], None)
    await recorder.record(owner, [step("a", "7", attempts=2)], None)
    (row,) = runs.steps(owner.id)
    assert (row["outcome"], row["result"], row["attempts"]) == ("done", 7, 2)
    newer = runs.take_over(owner)
    with pytest.raises(Evicted):
        await recorder.record(newer, [step("a", "8")], None)
    assert runs.steps(owner.id)[0]["result"] == 7


async def test_a_suspend_waits_for_nobody_and_is_tried_again(
    runs: Runs, recorder: Recorder, akit: Kit
) -> None:
    owner = runs.started()
    with akit.connect() as sender:
        sender.execute("SELECT holdfast.workflow_send(%s, 'go', '1', NULL)", [owner.id])
        suspending = asyncio.ensure_future(recorder.suspend(owner, [waits()]))
        assert await recorder.record(owner, [step("a")], None)  # goes on meanwhile
        assert not suspending.done()
        sender.commit()
    assert await suspending is False
    stored = await recorder.decide(owner, waits(), [step("beside")])
    assert stored is not None
    assert keys(runs, owner.id) == ["a", "beside", "wait"]


async def test_a_suspend_whose_answer_was_lost_stands(runs: Runs, recorder: Recorder) -> None:
    owner = runs.started()
    cut = iter([True])

    def lose() -> None:
        if next(cut, False):
            raise ConnectionLost("the answer was lost")

    failpoints.arm("suspend.done", lose)
    assert await recorder.suspend(owner, [waits()]) is True
    work = runs.work(owner.id)
    assert work is not None
    assert (work["status"], work["attempts"], work["due"]) == ("pending", 0, False)


async def test_runs_take_turns_in_a_batch() -> None:
    lane: Lane[int] = Lane()
    greedy, other = (Grant(QUEUE, UUID(int=n), 1, UUID(int=n)) for n in (1, 2))
    for n in range(2 * MOST_ROWS):
        lane.add(Asked(greedy, n))
    lane.add(Asked(other, 0))
    batch = lane.take(MOST_ROWS)
    assert len(batch) == MOST_ROWS
    assert [asked.grant for asked in batch[:2]] == [greedy, other]


async def test_runs_that_come_a_turn_of_the_loop_later_are_in_the_same_statement(
    runs: Runs, recorder: Recorder
) -> None:
    owners = [runs.started() for _ in range(9)]
    watching = [Watching() for _ in owners]
    for owner, run in zip(owners, watching, strict=True):
        recorder.watch(owner.id_text, run)
    writes: list[str] = []
    failpoints.arm("record.before", lambda: writes.append("record"))

    async def later(owner: Grant, turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        await recorder.record(owner, [step("s")], None)

    await asyncio.gather(*(later(owner, turns) for turns, owner in enumerate(owners[:3])))
    assert len(writes) == 1


async def test_a_run_with_many_branches_has_them_in_one_statement(runs: Runs, recorder: Recorder) -> None:
    owner, run = runs.started(), Watching()
    recorder.watch(owner.id_text, run)
    writes: list[str] = []
    failpoints.arm("record.before", lambda: writes.append("record"))
    await asyncio.gather(*(recorder.record(owner, [step(f"s{n}")], None) for n in range(50)))
    assert len(writes) == 1
