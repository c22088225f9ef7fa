"""What the code of a run does with its journal: keys, retries, branches, waits, sagas and the end."""

import asyncio
import contextlib
import functools
import gc
import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.workflows.memory_journal import BEGIN, RUN, Crash, MemoryJournal, Store, code_of, run, run_on

from holdfast import Backoff
from holdfast.errors import ConfigurationError, InvalidOption
from holdfast.model.outcome import Cancelled, Completed, DeadLettered, Held, Released, Suspended
from holdfast.shapes.workflows import drive as drive_module
from holdfast.shapes.workflows.bodies import current_step
from holdfast.shapes.workflows.core import Core, Rules, Scope
from holdfast.shapes.workflows.drive import drive, replay
from holdfast.shapes.workflows.faults import (
    NonRetryable,
    StepFailed,
    UnscopedTask,
    WorkflowCancelled,
)
from holdfast.shapes.workflows.journal import History, Record, RecordRefused
from holdfast.shapes.workflows.messages import Signal
from holdfast.shapes.workflows.outgoing import NewEvent
from holdfast.shapes.workflows.steps import Attempts, Step
from holdfast.shapes.workflows.workflow import Workflow

NOTE = Signal("note", str)
FAST = Backoff(first=0.001, jitter=False)
ran: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


async def say(word: str) -> str:
    ran.append(word)
    return word.upper()


async def fail(word: str) -> str:
    ran.append(word)
    raise ValueError(f"no {word}")


def result(outcome: object) -> Any:
    assert isinstance(outcome, Completed), outcome
    return json.loads(outcome.result or "null")


async def test_a_step_runs_once_and_awaiting_it_twice_gives_the_same() -> None:
    async def flow(wf: Workflow) -> list[str]:
        step = wf.step(say, "a")
        return [await step, await step, await wf.step(say, "b")]

    store = Store()
    assert result(await run(flow, store)) == ["A", "A", "B"]
    assert (ran, store.written()) == (["a", "b"], ["say", "say#2"])
    assert result(await run(flow, store)) == ["A", "A", "B"]
    assert ran == ["a", "b"]


async def test_values_are_encoded_and_decoded_on_the_first_run_too() -> None:
    async def pair() -> Any:
        return (1, {"k": (2,)})

    async def flow(wf: Workflow) -> str:
        return repr(await wf.step(pair))

    assert result(await run(flow)) == "[1, {'k': [2]}]"


async def test_a_failed_step_raises_the_same_class_live_and_replayed() -> None:
    async def flow(wf: Workflow) -> list[Any]:
        try:
            await wf.using(retry=FAST, max_attempts=3).step(fail, "luck")
        except StepFailed as error:
            return [type(error).__name__, error.key, error.kind, error.message, error.attempts, str(error)]
        return []

    store = Store()
    said = [
        "StepFailed",
        "fail",
        "ValueError",
        "no luck",
        3,
        "fail failed after 3 attempts: ValueError: no luck",
    ]
    assert result(await run(flow, store)) == said
    assert result(await run(flow, store)) == said
    assert ran == ["luck"] * 3


async def test_non_retryable_ends_the_attempts_and_carries_its_data() -> None:
    async def broke() -> None:
        ran.append("broke")
        raise NonRetryable("nothing to charge", data={"cents": 0})

    async def flow(wf: Workflow) -> Any:
        try:
            await wf.step(broke)
        except StepFailed as error:
            return [error.message, error.attempts, error.data]

    assert result(await run(flow)) == ["nothing to charge", 1, {"cents": 0}]
    assert ran == ["broke"]


async def test_a_long_retry_suspends_and_goes_on_with_its_attempts() -> None:
    async def flaky() -> int:
        ran.append("flaky")
        if len(ran) < 3:
            raise ValueError("not yet")
        return current_step().attempt

    async def flow(wf: Workflow) -> int:
        return await wf.using(retry=Backoff(first=600, jitter=False)).step(flaky)

    store = Store()
    assert isinstance(await run(flow, store), Suspended)
    (row,) = store.rows
    assert (row.record.outcome, row.record.attempts) == ("retrying", 1)
    assert [wait.kind for wait in store.waits] == ["retry"]
    assert isinstance(await run(flow, store), Suspended)  # woken too early: it waits on
    assert ran == ["flaky"]
    assert result(await run_on(flow, store)) == 3


async def test_a_deadline_ends_the_attempts() -> None:
    async def flow(wf: Workflow) -> str:
        options = wf.using(retry=Backoff(first=600, factor=1, jitter=False), max_attempts=99, deadline=1500)
        try:
            return await options.step(fail, "late")
        except StepFailed as error:
            return str(error.attempts)

    assert result(await run_on(flow, Store())) == "3"


async def test_the_deadline_of_a_backoff_makes_an_attempt_the_last() -> None:
    async def flow(wf: Workflow) -> str:
        late = Backoff(first=600, factor=1, jitter=False, deadline=1500)
        try:
            return await wf.using(retry=late, max_attempts=99).step(fail, "late")
        except StepFailed as error:
            return str(error.attempts)

    assert result(await run_on(flow, Store())) == "4", "the one that failed after 1,800 seconds"


async def test_a_timeout_ends_an_attempt() -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    async def flow(wf: Workflow) -> str:
        try:
            await wf.using(timeout=0.01, max_attempts=1).step(hang)
        except StepFailed as error:
            return f"{error.kind}: {error.message}"
        return ""

    assert result(await run(flow)) == "StepTimeout: ran longer than its timeout of 0.01 s"


async def test_a_result_that_is_too_large_is_recorded_as_failed_with_advice() -> None:
    async def huge() -> str:
        ran.append("huge")
        return "x" * 300_000

    async def flow(wf: Workflow) -> str:
        try:
            return await wf.step(huge)
        except StepFailed as error:
            return f"{error.kind}: {error.message}"

    text = result(await run(flow))
    assert text.startswith("ResultTooLarge: the result of ")
    assert text.endswith(
        "is 300,002 bytes of JSON, more than the limit of 262,144. "
        "Store it elsewhere (a table, a file, object storage) and return a reference"
    )
    assert ran == ["huge"]


async def test_the_idempotency_key_is_the_same_in_every_attempt() -> None:
    async def charge() -> str:
        ran.append(current_step().idempotency_key)
        if len(ran) < 2:
            raise ValueError
        return current_step().fence

    async def flow(wf: Workflow) -> str:
        return await wf.using(retry=FAST, name="charge").step(charge)

    assert result(await run(flow)) == "f1"
    assert ran == [f"{RUN}:charge"] * 2
    with pytest.raises(LookupError, match="outside of a step"):
        current_step()


async def test_lambdas_need_a_name() -> None:
    async def flow(wf: Workflow) -> int:
        return await wf.using(name="two").step(lambda: 2)

    async def nameless(wf: Workflow) -> int:
        return await wf.step(lambda: 2)

    assert result(await run(flow)) == 2
    ended = await run(nameless)
    assert isinstance(ended, DeadLettered)
    assert ended.error.summary == (
        "InvalidOption: a lambda has no name that stays the same. "
        'Write a def, or wf.using(name="...").step(...)'
    )


async def test_gather_runs_all_and_raises_the_first_argument_that_failed() -> None:
    async def branch(wf: Workflow, word: str) -> str:
        return await wf.step(say, word) + await wf.step(say, word * 2)

    async def flow(wf: Workflow) -> Any:
        found = await wf.gather(
            branch(wf, "a"), branch(wf, "b"), wf.step(say, "c"), wf.branch("d", branch, wf, "d")
        )
        once = wf.using(max_attempts=1)
        try:
            await wf.gather(once.step(fail, "x"), once.step(fail, "y"))
        except StepFailed as error:
            return [*found, error.message]

    store = Store()
    assert result(await run(flow, store)) == ["AAA", "BBB", "C", "DDD", "no x"]
    assert sorted(store.written()) == [
        "d/say", "d/say#2", "fail", "fail#2", "g1.0/say", "g1.0/say#2", "g1.1/say", "g1.1/say#2", "say",
    ]  # fmt: skip
    assert result(await run(flow, store)) == ["AAA", "BBB", "C", "DDD", "no x"]
    assert len(ran) == 9


async def test_a_task_of_somebody_else_cannot_call_the_workflow() -> None:
    async def flow(wf: Workflow) -> str:
        async def inner() -> str:
            return await wf.step(say, "a")

        with pytest.raises(UnscopedTask, match=r"^wf\.step\(\) was called from an asyncio task"):
            await asyncio.gather(inner())
        with pytest.raises(UnscopedTask):
            await asyncio.gather(wf.step(say, "b"))

        async def nested() -> str:
            with pytest.raises(UnscopedTask):
                wf.step(say, "c")
            return "refused"

        return await wf.step(nested)

    assert result(await run(flow, verify=False)) == "refused"
    assert ran == []


async def test_first_records_its_winner_and_cancels_the_others() -> None:
    go = asyncio.Event()

    async def slow() -> str:
        try:
            await go.wait()
        finally:
            ran.append("slow ended")
        return "slow"

    async def loser(wf: Workflow) -> str:
        await wf.step(say, "lost")
        return await wf.step(slow)

    async def flow(wf: Workflow) -> list[Any]:
        n, value = await wf.first(loser(wf), wf.using(name="quick").step(hold))
        return [n, value, wf.patched("after")]

    async def hold() -> str:
        for _ in range(200):  # turns of the loop: the other branch is at its second step by then
            await asyncio.sleep(0)
        return "won"

    store = Store()
    assert result(await run(flow, store)) == [1, "won", True]
    assert store.written() == ["g1.0/say", "quick", "first"]
    go.set()
    assert result(await run(flow, store)) == [1, "won", True]
    assert ran == ["lost", "slow ended"]


async def test_a_sleep_suspends_and_ends_when_its_time_is_there() -> None:
    async def flow(wf: Workflow) -> float:
        await wf.step(say, "a")
        before = wf.now()
        await wf.sleep(timedelta(days=2))
        return (wf.now() - before).total_seconds()

    store = Store()
    assert isinstance(await run(flow, store), Suspended)
    (wait,) = store.waits
    assert (wait.key, wait.until) == ("sleep", store.rows[0].at + timedelta(days=2))
    assert isinstance(await run(flow, store), Suspended)
    assert [(again.key, again.until) for again in store.waits] == [(wait.key, wait.until)]  # the same time
    assert 0 <= result(await run_on(flow, store)) - 2 * 86400 < 1
    assert ran == ["a"]


async def test_signals_before_and_while_waiting_and_a_timeout() -> None:
    async def flow(wf: Workflow) -> list[Any]:
        one = await wf.signal(NOTE)
        two = await wf.signal(NOTE, timeout=60)
        three = await wf.signal(NOTE, timeout=60)
        return [one, two.value, bool(three)]

    store = Store(signals=[("note", "before")])
    assert isinstance(await run(flow, store), Suspended)
    assert store.written() == ["note"]
    store.signals.append(("note", "while"))
    assert isinstance(await run(flow, store), Suspended)
    assert result(await run_on(flow, store)) == ["before", "while", False]
    assert [row.record.outcome for row in store.rows] == ["done", "done", "timed_out"]


async def test_received_takes_what_is_there() -> None:
    async def flow(wf: Workflow) -> list[str]:
        first = await wf.received(NOTE)
        return [*first, *await wf.received(NOTE)]

    store = Store(signals=[("note", "a"), ("other", "x"), ("note", "b")])
    assert result(await run(flow, store)) == ["a", "b"]
    assert result(await run(flow, store)) == ["a", "b"]
    assert store.signals == [("other", "x")]


async def test_branches_wait_together_and_the_run_suspends_once_nothing_else_is_at_work() -> None:
    async def waits(wf: Workflow) -> str:
        return await wf.signal(NOTE)

    async def flow(wf: Workflow) -> list[Any]:
        return await wf.gather(waits(wf), wf.sleep(3600), wf.step(say, "a"), wf.step(say, "b"))

    store = Store()
    assert isinstance(await run(flow, store), Suspended)
    assert sorted(ran) == ["a", "b"]
    assert sorted(wait.key for wait in store.waits) == ["g1.0/note", "g1.1/sleep"]
    store.signals.append(("note", "hi"))
    assert result(await run_on(flow, store)) == ["hi", None, "A", "B"]
    assert sorted(ran) == ["a", "b"]


async def test_a_cancel_is_raised_at_the_waiting_call_and_compensations_run_in_reverse() -> None:
    async def undo(word: str) -> None:
        ran.append(f"undo {word}")

    async def flow(wf: Workflow) -> str:
        wf.on_failure(undo, "one")
        await wf.step(say, "one")
        wf.on_failure(undo, "two")
        await wf.sleep(3600)
        return "done"

    store = Store()
    assert isinstance(await run(flow, store), Suspended)
    store.cancel = True
    ended = await run(flow, store, crash_at=2)  # the decision, one compensation, and the owner is lost
    assert isinstance(ended, Released)
    assert await run(flow, store) == Cancelled("the run was cancelled")
    name = f"{test_a_cancel_is_raised_at_the_waiting_call_and_compensations_run_in_reverse.__name__}.<locals>.undo"
    assert ran == ["one", "undo two", "undo one", "undo one"]
    assert [key for key in store.written() if key.startswith("undo")] == [f"undo/{name}#2", f"undo/{name}"]


async def test_a_cancel_ends_a_step_in_flight_and_code_may_catch_it() -> None:
    begun = asyncio.Event()

    async def long() -> None:
        begun.set()
        await asyncio.Event().wait()

    async def flow(wf: Workflow) -> str:
        try:
            await wf.step(long)
        except WorkflowCancelled:
            return await wf.step(say, "cleaned")
        return "done"

    store = Store()
    journal = MemoryJournal(store)
    task = asyncio.create_task(drive(code_of(flow), journal, {}, verify=False))
    await begun.wait()
    journal.cancelled.set()
    assert result(await task) == "CLEANED"
    assert [row.record.outcome for row in store.rows] == ["cancelled", "done"]
    store.cancel = True
    assert result(await run(flow, store)) == "CLEANED"


async def test_a_run_that_fails_is_compensated_and_what_could_not_be_undone_is_named() -> None:
    async def broken() -> None:
        raise NonRetryable("cannot")

    async def flow(wf: Workflow) -> None:
        wf.on_failure(broken)
        raise KeyError("oops")

    ended = await run(flow)
    assert isinstance(ended, DeadLettered)
    assert ended.error.kind == "KeyError"
    assert "Not undone: undo/" in ended.error.message


async def test_eviction_runs_finally_and_records_nothing() -> None:
    begun = asyncio.Event()
    seen: list[str] = []

    async def long() -> None:
        begun.set()
        await asyncio.Event().wait()

    async def flow(wf: Workflow) -> None:
        try:
            await wf.step(long)
        finally:
            try:
                await wf.step(say, "more")
            except BaseException as error:
                seen.append(type(error).__name__)
                raise

    store = Store()
    task = asyncio.create_task(drive(code_of(flow), MemoryJournal(store), {}))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (seen, store.rows, ran) == (["Evicted"], [], [])


async def test_code_that_does_not_leave_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drive_module, "PATIENCE", 0.05)
    free = asyncio.Event()

    async def flow(wf: Workflow) -> str:
        while not free.is_set():
            try:
                await wf.signal(NOTE)
            except BaseException:
                with contextlib.suppress(BaseException):
                    await free.wait()
        return "at last"

    store = Store()
    assert isinstance(await run(flow, store), Suspended)  # the wait is put away, and its code stays behind
    free.set()
    assert store.rows == []


async def test_what_the_database_refuses_is_a_failed_step_and_not_tried_for_ever() -> None:
    class Refusing(MemoryJournal):
        left = 1

        async def record(
            self, rows: Sequence[Record], *, state: str | None = None, events: Sequence[NewEvent] = ()
        ) -> datetime:
            if self.left:
                self.left -= 1
                raise RecordRefused("a number is out of range")
            return await super().record(rows, state=state, events=events)

    async def flow(wf: Workflow) -> str:
        try:
            word = await wf.step(say, "a")
            return word + await wf.step(say, "b")
        except StepFailed as error:
            return f"{error.kind}: {error.message}"

    store = Store()
    # The code had gone on: it begins again, and finds the failure.
    assert isinstance(await drive(code_of(flow), Refusing(store), {}), Released)
    assert result(await run(flow, store)) == "RecordRefused: a number is out of range"
    journal = Refusing(Store())
    journal.left = 2  # not even that
    outcome = await drive(code_of(flow), journal, {})
    assert isinstance(outcome, DeadLettered)
    assert outcome.error.summary == "RecordRefused: a number is out of range"
    assert ran == ["a", "a"]

    async def side_by_side(wf: Workflow) -> str:
        try:
            return "".join(await wf.gather(wf.step(say, "a"), wf.step(say, "b")))
        except StepFailed as error:
            return f"{error.kind}: {error.message}"

    # A branch waits for its record: it hears of the failure at once.
    outcome = await drive(code_of(side_by_side), Refusing(Store()), {})
    assert result(outcome) == "RecordRefused: a number is out of range"


async def test_a_replay_that_checks_code_runs_no_body() -> None:
    async def flow(wf: Workflow) -> str:
        return await wf.step(say, "a")

    store = Store()
    assert await replay(code_of(flow), MemoryJournal(store), {}) is None
    assert (ran, store.rows) == ([], [])


async def test_continue_as_new_with_an_open_child_fails_the_run_in_words() -> None:
    class Open(MemoryJournal):
        async def continue_as_new(self, payload: str, unseen: Sequence[str] = ()) -> History:
            raise ConfigurationError("continue_as_new(): a child or a call is still open")

    async def flow(wf: Workflow) -> None:
        wf.continue_as_new()

    outcome = await drive(code_of(flow), Open(Store()), {})
    assert isinstance(outcome, DeadLettered)
    assert outcome.error.message == "continue_as_new(): a child or a call is still open"


async def test_a_divergence_sets_the_run_aside_and_records_nothing() -> None:
    async def before(wf: Workflow) -> str:
        await wf.step(say, "a")
        await wf.sleep(3600)
        return "x"

    async def after(wf: Workflow) -> str:
        try:
            await wf.using(name="other").step(say, "b")
        except Exception:
            ran.append("swallowed")
        return "x"

    store = Store()
    await run(before, store)
    text = "diverged: at 0 in scope '' the history has 'say', the code asks for 'other'; see holdfast workflow check"
    assert await run(after, store) == Held(text)
    assert (ran, store.written()) == (["a"], ["say"])


async def test_debug_mode_finds_code_that_depends_on_something_else_than_its_history() -> None:
    async def flow(wf: Workflow) -> str:
        ran.append("call")
        return await wf.using(name=f"step-{len(ran)}").step(say, "a")

    ended = await run(flow)
    assert isinstance(ended, Held)
    assert ended.reason.startswith("diverged: ")


async def test_continue_as_new_goes_on_with_an_empty_history() -> None:
    async def key() -> str:
        return current_step().idempotency_key

    async def flow(wf: Workflow, n: int = 0) -> list[Any]:
        found = await wf.using(name="key").step(key)
        if n < 2:
            wf.continue_as_new(n=n + 1)
        return [n, found, wf.history_length]

    store = Store()
    assert result(await run(flow, store)) == [2, f"{RUN}:2:key", 1]
    assert store.era == 2


async def test_helpers_are_the_same_in_every_replay_and_one_more_moves_no_other() -> None:
    async def flow(wf: Workflow, more: bool = False) -> list[Any]:
        made = [str(wf.uuid()), wf.random().random()]
        if more:
            await wf.gather(inner(wf))
            wf.random()
        made.append(str(wf.uuid()))
        await wf.step(say, "a")
        return [*made, wf.now().isoformat()]

    async def inner(wf: Workflow) -> str:
        return str(wf.uuid())

    store = Store()
    assert wf_at_begin(await run(flow, store), store)
    first = result(await run(flow, store))
    assert first == result(await run(flow, store)) == result(await run(flow, store, more=True))


def wf_at_begin(ended: object, store: Store) -> bool:
    return bool(result(ended)[3] == store.rows[0].at.isoformat() > BEGIN.isoformat())


async def test_patched_is_false_for_runs_that_were_past_it() -> None:
    async def old(wf: Workflow) -> str:
        await wf.step(say, "old")
        await wf.sleep(60)
        return "old"

    async def new(wf: Workflow) -> str:
        way = "new" if wf.patched("grace") else "old"
        await wf.step(say, way)
        await wf.sleep(60)
        return way

    begun = Store()
    await run(old, begun)
    assert result(await run_on(new, begun)) == "old"
    fresh = Store()
    assert result(await run_on(new, fresh)) == "new"
    assert fresh.written()[:2] == ["patch/grace", "say"]
    assert ran == ["old", "new"]


async def test_a_history_that_is_too_long_fails_the_run_with_advice() -> None:
    async def flow(wf: Workflow) -> None:
        while True:
            await wf.step(say, "a")

    ended = await run(flow, rules=Rules(max_history=3))
    assert isinstance(ended, DeadLettered)
    assert ended.error.summary == (
        "HistoryTooLong: the history has 3 records, which is the limit. Use wf.continue_as_new() regularly, "
        "or declare the workflow with a larger max_history"
    )
    assert ran == ["a"] * 3


async def test_set_state_is_written_with_the_next_record_or_at_the_end() -> None:
    async def flow(wf: Workflow) -> None:
        wf.set_state({"n": 1})
        await wf.step(say, "a")
        await wf.step(say, "b")
        wf.set_state({"n": 2})

    store = Store()
    assert isinstance(await run(flow, store, crash_at=1), Released)
    assert store.shown == '{"n":1}'
    await run(flow, store)
    assert store.shown == '{"n":2}'


async def test_what_code_says_of_itself_is_there_while_it_waits() -> None:
    async def flow(wf: Workflow) -> None:
        wf.set_state({"n": 1})
        await wf.signal(Signal("go", int), timeout=60)

    store = Store()
    assert isinstance(await run(flow, store), Suspended)
    assert store.shown == '{"n":1}'


async def test_wrong_options_are_refused() -> None:
    async def flow(wf: Workflow) -> None:
        for wrong in (
            {"name": "a/b"},
            {"timeout": 0},
            {"max_attempts": 0},
            {"on_cancel": "no"},
            {"queue": "A"},
            {"retry": 3},
            {"id": ""},
        ):
            with pytest.raises(InvalidOption):
                wf.using(**wrong)
        with pytest.raises(TypeError, match=r"wf\.gather\(\) takes steps, branches and coroutines, not "):
            await wf.gather(asyncio.sleep, 3)  # type: ignore[call-overload]

    assert isinstance(await run(flow), Completed)
    assert issubclass(Crash, BaseException)


async def test_wrong_arguments_are_refused_at_the_call_and_say_what_to_write() -> None:
    async def flow(wf: Any) -> None:
        with pytest.raises(TypeError, match=r"wf\.signal\(\) takes a Signal, not str 'note'\. Declare it: "):
            await wf.signal("note")
        with pytest.raises(
            TypeError, match=r"wf\.received\(\) takes a Signal, not str 'note'\. Declare it: "
        ):
            wf.received("note")
        with pytest.raises(TypeError, match=r"wf\.start\(\) takes a workflow, not function .* wf\.step\(\)"):
            wf.start(say, "a")
        with pytest.raises(
            TypeError, match=r"wf\.map\(\) takes a task, not function .* there is wf\.step\(\)"
        ):
            wf.map(say, ["a"])
        with pytest.raises(
            TypeError, match=r"wf\.call\(\) takes a task, not function .* there is wf\.step\(\)"
        ):
            wf.call(say, "a")
        for verb in (wf.step, wf.transact, wf.on_failure):
            with pytest.raises(TypeError, match=r"takes a function and its arguments, not coroutine .*say"):
                verb(say("a"))
            with pytest.raises(
                InvalidOption, match=r"a lambda has no name that stays the same\. Write a def"
            ):
                verb(lambda: None)
        with pytest.raises(InvalidOption, match=r"Write a def$"):
            wf.on_failure(lambda: None)
        with pytest.raises(InvalidOption, match=r"an object of type partial has no name .*transact"):
            wf.transact(functools.partial(say, "a"))

    assert isinstance(await run(flow), Completed)
    assert ran == []


def alive(*kinds: type) -> list[object]:
    """What the collector has not seen yet, of these kinds."""
    return [found for found in gc.get_objects() if type(found) in kinds]


async def test_a_run_that_has_ended_leaves_nothing_to_the_collector() -> None:
    """It took a fifth of a worker's time to find what runs had left behind in circles."""

    async def two(wf: Workflow) -> str:
        return await wf.step(say, "c") + await wf.step(say, "d")

    async def flow(wf: Workflow) -> None:
        wf.on_failure(say, "undo")
        await wf.step(say, "a")
        await wf.gather(wf.step(say, "b"), wf.branch("two", two, wf))
        await wf.sleep(0)
        await wf.compensate()

    await run(flow, verify=False)  # what is made once
    gc.collect()
    gc.disable()
    try:
        assert isinstance(await run(flow, verify=False), Completed)
        left = alive(Core, Scope, Attempts, Step, Record)
    finally:
        gc.enable()
    assert left == []
