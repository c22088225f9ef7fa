"""What a viewer is not shown on any page: results, errors and reasons that quote somebody's data."""

from datetime import UTC, datetime
from types import SimpleNamespace
from uuid import UUID

import psycopg
import pytest
from tests.web.surfing import Surfer, made_for
from tests.web.troubled import OrderPaid, make_trouble, shop_app

from holdfast import Holdfast
from holdfast.operate.operator import Operator
from holdfast.pages import ROLES, Alert, Code, Link, Problem, Role, Secret, State
from holdfast.testing import Kit
from holdfast.web.drawing import environment, said_text

WHOSE = "Mara Quill"
QUOTED = f"KeyError: the order of {WHOSE} has no street"
TOLD = f"as {WHOSE} has asked"  # no class, no colon


@pytest.fixture
def app() -> Holdfast:
    return shop_app()


@pytest.fixture
def quoting(kit: Kit) -> Kit:
    """Wherever somebody's words can stand, they stand."""
    make_trouble(kit)
    kit.app.publish(OrderPaid(1, customer=1, cents=1))
    operator = Operator(kit.database, "test")
    operator.hold_keys("parcels", ["order:77"], seconds=600, reason=TOLD)
    with psycopg.connect(kit.url, autocommit=True) as conn:
        conn.execute("UPDATE holdfast.subscriptions SET status = 'paused', problem = %s", [TOLD])
        conn.execute("UPDATE holdfast.schedules SET problem = %s", [TOLD])
    return kit


async def read_by_operators_alone(kit: Kit, *paths: str) -> None:
    made = [made_for(kit.app, role, role) for role in ("viewer", "operator")]
    viewer, operator = map(Surfer, made)
    for path in (prefix + path for path in paths for prefix in ("", "/api/v1")):
        assert WHOSE not in await viewer.page(path), path
        assert WHOSE in await operator.page(path), path
    for one in made:
        await one.site.close()
    await kit.database.aclose()


async def test_a_viewer_reads_nobodys_words_of_events_schedules_and_keys(quoting: Kit) -> None:
    job = quoting.app.send("parcels.ship", {"number": 9}, queue="parcels", partition_key="order:77")
    await read_by_operators_alone(
        quoting,
        "/events",
        "/events/subscriptions/order_totals",
        "/projections",
        "/schedules",
        "/limits",
        "/keys/parcels?key=order:77",
        f"/jobs/{job.id}",
    )


async def test_a_viewer_reads_nobodys_words_of_a_run(quoting: Kit) -> None:
    with psycopg.connect(quoting.url, autocommit=True) as conn:
        conn.execute("SELECT holdfast.workflow_signal('checkout', 'order:11', 'shipped', %s)", [f'"{WHOSE}"'])
        await quoting.app.run_worker(until_idle=True)
        conn.execute("SELECT holdfast.workflow_cancel('checkout', 'order:12', %s)", [TOLD])
        ids: dict[str, UUID] = dict(conn.execute("SELECT key, id FROM holdfast.workflow_runs").fetchall())
        done, asked = ids["order:11"], ids["order:12"]
        paths = [f"/workflows/{done}", f"/workflows/{asked}", f"/jobs/{asked}"]
        await read_by_operators_alone(quoting, *paths)
        conn.execute(
            "UPDATE holdfast.work SET status = 'held', hold_reason = %s WHERE id = %s", [TOLD, asked]
        )
        conn.execute(
            "UPDATE holdfast.workflow_runs SET state = 'diverged', cancel_reason = NULL WHERE id = %s",
            [asked],
        )
    await read_by_operators_alone(quoting, *paths[1:])


def test_a_note_and_an_alert_are_ours_or_a_problem() -> None:
    """Ours quote behind a colon; a problem has a class at most."""
    for text in (QUOTED, TOLD):
        assert WHOSE not in said_text(Problem(text), "viewer")
        assert WHOSE in said_text(Problem(text), "operator")
    assert said_text("4 min, by mara", "viewer") == "4 min, by mara"
    assert said_text(f"Its jobs wait: {TOLD}", "viewer") == "Its jobs wait."


@pytest.mark.parametrize("role", ROLES)
def test_a_secret_is_masked_in_every_cell(role: Role) -> None:
    """Also in those that are for everybody."""
    said = "password=hunter2"
    macros = environment().get_template("macros.html").make_module()
    cells = (said, Code(said), Link(said, "jobs"), State("paused", "held", said), Problem(said), Secret(said))
    site = SimpleNamespace(masked_of=lambda task: ())
    drawn = [macros.cell(one, site, "", role, datetime.now(UTC)) for one in cells]  # type: ignore[attr-defined]
    drawn.append(macros.block(Alert(said), site, None, "", role, datetime.now(UTC), "", ""))  # type: ignore[attr-defined]
    assert [text for text in drawn if "hunter2" in text] == []


@pytest.mark.parametrize("path", ["jobs?error=", "dead?error=", "dead?each=1&error=", "audit?target="])
async def test_a_viewer_searches_in_nothing_that_he_does_not_read(quoting: Kit, path: str) -> None:
    made = [made_for(quoting.app, role, role) for role in ("viewer", "operator")]
    viewer, operator = map(Surfer, made)
    for prefix in ("/", "/api/v1/"):
        answer = await viewer.get(f"{prefix}{path}mailbox")
        assert (answer.status_code, "needs the role operator" in answer.text) == (403, True)
        await viewer.page(f"{prefix}{path}")  # empty: an untouched form
        await operator.page(f"{prefix}{path}mailbox")
    field = 'name="error"'
    if path.startswith(("jobs", "dead")):
        assert field not in await viewer.page(f"/{path}")
        assert field in await operator.page(f"/{path}")
    for one in made:
        await one.site.close()
    await quoting.database.aclose()


async def test_a_viewer_finds_pages(kit: Kit) -> None:
    made = made_for(kit.app, "viewer", "viewer")
    found = (await Surfer(made).get("/find?q=dead", **{"x-fragment": "1"})).json()["found"]
    assert found == [{"text": "Dead letters", "kind": "page", "href": "/dead"}]
    await made.site.close()
    await kit.database.aclose()
