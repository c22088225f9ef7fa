"""An idle worker is woken by whatever gives it something to do. It polls every ten minutes: what it finds, it was told."""

import pytest
from tests.conftest import await_until
from tests.wake.conftest import until_asleep, working

from holdfast import Holdfast, Retry, Snooze
from holdfast.testing import Kit


class Notes:
    def __init__(self, app: Holdfast) -> None:
        self.ran: list[int] = []
        self.fail: list[BaseException] = []

        @app.task
        async def note(n: int) -> None:
            self.ran.append(n)
            if self.fail:
                raise self.fail.pop(0)

        self.task = note

    async def until(self, *ran: int) -> None:
        await await_until(lambda: self.ran == list(ran), f"{ran} ran, not {self.ran}")


@pytest.fixture(autouse=True)
def notes(app: Holdfast) -> Notes:
    return Notes(app)


async def test_an_enqueue_wakes(asleep: Kit, notes: Notes) -> None:
    await notes.task.aenqueue(1)
    await notes.until(1)


async def test_a_scheduled_job_starts_at_its_time(asleep: Kit, notes: Notes) -> None:
    await notes.task.using(run_after=1.0).aenqueue(1)
    await notes.task.using(run_after=0.8, priority=7).aenqueue(2)
    await notes.until(2, 1)


@pytest.mark.parametrize("signal", [Retry(after=0.9), Snooze(0.9)])
async def test_a_retry_and_a_snooze_start_at_their_time(
    asleep: Kit, notes: Notes, signal: BaseException
) -> None:
    notes.fail = [signal]
    await notes.task.aenqueue(1)
    await notes.until(1, 1)
