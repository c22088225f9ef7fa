"""Suspects and other jobs in one worker: neither keeps the other waiting."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from tests.conftest import QUICK, await_until
from tests.flow.test_flow_control import running

from holdfast import Holdfast
from holdfast.testing import Kit

Make = Callable[..., Kit]
SUSPECTS = "UPDATE holdfast.work SET crashes = 2, suspect = 1 WHERE task = 'suspect'"


async def test_the_only_slot_is_taken_by_suspects_and_others_in_turn(
    app: Holdfast, holdfast_kit: Make
) -> None:
    ran: list[str] = []

    @app.task(name="suspect")
    async def suspect() -> None:
        ran.append("suspect")
        await asyncio.sleep(0.01)

    @app.task(name="other")
    async def other() -> None:
        ran.append("other")

    kit = holdfast_kit(app, replace(QUICK, prefetch=0))
    await app.aenqueue_many([*[suspect.job() for _ in range(10)], *[other.job() for _ in range(100)]])
    kit.sql(SUSPECTS)
    async with running(app, concurrency=1):
        await await_until(lambda: len(ran) == 110, "all ran")
    await kit.database.aclose()
    # A suspect is first, and from then on others come between any two for as long as there are some.
    turns = "".join(name[0] for name in ran)
    both_wait = turns[: turns.rindex("o")]
    assert "ss" not in both_wait
    assert both_wait.count("s") > 1


async def test_a_backlog_of_quick_jobs_keeps_no_suspect_waiting(app: Holdfast, holdfast_kit: Make) -> None:
    """So quick that hundreds are claimed ahead, and a slot is never free when the worker claims."""
    ran: list[int] = []

    @app.task(name="suspect")
    async def suspect(n: int) -> None:
        ran.append(n)

    @app.task(name="quick")
    async def quick() -> None:
        await asyncio.sleep(0.005)

    kit = holdfast_kit(app, QUICK)
    kit.sql("SELECT holdfast.enqueue('quick') FROM generate_series(1, 20000)")

    def finished() -> int:
        return int(kit.sql("SELECT count(*) AS n FROM holdfast.archive")[0]["n"])

    async with running(app, concurrency=50):
        await await_until(lambda: finished() > 1000, "it is busy")
        kit.sql(
            """INSERT INTO holdfast.work (id, queue, task, payload, crashes, suspect)
               SELECT holdfast.uuid7(), 'inbox', 'suspect', jsonb_build_object('n', n), 2, 1
               FROM generate_series(1, 3) AS n"""
        )
        await await_until(lambda: len(ran) == 3, "each suspect had a slot")
        assert finished() < 20000
    await kit.database.aclose()
