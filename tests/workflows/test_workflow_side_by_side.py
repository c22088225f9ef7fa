"""Workers of different releases share a queue: one that lacks the code of a run leaves what the run waits for as it is."""

from collections.abc import Callable
from uuid import UUID

from holdfast import Holdfast, Signal, Workflow
from holdfast.testing import Kit

GO = Signal("go", int)


async def double(n: int) -> int:
    return 2 * n


async def waits(wf: Workflow) -> int:
    return await wf.signal(GO) + await wf.step(double, 1)


def status(kit: Kit, job: UUID) -> str:
    (row,) = kit.sql("SELECT status FROM holdfast.work WHERE id = %s", [job])
    return str(row["status"])


def test_a_waiting_run_is_woken_though_a_worker_without_its_code_has_looked(
    holdfast_kit: Callable[..., Kit],
) -> None:
    old, new = Holdfast(), Holdfast()
    first = old.workflow(name="pay", sticky=0.05)(waits)
    new.workflow(name="pay", version=2)(waits)
    one, two = holdfast_kit(old), holdfast_kit(new)
    waiting, cancelled = first.start(), first.start()
    one.run_worker()
    assert waiting.state()[0] == cancelled.state()[0] == "suspended"
    due = first.start()
    two.run_worker()  # it claims the one that is due, and looks for more like it
    assert status(two, due.run_id) == "held"
    assert status(two, waiting.run_id) == "pending"
    assert waiting.state()[0] == "suspended"
    assert waiting.signal(GO(5))
    assert cancelled.cancel()
    one.run_worker()
    assert waiting.result(timeout=25) == 7
    assert cancelled.state()[0] == "cancelled"
    assert due.state()[0] == "suspended"


def test_members_of_a_map_that_wait_for_a_place_get_it(holdfast_kit: Callable[..., Kit]) -> None:
    old, new = Holdfast(), Holdfast()
    task = old.task(name="double")(double)

    async def doubles(wf: Workflow) -> list[int]:
        return await wf.map(task, [1, 2, 3, 4], limit=2)

    flow = old.workflow(sticky=0.05)(doubles)
    new.task(name="other")(double)
    one, two = holdfast_kit(old), holdfast_kit(new)
    run = flow.start()
    one.run_worker(queues=["workflows"])  # the run has called them, and nobody has begun one
    two.run_worker(queues=["inbox"])
    held = two.sql("SELECT count(*) AS n FROM holdfast.work WHERE queue = 'inbox' AND status = 'held'")
    assert held == [{"n": 2}]
    one.run_worker()
    assert run.result(timeout=25) == [2, 4, 6, 8]


def test_a_job_that_is_not_due_is_set_aside_when_it_is(holdfast_kit: Callable[..., Kit]) -> None:
    old, new = Holdfast(), Holdfast()
    task = old.task(name="double")(double)
    new.task(name="other")(double)
    one, two = holdfast_kit(old), holdfast_kit(new)
    later, now = task.using(run_after=3600).enqueue(n=1), task.enqueue(n=2)
    two.run_worker()
    assert [status(two, handle.id) for handle in (later, now)] == ["pending", "held"]
    for kit in (one, two):
        kit.clock.advance(3601)
    two.run_worker()
    assert status(two, later.id) == "held"
    one.run_worker()
    assert (later.result(timeout=25), now.result(timeout=25)) == (2, 4)
