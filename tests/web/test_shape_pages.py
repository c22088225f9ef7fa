"""Pages of the shapes: empty ones say what they are for, full ones show what there is, and their acts act."""

import re
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

import pytest
from tests.web.surfing import Surfer, fields, made_for
from tests.web.troubled import OrderPaid, make_trouble, shop_app

from holdfast import Holdfast
from holdfast.operate.operator import Operator
from holdfast.pages import Page, Pages
from holdfast.shape import Shape
from holdfast.testing import Kit

SHAPES = ("schedules", "events", "projections", "webhooks", "workflows")


@pytest.mark.parametrize("path", SHAPES)
async def test_a_shape_that_is_not_in_use_says_what_it_is_for(mara: Surfer, path: str) -> None:
    text = await mara.page(f"/{path}")
    assert "are not in use here" in text
    assert "eclare" in text or "Publish" in text
    assert ("/acts/schedule-add?" in text) == (path == "schedules")
    assert (await mara.get(f"/api/v1/{path}")).json()["in_use"] is False


@pytest.fixture
def troubled(holdfast_kit: object) -> Kit:
    from tests.conftest import QUICK

    kit: Kit = holdfast_kit(shop_app(), QUICK)  # type: ignore[operator]
    make_trouble(kit)
    return kit


async def test_every_page_of_a_shop_of_every_shape(troubled: Kit) -> None:
    made = made_for(troubled.app)
    surfer = Surfer(made)
    for path in (
        "schedules",
        "events",
        "projections",
        "workflows",
        "limits",
        "workers",
        "audit",
        "doctor",
        "",
    ):
        text = await surfer.page(f"/{path}")
        for link in sorted(set(re.findall(r'<a class="link[^"]*" href="([^"]+)"', text)))[:8]:
            await surfer.page(link.replace("&amp;", "&"))
    assert "Every 15 minutes" in await surfer.page("/schedules") or "15 min" in await surfer.page(
        "/schedules"
    )
    assert "order.paid" in await surfer.page("/events?type=order.*")
    assert "order_totals" in await surfer.page("/projections")
    run = re.search(r"/workflows/([0-9a-f-]{36})", await surfer.page("/workflows?state=suspended"))
    assert run is not None
    text = await surfer.page(f"/workflows/{run[1]}")
    assert "It waits for signal shipped" in text
    assert "A cancel would undo, in this order" in text
    await made.site.close()
    await troubled.database.aclose()


async def test_the_acts_of_shapes(troubled: Kit) -> None:
    made = made_for(troubled.app)
    surfer = Surfer(made)
    operator = Operator(troubled.database, "test")
    assert (await surfer.confirm("/acts/schedule-run?name=reindex-often")).status_code == 303
    csrf = (await surfer.page("/schedules")).split('name="csrf" value="')[1].split('"')[0]
    at_once = (
        ("schedule-pause", {"name": "reindex-often"}),
        ("schedule-resume", {"name": "reindex-often"}),
        ("subscriptions-pause", {"name": "order_totals"}),
        ("subscriptions-resume", {"name": "order_totals"}),
    )
    for act, given in at_once:
        answer = await surfer.post(f"/acts/{act}", {**given, "csrf": csrf})
        assert answer.status_code == 303, (act, answer.text)
        line = operator.list_audit(limit=1).entries[0]
        assert (line.actor, set(act.replace("subscriptions", "subscription").split("-"))) == (
            "mara",
            set(line.action.replace("_", " ").split()),
        )
    run = re.search(r"/workflows/([0-9a-f-]{36})", await surfer.page("/workflows?state=suspended"))
    assert run is not None
    shown = await surfer.look(f"/acts/workflow-signal?run={run[1]}&signal=shipped", value="parcel 7")
    answer = await surfer.post("/acts/workflow-signal", fields(shown))
    assert answer.status_code == 303, answer.text
    await troubled.app.run_worker(until_idle=True)
    assert "completed" in await surfer.page(f"/workflows/{run[1]}")
    text = await surfer.page(
        "/acts/schedule-backfill?name=reindex-often&start=2026-05-01T00:00Z&end=2026-05-01T01:00Z"
    )
    assert "would be enqueued" in text
    await made.site.close()
    await troubled.database.aclose()


async def test_an_event_that_was_shown_is_skipped_and_no_other(troubled: Kit) -> None:
    made = made_for(troubled.app)
    surfer = Surfer(made)
    operator = Operator(troubled.database, "test")
    csrf = (await surfer.page("/schedules")).split('name="csrf" value="')[1].split('"')[0]
    assert (
        await surfer.post("/acts/subscriptions-pause", {"name": "order_totals", "csrf": csrf})
    ).is_redirect
    for n in range(3):
        troubled.app.publish(OrderPaid(n, customer=n, cents=995))
    await troubled.app.run_worker(until_idle=True)
    one, other = [fields(await surfer.page("/acts/subscriptions-skip?name=order_totals")) for _ in range(2)]
    assert (await surfer.post("/acts/subscriptions-skip", one)).is_redirect
    again = await surfer.post("/acts/subscriptions-skip", one)
    assert (again.status_code, "confirmed before" in again.text) == (409, True)
    moved = await surfer.post("/acts/subscriptions-skip", other)
    assert (moved.status_code, "so nothing was skipped" in moved.text) == (400, True)
    changed = await surfer.post("/acts/subscriptions-skip", {**other, "position": "1"})
    assert changed.status_code == 409
    actions = [line.action for line in operator.list_audit(limit=10).entries]
    assert actions.count("skip_event") == 1
    await made.site.close()
    await troubled.database.aclose()


async def test_what_would_be_skipped_is_shown_of_what_stands_alone(troubled: Kit) -> None:
    made = made_for(troubled.app)
    text = await Surfer(made).page("/acts/subscriptions-skip?name=order_totals")
    assert "is not stopped, so there is nothing to skip" in text
    assert '<button class="btn danger">' not in text
    await made.site.close()
    await troubled.database.aclose()


async def test_a_backfill_asks_for_its_range_and_is_confirmed_with_it(troubled: Kit) -> None:
    made = made_for(troubled.app)
    surfer = Surfer(made)
    path = "/acts/schedule-backfill?name=reindex-often"
    text = await surfer.page(path)
    assert 'name="start"' in text[text.index("data-look") :]
    assert "seal" not in fields(text)
    assert "must be a moment" in await surfer.page(f"{path}&start=yesterday")
    now = datetime.now(UTC).replace(microsecond=0)
    start, end = ((now - timedelta(hours=ago)).isoformat() for ago in (25, 24))
    path += "&" + urlencode({"start": start, "end": end})
    text = await surfer.page(path)
    shown = re.search(r"(\d+) jobs would be enqueued", text)
    assert shown is not None
    earlier = (now - timedelta(hours=90)).isoformat()
    longer = await surfer.post("/acts/schedule-backfill", {**fields(text), "start": earlier})
    assert longer.status_code == 409
    answer = await surfer.confirm(path)
    assert answer.status_code == 303, answer.text
    line = Operator(troubled.database, "test").list_audit(limit=1).entries[0]
    assert (line.actor, line.action, line.count) == ("mara", "schedule backfill", int(shown[1]))
    await made.site.close()
    await troubled.database.aclose()


def test_two_pages_of_one_path_are_refused(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.errors import ConfigurationError

    again = Shape("again", pages=f"{__name__}:AGAIN")
    monkeypatch.setattr(type(app), "_shapes", (again,))
    with pytest.raises(ConfigurationError, match="two pages are called 'jobs'"):
        made_for(app)


def _never(_: object) -> object:
    raise NotImplementedError


AGAIN = Pages((Page("jobs", "Jobs", _never),))  # type: ignore[arg-type]


async def test_events_of_quiet_days_are_shown_from_the_last_on(mara: Surfer, kit: Kit) -> None:
    for day in range(8):
        for n in range(10):
            kit.app.publish("order.paid", {"day": day, "n": n})
        kit.sql("SELECT holdfast.turn_page()")
        kit.clock.advance(86_400)
    first = (await mara.get("/api/v1/events")).json()["data"]["events"]
    assert [(e["data"]["day"], e["data"]["n"]) for e in first] == [
        (day, n) for day in range(7, 2, -1) for n in range(9, -1, -1)
    ]
    text = await mara.page("/events?type=order.*")
    before = re.search(r"before=(\d+)", text)
    assert before is not None
    second = (await mara.get(f"/api/v1/events?type=order.*&before={before[1]}")).json()["data"]["events"]
    assert [e["data"]["day"] for e in second] == [2] * 10 + [1] * 10 + [0] * 10
