"""Every act in a real browser, from its button to the audit: one session, two people of other roles beside it, and the
server starts again in the middle."""

import asyncio
import contextlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from tests.conftest import QUICK, wait_until, within
from tests.web.browser import FLAGS, PROGRAM
from tests.web.test_browser import Watched
from tests.web.troubled import OrderPaid, checkout, make_trouble, served, shop_app

from holdfast import Holdfast, Workflow
from holdfast.operate.job_acts import cancel_verb
from holdfast.operate.operator import Operator
from holdfast.store.search import JobFilter
from holdfast.testing import Kit
from holdfast.web import Identity
from holdfast.web.application import Dashboard, dashboard

pytestmark = pytest.mark.slow
PEOPLE = {
    "mara": Identity("mara", "admin"),
    "omar": Identity("omar", "operator"),
    "vera": Identity("vera", "viewer"),
}


def serve(app: Holdfast, secret: str) -> Dashboard:
    """Who asks is in a cookie, as the app around it would have it."""
    return dashboard(app, lambda request: PEOPLE.get(request.cookies.get("who", "")), secret=secret)


class Clicking:
    """Somebody with a browser."""

    def __init__(self, browser: Browser, base: str, who: str) -> None:
        self.watched = Watched(browser)
        self.watched.context.add_cookies([{"name": "who", "value": who, "url": base}])
        self.page: Page = self.watched.page
        self.base = base

    def press(self, path: str, act: str, **fill: str) -> None:
        """The button of this act on that page, its dialog, what it asks for, and its confirmation."""
        slug = act.replace(" ", "-")
        self.page.goto(f"{self.base}/{path}")
        if not path.startswith("acts/"):
            self.page.locator(
                f'main a[href*="/acts/{slug}?"]:visible, main form[action$="/acts/{slug}"] button:visible'
            ).first.click()
        form = self.page.locator("form.confirm-form")
        expect(form.or_(self.page.locator(".said")).first).to_be_visible()
        self._fill(fill)
        if form.get_by_role("button", name="Show what it would do").count():
            form.get_by_role("button", name="Show what it would do").click()
            expect(form.locator("input[name=seal]")).to_have_count(1)
            self._fill(fill)
        if form.count():
            typed = form.locator("input[name=typed]")
            if typed.count():
                typed.fill(form.locator("label.field b").last.inner_text())
            form.locator("footer button").click()
        expect(self.page.locator(".said, .once").first).to_be_visible()

    def _fill(self, fill: dict[str, str]) -> None:
        for name, value in fill.items():
            field = self.page.locator(f"form.confirm-form [name={name}]:visible")
            if field.count() and field.evaluate("one => one.tagName") == "SELECT":
                field.select_option(value)
            elif field.count():
                field.fill(value)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    expect.set_options(timeout=within(10) * 1000)
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=PROGRAM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def shop(holdfast_kit: Any) -> Kit:
    app = shop_app()
    hooks = app.webhooks(on=["nothing.*"])

    @app.workflow(name="refund")
    async def refund(wf: Workflow) -> None:
        raise ValueError("there is nothing to give back")

    kit: Kit = holdfast_kit(app, QUICK)

    def fill() -> None:
        make_trouble(kit)
        for n in (21, 22):
            checkout.using(id=f"order:{n}").start(order_id=n)
        kit.app.publish(OrderPaid(99, customer=1, cents=995))
        kit.sql("SELECT holdfast.turn_page()")
        refund.using(id="refund:1").start()
        hooks.endpoints.create(tenant="acme", url="https://acme.example/hooks")

    with ThreadPoolExecutor(1) as thread:  # a loop of playwright's runs in this one
        thread.submit(fill).result()
    return kit


@contextlib.contextmanager
def one_worker(kit: Kit) -> Iterator["Future[Any]"]:
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(lambda: asyncio.run(kit.app.run_worker()))
        wait_until(
            lambda: kit.sql("SELECT FROM holdfast.workers WHERE status = 'alive'"), "the worker is there", 30
        )
        yield running


def test_every_act_from_its_button_to_the_audit(chromium: Browser, shop: Kit) -> None:
    operator = Operator(shop.database, "test")
    later = [job.id for job in operator.list_jobs(JobFilter(("scheduled",)), limit=20).jobs]
    dead = [letter.id for letter in operator.list_dead(limit=20).dead_letters]
    left = operator.begin_operation(cancel_verb(), JobFilter(("scheduled",)))
    (hook,) = (row["id"] for row in shop.sql("SELECT id FROM holdfast.webhook_endpoints"))
    runs = {r["key"]: r["id"] for r in shop.sql("SELECT key, id FROM holdfast.workflow_runs")}
    group = operator.group_dead().groups[0].id
    named = next(iter(operator.find_job(dead[1]).job.payload))
    shop.sql(
        "UPDATE holdfast.work SET status = 'processing', claim_token = gen_random_uuid() WHERE id = %s",
        [later[5]],
    )
    first = [
        ("queues", "queue pause", {}), ("queues", "queue resume", {}),
        ("queues/mail", "queue set", {"value": "5"}), ("queues", "queue create", {"queue": "late"}),
        (f"dead?group={group}", "task pause", {}), ("limits", "task resume", {}),
        ("keys/parcels?key=order:9182", "keys hold", {"reason": "a test"}),
        ("keys/parcels?key=order:9182", "keys lift", {}), ("keys", "keys release", {}),
        (f"operations/{left.id}", "operations stop", {}),
        (f"jobs/{later[0]}", "jobs edit", {"priority": "5"}), (f"jobs/{later[0]}", "jobs retry", {}),
        (f"jobs/{later[1]}", "jobs cancel", {"reason": "a test"}), (f"jobs/{later[2]}", "jobs discard", {}),
        (f"jobs/{dead[0]}", "dead redrive", {"rate": "10/s"}), (f"jobs/{dead[1]}", "jobs copy", {"priority": "5"}),
        ("dead?task=mail.send_receipt", "dead patch", {"patch": '{"to": "desk@example.com"}'}),
        (f"jobs/{dead[1]}", "jobs reveal", {"field": f"payload.{named}", "reason": "a test"}),
        (f"jobs/{dead[1]}", "dead discard", {}),
        ("jobs?state=scheduled", "view save", {"name": "later"}), ("views", "view delete", {}),
        ("jobs?state=scheduled", "view share", {"name": "ours"}), ("views", "view unshare", {}),
        ("acts/doctor-fix?fix=stranded", "doctor fix", {"reason": "a test"}),
        ("jobs", "enqueue", {"task": "search.reindex", "arguments": '{"product": 3}'}),
        ("schedules", "schedule pause", {}), ("schedules", "schedule resume", {}),
        ("schedules/reindex-often", "schedule run", {}),
        ("schedules/reindex-often", "schedule backfill", {"start": "2026-05-01T00:00Z", "end": "2026-05-01T01:00Z"}),
        ("schedules", "schedule add",
         {"name": "hourly", "task": "search.reindex", "every": "1h", "payload": '{"product": 7}'}),
        ("schedules/hourly", "schedule remove", {}),
    ]  # fmt: skip
    then = [
        ("events/subscriptions/order_totals", "subscriptions pause", {}),
        ("acts/subscriptions-skip?name=order_totals", "subscriptions skip", {}),
        ("events/subscriptions/order_totals", "subscriptions resume", {}),
        ("events/subscriptions/order_totals", "subscriptions reset", {"to": "40"}),
        ("projections", "projection rebuild", {}), ("projections", "projection cancel", {}),
        (f"webhooks/{hook}", "webhook pause", {}), (f"webhooks/{hook}", "webhook enable", {}),
        (f"webhooks/{hook}", "webhook ping", {}),
        (f"webhooks/{hook}", "webhook rotate", {}),
        (f"webhooks/{hook}", "webhook disable", {}), (f"acts/webhook-delete?endpoint={hook}", "webhook delete", {}),
        (f"workflows/{runs['order:11']}", "workflow pause", {}), (f"workflows/{runs['order:11']}", "workflow resume", {}),
        (f"workflows/{runs['order:11']}", "workflow signal", {"value": "parcel 7"}),
        (f"workflows/{runs['order:12']}", "workflow fork", {"step": "pay", "id": "order:12b"}),
        (f"workflows/{runs['order:12']}", "workflow cancel", {"reason": "a test"}),
        (f"workflows/{runs['order:21']}", "workflow terminate", {"reason": "a test"}),
    ]  # fmt: skip
    made = serve(shop.app, "kept")
    pressed = {act for _, act, _ in (*first, *then)}
    # Deliveries that can be sent again need somebody to send them to: test_webhook_pages.py.
    again = {"webhook redeliver", "webhook redeliver-range"}
    assert pressed | WHEN_SOMETHING_FAILED | again | {"workers drain", "undo"} == set(made.site.acts)
    with served(made) as base:
        mara, vera, omar = (Clicking(chromium, base, who) for who in ("mara", "vera", "omar"))
        vera.page.goto(base)
        expect(vera.page.locator("[data-live-state=live]")).to_be_visible()
        _do(shop, mara, first)
        _do(shop, mara, [(f"jobs/{dead[2]}", "dead redrive", {})])
        mara.page.locator("[data-undo] button").click()
        expect(mara.page.locator(".said")).to_contain_text("1 job as before")
        _refused(vera, ["queues", "queues/mail", f"jobs/{later[3]}", "dead", "schedules"], "viewer")
        omar.page.goto(f"{base}/jobs/{later[3]}")
        expect(omar.page.locator('.jobhead a[href*="/acts/jobs-cancel"]')).to_be_visible()
        expect(omar.page.locator(".jobhead .off")).to_have_attribute("title", "Needs the role admin")
        omar.page.goto(f"{base}/settings")  # a page with a stream would note that it was cut
        vera.page.goto(base)
        expect(vera.page.locator("[data-live-state=live]")).to_be_visible()
        mara.page.goto(f"{base}/acts/queue-set?queue=mail&rule=concurrency&back=queues/mail")
    expect(vera.page.locator("[data-live-state=stale]")).to_be_visible()
    with served(serve(shop.app, "kept"), int(base.rpartition(":")[2])):
        mara.page.locator("form.confirm-form [name=value]").fill("7")
        mara.page.locator(
            "form.confirm-form footer button"
        ).click()  # shown before the restart, confirmed after it
        expect(mara.page.locator(".said")).to_be_visible()
        _do(shop, mara, then)
        with one_worker(shop) as running:
            mara.press("workers", "workers drain")
            running.result(within(60))
        expect(vera.page.locator("[data-live-state=live]")).to_be_visible(timeout=within(30) * 1000)
        _refused(vera, [f"workflows/{runs['order:22']}", "events", "projections"], "viewer")
    assert mara.watched.complaints == omar.watched.complaints == []
    for one in (mara, vera, omar):
        one.watched.context.close()


WHEN_SOMETHING_FAILED = {
    "subscriptions replay", "subscriptions retry", "subscriptions forget-failures", "subscriptions remove",
    "workflow retry",
}  # fmt: skip
FAILURE = """
INSERT INTO holdfast.event_failures (subscription, position, seq, shard, kind, event_id, type, key, error, at)
SELECT 'shop.book', %s, e.seq, 0, 'skipped', e.id, e.type, e.key, 'no such customer', holdfast.now()
FROM holdfast.events e ORDER BY e.seq OFFSET %s - 1 LIMIT 1
"""


def test_the_acts_of_what_failed(chromium: Browser, shop: Kit) -> None:
    with ThreadPoolExecutor(1) as thread:
        thread.submit(shop.run_worker).result()  # the run that fails
    run = shop.sql("SELECT id FROM holdfast.workflow_runs WHERE key = 'refund:1'")[0]["id"]
    with served(serve(shop.app, "kept")) as base:
        mara = Clicking(chromium, base, "mara")
        _do(shop, mara, [(f"workflows/{run}", "workflow retry", {})])
        book = "events/subscriptions/shop.book"
        for position, act in ((3, "subscriptions retry"), (5, "subscriptions forget-failures")):
            shop.sql(FAILURE, [position, position])
            _do(shop, mara, [(book, act, {"reason": "a test"})])
        _do(shop, mara, [(book, "subscriptions replay", {"start": "start", "again": "yes"})])
        (begun, *_) = shop.sql(
            "SELECT name FROM holdfast.subscriptions WHERE replay_of IS NOT NULL ORDER BY name DESC"
        )
        _do(shop, mara, [(f"events/subscriptions/{begun['name']}", "subscriptions remove", {})])
        assert mara.watched.complaints == []
        mara.watched.context.close()


def _do(shop: Kit, mara: Clicking, steps: list[tuple[str, str, dict[str, str]]]) -> None:
    count = "SELECT count(*) AS n FROM holdfast.audit WHERE actor = 'mara' AND surface = 'web'"
    for path, act, fill in steps:
        before = shop.sql(count)[0]["n"]
        mara.press(path, act, **fill)
        assert shop.sql(count)[0]["n"] > before, (
            f"{act} is not in the audit: {mara.page.locator('main').inner_text()[:300]}"
        )


def _refused(one: Clicking, paths: list[str], role: str) -> None:
    """No button that acts, and those that are there say which role they need."""
    for path in paths:
        one.page.goto(f"{one.base}/{path}")
        expect(one.page.locator(".me")).to_contain_text(role)
        assert one.page.locator('main a[href*="/acts/"], main form[action*="/acts/"]').count() == 0, path
        titles = one.page.locator("main .off").evaluate_all("all => all.map(one => one.title)")
        assert titles, path
        assert {title.rpartition(" ")[0] for title in titles} == {"Needs the role"}
