"""Beside a list stands the SQL that it runs."""

from collections.abc import Callable

import pytest
from tests.web.conftest import Shop
from tests.web.surfing import Surfer

from holdfast.testing import Kit
from holdfast.web.application import Dashboard


@pytest.mark.parametrize(
    ("page", "name"),
    [("", "queue_load"), ("jobs", "search_live"), ("dead", "group_dead"), ("workers", "list_workers")],
)
async def test_every_list_has_its_sql(mara: Surfer, shop: Shop, page: str, name: str) -> None:
    link = f"/sql?page={page}&amp;query="
    assert link in await mara.page(f"/{page}")
    for _ in range(2):  # what was read for somebody before is among it too
        text = await mara.page(link.replace("&amp;", "&"))
        assert f"<code>{name}</code>" in text
        assert "SELECT" in text
        assert "<code>read_only</code>" not in text


async def test_the_sql_has_what_the_page_was_asked_for(mara: Surfer, kit: Kit, shop: Shop) -> None:
    text = await mara.page("/sql?page=jobs&query=queue%3Dparcels")
    assert "= parcels" in text
    assert (await mara.get("/sql?page=jobs&query=queu%3Dparcels")).status_code == 400
    assert (await mara.get("/sql?page=nothing")).status_code == 404


async def test_a_viewer_sees_no_parameter_and_searches_for_nothing(
    surfer_of: Callable[..., Surfer], shop: Shop
) -> None:
    viewer = surfer_of("viewer")
    text = await viewer.page("/sql?page=jobs&query=queue%3Dparcels")
    assert "= parcels" not in text
    assert "those need the role operator" in text
    assert (await viewer.get("/sql?page=jobs&query=error%3Dpsp")).status_code == 403


async def test_what_runs_for_the_next_one_is_not_noted(
    dashboard: Dashboard, mara: Surfer, shop: Shop
) -> None:
    first = (await mara.page("/sql?page=workers")).count("<code>")
    await mara.page("/jobs")
    assert (await mara.page("/sql?page=workers")).count("<code>") == first
