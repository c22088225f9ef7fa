"""Runs of workflows in trouble: made so, found, and gone when the cause is."""

from tests.doctor.case import Case

APP = """
from holdfast import Holdfast, Workflow

app = Holdfast()


@app.workflow()
async def checkout(wf: Workflow) -> str:
    return "done"
"""
HERE = ("-a", "runs_app:app")
START = "SELECT run_id FROM holdfast.workflow_start('checkout', '{}', %s, 1, 'workflows')"


def started(case: Case, key: str) -> str:
    case.sql("SELECT holdfast.create_queue('workflows')")
    (row,) = case.sql(START % f"'{key}'")
    return str(row["run_id"])


def test_a_run_without_a_job_is_found_until_a_worker_ends_it(case: Case) -> None:
    (case.folder / "runs_app.py").write_text(APP)
    run = started(case, "order:1")
    assert case.found("lost_run", *HERE) is None
    case.sql(f"DELETE FROM holdfast.work WHERE id = '{run}'")
    case.sql("UPDATE holdfast.workflow_runs SET created_at = created_at - interval '1 hour'")
    finding = case.cure("lost_run", *HERE)
    assert finding["fix"] == ["holdfast worker runs_app:app"]
    assert finding["details"] == [f"checkout 'order:1' ({run})"]


def test_a_run_that_nothing_can_wake_is_found_until_it_looks_again(case: Case) -> None:
    run = started(case, "order:2")
    asleep = f"UPDATE holdfast.work SET lease_generation = 1, available_at = '9999-01-01Z' WHERE id = '{run}'"
    case.sql(asleep)
    case.sql("UPDATE holdfast.workflow_runs SET asleep = 1, waits = '{paid}'")
    assert case.found("stuck_run") is None
    case.sql("UPDATE holdfast.workflow_runs SET waits = '{child:ship}'")
    finding = case.cure("stuck_run")
    assert finding["details"] == [f"checkout 'order:2' ({run}): it waits for nothing that is open"]
