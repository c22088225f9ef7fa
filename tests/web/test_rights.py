"""A dashboard whose role in the database may only read: every page is there, and every act is refused in words."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.conftest import QUICK
from tests.rights.given import Roles
from tests.web.surfing import Surfer, fields, made_for
from tests.web.troubled import make_trouble, shop_app

from holdfast import Holdfast
from holdfast.operate.operator import Operator
from holdfast.testing import Kit
from holdfast.web.application import Dashboard

PAGES = (
    "", "jobs", "jobs?state=dead_letter", "queues", "queues/mail", "dead", "keys", "keys/parcels", "workers", "schedules",
    "schedules/nightly-reindex", "limits", "workflows", "events", "projections", "webhooks", "doctor", "operations",
    "audit", "settings",
)  # fmt: skip


@pytest.fixture
def shop(holdfast_kit: Any) -> Kit:
    kit: Kit = holdfast_kit(shop_app(), QUICK)
    make_trouble(kit)
    return kit


@pytest.fixture
def roles(dsn: str, shop: Kit) -> Iterator[Roles]:
    found = Roles(dsn)
    yield found
    found.clear()


@pytest.fixture
async def made(roles: Roles, shop: Kit) -> AsyncIterator[Dashboard]:
    app = Holdfast(roles.url("operator_ro"), include=shop.app._registries[1:])
    found = made_for(app)  # mara is an admin here: it is the database that refuses
    yield found
    await found.close()
    await app.database.aclose()
    app.close()


async def test_a_role_that_reads_has_every_page_and_no_act(made: Dashboard, shop: Kit) -> None:
    mara = Surfer(made)
    for page in PAGES:
        await mara.page(f"/{page}")
        assert (await mara.get(f"/api/v1/{page or 'overview'}")).status_code == 200, page
    dead = Operator(shop.database, "test").list_dead().dead_letters[0]
    await mara.page(f"/jobs/{dead.id}")
    run = shop.sql("SELECT id FROM holdfast.workflow_runs LIMIT 1")[0]["id"]
    await mara.page(f"/workflows/{run}")
    before = shop.sql("SELECT count(*) AS n FROM holdfast.audit")
    refused = "he database does not allow this to the role that this dashboard has there"
    shown = await mara.page(f"/acts/dead-redrive?ids={dead.id}")  # looks at rows as one who would change them
    assert refused in shown
    csrf = fields(shown)["csrf"]
    told = [
        await mara.post("/acts/queue-pause", {"queue": "mail", "csrf": csrf}),
        await mara.post("/acts/schedule-pause", {"name": "nightly-reindex", "csrf": csrf}),
        await mara.post("/acts/subscriptions-pause", {"name": "order_totals", "csrf": csrf}),
    ]
    for answer in told:
        assert answer.status_code == 403
        assert refused in answer.text
        assert "Nothing was changed." in answer.text
    assert shop.sql("SELECT count(*) AS n FROM holdfast.audit") == before
    assert Operator(shop.database, "test").overview().dead_letters.count == 7
