"""Plain workflows: what their `wf` takes beside the calls themselves."""

import threading
from datetime import UTC, datetime, timedelta

import pytest

from holdfast import Backoff, Holdfast, StepFailed, SyncWorkflow, Transaction, WorkflowFailed
from holdfast.testing import Kit


@pytest.fixture(autouse=True)
def _queue(kit: Kit) -> None:
    kit.sql("SELECT holdfast.create_queue('workflows')")


def test_options_hold_for_the_calls_that_they_are_given_to_alone(app: Holdfast, kit: Kit) -> None:
    tries: list[str] = []

    def shaky(word: str) -> str:
        tries.append(word)
        if tries.count(word) < 3:
            raise ValueError(word)
        return word.upper()

    def book(tx: Transaction) -> int:
        return tx.execute("INSERT INTO public.paid VALUES (1)").rowcount

    @app.workflow(sticky=10)
    def pays(wf: SyncWorkflow) -> list[object]:
        patient = wf.using(max_attempts=3, retry=Backoff(first=0.01, cap=0.01), name="patient")
        found: list[object] = [patient.step(shaky, "a"), *wf.gather(patient.later(shaky, "b"))]
        found.append(wf.using(name="books").transact(book))
        try:
            wf.using(max_attempts=1).step(shaky, "c")
        except StepFailed as failed:
            found.append((failed.key.rpartition(".")[2], failed.attempts))
        return found

    kit.sql("CREATE TABLE public.paid (n int)")
    run = pays.start()
    assert kit.workflows.run(run) == ["A", "B", 1, ["shaky", 1]]
    rows = [(e.key.rpartition(".")[2], e.attempts, e.outcome) for e in run.timeline()]
    assert rows == [
        ("patient", 3, "done"),
        ("patient#2", 3, "done"),
        ("books", 1, "done"),
        ("shaky", 1, "failed"),
    ]
    assert tries == ["a"] * 3 + ["b"] * 3 + ["c"]


def test_an_attempt_has_a_time_and_called_jobs_a_queue(app: Holdfast, kit: Kit) -> None:
    freed = threading.Event()

    def hangs() -> None:
        freed.wait(60)

    @app.task(queue="slow")
    async def double(n: int) -> int:
        return n * 2

    @app.task(queue="quick")
    async def other() -> None: ...

    @app.workflow()
    def calls(wf: SyncWorkflow) -> list[object]:
        quick = wf.using(queue="quick")
        found: list[object] = [quick.call(double, 1), quick.map(double, iter([2, 3]), limit=1)]
        try:
            wf.using(timeout=0.05, max_attempts=1).step(hangs)
        except StepFailed as failed:
            found.append(failed.kind)
        return found

    kit.create_queues()
    run = calls.start()
    try:
        assert kit.workflows.run(run) == [2, [4, 6], "StepTimeout"]
    finally:
        freed.set()
    assert kit.sql("SELECT DISTINCT queue FROM holdfast.archive WHERE task = %s", [double.name]) == [
        {"queue": "quick"}
    ]


def test_an_option_that_is_wrong_is_named(app: Holdfast, kit: Kit) -> None:
    @app.workflow()
    def wrong(wf: SyncWorkflow) -> None:
        wf.using(max_attempts=0).step(print)

    with pytest.raises(WorkflowFailed, match=r"InvalidOption: max_attempts must be .*, not int 0"):
        kit.workflows.run(wrong.start())


def test_helpers_give_the_same_in_every_replay(app: Holdfast, kit: Kit) -> None:
    seen: list[tuple[str, float, str]] = []
    until = datetime.now(UTC) + timedelta(days=400)

    @app.workflow()
    def helps(wf: SyncWorkflow) -> int:
        wf.set_state({"seen": "nothing"})
        seen.append((str(wf.uuid()), wf.random().random(), str(wf.uuid())))
        wf.sleep_until(until)
        wf.set_state({"seen": "all"})
        return 7

    run = helps.start()
    assert kit.workflows.run(run) == 7
    assert len(seen) >= 2, "it was put away, and called again"
    assert len(set(seen)) == 1
    assert seen[0][0] != seen[0][2]
    assert run.state() == ("completed", {"seen": "all"})
    slept = run.timeline()[0].ended_at
    assert slept is not None
    assert slept >= until
