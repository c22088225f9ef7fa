"""A request of a program under an Idempotency-Key is done once, whatever becomes of its answer."""

import asyncio
from typing import Any

import httpx
import psycopg
import pytest
from tests.web.conftest import Shop
from tests.web.surfing import Surfer, made_for
from tests.web.test_job_filters import TOKEN

from holdfast.operate.job_acts import cancel_verb
from holdfast.operate.operator import Operator
from holdfast.testing import Kit


async def _post(
    surfer: Surfer, act: str, body: dict[str, Any], key: str = "a-key", query: str = ""
) -> httpx.Response:
    headers = {**TOKEN, "idempotency-key": key}
    return await surfer.client.post(f"/api/v1/acts/{act}{query}", json=body, headers=headers)


def _copies(kit: Kit) -> int:
    return len(kit.sql("SELECT FROM holdfast.audit WHERE action = 'jobs copy'"))


async def test_the_same_request_is_done_once_and_answered_the_same(
    mara: Surfer, kit: Kit, shop: Shop
) -> None:
    body = {"id": str(shop.done)}
    first, second = await _post(mara, "jobs-copy", body), await _post(mara, "jobs-copy", body)
    assert (first.status_code, second.status_code, first.content == second.content) == (200, 200, True)
    assert ("idempotent-replayed" in first.headers, second.headers["idempotent-replayed"]) == (False, "true")
    assert _copies(kit) == 1
    third = await _post(mara, "jobs-copy", body, "another-key")
    assert (third.json()["done"]["id"] != first.json()["done"]["id"], _copies(kit)) == (True, 2)


async def test_many_at_the_same_time_are_done_once(mara: Surfer, kit: Kit, shop: Shop) -> None:
    body = {"id": str(shop.done)}
    answers = await asyncio.gather(*(_post(mara, "jobs-copy", body) for _ in range(8)))
    assert {answer.status_code for answer in answers} <= {200, 409}
    assert _copies(kit) == 1
    again = await _post(mara, "jobs-copy", body)
    assert again.status_code == 200


async def test_another_request_under_the_key_is_a_slip(mara: Surfer, kit: Kit, shop: Shop) -> None:
    await _post(mara, "jobs-copy", {"id": str(shop.done)})
    for act, body in (("jobs-copy", {"id": str(shop.dead)}), ("dead-redrive", {"id": str(shop.done)})):
        answer = await _post(mara, act, body)
        assert answer.status_code in (400, 422), answer.text
    answer = await _post(mara, "jobs-copy", {"id": str(shop.dead)})
    assert (answer.status_code, "used for another request" in answer.text) == (422, True)
    assert _copies(kit) == 1
    other = made_for(kit.app, "operator", "omar")  # a key is its sender's own
    assert (await _post(Surfer(other), "jobs-copy", {"id": str(shop.dead)})).status_code == 200
    await other.site.close()


async def test_what_was_refused_may_come_again(mara: Surfer, kit: Kit, shop: Shop) -> None:
    body = {"id": str(shop.waiting)}
    assert (await _post(mara, "jobs-copy", body)).status_code == 400
    await Operator(kit.database, "ann").act_on.arun(cancel_verb(), [shop.waiting])
    assert (await _post(mara, "jobs-copy", body)).status_code == 200
    assert _copies(kit) == 1


async def test_a_request_that_was_cut_off_is_not_done_again(
    mara: Surfer, kit: Kit, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dies(*_: object) -> object:
        raise RuntimeError("the process ends here")

    body = {"id": str(shop.done)}
    with monkeypatch.context() as patched:
        patched.setattr("holdfast.web.acting.do", dies)
        assert (await _post(mara, "jobs-copy", body)).status_code == 500
    answer = await _post(mara, "jobs-copy", body)
    assert (answer.status_code, "The audit shows what was done" in answer.text) == (409, True)
    assert _copies(kit) == 0
    kit.sql("UPDATE holdfast.web_requests SET at = at - interval '25 hours' RETURNING 1")
    assert (await _post(mara, "jobs-copy", body)).status_code == 200  # a day later the key is new


async def test_what_is_shown_once_is_not_kept(mara: Surfer, kit: Kit, shop: Shop) -> None:
    body = {"id": str(shop.dead), "field": "payload.card_token", "reason": "a test"}
    first, second = await _post(mara, "jobs-reveal", body), await _post(mara, "jobs-reveal", body)
    assert first.json()["secret"] == "tok_4242"
    assert (second.status_code, "secret" in second.json()) == (200, False)
    assert "tok_4242" not in str(kit.sql("SELECT said FROM holdfast.web_requests"))


async def test_a_look_takes_no_key_and_a_key_that_is_none_is_refused(
    mara: Surfer, kit: Kit, shop: Shop
) -> None:
    body = {"id": str(shop.done)}
    assert (await _post(mara, "jobs-copy", body, query="?dry_run=1")).status_code == 200
    assert kit.sql("SELECT FROM holdfast.web_requests") == []
    for key in ("", "x" * 201):
        answer = await _post(mara, "jobs-copy", body, key)
        assert (answer.status_code, "Idempotency-Key must be given once" in answer.text) == (400, True)
    twice = [("authorization", "Bearer x"), ("idempotency-key", "a"), ("idempotency-key", "b")]
    answer = await mara.client.post("/api/v1/acts/jobs-copy", json=body, headers=twice)
    assert answer.status_code == 400
    assert _copies(kit) == 0


async def test_openapi_names_the_header(mara: Surfer) -> None:
    found = (await mara.get("/api/v1/openapi.json")).json()["paths"]
    for path, one in found.items():
        if "post" in one:
            assert "Idempotency-Key" in [each["name"] for each in one["post"]["parameters"]], path


async def test_jobs_that_another_session_holds_may_be_asked_for_again(
    mara: Surfer, kit: Kit, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an act over named jobs nothing was done: the key is free."""
    monkeypatch.setattr("holdfast.operate.bulk.WAIT", 0.1)
    body = {"ids": [str(shop.waiting)]}
    with psycopg.connect(kit.url) as holder:
        holder.execute("SELECT FROM holdfast.work WHERE id = %s FOR UPDATE", [shop.waiting])
        assert (await _post(mara, "jobs-cancel", body)).status_code == 503
    assert (await _post(mara, "jobs-cancel", body)).status_code == 200
