"""An admin reveals one masked field, with a reason that is in the audit before the value is shown."""

from collections.abc import Callable
from uuid import uuid4

import pytest
from tests.web.conftest import Shop
from tests.web.surfing import Surfer, made_for
from tests.web.test_job_filters import TOKEN

from holdfast.operate import reveal
from holdfast.testing import Kit

SECRET = "tok_4242"
WHY = {"field": "payload.card_token", "reason": "a refund, ticket 17"}


async def test_an_admin_reveals_one_field_and_the_audit_says_why(mara: Surfer, kit: Kit, shop: Shop) -> None:
    page = await mara.page(f"/jobs/{shop.dead}")
    assert ("Reveal a field…" in page, SECRET in page) == (True, False)
    answer = await mara.confirm(f"/acts/jobs-reveal?id={shop.dead}", **WHY)
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
    assert SECRET in answer.text
    assert "etag" not in answer.headers
    (entry,) = kit.sql("SELECT actor, action, selection, reason, before, after FROM holdfast.audit")
    assert (entry["actor"], entry["action"], entry["reason"]) == (
        "mara",
        "jobs reveal",
        "a refund, ticket 17",
    )
    assert entry["selection"] == {"id": str(shop.dead), "field": "payload.card_token"}
    assert (entry["before"], entry["after"]) == (None, None)
    for path in (f"/jobs/{shop.dead}", "/audit", "/", "/jobs"):  # nowhere else, not even right after it
        for prefix in ("", "/api/v1"):
            if (prefix, path) != ("/api/v1", "/"):
                assert SECRET not in await mara.page(prefix + path), (prefix, path)


async def test_only_an_admin_and_only_with_a_reason(
    mara: Surfer, kit: Kit, shop: Shop, surfer_of: Callable[..., Surfer]
) -> None:
    body = {"id": str(shop.dead), **WHY}
    for role in ("viewer", "operator"):
        surfer = surfer_of(role)
        answer = await surfer.client.post("/api/v1/acts/jobs-reveal", json=body, headers=TOKEN)
        assert (answer.status_code, SECRET in answer.text) == (403, False)
        assert (await surfer.get(f"/acts/jobs-reveal?id={shop.dead}")).status_code == 403
        assert "Reveal a field" not in await surfer.page(f"/jobs/{shop.dead}")
    wrong = [
        ({"reason": ""}, "needs reason"),
        ({"reason": "  "}, "say why"),
        ({"field": "payload"}, "field takes a name in payload, result, metadata"),
        ({"field": "last_error.x"}, "field takes a name in"),
        ({"field": "payload.nothing"}, "has no field"),
        ({"field": "payload.card_token.0"}, "has no field"),
        ({"id": str(uuid4())}, "there is no job"),
    ]
    for change, said in wrong:
        answer = await mara.client.post("/api/v1/acts/jobs-reveal", json={**body, **change}, headers=TOKEN)
        assert (answer.status_code in (400, 404), said in answer.text) == (True, True), answer.text
    assert kit.sql("SELECT FROM holdfast.audit") == []
    answer = await mara.client.post("/api/v1/acts/jobs-reveal", json=body, headers=TOKEN)
    assert answer.json()["secret"] == SECRET


async def test_nothing_is_shown_that_the_audit_does_not_have(
    mara: Surfer, kit: Kit, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> object:
        raise ValueError("no room in the audit")

    monkeypatch.setattr(reveal, "audit", fails)
    body = {"id": str(shop.dead), **WHY}
    answer = await mara.client.post("/api/v1/acts/jobs-reveal", json=body, headers=TOKEN)
    assert (answer.status_code, SECRET in answer.text) == (500, False)
    made = made_for(kit.app, read_only=True)
    answer = await Surfer(made).client.post("/api/v1/acts/jobs-reveal", json=body, headers=TOKEN)
    assert (answer.status_code, SECRET in answer.text) == (403, False)
    await made.site.close()
