"""Why something was done is in the audit, whichever surface it was done by."""

from collections.abc import Callable
from typing import Any

from tests.web.conftest import Shop
from tests.web.surfing import Surfer, made_for
from tests.web.test_job_filters import TOKEN

from holdfast import Holdfast
from holdfast.testing import Kit


def _last(kit: Kit) -> Any:
    return kit.sql("SELECT action, reason, surface FROM holdfast.audit ORDER BY id DESC LIMIT 1")[0]


async def test_every_act_takes_a_reason_by_page_and_by_program(mara: Surfer, kit: Kit, shop: Shop) -> None:
    path = f"/acts/dead-redrive?ids={shop.dead}"
    assert 'name="reason"' in await mara.page(path)
    assert (await mara.confirm(path, reason="the psp is back")).status_code == 303
    assert _last(kit) == {"action": "dead redrive", "reason": "the psp is back", "surface": "web"}
    act = {"queue": "mail", "reason": "a flood of bounces"}
    answer = await mara.client.post("/api/v1/acts/queue-pause", json=act, headers=TOKEN)
    assert answer.status_code == 200, answer.text
    assert _last(kit) == {"action": "queue pause", "reason": "a flood of bounces", "surface": "api"}
    cancelled = await mara.confirm(f"/acts/jobs-cancel?ids={shop.waiting}", reason="sent by hand")
    assert cancelled.status_code == 303
    assert _last(kit) == {"action": "jobs cancel", "reason": "sent by hand", "surface": "web"}
    described = (await mara.get("/api/v1/openapi.json")).json()["paths"]
    schema = described["/api/v1/acts/queue-pause"]["post"]["requestBody"]["content"]["application/json"]
    assert "reason" in schema["schema"]["properties"]


def test_all_acts_but_those_of_views_ask_why(app: Holdfast) -> None:
    acts = made_for(app).site.acts
    without = {name for name, act in acts.items() if "reason" not in {one.name for one in act.fields}}
    assert without == {"view save", "view share", "view delete", "view unshare"}
    assert {name for name, act in acts.items() if act.needs_why} == {"doctor fix", "workflow terminate"}


async def test_whoever_deletes_many_by_the_page_says_why(mara: Surfer, kit: Kit, shop: Shop) -> None:
    path = "/acts/jobs-discard?state=completed+dead_letter"
    refused = await mara.confirm(path, typed="2")
    assert (refused.status_code, "say why" in refused.text.lower()) == (409, True)
    assert kit.job(shop.dead)["status"] == "dead_letter"
    assert (await mara.confirm(path, typed="2", reason="of a test")).status_code == 303
    assert _last(kit)["reason"] == "of a test"


async def test_a_fix_of_the_doctor_is_shown_first_and_has_a_reason(
    mara: Surfer, surfer_of: Callable[..., Surfer], kit: Kit, shop: Shop
) -> None:
    operator = surfer_of("operator")
    assert (await operator.get("/acts/doctor-fix?fix=stranded")).status_code == 403
    assert "There is nothing to fix" in await mara.page("/acts/doctor-fix?fix=stranded")
    kit.sql(
        "UPDATE holdfast.work SET status = 'processing', claim_token = gen_random_uuid() WHERE id = %s",
        [shop.waiting],
    )
    text = await mara.page("/acts/doctor-fix?fix=stranded")
    assert str(shop.waiting) in text
    assert "go back to waiting" in text
    refused = await mara.confirm("/acts/doctor-fix?fix=stranded")
    assert (refused.status_code, kit.job(shop.waiting)["status"]) == (409, "processing")
    assert (await mara.confirm("/acts/doctor-fix?fix=stranded", reason="by hand")).status_code == 303
    assert kit.job(shop.waiting)["status"] != "processing"
    assert _last(kit) == {"action": "doctor fix", "reason": "by hand", "surface": "web"}
    unknown = await mara.page("/acts/doctor-fix?fix=everything")
    assert "there is no fix" in unknown
