"""Behind PgBouncer in transaction mode everything works but being woken; a direct address for LISTEN brings that back."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from tests.conftest import QUICK, await_until
from tests.doctor.bouncer import bouncer
from tests.wake.conftest import SLEEPY, sleepers, until_asleep, working

from holdfast import Holdfast
from holdfast.db.database import Database
from holdfast.telemetry import Event
from holdfast.testing import Kit

pytestmark = pytest.mark.usefixtures("pgbouncer")


@pytest.fixture
def pooled(app: Holdfast, holdfast_kit: Callable[..., Kit]) -> Iterator[Kit]:
    """The app behind a pooler; the kit itself looks at the server."""
    kit = holdfast_kit(app, QUICK)
    with bouncer(kit.url, "transaction") as url:
        app._opened = Database(url, QUICK)
        yield kit
        app._opened.close()


async def test_everything_else_works(app: Holdfast, pooled: Kit, events: list[Event]) -> None:
    ran: list[int] = []

    @app.task(max_attempts=3)
    async def note(n: int) -> None:
        ran.append(n)
        if n == 7 and ran.count(n) < 2:
            raise ValueError("once")

    app.database.settings = replace(QUICK, poll=0.3)
    for n in range(30):
        await note.aenqueue(n)
    async with working(pooled):
        for n in range(30, 60):
            await note.aenqueue(n)
        await await_until(lambda: set(ran) == set(range(60)), "all ran")
    await app.database.aclose()
    assert [e for e in events if "fail" in e.name] == []
