"""Attempts of steps: which of them are spent, which are the last, and what is left of those that failed."""

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.conftest import await_until
from tests.workflows.memory_journal import MemoryJournal, Store, code_of, run, run_on

from holdfast import (
    Backoff,
    Holdfast,
    NonRetryable,
    Retry,
    Snooze,
    StepFailed,
    SyncWorkflow,
    Workflow,
    current_step,
    telemetry,
)
from holdfast.model.outcome import Cancelled, Completed, Suspended
from holdfast.runtime.threads import Threads
from holdfast.shapes.workflows import bodies
from holdfast.shapes.workflows.drive import drive
from holdfast.testing import Kit

ran: list[str] = []
QUICK = Backoff(first=0.001, jitter=False)


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


def result(outcome: object) -> Any:
    assert isinstance(outcome, Completed), outcome
    return json.loads(outcome.result or "null")


# Attempts that spend nothing, and those that are the last


@pytest.mark.parametrize("pause", [0.001, 3600])
async def test_a_snooze_spends_no_attempt_and_lasts_as_long_as_it_says(pause: float) -> None:
    async def polls() -> int:
        ran.append(f"attempt {current_step().attempt}")
        if len(ran) < 4:
            raise Snooze(pause)
        if len(ran) == 4:
            raise OSError("down")
        return len(ran)

    async def flow(wf: Workflow) -> int:
        return await wf.using(max_attempts=2, retry=QUICK).step(polls)

    store = Store()
    if pause > 2:
        began = store.clock
        assert isinstance(await run(flow, store), Suspended)
        (wait,) = store.waits
        assert wait.until is not None
        assert 3600 <= (wait.until - began).total_seconds() < 3601
        assert store.rows[0].record.attempts == 0
    assert result(await run_on(flow, store)) == 5
    assert ran == [*["attempt 1"] * 4, "attempt 2"]
    assert len(store.failed) == 1, "a snooze is no failure"


async def test_a_snooze_ends_with_the_deadline_of_its_step() -> None:
    async def polls() -> None:
        raise Snooze(60)

    async def flow(wf: Workflow) -> str:
        try:
            await wf.using(deadline=150).step(polls)
        except StepFailed as failed:
            return failed.kind
        return "?"

    assert result(await run_on(flow, Store())) == "Snooze"


@pytest.mark.parametrize(
    "raised", [lambda: Retry("x", after="soon"), lambda: Snooze(-1)], ids=["retry", "snooze"]
)
async def test_a_pause_that_is_none_is_the_failure_of_the_step(raised: Callable[[], BaseException]) -> None:
    async def wrong() -> None:
        raise raised()

    async def flow(wf: Workflow) -> str:
        try:
            await wf.step(wrong)
        except StepFailed as failed:
            return failed.message
        return "?"

    assert "(after=)" in result(await run(flow))


async def test_mistakes_of_the_code_are_not_tried_again() -> None:
    async def takes(n: int) -> int:
        ran.append("takes")
        return n

    async def raises() -> None:
        ran.append("raises")
        raise TypeError("of its own")

    async def flow(wf: Workflow) -> list[str]:
        async def nested() -> None:
            ran.append("nested")
            await wf.step(takes, 1)

        found = []
        steps: Any = wf.using(max_attempts=2, retry=QUICK)
        for body in (takes, nested, raises):
            try:
                await steps.step(body)
            except StepFailed as failed:
                found.append(f"{failed.kind} {failed.attempts}")
        return found

    assert result(await run(flow)) == ["TypeError 1", "UnscopedTask 1", "TypeError 2"]
    assert ran == ["nested", "raises", "raises"]


# A plain function that is under way


@pytest.mark.parametrize("fails", [False, True])
async def test_what_a_plain_function_did_is_undone_after_it_has_ended(fails: bool) -> None:
    """A cancel cannot end a thread. A compensation that ran beside it would undo what is done a moment later."""
    begun, may_end = threading.Event(), threading.Event()

    def charge() -> str:
        begun.set()
        assert may_end.wait(60)
        ran.append("charged")
        if fails:
            raise OSError("down")
        return "charged"

    async def refund() -> None:
        ran.append("refunded")

    async def flow(wf: Workflow) -> None:
        wf.on_failure(refund)
        await wf.step(charge)
        await wf.sleep(86400)

    store = Store()
    journal = MemoryJournal(store)
    task = asyncio.create_task(drive(code_of(flow), journal, {}, verify=False))
    await await_until(begun.is_set, "the step is under way")
    store.cancel = True
    journal.cancelled.set()
    for _ in range(50):
        await asyncio.sleep(0)
    assert ran == []
    may_end.set()
    assert await task == Cancelled("the run was cancelled")
    assert ran == ["charged", "refunded"]
    outcomes = [row.record.outcome for row in store.rows if row.record.kind != "compensation"]
    assert outcomes == (["cancelled"] if fails else ["done", "cancelled"])


class Looks(Threads):
    """Threads that count the looks at how many of them continue after their timeout."""

    looks = 0

    @property
    def abandoned(self) -> int:
        self.looks += 1
        return self._overdue

    @abandoned.setter
    def abandoned(self, count: int) -> None:
        self._overdue = count


@pytest.mark.parametrize("most", [1, 2])
async def test_threads_that_go_on_after_their_timeout_are_told_and_bounded(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Each attempt of a function that hangs would leave one more. Waiting for a thread is no part of a step's timeout:
    it spends no attempt."""
    may_end, told, threads = threading.Event(), [], Looks()
    monkeypatch.setattr(bodies, "threads", threads)
    monkeypatch.setattr(bodies, "_MOST_OVERDUE", most)

    def emit(event: str, **fields: Any) -> None:
        if event == "workflow.step_overdue":
            told.append((fields["key"], fields["attempt"]))

    monkeypatch.setattr(telemetry, "emit", emit)

    def hangs() -> None:
        ran.append("begun")
        assert may_end.wait(60)

    async def frees() -> None:
        before = threads.looks
        await await_until(
            lambda: threads.looks > before + 5, "the other one waits, for longer than its timeout"
        )
        may_end.set()

    async def flow(wf: Workflow) -> list[Any]:
        with pytest.raises(StepFailed, match="timeout"):
            await wf.using(timeout=0.02, max_attempts=most, retry=QUICK, name="hangs").step(hangs)
        quick: Any = wf.using(timeout=0.02, max_attempts=8, retry=QUICK, name="quick")
        return list(await wf.gather(quick.step(lambda: current_step().attempt), wf.step(frees)))

    assert result(await run(flow)) == [1, None]
    assert len(ran) == most
    assert told == [("hangs", number) for number in range(1, most + 1)]


@pytest.mark.parametrize("ends", ["cancel", "deadline"])
async def test_a_step_that_waits_for_a_thread_ends_with_a_cancel_and_with_its_deadline(
    monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """And does not begin."""
    threads = Looks()
    threads.abandoned = 1
    monkeypatch.setattr(bodies, "threads", threads)
    monkeypatch.setattr(bodies, "_MOST_OVERDUE", 1)

    async def flow(wf: Workflow) -> str:
        try:
            await wf.using(deadline=0.1 if ends == "deadline" else None).step(ran.append, "begun")
        except StepFailed as failed:
            return failed.kind
        return "?"

    journal = MemoryJournal(Store())
    task = asyncio.create_task(drive(code_of(flow), journal, {}, verify=False))
    if ends == "cancel":
        await await_until(lambda: threads.looks > 1, "it waits")
        journal.store.cancel = True
        journal.cancelled.set()
    said = await asyncio.wait_for(task, 60)
    assert said == Cancelled("the run was cancelled") if ends == "cancel" else result(said) == "StepTimeout"
    assert ran == []


# What is left of attempts that failed


async def test_attempts_that_failed_are_errors_of_the_runs_job(app: Holdfast, akit: Kit) -> None:
    async def charge() -> str:
        if current_step().attempt < 3:
            raise OSError("down")
        return "paid"

    def label() -> None:
        raise NonRetryable("no paper")

    @app.workflow(sticky=0.05)
    async def order(wf: Workflow) -> str:
        try:
            await wf.using(name="label").step(label)
        except StepFailed:
            wf.set_state("no label")
        paid = await wf.using(name="charge", retry=Backoff(steps=[0.01, 3600])).step(charge)
        raise ValueError(paid)

    @app.workflow(sticky=0.05)
    def plain(wf: SyncWorkflow) -> None:
        wf.using(name="label").step(label)

    akit.create_queues()
    run = await order.astart()
    other = await plain.astart()
    await akit.arun_worker()
    akit.clock.advance(7200)
    await akit.arun_worker()
    assert [(await one.astate())[0] for one in (run, other)] == ["failed", "failed"]
    rows = akit.sql(
        "SELECT kind, message, attempt, generation, worker IS NOT NULL AS by, trace FROM holdfast.errors"
        " WHERE job_id = %s ORDER BY at, generation",
        [run.run_id],
    )
    assert [(r["kind"], r["message"], r["attempt"], r["generation"], r["by"]) for r in rows] == [
        ("NonRetryable", "label: no paper", 1, 1, True),
        ("OSError", "charge: down", 1, 1, True),
        ("OSError", "charge: down", 2, 1, True),
        ("ValueError", "paid", 1, 2, True),
    ]
    assert 'raise OSError("down")' in rows[1]["trace"]
    rows = akit.sql("SELECT message FROM holdfast.errors WHERE job_id = %s ORDER BY at", [other.run_id])
    assert [row["message"] for row in rows][:1] == ["label: no paper"]
