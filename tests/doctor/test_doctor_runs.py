"""Runs of workflows in trouble: made so, found, and gone when the cause is."""

import pytest
from tests.conftest import wait_until
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
    case.sql(
        "INSERT INTO holdfast.workflow_signals (run_id, name, sent_at)"
        " SELECT id, 'paid', holdfast.now() FROM holdfast.workflow_runs"
    )
    finding = case.found("stuck_run")
    assert finding is not None
    assert finding["details"] == [f"checkout 'order:2' ({run}): it has unread messages that it waits for"]
    case.sql("DELETE FROM holdfast.workflow_signals")
    case.sql("UPDATE holdfast.workflow_runs SET waits = '{child:ship}'")
    finding = case.cure("stuck_run")
    assert finding["details"] == [f"checkout 'order:2' ({run}): it waits for nothing that is open"]


def test_a_run_that_waits_for_one_that_somebody_else_started_is_not_stuck(case: Case) -> None:
    run, other = started(case, "order:5"), started(case, "ship:5")
    case.sql(
        f"UPDATE holdfast.work SET lease_generation = 1, available_at = '9999-01-01Z' WHERE id = '{run}'"
    )
    case.sql(f"UPDATE holdfast.workflow_runs SET asleep = 1, waits = '{{child:ship}}' WHERE id = '{run}'")
    case.sql(
        "INSERT INTO holdfast.workflow_steps (run_id, generation, ordinal, began_at, ended_at, key, kind, outcome, linked)"
        f" VALUES ('{run}', 1, 0, now(), now(), 'ship', 'child', 'done', '{other}')"
    )
    assert case.found("stuck_run") is None
    case.sql(f"UPDATE holdfast.workflow_runs SET ended_at = now(), state = 'completed' WHERE id = '{other}'")
    assert case.found("stuck_run") is not None


@pytest.mark.parametrize(
    ("broken", "trouble"),
    [
        (
            "UPDATE holdfast.workflow_steps SET generation = 9",
            "it has a record of a claim that was never given",
        ),
        ("DELETE FROM holdfast.workflow_steps", "a signal was taken by a record that is not there"),
        (
            "INSERT INTO holdfast.workflow_history SELECT 0, id, era, now(), '[]', '[]' FROM holdfast.workflow_runs",
            "its era was folded, and continues",
        ),
        (
            "UPDATE holdfast.workflow_runs SET state = 'failed', ended_at = holdfast.now()",
            "it has ended, and has records that were not folded",
        ),
        (
            (
                "WITH s AS (DELETE FROM holdfast.workflow_steps)"
                " UPDATE holdfast.workflow_runs SET state = 'completed', ended_at = now()"
            ),
            "it has ended, and has a job",
        ),
    ],
)
def test_torn_run(case: Case, broken: str, trouble: str) -> None:
    """I1, I2, I4 and I7 of a run; the three checks above are I4, I5, I6 and I8."""
    run = started(case, "order:6")
    case.sql("UPDATE holdfast.work SET lease_generation = 1")
    case.sql(
        "INSERT INTO holdfast.workflow_steps (run_id, generation, ordinal, began_at, ended_at, key, kind, outcome)"
        f" VALUES ('{run}', 1, 0, now(), now(), 'paid', 'signal', 'done')"
    )
    case.sql(
        "INSERT INTO holdfast.workflow_signals (run_id, name, sent_at, taken_by)"
        f" VALUES ('{run}', 'paid', now(), 'paid'), ('{run}', 'child:ship', now(), 'ship')"
    )
    assert case.found("torn_run") is None
    case.sql(broken)
    finding = case.found("torn_run")
    assert finding is not None
    assert finding["details"] == [f"checkout 'order:6' ({run}): {trouble}"]
    assert finding["fix"] == [f"holdfast workflow show {run}"]


def test_a_run_whose_job_was_brought_back_is_not_torn(case: Case) -> None:
    started(case, "order:7")
    case.sql("UPDATE holdfast.workflow_runs SET state = 'failed', ended_at = holdfast.now()")
    assert case.found("torn_run") is None


def test_a_run_that_outlived_its_parent_is_found_until_it_is_cancelled(case: Case) -> None:
    parent, child = started(case, "order:3"), started(case, "order:3/ship")
    case.sql(
        f"UPDATE holdfast.workflow_runs SET parent_id = '{parent}', parent_key = 'ship' WHERE id = '{child}'"
    )
    assert case.found("orphan_run") is None
    case.sql(f"DELETE FROM holdfast.work WHERE id = '{parent}'")
    case.sql(
        f"UPDATE holdfast.workflow_runs SET state = 'completed', ended_at = holdfast.now() WHERE id = '{parent}'"
    )
    case.sql("UPDATE holdfast.workflow_runs SET on_cancel = 'abandon'")
    assert case.found("orphan_run") is None
    case.sql("UPDATE holdfast.workflow_runs SET on_cancel = 'cancel'")
    finding = case.cure("orphan_run")
    assert finding["fix"] == [f"holdfast workflow cancel {child}"]
    assert finding["details"] == [f"checkout 'order:3/ship' ({child}): its parent {parent} has ended"]


def test_runs_that_parted_from_their_code_are_found_by_workflow_and_version(case: Case) -> None:
    run = started(case, "order:4")
    why = "diverged: at 4 in scope '''' the history has ''charge'', the code asks for ''refund''"
    case.sql(f"UPDATE holdfast.work SET status = 'held', hold_reason = '{why}' WHERE id = '{run}'")
    case.sql("UPDATE holdfast.workflow_runs SET state = 'diverged'")
    case.sql(
        "INSERT INTO holdfast.misfits (job_id, signature, queue, available_at, reason, at)"
        " SELECT id, 's', queue, available_at, 'x', holdfast.now() FROM holdfast.work"
    )
    assert case.found("misfits") is None
    finding = case.cure("diverged_runs")
    assert finding["what"] == "1 run set aside: its code diverged from what was recorded"
    assert finding["fix"] == [f"holdfast workflow retry {run}"]
    assert finding["otherwise"] == [f"holdfast workflow retry {run} --accept --app MODULE:APP"]
    (detail,) = finding["details"]
    assert detail.startswith(
        f"checkout version 1: 1 run, such as {run}: diverged: at 4 in scope '' the history"
    )


NEWER = APP.replace("@app.workflow()", "@app.workflow(version=2)")
BOTH = f"""{APP}

@app.workflow(name="checkout", version=2)
async def newer(wf: Workflow) -> str:
    return "done"
"""


def test_a_version_that_no_live_worker_knows_is_named_also_for_runs_that_sleep(case: Case) -> None:
    (case.folder / "newer_app.py").write_text(NEWER)
    (case.folder / "both_app.py").write_text(BOTH)
    run = started(case, "order:5")
    later = "UPDATE holdfast.work SET available_at = available_at + interval '1 day' WHERE id = %s"
    case.sql(later, [run])
    here = ("-a", "both_app:app")
    assert case.found("unknown_workflows", *here) is None, "nobody is there at all"
    case.start("newer_app:app", "--queue", "workflows")
    wait_until(lambda: case.found("unknown_workflows", *here) is not None, "the worker is heard of", 15)
    finding = case.cure("unknown_workflows", *here)
    assert finding["what"] == "1 open run of 1 version that no live worker knows, among the oldest 10,000"
    assert finding["details"][0].startswith("checkout version 1: 1 run in queue workflows, the oldest for ")
    assert finding["fix"] == ["holdfast worker both_app:app --queue workflows"]
    assert finding["otherwise"] == ["holdfast workflow list --workflow checkout"]


def test_a_run_that_nobody_knew_is_named_as_a_run_and_not_as_a_job(case: Case) -> None:
    run = started(case, "order:6")
    case.sql(
        f"UPDATE holdfast.work SET status = 'held', hold_reason = 'no worker knows checkout version 1' WHERE id = '{run}'"
    )
    assert case.found("unknown_tasks") is None
    finding = case.found("unknown_workflows")
    assert finding is not None
    assert finding["what"].startswith("1 open run of 1 version that no live worker knows")
