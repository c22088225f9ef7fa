"""Acts over many are left to the workers, watched and stopped."""

import re
from uuid import UUID

import pytest
from tests.web.surfing import Surfer

from holdfast.operate.job_acts import cancel_verb
from holdfast.operate.operator import Operator
from holdfast.testing import Kit
from holdfast.web import acts

SELECTED = "task=charge&state=scheduled"


@pytest.fixture
def many(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> int:
    """More than are done while the browser waits."""
    monkeypatch.setattr(acts, "_MANY", 20)
    for n in range(30):
        kit.app.send("charge", {"order_id": n, "card_token": "t"}, run_after=3600)
    return 30


async def begun(mara: Surfer, count: int) -> UUID:
    answer = await mara.confirm(f"/acts/jobs-cancel?{SELECTED}", typed=str(count))
    assert answer.status_code == 303, answer.text
    found = re.search(r"operations/([0-9a-f-]{36})", answer.headers["location"])
    assert found is not None
    return UUID(found[1])


def scheduled(kit: Kit) -> int:
    return int(kit.sql("SELECT count(*) AS n FROM holdfast.work WHERE task = 'charge'")[0]["n"])


async def test_an_act_over_many_is_left_to_the_workers(mara: Surfer, kit: Kit, many: int) -> None:
    operation = await begun(mara, many)
    assert scheduled(kit) == many
    text = await mara.page(f"/operations/{operation}")
    assert "waiting" in text
    assert "workers do it now" in text
    assert str(operation)[:8] in await mara.page("/operations")
    assert str(operation)[:8] not in await mara.page("/operations?state=done")
    done = await Operator(kit.database, "ann").run_operation.arun(operation)
    assert (done.actor, done.surface, done.done) == ("mara", "web", many)
    assert scheduled(kit) == 0
    assert "done" in await mara.page(f"/operations/{operation}")


async def test_it_is_stopped_from_its_page(mara: Surfer, kit: Kit, many: int) -> None:
    operation = await begun(mara, many)
    answer = await mara.confirm(f"/acts/operations-stop?id={operation}")
    assert answer.status_code == 303, answer.text
    found = Operator(kit.database, "ann").find_operation(operation)
    assert (found.state, found.stopped_by) == ("stopped", "mara")
    assert scheduled(kit) == many


async def test_what_is_no_operation_is_said(mara: Surfer) -> None:
    assert "is not the id of an operation" in (await mara.get("/operations/x")).text
    answer = await mara.get(f"/operations/{UUID(int=7)}")
    assert (answer.status_code, "no operation" in answer.text.lower()) == (404, True)


async def test_the_audit_is_filtered_in_its_page_and_a_job_leads_to_its_entries(
    mara: Surfer, kit: Kit
) -> None:
    ids = [kit.app.send("charge", {"order_id": n, "card_token": "t"}, run_after=3600).id for n in (1, 2)]
    Operator(kit.database, "ann").act_on(cancel_verb(), [ids[0]])
    Operator(kit.database, "bo").pause_queue("mail")
    page = await mara.page("/audit?actor=ann")
    assert 'name="actor" value="ann"' in page
    assert ("jobs cancel" in page, "queue pause" in page) == (True, False)
    job = await mara.page(f"/jobs/{ids[0]}")
    assert f'href="/audit?target={ids[0]}"' in job
    assert "jobs cancel" in await mara.page(f"/audit?target={ids[0]}")
    assert "jobs cancel" not in await mara.page(f"/audit?target={ids[1]}")
    assert 'href="/audit?target=mail"' in await mara.page("/queues/mail")
