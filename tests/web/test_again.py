"""Run a copy of a job, on its page and by programs."""

from uuid import UUID

from tests.web.conftest import Shop
from tests.web.surfing import Surfer
from tests.web.test_job_filters import TOKEN

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
    body = {"id": str(shop.done), "arguments": {"order_id": "many"}}
    answer = await mara.client.post("/api/v1/acts/jobs-copy", json=body, headers=TOKEN)
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
