"""What goes wrong around a run ends where it belongs: in its step, or a moment later."""

from datetime import timedelta

import pytest

from holdfast import AsyncTransaction, Holdfast, Signal, StepFailed, Workflow
from holdfast.telemetry import Event
from holdfast.testing import Kit

GO = Signal("go", str)
HOUR = timedelta(hours=1)
ran: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


async def orphan(tx: AsyncTransaction) -> None:
    ran.append("orphan")
    await tx.execute("INSERT INTO public.child VALUES (7)")


@pytest.mark.parametrize("attempts", [1, 3])
def test_a_transaction_that_cannot_be_committed_is_a_failed_step(
    app: Holdfast, kit: Kit, attempts: int
) -> None:
    """A constraint that is deferred speaks at the commit, after the function has returned."""
    kit.sql("CREATE TABLE public.parent (id int PRIMARY KEY)")
    kit.sql("CREATE TABLE public.child (id int REFERENCES public.parent DEFERRABLE INITIALLY DEFERRED)")

    @app.workflow(name="adopt", sticky=0.05)
    async def adopt(wf: Workflow) -> str:
        try:
            await wf.using(max_attempts=attempts).transact(orphan)
        except StepFailed as failed:
            return f"{failed.kind} after {failed.attempts}"
        return "adopted"

    kit.create_queues()
    assert kit.workflows.run(adopt.start()) == f"ForeignKeyViolation after {attempts}"
    assert ran == ["orphan"] * attempts
    assert kit.sql("SELECT id FROM public.child") == []


@pytest.mark.parametrize("many", [False, True])
def test_the_time_of_a_run_that_starts_later_begins_then(app: Holdfast, kit: Kit, many: bool) -> None:
    @app.workflow(name="late", sticky=0.05)
    async def late(wf: Workflow) -> str:
        begun = wf.now()
        got = await wf.signal(GO, timeout=60)
        return f"{got.value if got else 'nobody'} {(begun - start).total_seconds():.0f}"

    kit.create_queues()
    (row,) = kit.sql("SELECT holdfast.now() AS at")
    start = row["at"]
    if many:
        kit.sql(
            "SELECT FROM holdfast.workflow_start_many('late', ARRAY['{}']::jsonb[], ARRAY['x'], 1, 'workflows',"
            " delay => '1 hour')"
        )
        run = late.get("x")
    else:
        run = late.using(delay=HOUR).start()
    kit.clock.advance(3601)
    assert kit.workflows.run_until_waiting(run, skip_time=False) == ["go"], "its time has only begun"
    run.signal(GO("here"))
    assert kit.workflows.run(run) == "here 3600"


def test_a_run_that_the_database_refuses_to_go_on_with_is_tried_a_while_later(
    app: Holdfast, kit: Kit, events: list[Event]
) -> None:
    @app.workflow(name="kid")
    async def kid(wf: Workflow) -> str:
        return "kid"

    @app.workflow(name="parent", sticky=0.05)
    async def parent(wf: Workflow) -> str:
        return await (await wf.start(kid)).result()

    kit.create_queues()
    kit.sql("""
        CREATE FUNCTION public.no() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RAISE EXCEPTION 'not by you' USING ERRCODE = 'insufficient_privilege'; END $$""")
    kit.sql(
        "CREATE TRIGGER no BEFORE INSERT ON holdfast.workflow_runs FOR EACH ROW WHEN (NEW.workflow = 'kid') "
        "EXECUTE FUNCTION public.no()"
    )
    run = parent.start()
    kit.run_worker()
    (job,) = kit.sql(
        "SELECT lease_generation AS n, available_at > holdfast.now() AS later FROM holdfast.work"
    )
    assert (job["n"], job["later"]) == (1, True)
    (said,) = [event for event in events if event.name == "workflow.interrupted"]
    assert "not by you" in said.fields["error"]
    kit.sql("DROP TRIGGER no ON holdfast.workflow_runs")
    assert kit.workflows.run(run) == "kid"
