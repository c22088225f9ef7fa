"""Views are kept in the database: one's own or everybody's, by role, in the audit, and by no read-only dashboard."""

from collections.abc import Callable

import pytest
from tests.web.conftest import Shop
from tests.web.surfing import Surfer, made_for
from tests.web.test_job_filters import JWT, TOKEN

from holdfast.testing import Kit


async def _names(surfer: Surfer) -> list[str]:
    answer = await surfer.get("/api/v1/views")
    assert answer.status_code == 200, answer.text
    return [view["name"] for view in answer.json()["data"]]


async def _save(surfer: Surfer, act: str = "view-save", **body: str) -> tuple[int, str]:
    answer = await surfer.client.post(f"/api/v1/acts/{act}", json=body, headers=TOKEN)
    return answer.status_code, answer.text


async def test_a_list_is_saved_opened_and_deleted(mara: Surfer, kit: Kit, shop: Shop) -> None:
    text = await mara.page("/jobs?state=scheduled&tag=vip")
    assert "Save view…" in text
    where = "/acts/view-save?page=jobs&query=state%3Dscheduled%26tag%3Dvip%26after%3D0199c0de-7a31-7c41-9182-5be0a31ec41f"
    answer = await mara.confirm(where, name="important, later")
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?state=scheduled&tag=vip")
    text = await mara.page(answer.headers["location"])
    assert (str(shop.waiting) in text, "Saved for you: important, later." in text) == (True, True)
    text = await mara.page("/views")
    assert 'href="/jobs?tag=vip&amp;state=scheduled"' in text
    found = (await mara.get("/find?q=import", **{"x-fragment": "1"})).json()["found"]
    assert found == [
        {"text": "important, later", "kind": "saved view", "href": "/jobs?tag=vip&state=scheduled"}
    ]
    (row,) = kit.sql("SELECT id, owner, page, query FROM holdfast.web_views")
    assert (row["owner"], row["query"]) == ("mara", {"state": "scheduled", "tag": "vip"})
    assert (await _save(mara, name="important, later", page="dead"))[0] == 200  # in its place
    assert [r["page"] for r in kit.sql("SELECT page FROM holdfast.web_views")] == ["dead"]
    answer = await mara.confirm(f"/acts/view-delete?id={row['id']}")
    assert answer.status_code == 303
    assert await _names(mara) == []
    acts = kit.sql("SELECT action, actor, selection, before, after FROM holdfast.audit ORDER BY id")
    assert [(one["action"], one["actor"]) for one in acts] == [
        ("view save", "mara"),
        ("view save", "mara"),
        ("view delete", "mara"),
    ]
    assert acts[0]["after"] == {"query": {"state": "scheduled", "tag": "vip"}}
    assert acts[2]["selection"]["name"] == "important, later"


async def test_each_has_his_own_and_everybody_those_that_are_shared(
    kit: Kit, surfer_of: Callable[..., Surfer]
) -> None:
    viewer, operator = surfer_of("viewer"), surfer_of("operator")
    assert (await _save(viewer, name="mine", page="jobs", query="state=dead"))[0] == 200
    assert (await _save(operator, name="ours", page="dead", query="task=charge", act="view-share"))[0] == 200
    assert (await _names(viewer), await _names(operator)) == (["mine", "ours"], ["ours"])
    assert (await _save(viewer, name="ours too", page="jobs", act="view-share"))[0] == 403
    ids = {row["name"]: str(row["id"]) for row in kit.sql("SELECT id, name FROM holdfast.web_views")}
    for who, act, view, status in (
        (viewer, "view-delete", "ours", 400),  # it is everybody's
        (viewer, "view-unshare", "ours", 403),
        (operator, "view-delete", "mine", 404),
        (operator, "view-unshare", "mine", 404),
    ):
        assert (await _save(who, act, id=ids[view]))[0] == status, (act, view)
    assert len(kit.sql("SELECT FROM holdfast.web_views")) == 2
    assert (await _save(operator, "view-unshare", id=ids["ours"]))[0] == 200
    assert await _names(viewer) == ["mine"]


async def test_a_viewer_is_not_told_what_was_searched_for(kit: Kit, surfer_of: Callable[..., Surfer]) -> None:
    viewer, operator = surfer_of("viewer"), surfer_of("operator")
    for name, query in (
        ("by error", "error=Quill"),
        ("by field", "task=send&field=order_id=3"),
        ("plain", "task=send"),
    ):
        assert (await _save(operator, "view-share", name=name, page="jobs", query=query))[0] == 200
    assert (await _names(viewer), len(await _names(operator))) == (["plain"], 3)
    for path in ("/views", "/find?q=by"):
        assert "Quill" not in (await viewer.get(path, **{"x-fragment": "1"})).text
    assert (await viewer.get("/find?q=by", **{"x-fragment": "1"})).json()["found"] == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"name": "x", "page": "nowhere"}, "there is no page 'nowhere' to save a view of"),
        ({"name": "x", "page": "jobs", "query": "stat=dead"}, "jobs does not know 'stat'"),
        ({"name": "x", "page": "jobs", "query": f"tag={JWT}"}, "so that no view is found by it"),
        ({"name": "x" * 61, "page": "jobs"}, "the name of a view has 1 to 60 characters, not 61"),
        ({"name": " ", "page": "jobs"}, "1 to 60 characters"),
        ({"name": "x", "page": "//evil.example/jobs"}, "there is no page"),
        ({"name": "a\x00b", "page": "jobs"}, "is not valid text"),
        ({"name": "x", "page": "jobs", "query": "&".join(["tag=a"] * 51)}, "at most 50 filters"),
        ({"name": "x", "page": "jobs", "query": f"tag={'a' * 2000}"}, "at most 2,000 characters"),
        ({"name": "x", "page": f"jobs/{'a' * 2000}"}, "at most 2,000 characters"),
    ],
)
async def test_what_could_not_be_opened_is_not_saved(
    mara: Surfer, kit: Kit, body: dict[str, str], said: str
) -> None:
    status, text = await _save(mara, **body)
    assert (status in (400, 404), said in text) == (True, True), (status, text)
    assert kit.sql("SELECT FROM holdfast.web_views") == []


async def test_there_are_so_many_and_no_more(mara: Surfer, kit: Kit) -> None:
    kit.sql(
        """INSERT INTO holdfast.web_views (owner, name, page, query, made_by, made_at)
           SELECT 'mara', 'v' || n, 'jobs', '{}', 'mara', now() FROM generate_series(1, 200) n RETURNING 1"""
    )
    status, text = await _save(mara, name="one more", page="jobs")
    assert (status, "200 views are yours already" in text) == (400, True)
    assert (await _save(mara, name="v7", page="dead"))[0] == 200  # in the place of another


async def test_a_read_only_dashboard_keeps_none(kit: Kit, mara: Surfer) -> None:
    assert (await _save(mara, name="kept", page="jobs", query="state=dead"))[0] == 200
    made = made_for(kit.app, read_only=True)
    reader = Surfer(made)
    status, text = await _save(reader, name="x", page="jobs")
    assert (status, "this dashboard is read-only" in text) == (403, True)
    assert "Save view…" not in await reader.page("/jobs?state=dead")
    assert await _names(reader) == ["kept"]  # it opens those that are there
    await made.site.close()
