"""Every page can be looked at: with nothing there, and with a shop in trouble."""

from collections.abc import Callable

import pytest
from tests.web.conftest import Shop
from tests.web.surfing import Surfer

from holdfast.errors import ConfigurationError
from holdfast.testing import Kit
from holdfast.web.application import Dashboard

PLAIN = (
    "",
    "jobs",
    "queues",
    "dead",
    "keys",
    "workers",
    "limits",
    "doctor",
    "operations",
    "audit",
    "settings",
)


@pytest.mark.parametrize("path", PLAIN)
async def test_a_page_of_an_empty_database_says_so(mara: Surfer, path: str) -> None:
    text = await mara.page(f"/{path}")
    assert "Holdfast</title>" in text
    assert (
        'class="empty"' in text
        or 'class="body empty"' in text
        or path in ("settings", "doctor", "queues", "limits")
    )


@pytest.mark.parametrize("path", PLAIN)
async def test_a_page_of_a_shop_in_trouble(mara: Surfer, shop: Shop, path: str) -> None:
    assert "Traceback" not in await mara.page(f"/{path}")


async def test_the_overview_names_first_what_needs_somebody(mara: Surfer, shop: Shop) -> None:
    text = await mara.page("/")
    assert text.index("Needs attention") < text.index("Oldest that could run")
    assert "order:9182" in text[: text.index("Oldest that could run")]


async def test_a_job_says_why_it_does_not_run_and_what_happened(mara: Surfer, shop: Shop) -> None:
    waiting = await mara.page(f"/jobs/{shop.waiting}")
    assert "Why is it not running?" in waiting
    assert "Retry now" in waiting
    dead = await mara.page(f"/jobs/{shop.dead}")
    assert "Attempt 1 failed" in dead
    assert "ConnectionError" in dead
    assert "Redrive" in dead


async def test_a_list_has_its_filter_in_the_address_and_its_command_beside_it(
    mara: Surfer, shop: Shop
) -> None:
    text = await mara.page("/jobs?state=scheduled&task=send&newer_than=2h")
    assert "holdfast jobs list --state scheduled --task send --newer-than 2h" in text
    assert str(shop.waiting) in text
    assert str(shop.done) not in text


async def test_jobs_that_back_off_are_a_list_of_their_own(mara: Surfer, kit: Kit, shop: Shop) -> None:
    retried = kit.app.send("charge", {"order_id": 5, "card_token": "t"}, max_attempts=5, run_after=60)
    kit.sql("UPDATE holdfast.work SET attempts = 1 WHERE id = %s", [retried.id])
    text = await mara.page("/jobs?state=backing_off")
    assert "holdfast jobs list --backing-off" in text
    assert [str(job) in text for job in (retried.id, shop.waiting)] == [True, False]


async def test_a_queue_has_a_history_of_up_to_thirty_days(mara: Surfer, kit: Kit) -> None:
    assert "No samples yet" in await mara.page("/queues/mail")
    kit.app.send("send", {"order_id": 8}, queue="mail")
    kit.sql("SELECT holdfast.take_sample(10)")
    text = await mara.page("/queues/mail")
    assert "0 running, 1 due, 0 behind another job, 0 held" in text
    assert "the most in each 180 minutes" in await mara.page("/queues/mail?history=30d")
    assert "is not one of 1h, 6h, 1d, 7d, 30d" in (await mara.get("/queues/mail?history=9y")).text


async def test_a_page_goes_on_where_it_ended(mara: Surfer, dashboard: Dashboard) -> None:
    app = dashboard.site.app
    made = [str(app.send("send", {"order_id": n}).id) for n in range(60)]
    first = await mara.page("/jobs")
    assert [made_id in first for made_id in (made[-1], made[0])] == [True, False]
    after = first.split("after=")[1].split('"')[0]
    second = await mara.page(f"/jobs?after={after}")
    assert [made_id in second for made_id in (made[-1], made[0])] == [False, True]


async def test_dead_letters_stand_together_by_their_error(mara: Surfer, shop: Shop) -> None:
    text = await mara.page("/dead?task=charge")
    group = text.split("group=")[1].split('"')[0].split("&")[0]
    one = await mara.page(f"/dead?group={group}")
    assert str(shop.dead)[-6:] in one


async def test_what_is_not_there_is_said(mara: Surfer) -> None:
    answer = await mara.get("/jobs/0199c0de-7a31-7c41-9182-5be0a31ec41f")
    assert answer.status_code == 404
    assert "There is no job 0199c0de" in answer.text
    assert (await mara.get("/jobs/nonsense")).status_code == 400
    assert (await mara.get("/no/such/page")).status_code == 404
    assert (await mara.get("/queues/nowhere")).status_code in (400, 404)


async def test_a_job_leads_to_its_trace(kit: Kit, surfer_of: Callable[..., Surfer]) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    traced = kit.app.send(
        "send", {"order_id": 1}, metadata={"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    )
    evil = kit.app.send("send", {"order_id": 1}, metadata={"traceparent": "00-javascript:alert(1)-00-01"})
    link = f'href="https://jaeger.example/trace/{trace}" rel="noreferrer noopener"'
    viewer = surfer_of("viewer", trace_url="https://jaeger.example/trace/{trace}")
    assert link in await viewer.page(f"/jobs/{traced.id}")
    assert "<dt>Trace</dt>" not in await viewer.page(f"/jobs/{evil.id}")
    assert f'<span class="mono">{trace}</span>' in await surfer_of("viewer").page(f"/jobs/{traced.id}")
    for wrong in ("javascript:{trace}", "https://jaeger.example/"):
        with pytest.raises(ConfigurationError, match="trace_url must be an address"):
            surfer_of("viewer", trace_url=wrong)
