"""Fixtures of the dashboard's tests: a shop in trouble, and people of each role."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import pytest
from tests.web.surfing import Surfer, made_for

from holdfast import DeadLetter, Holdfast
from holdfast.testing import Kit
from holdfast.web.application import Dashboard

HOSTILE = "<script>alert(1)</script>\x1b[31mred\u202eevil\u200b"


@dataclass
class Shop:
    """What was made: a job of each kind that the pages show."""

    dead: UUID
    waiting: UUID
    done: UUID
    blocked: UUID


@pytest.fixture
def app() -> Holdfast:
    made = Holdfast("postgresql://unused.invalid/none")
    made.queue("parcels", ordering="key", on_dead_letter="block")
    made.queue("mail", concurrency=20)

    @made.task(masked=["diagnosis", "street"])
    def treat(patient: int, diagnosis: str, address: dict[str, str]) -> dict[str, str]:
        return {"diagnosis": diagnosis, "ward": "north"}

    @made.task(max_attempts=1)
    def charge(order_id: int, card_token: str, note: str = "") -> None:
        raise ConnectionError(f"psp.example did not answer {note} password=hunter2secret")

    @made.task
    def send(order_id: int) -> dict[str, object]:
        return {"sent": order_id, "api_key": "sk-live-123456"}

    @made.task(queue="parcels")
    def ship(number: int) -> None:
        raise DeadLetter("the carrier has no such street")

    return made


@pytest.fixture
def shop(kit: Kit) -> Shop:
    app = kit.app
    dead = app.send("charge", {"order_id": 1, "card_token": "tok_4242", "note": HOSTILE})
    done = app.send("send", {"order_id": 2})
    blocked = app.send("ship", {"number": 7}, partition_key="order:9182", queue="parcels")
    kit.run_worker()
    waiting = app.send("send", {"order_id": 3}, run_after=timedelta(hours=1), tags=["vip"])
    return Shop(dead.id, waiting.id, done.id, blocked.id)


@pytest.fixture
async def dashboard(kit: Kit) -> AsyncIterator[Dashboard]:
    made = made_for(kit.app)
    yield made
    await made.site.close()
    await kit.database.aclose()


@pytest.fixture
def mara(dashboard: Dashboard) -> Surfer:
    """An admin."""
    return Surfer(dashboard)


@pytest.fixture
async def surfer_of(kit: Kit) -> AsyncIterator[Callable[..., Surfer]]:
    """`surfer_of("viewer")`: somebody of that role, with a dashboard of his own."""
    made: list[Dashboard] = []

    def make(role: str, **options: object) -> Surfer:
        made.append(made_for(kit.app, role, role, **options))  # type: ignore[arg-type]
        return Surfer(made[-1])

    yield make
    for one in made:
        await one.site.close()
    await kit.database.aclose()
