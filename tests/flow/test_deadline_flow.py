"""The deadline of a task's Backoff, however an attempt fails and wherever it runs."""

from typing import Any

import pytest

from holdfast import AsyncTransaction, Backoff, Batch, Event, Holdfast, Retry, TaskDefinitionError
from holdfast.testing import Kit

BY_AGE = Backoff(steps=["10m"], jitter=False, deadline="25m")


def raises(app: Holdfast) -> Any:
    @app.task(name="late", max_attempts=100, retry=BY_AGE)
    async def late() -> None:
        raise ValueError("no")

    return late


def asks(app: Holdfast) -> Any:
    @app.task(name="late", max_attempts=100, retry=BY_AGE)
    def late() -> None:
        raise Retry("no", after="9m")

    return late


def in_a_batch(app: Holdfast) -> Any:
    @app.batch_task(name="late", size=10, wait="1ms", max_attempts=100, retry=BY_AGE)
    async def late(batch: Batch[int]) -> None:
        raise ValueError("no")

    return late


@pytest.mark.parametrize("how", [raises, asks, in_a_batch], ids=lambda function: function.__name__)
def test_a_task_gives_up_by_age_however_its_attempts_fail(app: Holdfast, kit: Kit, how: Any) -> None:
    how(app)
    job = app.send("late", {"item": 1} if how is in_a_batch else {}).id
    for attempt in (1, 2, 3):
        kit.run_worker()
        row = kit.job(job)
        assert (row["status"], row["attempts"]) == ("scheduled", attempt)
        kit.clock.advance("10m")
    kit.run_worker()
    row = kit.job(job)
    assert (row["status"], row["attempts"], row["max_attempts"]) == ("dead_letter", 4, 100)


@pytest.mark.parametrize("deadline", ["soon", float("nan"), "missing"])
def test_a_deadline_of_the_users_own_may_be_wrong(app: Holdfast, kit: Kit, deadline: Any) -> None:
    class Own(Backoff):
        def __init__(self) -> None:
            if deadline != "missing":
                super().__init__()
                self.deadline = deadline

        def delay(self, attempt: int, random_: Any = None) -> float:
            return 60.0

    @app.task(retry=Own())
    async def fails() -> None:
        raise ValueError("wrong")

    job = fails.enqueue().id
    kit.run_worker(concurrency=1)
    row = kit.job(job)
    assert (row["status"], row["last_error"]) == ("scheduled", "ValueError: wrong")


def test_a_projection_takes_no_deadline(app: Holdfast) -> None:
    with pytest.raises(TaskDefinitionError) as caught:

        @app.projection("totals", on=["order.*"], retry=Backoff(deadline="1h"))
        async def totals(tx: AsyncTransaction, event: Event[Any]) -> None: ...

    assert str(caught.value) == (
        "projection 'totals': Backoff(deadline=) is for jobs. An event of a projection is tried max_attempts times: "
        "leave deadline out"
    )
