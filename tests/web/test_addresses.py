"""What an address says behind the `?`: a name that a page does not know would show more than was meant."""

import pytest
from tests.web.conftest import Shop
from tests.web.surfing import Surfer

from holdfast.operate.operator import Operator
from holdfast.testing import Kit


async def test_a_name_that_a_page_does_not_know_is_refused_on_every_page(mara: Surfer) -> None:
    """In HTML and in JSON, with the names that it knows; those that the description has are taken."""
    described = (await mara.get("/api/v1/openapi.json")).json()["paths"]
    pages = {path: one["get"]["parameters"] for path, one in described.items() if "get" in one}
    assert len(pages) > 20
    for path, parameters in pages.items():
        known = [one["name"] for one in parameters if one["in"] == "query"]
        one = path.format(**{one["name"]: "x" for one in parameters if one["in"] == "path"})
        answer = await mara.get(f"{one}?bogus=1")
        assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json"), one
        assert answer.json()["detail"] == f"{one} does not know 'bogus' (known: {', '.join(known) or 'none'})"
        shown = "/" if one == "/api/v1/overview" else one.removeprefix("/api/v1")
        text = (await mara.get(f"{shown}?bogus=1")).text
        assert f"does not know &#39;bogus&#39; (known: {', '.join(known) or 'none'})" in text, shown
        if "{" not in path:
            tried = await mara.get(f"{one}?" + "&".join(f"{name}=" for name in known))
            assert tried.status_code == 200, (one, tried.text)


async def test_a_slip_in_a_filter_lists_nothing(mara: Surfer, shop: Shop) -> None:
    answer = await mara.get("/jobs?stat=dead_letter")
    assert answer.status_code == 400
    assert "Did you mean state?" in answer.text
    assert str(shop.waiting) not in answer.text


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("jobs?queue=mail&queue=parcels", "queue is in the address more than once"),
        ("jobs?state=deda", "there is no state 'deda'"),
        ("dead?each=yes", "each takes 1, not 'yes'"),
        ("workers?gone=1", "gone must be one of yes, not '1'"),
        ("operations?state=over", "state must be one of"),
    ],
)
async def test_a_value_that_means_nothing_is_refused(mara: Surfer, address: str, said: str) -> None:
    for where in ("/", "/api/v1/"):
        answer = await mara.get(where + address)
        assert answer.status_code in (400, 404)
        assert said[1:] in answer.text.replace("&#39;", "'")  # a page begins with a capital


@pytest.mark.parametrize(
    "address",
    ["find?q=mail&x=1", "live?topic=overview", "api/v1/openapi.json?x=1", "acts/queue-pause?queue=mail&x=1"],
)
async def test_other_addresses_refuse_it_too(mara: Surfer, kit: Kit, address: str) -> None:
    answer = await mara.get(f"/{address}")
    assert answer.status_code == 400
    assert "does not know" in answer.text
    assert Operator(kit.database, "test").list_audit(limit=1).entries == []


async def test_a_preview_of_two_filters_is_refused(mara: Surfer, shop: Shop) -> None:
    answer = await mara.get("/acts/jobs-cancel?queue=mail&queue=parcels")
    assert (answer.status_code, "more than once" in answer.text) == (400, True)
