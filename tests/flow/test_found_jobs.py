"""A job looked up by its id: state, progress, result, errors, cancel."""

import asyncio
from dataclasses import dataclass
from uuid import uuid4

import pytest
from tests.conftest import await_until

from holdfast import FoundJob, Holdfast, InvalidOption, Job, ResultError
from holdfast.testing import Kit


@dataclass
class Receipt:
    order_id: int
    cents: int


def test_a_job_by_its_id_before_and_after_it_ran(app: Holdfast, kit: Kit) -> None:
    @app.task
    def charge(order_id: int) -> Receipt:
        return Receipt(order_id, 995)

    handle = charge.enqueue(order_id=1)
    before = app.job(handle.id)
    assert before is not None
    assert (before.id, before.task, before.queue, before.state) == (handle.id, "charge", "inbox", "pending")
    assert (before.is_finished, before.result, before.progress, before.errors) == (False, None, None, [])
    assert before.finished_at is None
    kit.run_worker()
    after = app.job(str(handle.id))
    assert after is not None
    assert (after.state, after.is_finished, after.attempts) == ("completed", True, 1)
    assert after.result == {"order_id": 1, "cents": 995}  # as JSON: the app does not ask which task it is
    assert after.finished_at is not None
    assert before.state == "pending"  # a look is of its moment
    assert repr(after) == f"FoundJob(charge {handle.id}, completed)"

    typed = charge.get(handle.id)
    assert typed is not None
    assert typed.result == Receipt(1, 995)
    assert typed.handle.result(timeout=1) == Receipt(1, 995)


def test_failures_are_told(app: Holdfast, kit: Kit) -> None:
    @app.task(max_attempts=1)
    def broken() -> None:
        raise ValueError("no such order")

    handle = broken.enqueue()
    kit.run_worker()
    found = broken.get(handle.id)
    assert found is not None
    assert (found.state, found.is_finished, found.result) == ("dead_letter", True, None)
    assert found.error == "ValueError: no such order"
    (error,) = found.errors
    assert (error.attempt, error.kind, error.message) == (1, "ValueError", "no such order")
    assert found.cancel() is False


def test_a_waiting_job_is_cancelled(app: Holdfast, kit: Kit) -> None:
    @app.task
    def later() -> None: ...

    found = later.get(later.using(run_after=60).enqueue().id)
    assert found is not None
    assert found.state == "scheduled"
    assert found.cancel() is True
    again = later.get(found.id)
    assert again is not None
    assert (again.state, again.is_finished, found.cancel()) == ("cancelled", True, False)


async def test_progress_of_one_that_runs(app: Holdfast, akit: Kit) -> None:
    @app.task
    async def slow(job: Job) -> None:
        job.progress(0.5, "half of it")
        await asyncio.Event().wait()  # until it is cancelled

    handle = await slow.aenqueue()

    def look() -> FoundJob[None]:
        found = slow.get(handle.id)
        assert found is not None
        return found

    async with app.worker():
        await await_until(lambda: look().progress, "the progress is written")
        found = await slow.aget(handle.id)
        assert found is not None
        assert found.state == "processing"
        assert found.progress is not None
        assert (found.progress.fraction, found.progress.message) == (0.5, "half of it")
        assert await found.acancel() is True
        await await_until(lambda: look().is_finished, "it is cancelled")
    last = await app.ajob(handle.id)
    assert last is not None
    assert last.state == "cancelled"


async def test_an_id_of_nobody_and_of_another_task(app: Holdfast, akit: Kit) -> None:
    @app.task
    def one() -> None: ...

    @app.task
    def two() -> None: ...

    handle = one.enqueue()
    assert app.job(uuid4()) is await app.ajob(uuid4()) is None
    assert one.get(handle.id) is not None
    assert (
        two.get(handle.id) is await two.aget(handle.id) is None
    )  # an id out of a request shows no other task's job


def test_a_job_under_an_older_name_of_its_task(app: Holdfast, kit: Kit) -> None:
    @app.task(name="new", aliases=["old"])
    def renamed() -> int:
        return 3

    handle = app.send("old", {})
    kit.run_worker()
    found = renamed.get(handle.id)
    assert found is not None
    assert found.result == 3


def test_a_result_of_another_type_is_said(app: Holdfast, kit: Kit) -> None:
    @app.task(name="count")
    def count() -> str:
        return "many"

    handle = count.enqueue()
    kit.run_worker()
    other = Holdfast(kit.url)

    @other.task(name="count")
    def number() -> int:
        return 1

    with other:
        found = number.get(handle.id)
        assert found is not None
        assert found.state == "completed"
        with pytest.raises(ResultError, match=f"job {handle.id}: "):
            _ = found.result


@pytest.mark.parametrize("wrong", ["", "12", "no-uuid", 5, None])
def test_what_is_no_id_is_refused(app: Holdfast, wrong: object) -> None:
    with pytest.raises(InvalidOption, match="a job is looked up by its id, a UUID, not "):
        app.job(wrong)  # type: ignore[arg-type]
