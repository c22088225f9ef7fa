"""No way to end a handler costs a slot: each of them, in every form a handler may have, on a worker with one slot."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.conftest import QUICK
from tests.flow.ways import FORMS, WAYS, app

from holdfast.testing import Kit

PATIENT = replace(QUICK, lease=30.0, dead_after=10.0, heartbeat=1.0)  # of a loaded machine


@pytest.fixture
def kit(holdfast_kit: Callable[..., Kit]) -> Kit:
    return holdfast_kit(app, PATIENT)


def run_all(kit: Kit) -> None:
    """One slot: a job that kept it would let no other run, and the worker would never be idle."""

    async def main() -> None:
        try:
            async with asyncio.timeout(240):
                await kit.arun_worker(concurrency=1)
        except TimeoutError:
            stuck = [r["payload"] for r in kit.jobs() if r["status"] in ("processing", "pending")]
            raise AssertionError(f"the slot was not given back by {stuck}") from None
        finally:
            await kit.database.aclose()

    got_out = False
    try:
        asyncio.run(main())
    except KeyboardInterrupt:  # of a handler: pytest would ask it for its attributes, and be ended by it
        got_out = True
    assert not got_out, "what a handler raised ended the worker"


def end_of(row: dict[str, Any]) -> str:
    match row["status"], row["attempts"]:
        case "scheduled", 0:
            return "snoozed"
        case "scheduled", 1:
            return "failed"
        case "dead_letter", 2:
            return "spent"
        case "dead_letter", _:
            return "dead"
        case status, _:
            return str(status)


def test_there_are_200_ways() -> None:
    assert len(WAYS) >= 200


@pytest.mark.parametrize("form", FORMS)
def test_every_way_ends_in_an_outcome_and_the_slot_is_free(kit: Kit, form: str) -> None:
    kit.sql("CREATE TABLE seen (way text)")
    handles = app.enqueue_many(FORMS[form].job(name) for name in WAYS)
    run_all(kit)
    rows = {row["id"]: row for row in kit.jobs()}
    wrong = {}
    for (name, way), handle in zip(WAYS.items(), handles, strict=True):
        row = rows[handle.id]
        if end_of(row) != way.end or way.text not in (row["last_error"] or ""):
            wrong[name] = (end_of(row), (row["last_error"] or "")[:200], way.end, way.text)
    assert wrong == {}
    assert {r["way"] for r in kit.sql("SELECT way FROM seen")} == {
        name for name, way in WAYS.items() if way.end == "completed" and "transaction" in form
    }
