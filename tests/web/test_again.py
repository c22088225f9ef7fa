"""Run a copy of a job, and undo what was done, on pages and by programs."""

import html
import re
from collections.abc import Callable
from uuid import UUID

import httpx
import pytest
from tests.web.conftest import Shop
from tests.web.surfing import Surfer, fields
from tests.web.test_job_filters import TOKEN

from holdfast.operate.dead import redrive_verb
from holdfast.operate.operator import Operator
from holdfast.store.dead import DeadFilter
from holdfast.testing import Kit


async def test_a_copy_of_a_finished_or_dead_job(mara: Surfer, kit: Kit, shop: Shop) -> None:
    for old, state in ((shop.done, "completed"), (shop.dead, "dead_letter")):
        assert "Run a copy…" in await mara.page(f"/jobs/{old}")
        page = await mara.page(f"/acts/jobs-copy?id={old}")
        assert "A new job of" in page
        assert ("what it did is done again" in page) == (state == "completed")
        answer = await mara.confirm(f"/acts/jobs-copy?id={old}", arguments='{"order_id": 77}')
        assert answer.status_code == 303, answer.text
        where = answer.headers["location"]
        assert str(old) not in where
        copy = kit.job(UUID(where.rpartition("/")[2]))
        assert (copy["payload"]["order_id"], copy["metadata"], copy["status"]) == (
            77,
            {"copied_from": str(old)},
            "pending",
        )
        assert kit.job(old)["status"] == state
        text = await mara.page(where)
        assert f'href="/jobs/{old}"' in text
        assert "Copy of" in text
    assert "Run a copy" not in await mara.page(f"/jobs/{shop.waiting}")
    body = {"id": str(shop.waiting)}
    answer = await mara.client.post("/api/v1/acts/jobs-copy", json=body, headers=TOKEN)
    assert (answer.status_code, answer.json()["reason"]) == (400, "not_ended")
    unfit = {"id": str(shop.done), "arguments": {"order_id": "many"}}
    answer = await mara.client.post("/api/v1/acts/jobs-copy", json=unfit, headers=TOKEN)
    assert (answer.status_code, "was not copied" in answer.json()["detail"]) == (400, True)
    answer = await mara.client.post("/api/v1/acts/jobs-copy", json={"id": str(shop.done)}, headers=TOKEN)
    assert answer.json()["done"]["copied_from"] == str(shop.done)


async def test_metadata_that_is_no_copys_is_no_link(mara: Surfer, kit: Kit, shop: Shop) -> None:
    for said in (
        '{"copied_from": "javascript:alert(1)"}',
        '{"copied_from": {"a": 1}}',
        '["copied_from"]',
        "7",
    ):
        kit.sql("UPDATE holdfast.work SET metadata = %s", [said])
        assert "Copy of" not in await mara.page(f"/jobs/{shop.waiting}")


async def _undone(mara: Surfer, answer: httpx.Response) -> httpx.Response:
    """Press the Undo of the page that follows an act."""
    return await mara.post("/acts/undo", await _undo_form(mara, answer))


async def _undo_form(mara: Surfer, answer: httpx.Response) -> dict[str, str]:
    assert answer.status_code == 303, answer.text
    text = await mara.page(answer.headers["location"])
    form = text[text.index("data-undo") :]
    form = form[: form.index("</form>")]
    assert ">Undo</button>" in form
    sent = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', form))
    assert re.findall(r'action="([^"]+)"', form) == ["/acts/undo"]
    assert "data-undo" not in await mara.page(answer.headers["location"])  # it is offered once
    return sent


async def test_undo_is_offered_where_an_act_has_one(mara: Surfer, kit: Kit, shop: Shop) -> None:
    before = kit.job(shop.waiting)
    answer = await _undone(mara, await mara.confirm(f"/acts/jobs-cancel?ids={shop.waiting}&back=jobs"))
    assert answer.status_code == 303, answer.text
    now = kit.job(shop.waiting)
    assert (now["status"], now["available_at"]) == ("scheduled", before["available_at"])
    answer = await _undone(mara, await mara.confirm(f"/acts/dead-redrive?ids={shop.dead}&back=dead"))
    assert "1 job as before" in html.unescape(await mara.page(answer.headers["location"]))
    assert kit.job(shop.dead)["status"] == "dead_letter"
    csrf = re.findall(r'name="csrf" value="([^"]*)"', await mara.page("/queues/mail"))[0]
    answer = await _undone(mara, await mara.post("/acts/queue-pause", {"queue": "mail", "csrf": csrf}))
    assert kit.sql("SELECT paused_at FROM holdfast.queues WHERE name = 'mail'") == [{"paused_at": None}]
    acts = [row["action"] for row in kit.sql("SELECT action FROM holdfast.audit ORDER BY id")]
    assert acts == ["jobs cancel", "undo", "dead redrive", "undo", "queue pause", "queue resume"]
    discarded = await mara.confirm(f"/acts/dead-discard?ids={shop.dead}&back=dead", typed="1")
    assert "data-undo" not in await mara.page(discarded.headers["location"])


async def test_a_program_undoes_by_the_entry(
    mara: Surfer, surfer_of: Callable[..., Surfer], shop: Shop
) -> None:
    act = {"ids": str(shop.dead)}
    done = (await mara.client.post("/api/v1/acts/dead-redrive", json=act, headers=TOKEN)).json()["done"]
    viewer = surfer_of("viewer")
    entry = {"entry": str(done["audit"])}
    refused = await viewer.client.post("/api/v1/acts/undo", json=entry, headers=TOKEN)
    assert refused.status_code == 403
    answer = await mara.client.post("/api/v1/acts/undo", json=entry, headers=TOKEN)
    assert answer.json()["done"]["results"] == {"buried_again": 1}
    answer = await mara.client.post("/api/v1/acts/undo", json=entry, headers=TOKEN)
    assert (answer.status_code, answer.json()["reason"]) == (400, "nothing_left")
    for wrong in ("0", "-1", "99999999999999999999", "x"):
        answer = await mara.client.post("/api/v1/acts/undo", json={"entry": wrong}, headers=TOKEN)
        assert answer.status_code == 400, wrong


async def test_an_operation_that_ended_offers_its_undo(mara: Surfer, kit: Kit, shop: Shop) -> None:
    operator = Operator(kit.database, "ann")
    begun = await operator.begin_operation.arun(redrive_verb(), DeadFilter())
    assert "Undo what has not started" not in await mara.page(f"/operations/{begun.id}")
    await operator.run_operation.arun(begun.id)
    assert "Undo what has not started" in await mara.page(f"/operations/{begun.id}")


async def test_an_undo_of_many_is_an_operation(
    mara: Surfer, kit: Kit, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the redrive itself: it outlives the browser, and shows how far it is."""
    monkeypatch.setattr("holdfast.web.undoing.AT_ONCE", 0)
    operator = Operator(kit.database, "ann")
    begun = await operator.begin_operation.arun(redrive_verb(), DeadFilter())
    kit.sql("UPDATE holdfast.audit SET count = 1 WHERE id = %s", [begun.audit])
    entry = {"entry": str(begun.audit)}
    refused = await mara.client.post("/api/v1/acts/undo", json=entry, headers=TOKEN)
    assert (refused.status_code, refused.json()["reason"]) == (400, "under_way")
    kit.sql("UPDATE holdfast.audit SET count = 0 WHERE id = %s", [begun.audit])
    await operator.run_operation.arun(begun.id)
    assert kit.job(shop.dead)["status"] == "pending"
    form = re.findall(r'name="csrf" value="([^"]*)"', await mara.page(f"/operations/{begun.id}"))
    answer = await mara.post("/acts/undo", {**entry, "csrf": form[0]})
    assert answer.status_code == 303, answer.text[-500:]
    where = answer.headers["location"]
    assert "workers undo it now" in await mara.page(where)
    await operator.run_operation.arun(UUID(where.rpartition("/")[2]))
    assert kit.job(shop.dead)["status"] == "dead_letter"
    assert "buried again" in await mara.page(where)
    lines = kit.sql("SELECT action, count, actor FROM holdfast.audit WHERE action = 'undo'")
    assert lines == [{"action": "undo", "count": 1, "actor": "mara"}]
    again = await mara.client.post("/api/v1/acts/undo", json=entry, headers=TOKEN)
    assert (again.status_code, again.json()["reason"]) == (400, "nothing_left")


async def test_the_undo_of_a_pause_lifts_that_pause_alone(mara: Surfer, kit: Kit, shop: Shop) -> None:
    """Somebody else may have paused it since, and had a reason to."""
    for noun, name, table in (("queue", "mail", "queues"), ("task", "send", "paused_tasks")):
        csrf = re.findall(r'name="csrf" value="([^"]*)"', await mara.page("/queues/mail"))[0]
        paused = await mara.post(f"/acts/{noun}-pause", {noun: name, "csrf": csrf})
        undo = await _undo_form(mara, paused)
        ann = Operator(kit.database, "ann")
        await getattr(ann, f"resume_{noun}").arun(name)
        await getattr(ann, f"pause_{noun}").arun(name)
        answer = await mara.post("/acts/undo", undo)
        assert (answer.status_code, "paused again since, by ann" in answer.text) == (400, True)
        lines = kit.sql(f"SELECT paused_by FROM holdfast.{table} WHERE paused_at IS NOT NULL")
        assert lines == [{"paused_by": "ann"}]
        await getattr(ann, f"resume_{noun}").arun(name)
        undo = await _undo_form(mara, await mara.post(f"/acts/{noun}-pause", {noun: name, "csrf": csrf}))
        done = await mara.post("/acts/undo", undo)
        assert f"The {noun} is resumed." in await mara.page(done.headers["location"])


async def test_a_cancel_by_filters_is_undone(mara: Surfer, kit: Kit, shop: Shop) -> None:
    before = kit.job(shop.waiting)
    answer = await _undone(mara, await mara.confirm("/acts/jobs-cancel?tag=vip&back=jobs"))
    assert answer.status_code == 303, answer.text
    now = kit.job(shop.waiting)
    assert (now["status"], now["available_at"]) == ("scheduled", before["available_at"])
    (entry,) = kit.sql("SELECT selection FROM holdfast.audit WHERE action = 'jobs cancel'")
    assert entry["selection"]["ids"] == [str(shop.waiting)]


async def test_nobody_else_says_what_was_done(mara: Surfer) -> None:
    mara.client.cookies.set("holdfast_said", "WyJnb3QgeW91IiwgbnVsbF0=.abc")
    assert "got you" not in await mara.page("/jobs")


async def test_dead_letters_are_patched_before_they_go_back(mara: Surfer, kit: Kit, shop: Shop) -> None:
    assert "/acts/dead-patch" in await mara.page("/dead?task=charge")
    asked = fields(await mara.page("/acts/dead-patch?task=charge"))
    asked["patch"] = '{"note": "again", "card_token": "tok_new"}'
    page = (await mara.post("/acts/dead-patch", asked)).text
    assert "1 job would be patched" in page
    assert "holdfast dead patch" in page
    answer = await mara.post("/acts/dead-patch", fields(page))
    assert answer.status_code == 303, answer.text
    assert kit.job(shop.dead)["payload"] == {"order_id": 1, "card_token": "tok_new", "note": "again"}
    body = {"task": "charge", "patch": {"order_id": "many"}}
    seen = await mara.client.post("/api/v1/acts/dead-patch?dry_run=1", json=body, headers=TOKEN)
    warnings = seen.json()["preview"]["warnings"]
    assert warnings[0] == "1 of them would not fit and stay as they are."
    assert f"charge {shop.dead}: parameter 'order_id' of charge must be int" in warnings[1]
    done = await mara.client.post("/api/v1/acts/dead-patch", json=body, headers=TOKEN)
    assert done.json()["done"] == {"count": 0, "results": {"does_not_fit": 1}, "audit": None}
    for wrong, status in (
        ({"patch": {}}, 400),
        ({"patch": [1]}, 400),
        ({"patch": {"a": 1}, "task": None}, 400),
    ):
        answer = await mara.client.post("/api/v1/acts/dead-patch", json={**body, **wrong}, headers=TOKEN)
        assert answer.status_code == status, answer.text
    (entry,) = kit.sql("SELECT action, selection FROM holdfast.audit")
    assert (entry["action"], entry["selection"]["patch"]["card_token"]) == ("dead patch", "••••••••")
