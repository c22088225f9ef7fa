"""A step that is at work stands in the timeline of its run, and no longer than that."""

import asyncio
import json
from typing import Any
from uuid import UUID

import pytest
from tests.conftest import await_until
from tests.workflows.support import QUEUE, Runs, step
from tests.workflows.test_workflow_worker import working
from typer.testing import CliRunner

from holdfast import Backoff, Entry, Holdfast, Run, Workflow
from holdfast.cli import app as cli
from holdfast.operate.refusal import Refused
from holdfast.shapes.workflows import working as at_work
from holdfast.shapes.workflows.ends import prune
from holdfast.shapes.workflows.timeline import timeline
from holdfast.shapes.workflows.verbs import WorkflowVerbs
from holdfast.shapes.workflows.working import ReportedProgress, StepProgress
from holdfast.testing import Kit

SAID = "SELECT run_id FROM holdfast.workflow_at_work"


def command(kit: Kit, *words: str) -> Any:
    found = CliRunner().invoke(cli, [*words, "-d", kit.url])
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout) if "--json" in words else found.stdout


async def test_a_step_in_flight_is_a_row_of_the_timeline(app: Holdfast, akit: Kit) -> None:
    gate = asyncio.Event()

    async def quick() -> None: ...

    async def slow() -> None:
        await gate.wait()

    async def shaky() -> None:
        if not gate.is_set():
            await gate.wait()
            raise ValueError("not yet")

    @app.workflow(sticky=0.05)
    async def prints(wf: Workflow) -> None:
        await wf.step(quick)
        patient = wf.using(retry=Backoff(first=3600, cap=3600), name="shaky")
        await wf.gather(wf.using(name="slow").step(slow), patient.step(shaky))

    akit.create_queues()
    run: Run[None] = await prints.using(id="p1").astart()

    async def running() -> dict[str, Entry]:
        found = await run.atimeline()
        assert [entry.n for entry in found] == list(range(len(found)))
        at_work = {entry.key: entry for entry in found if entry.outcome == "running"}
        return at_work if len(at_work) == 2 else {}

    async with working(akit):
        found: dict[str, Entry] = await await_until(running, "both are said")
        assert set(found) == {"slow", "shaky"}
        (worker,) = [row["id"] for row in akit.sql("SELECT id FROM holdfast.workers WHERE status = 'alive'")]
        slow_step = found["slow"]
        assert (slow_step.kind, slow_step.attempts, slow_step.ended_at, slow_step.worker) == (
            "step",
            1,
            None,
            worker,
        )
        shown = command(akit, "workflow", "timeline", "p1", "--json")
        rows = shown["entries"]
        assert [row["outcome"] for row in rows if row["key"] == "slow"] == ["running"]
        assert "running" in next(
            line for line in command(akit, "workflow", "show", "p1").splitlines() if line.startswith("slow ")
        )
        whole = command(akit, "workflow", "show", "p1", "--json")
        assert [row["outcome"] for row in whole["entries"] if row["key"] == "slow"] == ["running"]
        gate.set()
        await await_until(lambda: run.state()[0] == "suspended", "it waits for the next attempt")
        outcomes = {entry.key: entry.outcome for entry in await run.atimeline()}
        assert outcomes["slow"] == "done"
        assert outcomes["shaky"] == "retrying"
        await await_until(lambda: akit.sql(SAID) == [], "the worker takes back what it said")
        akit.clock.advance(3601)
        await await_until(lambda: run.state()[0] == "completed", "it ends")


def test_what_was_said_counts_for_that_claim_and_era_alone(kit: Kit) -> None:
    runs = Runs.on(kit.url)
    grant = runs.started()
    run = grant.id

    def say(generation: int, *keys: str, era: int = 0) -> None:
        rows = [{"key": key, "kind": "step", "began": 1e9, "attempts": 2, "ordinal": 0} for key in keys]
        text = json.dumps(rows) if rows else None
        runs.run(at_work.say([StepProgress(str(run), generation, era, text)]))

    def seen() -> list[tuple[str, str, int, str | None]]:
        return [(e.key, e.outcome, e.attempts, e.error) for e in runs.run(timeline(run))]

    say(grant.generation, "charge", "label")
    assert seen() == [("charge", "running", 2, None), ("label", "running", 2, None)]
    failed = json.dumps({"kind": "ValueError", "message": "no"})
    runs.record(grant, step("label", None, outcome="retrying", error=failed))
    runs.record(grant, step("charge"))
    assert seen() == [("label", "running", 2, "ValueError: no"), ("charge", "done", 1, None)]
    runs.conn.execute("UPDATE holdfast.workflow_runs SET era = 1 WHERE id = %s", [run])
    assert [key for key, outcome, *_ in seen() if outcome == "running"] == []
    runs.conn.execute("UPDATE holdfast.workflow_runs SET era = 0 WHERE id = %s", [run])
    second = runs.take_over(grant)
    assert [key for key, outcome, *_ in seen() if outcome == "running"] == []
    say(second.generation, "label")
    say(grant.generation, "stale")  # the first owner stood still for a while
    say(grant.generation)
    assert [key for key, outcome, *_ in seen() if outcome == "running"] == ["label"]
    runs.conn.execute(
        "UPDATE holdfast.work SET status = 'pending' WHERE queue = %s AND id = %s", [QUEUE, run]
    )
    assert [outcome for _, outcome, *_ in seen()] == ["retrying", "done"]
    runs.run(prune(7, 100))
    assert runs.conn.execute(SAID).fetchall() == []
    runs.conn.close()


def test_a_worker_says_what_is_new_alone() -> None:
    told = ReportedProgress()
    one, two = (StepProgress(str(UUID(int=n)), 1, 0, "[]") for n in (1, 2))
    quick = StepProgress(str(UUID(int=3)), 1, 0, None)
    assert told.news([one, two, quick]) == [one, two]
    assert told.news([one]) == [one], "it was not written"
    told.keep([one, two])
    assert told.news([one, two, quick]) == []
    assert told.news([two]) == [one._replace(steps=None)]
    told.keep([one._replace(steps=None)])
    assert told.news([two]) == []


def test_a_step_at_work_is_nothing_to_fork_from(kit: Kit) -> None:
    runs = Runs.on(kit.url)
    grant = runs.started(key="f1")
    runs.record(grant, step("charge"))
    steps = json.dumps([{"key": "label", "kind": "step", "began": 1e9, "attempts": 1, "ordinal": 1}])
    runs.run(at_work.say([StepProgress(str(grant.id), grant.generation, 0, steps)]))
    runs.conn.close()
    with pytest.raises(Refused, match="has not recorded 'label'"):
        WorkflowVerbs(kit.database, "tester").fork("f1", "label")
    assert WorkflowVerbs(kit.database, "tester").fork("f1", "charge").kept == ()


def test_a_fork_counts_a_step_that_is_at_work_again_as_it_was_recorded(kit: Kit) -> None:
    runs = Runs.on(kit.url)
    grant = runs.started(key="f2")
    failed = json.dumps({"kind": "ValueError", "message": "no"})
    runs.record(grant, step("a"))
    runs.record(grant, step("b", None, outcome="retrying", error=failed))
    runs.record(grant, step("c"))
    steps = json.dumps([{"key": "b", "kind": "step", "began": 1e9, "attempts": 2, "ordinal": 1}])
    runs.run(at_work.say([StepProgress(str(grant.id), grant.generation, 0, steps)]))
    assert [(e.n, e.key) for e in runs.run(timeline(grant.id))] == [(0, "a"), (1, "b"), (2, "c")]
    runs.conn.close()
    forked = WorkflowVerbs(kit.database, "tester").fork("f2", "2")
    assert (forked.step, forked.kept) == ("c", ("a", "b"))
    assert WorkflowVerbs(kit.database, "tester").fork("f2", "b").kept == ("a",)
