"""Runs over every kind of connection: started, signalled and cancelled in the caller's transaction, or not at all."""

from typing import Any

import pytest
from tests.guests.conftest import orders
from tests.guests.kinds import Kind, Undo

from holdfast import Holdfast, ResultExpired, Signal, Workflow, WorkflowType
from holdfast.testing import Kit

TEXT = "ü\\'\"{},NULL"
NOTE = Signal("note", str)


@pytest.fixture
def app() -> Holdfast:
    app = Holdfast("postgresql://unused.invalid/none")

    @app.workflow(sticky=0.05)
    async def greet(wf: Workflow, name: str) -> str:
        said = await wf.signal(NOTE)
        return f"{name} {said}"

    app.greet = greet  # type: ignore[attr-defined]
    return app


def test_a_run_is_there_exactly_when_the_transaction_commits(kind: Kind, app: Any, kit: Kit) -> None:
    greet: WorkflowType[[str], str] = app.greet
    options = {"id": f"a{TEXT}", "tags": [TEXT, "b"], "priority": 7}
    with pytest.raises(Undo), kind.block():
        kind.write(1)
        lost = kind.start(greet, TEXT, **options)
        assert kind.signal(lost, NOTE("never"))
        raise Undo
    with pytest.raises(ResultExpired, match="there is no run"):
        lost.state()
    left = (
        "SELECT (SELECT count(*) FROM holdfast.work) + (SELECT count(*) FROM holdfast.workflow_signals) AS n"
    )
    assert kit.sql(left) == [{"n": 0}]
    with kind.block():
        kind.write(2)
        run = kind.start(greet, TEXT, **options)
        assert run.created
        assert not kind.start(greet, TEXT, **options).created, "the same id is the same run, also here"
        assert kind.signal(run, NOTE(TEXT), idempotency_key=TEXT)
        other = kind.start(greet, "other")
        assert kind.cancel(other, TEXT)
        kind.write(3)
        assert kit.sql("SELECT FROM holdfast.workflow_runs") == [], "nobody sees it before the commit"
    assert orders(kit) == [2, 3]
    assert kit.workflows.run(run) == f"{TEXT} {TEXT}"
    assert other.state()[0] == "cancelled"
    (row,) = kit.sql("SELECT tags FROM holdfast.workflow_runs WHERE id = %s", [run.run_id])
    assert row == {"tags": [TEXT, "b"]}
    (job,) = [job for job in kit.jobs() if job["id"] == run.run_id]
    assert (job["priority"], job["tags"]) == (7, [TEXT, "b"])
