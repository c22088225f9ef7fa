"""A delivery is over when its job is, also where its handler could not say so."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from holdfast import Egress
from holdfast.model.outcome import Cancelled, Completed, Ended, ErrorText, Failed
from holdfast.model.state import CANCELLED, COMPLETED, DEAD_LETTER, RETRY
from holdfast.shapes.webhooks.deliver import Deliverer
from holdfast.shapes.webhooks.spec import SCHEDULE, Spec
from holdfast.shapes.webhooks.store import _ended

JOB: Any = SimpleNamespace()


async def test_a_delivery_that_is_cut_while_it_waits_has_a_row() -> None:
    """A row is what tells the settle of the job that there is a delivery."""
    steps = tuple(float(n) for n in range(len(SCHEDULE)))
    spec = Spec("tenant", steps, 1e6, Egress(), "standard", 30, False)
    never, waiting = asyncio.Event(), asyncio.Event()

    async def begin(*_: object, **__: object) -> None:
        waiting.set()
        await never.wait()

    class Cut(Deliverer):
        async def _line(self) -> Any:
            return SimpleNamespace(client=None, loader=SimpleNamespace(begin=begin))

    @asynccontextmanager
    async def rest() -> AsyncIterator[None]:
        yield

    rows: list[tuple[str, dict[str, Any]]] = []
    job: Any = SimpleNamespace(
        id=uuid4(), _grant=SimpleNamespace(id_text="d"), queue="webhooks", partition_key="e", crashes=0,
        _rest=rest, record=lambda table, row: rows.append((table, row)),
    )  # fmt: skip
    nobody: Any = None
    cut = Cut(spec, nobody, nobody, nobody)
    task = asyncio.create_task(cut.deliver(job, uuid4(), uuid4()))
    await waiting.wait()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert [(table, row["kind"], row["delivery"]) for table, row in rows] == [
        ("webhook_attempts", "waits", "d")
    ]


@pytest.mark.parametrize(
    ("ended", "row", "wanted"),
    [
        (Ended(JOB, Failed(ErrorText("JobTimeout", "too long")), DEAD_LETTER), {}, ("failed", "too long")),
        (Ended(JOB, Failed(ErrorText("JobTimeout", "too long")), RETRY), {}, (None, None)),
        (Ended(JOB, Cancelled(), CANCELLED), {}, ("cancelled", "its job was cancelled")),
        (Ended(JOB, Cancelled(), CANCELLED), {"outcome": "failed", "reason": "410"}, ("failed", "410")),
        (Ended(JOB, Completed(None), COMPLETED), {"outcome": "delivered"}, ("delivered", None)),
    ],
    ids=["dead", "again", "cancelled", "cancelled by its handler", "delivered"],
)
def test_what_a_job_ended_with_is_what_its_delivery_did(
    ended: Ended, row: dict[str, str], wanted: tuple[str | None, str | None]
) -> None:
    found = json.loads(_ended(ended, json.dumps(row)))
    assert (found.get("outcome"), found.get("reason")) == wanted
