"""A signal from SQL whose payload its code cannot take: the run is set aside, and goes on without it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypedDict

import pytest
from tests.conftest import QUICK
from typer.testing import CliRunner, Result

from holdfast import Holdfast, Run, Signal, Workflow, WorkflowType
from holdfast.cli import app as cli
from holdfast.cli.refusals import words as words_of
from holdfast.shapes.workflows.messages import SignalMisfit, unfit
from holdfast.store.settle import ASIDE
from holdfast.tasks.convert import Misfit
from holdfast.testing import Kit


class Decision(TypedDict):
    yes: bool


DECIDED = Signal("decided", Decision)
NOTE = Signal("note", str)


async def ask() -> str:
    return "asked"


@dataclass
class Desk:
    kit: Kit
    approval: WorkflowType[[], str]
    notes: WorkflowType[[], list[str]]

    def send(self, run: Run[Any], name: str, payload: str) -> None:
        """As SQL sends it: nobody checks."""
        sent = self.kit.sql(
            "SELECT holdfast.workflow_signal(%s, %s, %s, %s::jsonb) AS sent",
            [run._workflow, run.id, name, payload],
        )
        assert sent == [{"sent": "sent"}]

    def call(self, *words: str) -> Result:
        return CliRunner().invoke(cli, [*words, "-d", self.kit.url])

    def done(self, *words: str) -> str:
        result = self.call(*words)
        assert result.exit_code == 0, result.exception or result.output
        return " ".join(result.output.split())

    def refused(self, *words: str) -> str:
        result = self.call(*words)
        assert isinstance(result.exception, Exception), result.output
        return words_of(result.exception)


@pytest.fixture
def desk(holdfast_kit: Callable[..., Kit]) -> Desk:
    app = Holdfast("postgresql://unused.invalid/none")

    @app.workflow(sticky=0.05)
    async def approval(wf: Workflow) -> str:
        await wf.step(ask)
        decision = await wf.signal(DECIDED)
        return "approved" if decision["yes"] else "refused"

    @app.workflow(sticky=0.05)
    async def notes(wf: Workflow) -> list[str]:
        await wf.signal(DECIDED)
        return await wf.received(NOTE)

    kit = holdfast_kit(app, QUICK)
    return Desk(kit, approval, notes)


def _set_aside(desk: Desk) -> Run[str]:
    run = desk.approval.using(id="order:1").start()
    desk.send(run, "decided", '{"yes": "perhaps"}')
    desk.kit.run_worker()
    assert run.state()[0] == "diverged"
    return run


def test_the_signal_is_dropped_and_the_run_waits_for_the_next(desk: Desk) -> None:
    run = _set_aside(desk)
    assert desk.done("workflow", "retry", "order:1", "--drop-signal", "--yes") == (
        "Run order:1 of approval continues without that signal: decided is dropped."
    )
    assert desk.kit.workflows.run_until_waiting(run) == ["decided"]
    run.signal(DECIDED({"yes": True}))
    assert desk.kit.workflows.run(run) == "approved"
    (noted,) = desk.kit.sql("SELECT selection FROM holdfast.audit WHERE action = 'workflow retry'")
    assert noted["selection"]["dropped_signal"] == "decided"


def test_explain_says_which_signal_and_how_to_drop_it(desk: Desk) -> None:
    run = _set_aside(desk)
    said = desk.done("explain", str(run.run_id))
    assert "the payload of signal 'decided', number 1 that 'decided' took, does not fit the code" in said
    assert f"holdfast workflow retry {run.run_id} --drop-signal" in said
    assert "--accept" not in said


def test_a_fork_does_not_get_the_signal_again(desk: Desk) -> None:
    _set_aside(desk)
    said = desk.done("workflow", "fork", "order:1", "--from", "decided", "--id", "order:1b")
    assert said.endswith("It does not get the signal decided that the old one could not take.")
    fork = desk.approval.get("order:1b")
    assert desk.kit.workflows.run_until_waiting(fork) == ["decided"]
    fork.signal(DECIDED({"yes": False}))
    assert desk.kit.workflows.run(fork) == "refused"


def test_of_many_that_were_taken_together_the_others_are_kept(desk: Desk) -> None:
    run = desk.notes.using(id="order:2").start()
    for payload in ('"first"', "2", '"third"'):
        desk.send(run, "note", payload)
    desk.send(run, "decided", '{"yes": true}')
    desk.kit.run_worker()
    assert run.state()[0] == "diverged"
    assert "number 2 that 'note.received' took" in desk.done("explain", str(run.run_id))
    desk.done("workflow", "retry", "order:2", "--drop-signal", "--yes")
    assert desk.kit.workflows.run(run) == ["first", "third"]


def test_nothing_is_dropped_where_no_signal_is_the_cause(desk: Desk) -> None:
    run = desk.approval.using(id="order:3").start()
    desk.kit.run_worker()
    assert desk.refused("workflow", "retry", "order:3", "--drop-signal", "--yes") == (
        "run 'order:3' of approval is suspended: there is nothing to retry"
    )
    desk.send(run, "decided", '{"yes": "perhaps"}')
    desk.kit.run_worker()
    desk.kit.sql("UPDATE holdfast.work SET hold_reason = 'diverged: at 4'")
    assert desk.refused("workflow", "retry", "order:3", "--drop-signal", "--yes") == (
        "run 'order:3' of approval was not set aside for a signal: diverged: at 4"
    )
    assert desk.refused("workflow", "retry", "order:3", "--drop-signal", "--accept") == (
        "give --accept or --drop-signal, not both: each is for another kind of run"
    )
    assert desk.kit.sql("SELECT count(*) AS n FROM holdfast.workflow_signals") == [{"n": 1}]


def test_a_signal_with_which_code_has_gone_on_is_not_dropped(desk: Desk) -> None:
    """Its type has changed since: then other code can take it."""
    run = _set_aside(desk)
    desk.kit.sql(
        "INSERT INTO holdfast.workflow_steps (run_id, ordinal, generation, began_at, ended_at, key, kind, outcome) "
        "VALUES (%s, 2, 1, now(), now(), 'ship', 'step', 'done')",
        [run.run_id],
    )
    assert desk.refused("workflow", "retry", "order:1", "--drop-signal", "--yes") == (
        "run 'order:1' of approval continued with that signal: ship came after it. Let the code take what was sent, or fork "
        "the run from that call"
    )


def test_a_reason_says_which_signal_it_is_and_text_that_was_sent_cannot() -> None:
    at = "g1.0/pay#2/decided.received#3"
    wrong = SignalMisfit(DECIDED, 17, at, Misfit("not bool, str 'x'"))
    for before in ("", "needs a newer worker: ", f"{ASIDE}: "):
        assert unfit(f"{before}diverged: {wrong}") == (at, 17)
    for said in (f"diverged: {wrong}", f"needs a newer worker: diverged: {wrong}"):
        assert (
            unfit(f"diverged: the recorded result of 'ask' does not fit the code: not int, str {said!r}")
            is None
        )
        assert unfit(f"needs a newer worker: diverged: not int, str '{said}'") is None
    assert unfit(None) is None
