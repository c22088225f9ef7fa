"""Places where durable workflows go wrong, one test each. Elsewhere: a snapshot older than its lock, and senders at
REPEATABLE READ (test_workflow_signals), pauses that a signal must not shorten (there too), times that are no time
(test_workflow_sleepers), functions without a name (test_workflow_code)."""

import json
import math
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from tests.conftest import await_until
from tests.workflows.memory_journal import Store, run
from tests.workflows.support import QUEUE, Runs, step
from tests.workflows.test_workflow_worker import working

from holdfast import (
    Holdfast,
    InvalidPayload,
    Signal,
    StepFailed,
    SyncWorkflow,
    Workflow,
    WorkflowFailed,
)
from holdfast.model.job import Grant
from holdfast.model.outcome import Completed, Suspended
from holdfast.shapes.workflows.lanes import MOST_ROWS, Asked, Lane
from holdfast.shapes.workflows.recorder import Recorder
from holdfast.testing import Kit
from holdfast.testing.lint import SwallowsEviction

GO = Signal("go", int)
RATE = Signal("rate", float)


def value(outcome: object) -> Any:
    assert isinstance(outcome, Completed), outcome
    return json.loads(outcome.result or "null")


# Locks and indexes


@pytest.fixture
def runs(dsn: str) -> Iterator[Runs]:
    made = Runs.on(dsn)
    yield made
    made.conn.close()


def test_a_sender_that_does_not_commit_stops_no_record(runs: Runs, dsn: str) -> None:
    owner = runs.started()
    with psycopg.connect(dsn) as sender:
        sent = "SELECT holdfast.workflow_signal('checkout', %s, 'go', '1')"
        assert sender.execute(sent, [runs.key(owner.id)]).fetchone() == ("sent",)
        assert runs.record(owner, step("a"), shown='{"at": 1}').missing == []
        runs.conn.execute("SET lock_timeout = '1s'")
        runs.one("SELECT holdfast.workflow_end(%s, '{completed}', '{1}', '{NULL}')", [owner.id])
    foreign = runs.one(
        "SELECT count(*) FROM pg_constraint c JOIN pg_class t ON t.oid = c.conrelid"
        " WHERE c.contype = 'f' AND t.relnamespace = 'holdfast'::regnamespace AND t.relname LIKE 'workflow%%'"
    )
    assert foreign == 0, "a foreign key would lock the run with each record"


def test_what_changes_in_a_run_is_in_no_index_that_would_be_written_each_time(runs: Runs) -> None:
    found = runs.conn.execute(
        "SELECT a.attname AS name FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam"
        " JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)"
        " WHERE i.indrelid = 'holdfast.workflow_runs'::regclass AND m.amname <> 'brin'"
    ).fetchall()
    assert {row["name"] for row in found} == {"id", "workflow", "key", "parent_id"}
    owner = runs.started()
    runs.conn.execute("SELECT pg_stat_force_next_flush()")
    for n in range(20):
        runs.record(owner, step(f"s{n}"), shown=f'{{"n": {n}}}')
    if runs.conn.info.server_version >= 160000:
        runs.conn.execute("SELECT pg_stat_force_next_flush()")
        runs.conn.execute("SELECT pg_stat_clear_snapshot()")
        hot = runs.conn.execute(
            "SELECT n_tup_upd AS all, n_tup_hot_upd AS hot FROM pg_stat_user_tables"
            " WHERE schemaname = 'holdfast' AND relname = 'workflow_runs'"
        ).fetchone()
        assert hot is not None
        assert hot["all"] >= 20
        assert hot["hot"] >= hot["all"] - 2


# Values


async def ints() -> dict[int, str]:
    return {1: "one", 2: "two"}


async def untyped() -> Any:
    return {"1": ("a", "b"), "t": (1, 2)}


async def untyped_ints() -> Any:
    return {1: "one"}


async def tuples() -> Any:
    return {(1, 2): "pair"}


async def not_a_number() -> Any:
    return {"rate": math.nan}


async def nul() -> str:
    return "a\x00b"


async def lone() -> str:
    return "\ud800"


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


async def mute() -> None:
    raise Mute


async def says_nul() -> None:
    raise ValueError("a\x00b \ud800")


async def all_values(wf: Workflow) -> list[str]:
    found = [repr(await wf.step(ints)), repr(await wf.step(untyped))]
    for body in (tuples, not_a_number, nul, lone, mute, says_nul, untyped_ints):
        try:
            found.append(repr(await wf.using(max_attempts=1).step(body)))
        except StepFailed as error:
            found.append(f"{error.kind}: {error.message}")
    return found


def _check_values(found: list[str]) -> None:
    assert found[0] == "{1: 'one', 2: 'two'}", "by its annotation"
    assert found[1] == "{'1': ['a', 'b'], 't': [1, 2]}", "as JSON has it"
    assert found[2].startswith("InvalidPayload: ")
    assert found[3].startswith("InvalidPayload: ")
    assert "nan" in found[3].lower()
    assert found[4].startswith("InvalidPayload: ")
    assert found[5].startswith("InvalidPayload: ")
    assert found[6].startswith("Mute")
    assert found[7].startswith("ValueError: a")
    assert "\x00" not in found[7]
    assert found[8].startswith("InvalidPayload: a key of the result is int 1; JSON keys are strings")


async def test_live_and_replayed_code_see_the_same_value_whatever_it_is() -> None:
    store = Store()
    live = value(await run(all_values, store, verify=False))
    _check_values(live)
    assert value(await run(all_values, store)) == live


def test_the_database_takes_all_of_them_too(app: Holdfast, kit: Kit) -> None:
    @app.workflow(sticky=0.05)
    async def values(wf: Workflow) -> list[list[str]]:
        before = await all_values(wf)
        await wf.sleep(3600)  # the rest of it is a replay
        return [before]

    kit.create_queues()
    ((found,)) = kit.workflows.run(values.start())
    _check_values(found)


def test_wrong_text_and_numbers_are_refused_where_they_are_given(app: Holdfast, kit: Kit) -> None:
    @app.workflow()
    async def takes(wf: Workflow, word: str, rate: float = 0.0) -> None: ...

    kit.create_queues()
    wrong: list[dict[str, Any]] = [{"word": "a\x00"}, {"word": "\ud800"}, {"word": "a", "rate": math.inf}]
    for arguments in wrong:
        with pytest.raises(InvalidPayload):
            takes.start(**arguments)
    with pytest.raises(InvalidPayload):
        RATE(math.nan)
    assert kit.sql("SELECT FROM holdfast.workflow_runs") == []


# Code that catches too much


async def catches(wf: Workflow, n: int = 0) -> int:
    try:
        await wf.signal(GO)
        if n == 0:
            wf.continue_as_new(n=1)
    except Exception:  # what is no concern of the code goes through
        return -1
    return n


async def test_except_exception_catches_neither_eviction_nor_the_next_era() -> None:
    store = Store()
    assert isinstance(await run(catches, store), Suspended)
    store.signals += [("go", 1), ("go", 2)]
    assert value(await run(catches, store)) == 1
    assert store.era == 1


def test_code_that_swallows_its_eviction_is_refused_by_the_kit(app: Holdfast, kit: Kit) -> None:
    @app.workflow()
    async def swallows(wf: Workflow) -> None:
        try:  # noqa: SIM105
            await wf.sleep(3600)
        except BaseException:
            pass

    @app.workflow()
    async def bare(wf: Workflow) -> None:
        async def branch() -> None:
            try:
                await wf.sleep(3600)
            except:  # noqa: E722
                return

        await wf.gather(branch(), branch())

    @app.workflow()
    async def careful(wf: Workflow) -> str:
        async def body() -> str:
            try:
                return "done"
            except BaseException:  # a step is the user's own
                return "never"

        try:
            return await wf.step(body)
        except BaseException:
            raise

    kit.create_queues()
    with pytest.raises(
        SwallowsEviction, match=r"swallows: .*test_workflow_traps.py, line \d+: `except BaseExc"
    ):
        kit.workflows.run(swallows.start())
    with pytest.raises(SwallowsEviction, match=r"bare: .*: `except` without `raise` catches Evicted"):
        kit.workflows.run_until_waiting(bare.start())
    assert kit.workflows.run(careful.start()) == "done"


# Claims, attempts, clocks, threads, turns


async def one() -> int:
    return 1


def test_a_history_is_read_once_for_a_claim_and_never_for_the_first(
    app: Holdfast, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    read = Recorder.history

    async def counted(self: Recorder, run_id: str) -> Any:
        asked.append(run_id)
        return await read(self, run_id)

    @app.workflow(sticky=0.05)
    async def short(wf: Workflow) -> int:
        return await wf.step(one)

    @app.workflow(sticky=0.05)
    async def long(wf: Workflow) -> int:
        await wf.sleep(3600)
        return await wf.step(one)

    kit.create_queues()
    monkeypatch.setattr(Recorder, "history", counted)
    for _ in range(20):
        short.start()
    kit.run_worker()
    assert asked == []
    run = long.start()
    assert kit.workflows.run(run) == 1
    assert asked == [str(run.run_id)]


def test_a_run_does_not_die_by_how_often_it_is_taken_up(app: Holdfast, kit: Kit) -> None:
    @app.workflow(sticky=0.05)
    async def patient(wf: Workflow) -> int:
        for _ in range(8):
            await wf.sleep(3600)
        return wf.history_length

    kit.create_queues()
    run = patient.start()
    kit.sql("UPDATE holdfast.work SET max_attempts = 2")
    assert kit.workflows.run(run) == 8
    (job,) = [job for job in kit.jobs() if job["id"] == run.run_id]
    assert job["lease_generation"] > 8
    assert (job["status"], job["attempts"]) == ("completed", 1)


def test_time_is_the_databases(app: Holdfast, kit: Kit) -> None:
    @app.workflow(sticky=0.05)
    async def asks(wf: Workflow) -> list[str]:
        await wf.step(one)
        before = wf.now()
        got = await wf.signal(GO, timeout=timedelta(hours=2))
        return [before.isoformat(), wf.now().isoformat(), str(bool(got))]

    kit.create_queues()
    kit.clock.advance(timedelta(days=100).total_seconds())
    began = kit.clock.now()
    first, second, got = kit.workflows.run(asks.start())
    assert abs((kit.clock.now() - timedelta(hours=2) - began).total_seconds()) < 600
    assert first[:10] == began.date().isoformat()
    assert first < second
    assert got == "False"


async def test_a_plain_function_that_waits_keeps_no_thread(app: Holdfast, akit: Kit) -> None:
    @app.workflow(sticky=600)
    def waits(wf: SyncWorkflow) -> int:
        wf.step(lambda_free)
        return wf.signal(GO)

    akit.create_queues()
    before = threading.active_count()
    async with working(akit):
        runs = [await waits.astart() for _ in range(20)]
        await await_until(
            lambda: all(run.state()[0] == "suspended" for run in runs), "they are put away at once"
        )
        assert threading.active_count() - before < 30
        for run in runs:
            assert await run.asignal(GO(3))
        for run in runs:
            assert await run.aresult(timeout=60) == 3


def lambda_free() -> int:
    return 1


async def test_a_run_with_ten_thousand_records_does_not_make_others_wait() -> None:
    lane: Lane[int] = Lane()
    greedy, others = Grant(QUEUE, UUID(int=1), 1, UUID(int=1)), [UUID(int=n) for n in range(2, 52)]
    for n in range(10_000):
        lane.add(Asked(greedy, n))
    for other in others:
        lane.add(Asked(Grant(QUEUE, other, 1, other), 0))
    batch = lane.take(MOST_ROWS)
    assert {UUID(asked.grant.id_text) for asked in batch} == {UUID(int=1), *others}, (
        "the first batch has all of them"
    )
    assert len(batch) == MOST_ROWS
    taken = [asked.what for asked in batch if asked.grant is greedy]
    while lane:
        taken += [asked.what for asked in lane.take(MOST_ROWS)]
    assert taken == list(range(10_000)), "and its own are in their order"


def test_a_failed_run_says_what_could_not_be_printed(app: Holdfast, kit: Kit) -> None:
    @app.workflow(sticky=0.05)
    async def fails(wf: Workflow) -> None:
        raise Mute

    kit.create_queues()
    with pytest.raises(WorkflowFailed, match="failed: Mute"):
        kit.workflows.run(fails.start())
