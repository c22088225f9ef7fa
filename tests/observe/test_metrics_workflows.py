"""What Prometheus reads of workflows, from a real worker on a real database."""

from collections.abc import Callable

from tests.conftest import wait_until
from tests.observe.support import Port, ready, with_port
from typer.testing import CliRunner

from holdfast import Holdfast, Signal, Workflow
from holdfast.cli import app as cli
from holdfast.shapes.workflows import measure
from holdfast.store.queue_load import CAP, queue_load
from holdfast.testing import Kit

GO = Signal("go", str)
MakeKit = Callable[..., Kit]
SLEEPERS = """
WITH job AS (
    INSERT INTO holdfast.work (id, queue, task, payload, available_at, lease_generation)
    SELECT holdfast.uuid7(), 'workflows', 'bulk', '{}', %s, 1 FROM generate_series(1, %s) RETURNING id
)
INSERT INTO holdfast.workflow_runs (id, workflow, key, queue, version, root_id, created_at, era_at, asleep, waits)
SELECT id, 'bulk', id::text, 'workflows', 1, id, holdfast.now(), holdfast.now(), 1, '{go}' FROM job
"""


def _until(port: Port, number: float, name: str, **labels: str) -> None:
    wait_until(lambda: port.value(name, **labels) == number, f"{name} {labels} is {number}")


def test_runs_by_workflow_and_state(app: Holdfast, holdfast_kit: MakeKit) -> None:
    @app.workflow(sticky=0.01)
    async def asks(wf: Workflow) -> str:
        return await wf.signal(GO)

    kit = holdfast_kit(app, with_port(metrics_snapshot=0.05))
    kit.create_queues()
    with ready(kit) as port:
        runs = [asks.start() for _ in range(3)]
        _until(port, 3, "workflow_runs", workflow="asks", state="suspended")
        _until(port, 3, "workflow_runs_began_total", workflow="asks")
        _until(port, 3, "queue_jobs", queue="workflows", state="suspended")
        assert port.value("queue_jobs", queue="workflows", state="scheduled") == 0
        assert port.value("queue_jobs", queue="workflows", state="pending") == 0
        assert port.value("queue_oldest_due_seconds", queue="workflows") == 0
        assert port.value("workflow_diverged_seconds") == 0
        runs[0].signal(GO("yes"))
        _until(port, 1, "jobs_settled_total", queue="workflows", task="asks", outcome="completed")
        _until(port, 2, "workflow_runs", workflow="asks", state="suspended")
        kit.sql(
            "UPDATE holdfast.workflow_runs SET state = 'diverged' WHERE id = %s RETURNING 1", [runs[1].run_id]
        )
        kit.sql(
            "UPDATE holdfast.work SET status = 'held', hold_reason = 'diverged: x',"
            " claimed_at = holdfast.now() - interval '1 hour' WHERE id = %s RETURNING 1",
            [runs[1].run_id],
        )
        _until(port, 1, "workflow_runs", workflow="asks", state="diverged")
        wait_until(
            lambda: (port.value("workflow_diverged_seconds") or 0) >= 3600, "since when it is set aside"
        )
        assert port.value("workflow_runs_began_total", workflow="asks") == 3


def test_runs_that_ended_are_counted_by_outcome(app: Holdfast, holdfast_kit: MakeKit) -> None:
    """Once each, however often they were put away; jobs of plain tasks are none of them."""

    @app.workflow(sticky=0.01)
    async def decides(wf: Workflow) -> str:
        word = await wf.signal(GO)
        if word == "fail":
            raise ValueError(word)
        return word

    @app.task(queue="workflows")
    async def plain() -> None: ...

    kit = holdfast_kit(app, with_port(metrics_snapshot=0.05))
    kit.create_queues()
    with ready(kit) as port:
        for outcome in ("completed", "failed", "cancelled"):
            assert port.value("workflow_runs_ended_total", workflow="decides", outcome=outcome) == 0
        runs = [decides.start() for _ in range(4)]
        plain.enqueue()
        _until(port, 4, "workflow_runs", workflow="decides", state="suspended")
        for run, word in zip(runs, ("yes", "fail", "yes"), strict=False):
            run.signal(GO(word))
        runs[3].cancel()
        for outcome, number in (("completed", 2), ("failed", 1), ("cancelled", 1)):
            _until(port, number, "workflow_runs_ended_total", workflow="decides", outcome=outcome)
        _until(port, 1, "jobs_settled_total", queue="workflows", task="plain", outcome="completed")
        assert port.value("workflow_runs_ended_total", workflow="plain", outcome="completed") is None


def test_a_look_stops_at_the_cap(kit: Kit) -> None:
    kit.sql("SELECT holdfast.create_queue('workflows')")
    with kit.connect() as conn:
        conn.execute(SLEEPERS, ["9999-01-01Z", CAP + 500])
    seen = kit.database.run(lambda: measure.look(10.0))
    assert seen.runs == {("bulk", "suspended"): CAP}
    load = kit.database.run(lambda: queue_load("workflows"))
    assert load is not None
    assert (load.suspended.count, load.suspended.capped, load.scheduled.count) == (CAP, True, 0)


def test_status_and_queue_list_count_runs_that_wait_apart(kit: Kit) -> None:
    kit.sql("SELECT holdfast.create_queue('workflows')")

    def lines(*words: str) -> dict[str, list[str]]:
        result = CliRunner().invoke(cli, [*words, "-d", kit.url])
        assert result.exit_code == 0, result.output
        return {line.split()[0]: line.split() for line in result.stdout.splitlines() if line.strip()}

    assert "suspended" not in lines("queue", "list")["queue"]
    with kit.connect() as conn:
        conn.execute(SLEEPERS, ["9999-01-01Z", 7])
        conn.execute(SLEEPERS, ["9000-01-01Z", 2])
    for words in (["queue", "list"], ["status"]):
        found = lines(*words)
        row = dict(zip(found["queue"], found["workflows"], strict=False))
        assert (row["suspended"], row["scheduled"], row["pending"]) == ("7", "2", "0"), words
