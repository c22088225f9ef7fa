"""The dashboard in a real browser: every view, light, dark and on a phone; keys, acts, live numbers, hostile payloads."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Dialog, Page, expect, sync_playwright
from tests.conftest import QUICK, within
from tests.web.browser import FLAGS, PROGRAM
from tests.web.surfing import made_for
from tests.web.troubled import make_trouble, served, shop_app

from holdfast import Holdfast
from holdfast.operate.operator import Operator
from holdfast.store.search import JobFilter
from holdfast.testing import Kit
from holdfast.web import Identity
from holdfast.web.application import Dashboard, dashboard

pytestmark = pytest.mark.slow
expect.set_options(timeout=within(10) * 1000)
AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text(encoding="utf-8")
VIEWS = (
    "", "jobs", "jobs?state=dead_letter", "queues", "queues/mail", "dead", "keys", "keys/parcels", "workers", "schedules",
    "schedules/nightly-reindex", "limits", "workflows", "events", "projections", "webhooks", "doctor", "operations",
    "audit", "settings",
    "acts/dead-redrive?task=mail.send_receipt", "sql?page=jobs&query=state%3Ddead_letter",
)  # fmt: skip
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "has_touch": True},
}
# Text that is squeezed into a column of letters, or that stands on what is beside it; a head of nothing.
SQUEEZED = """() => [...document.querySelectorAll("main .cmd code, main .feed time, main th, main h2")].filter((one) => {
  const box = one.getBoundingClientRect(), next = one.nextElementSibling?.getBoundingClientRect();
  if (one.matches("th")) return box.width && !one.textContent && !one.firstElementChild;
  if (one.matches("h2")) return box.height > 60;
  return box.width && (one.matches("time") ? next && one.scrollWidth > next.left - box.left : box.height > 100);
}).map((one) => one.outerHTML.slice(0, 120))"""
HIDE = """(hidden) => {
  Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
SHIFT = """() => new Promise((done) => {
  let sum = 0;
  new PerformanceObserver((list) => { for (const e of list.getEntries()) if (!e.hadRecentInput) sum += e.value; })
    .observe({ type: "layout-shift", buffered: true });
  requestAnimationFrame(() => requestAnimationFrame(() => done(sum)));
})"""


@pytest.fixture
def shop(holdfast_kit: Any) -> Kit:
    kit: Kit = holdfast_kit(shop_app(), QUICK)
    with ThreadPoolExecutor(1) as thread:  # a loop of playwright's runs in this one
        thread.submit(make_trouble, kit).result()
    return kit


@pytest.fixture
def made(shop: Kit) -> Dashboard:
    return made_for(shop.app, title="shop")


@pytest.fixture
def base(made: Dashboard) -> Iterator[str]:
    with served(made) as address:
        yield address


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=PROGRAM, args=FLAGS)
        yield browser
        browser.close()


class Watched:
    """A page whose complaints are kept."""

    def __init__(self, browser: Browser, look: str = "light") -> None:
        self.context = browser.new_context(**LOOKS[look])
        self.context.set_default_timeout(within(10) * 1000)
        self.page: Page = self.context.new_page()
        self.complaints: list[str] = []
        self.page.on("console", lambda said: self._note(said.type, said.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", self._asked_by)
        self.page.on("requestfailed", lambda request: self._failed(request.url, request.failure))
        self.page.on("request", lambda request: self._asked(request.url))
        self.hosts: set[str] = set()

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(text)

    def _failed(self, url: str, why: str | None) -> None:
        if why != "net::ERR_ABORTED":  # a stream or a search ends with its page
            self.complaints.append(f"failed: {url}")

    def _asked_by(self, dialog: Dialog) -> None:
        self.complaints.append(f"dialog {dialog.message}")
        dialog.dismiss()

    def _asked(self, url: str) -> None:
        self.hosts.add(url.split("/")[2])


def _views_of_one(shop: Kit) -> Iterator[str]:
    """Pages of one thing each, and what is there for nobody."""
    operator = Operator(shop.database, "test")
    held = operator.list_jobs(JobFilter(queue="billing")).jobs[0].id
    yield f"jobs/{held}"
    yield f"jobs/{operator.list_dead().dead_letters[0].id}"
    yield f"jobs?peek={held}"
    yield f"dead?group={operator.group_dead().groups[0].id}"
    yield "dead?each=1"
    yield f"workflows/{operator.list_jobs(JobFilter(task='checkout')).jobs[0].id}"
    yield "events/subscriptions/shop.book"
    yield "keys/parcels?key=order%3A9182"
    yield "views"


@pytest.mark.parametrize("look", LOOKS)
def test_every_view_is_quiet_reachable_and_holds_still(
    chromium: Browser, base: str, shop: Kit, look: str
) -> None:
    watched = Watched(chromium, look)
    page = watched.page
    barriers: dict[str, list[str]] = {}
    for view in (*VIEWS, *_views_of_one(shop)):
        page.goto(f"{base}/{view}")
        page.wait_for_load_state("load")
        assert page.evaluate(SHIFT) < 0.02, f"{view} moves"
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{view} is {wide} px too wide"
        assert page.evaluate(SQUEEZED) == [], view
        hidden = page.locator("main .acts .btn").evaluate_all(
            "all => all.filter(one => one.getBoundingClientRect().right > innerWidth).map(one => one.textContent)"
        )
        assert hidden == [], f"{view} has acts that nobody sees"
        page.evaluate(AXE)
        found = page.evaluate("axe.run({ resultTypes: ['violations'] })")
        bad = [
            f"{v['id']}: {v['nodes'][0]['html'][:160]} {v['nodes'][0]['failureSummary'][:200]}"
            for v in found["violations"]
            if v["impact"] in ("serious", "critical")
        ]
        if bad:
            barriers[view] = bad
        if look == "phone":
            sizes = page.locator(".tabs-phone a").evaluate_all(
                "all => all.map(a => a.getBoundingClientRect().height)"
            )
            assert len(sizes) == 5
            assert min(sizes) >= 44, f"a thumb needs 44 px on {view}"
    assert barriers == {}
    assert watched.complaints == []
    assert watched.hosts == {base.removeprefix("http://")}  # nobody else is asked for anything
    watched.context.close()


def test_keys_and_the_finder(chromium: Browser, base: str, shop: Kit) -> None:
    watched = Watched(chromium)
    page = watched.page
    page.goto(base)
    page.keyboard.press("g")
    page.keyboard.press("j")
    page.wait_for_url("**/jobs")
    page.keyboard.press("?")
    expect(page.locator("dialog.keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("dialog.keys")).to_be_hidden()  # until then keys are the dialog's
    before = page.locator("html").get_attribute("data-theme")
    page.keyboard.press("t")
    assert page.locator("html").get_attribute("data-theme") != before
    page.reload()
    assert page.locator("html").get_attribute("data-theme") != before
    page.keyboard.press("Meta+k")
    page.keyboard.type("mail")
    expect(page.locator(".finder li").first).to_contain_text("mail")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("mail"))
    job = Operator(shop.database, "test").list_jobs(limit=1).jobs[0]
    page.keyboard.press("Control+k")
    page.keyboard.type(str(job.id))
    expect(page.locator(".finder li").first).to_contain_text(str(job.id))
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/jobs/{job.id}")
    page.goto(f"{base}/jobs?state=scheduled")
    page.keyboard.press("Control+k")
    page.keyboard.type("save later")
    expect(page.locator(".finder li").first).to_contain_text("Save this view as later")
    page.keyboard.press("Enter")
    page.wait_for_url("**/acts/view-save?*")
    page.get_by_role("button", name="Save view").click()
    expect(page.locator(".said")).to_contain_text("Saved for you: later.")
    page.wait_for_url("**/jobs?state=scheduled")
    page.goto(f"{base}/queues")
    page.keyboard.press("Control+k")
    page.keyboard.type("late")
    expect(page.locator(".finder li").first).to_contain_text("saved view")
    page.keyboard.press("Enter")
    page.wait_for_url("**/jobs?state=scheduled")
    page.goto(f"{base}/views")
    page.get_by_role("link", name="Delete…").click()
    page.get_by_role("button", name="Delete view").click()
    expect(page.locator("main")).to_contain_text("Nothing is saved.")
    page.goto(f"{base}/jobs?state=scheduled")
    for key in ("j", "j", "k", "x"):
        page.keyboard.press(key)
    assert page.locator("tr.cursor").get_attribute("data-id") == page.locator(
        "tr[data-row]"
    ).first.get_attribute("data-id")
    expect(page.locator("[data-selbar]")).to_be_visible()
    expect(page.locator("[data-count]")).to_have_text("1")
    for key, verb in (("r", "retried"), ("c", "cancelled")):  # they look, and do nothing
        page.keyboard.press(key)
        expect(page.locator("dialog[open]")).to_contain_text(f"1 job would be {verb}")
        page.keyboard.press("Escape")
        expect(page.locator("dialog[open]")).to_have_count(0)
    page.keyboard.press("?")
    page.locator("[data-keys-off]").check()
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    assert page.locator("tr.cursor").get_attribute("data-id") == page.locator(
        "tr[data-row]"
    ).first.get_attribute("data-id")
    page.evaluate("localStorage.setItem('holdfast-keys', 'on')")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/jobs/[0-9a-f-]{36}"))
    assert watched.complaints == []
    watched.context.close()


def test_a_browser_that_keeps_nothing_says_so(chromium: Browser, base: str) -> None:
    watched = Watched(chromium)
    page = watched.page
    page.add_init_script(
        "Storage.prototype.setItem = () => { throw new DOMException('', 'QuotaExceededError'); }"
    )
    page.goto(f"{base}/settings")
    page.locator("select[name=density]").select_option("compact")
    expect(page.locator(".toast")).to_have_text("This browser keeps nothing.")
    page.locator("select[name=density]").select_option("")
    expect(page.locator(".toast")).to_have_text("Kept in this browser.")
    assert watched.complaints == []
    watched.context.close()


def test_an_act_from_its_button_to_the_audit(chromium: Browser, base: str, shop: Kit) -> None:
    watched = Watched(chromium)
    page = watched.page
    page.goto(f"{base}/dead?task=mail.send_receipt")
    page.locator("a.grp").first.click()
    page.get_by_role("link", name="Redrive…").last.click()
    dialog = page.locator("dialog[open]")
    expect(dialog).to_contain_text("6 jobs would be put back to work")
    assert Operator(shop.database, "test").overview().dead_letters.count == 7
    dialog.locator("input[name=rate]").fill("10/s")
    dialog.get_by_role("button", name="Redrive").click()
    expect(page.locator(".said")).to_contain_text("6 jobs put back to work")
    page.goto(f"{base}/audit")
    expect(page.locator("tbody tr").first).to_contain_text("mara")
    expect(page.locator("tbody tr").first).to_contain_text("dead redrive")
    page.goto(f"{base}/queues")
    page.get_by_role("row", name=re.compile("mail")).get_by_role("button", name="Pause").click()
    expect(
        page.get_by_role("row", name=re.compile("mail")).get_by_role("button", name="Resume")
    ).to_be_visible()
    assert watched.complaints == []
    watched.context.close()


def test_numbers_change_in_place_and_a_selection_stays(chromium: Browser, base: str, shop: Kit) -> None:
    watched = Watched(chromium)
    page = watched.page
    page.goto(base)
    expect(page.locator("[data-live-state=live]")).to_be_visible()
    due = page.locator('[data-live="q.mail.due"]')
    height = page.evaluate("document.body.scrollHeight")
    page.evaluate("document.querySelector('details').open = true")
    for n in range(3):
        shop.app.send("mail.send_receipt", {"order_id": n, "to": "x"}, queue="mail")
    expect(due).to_have_text("3")
    assert page.evaluate("document.querySelector('details').open")
    page.evaluate("document.querySelector('details').open = false")
    assert page.evaluate("document.body.scrollHeight") == height
    assert watched.complaints == []
    watched.context.close()


def test_a_page_of_tables_is_live_and_holds_still(chromium: Browser, base: str, shop: Kit) -> None:
    watched = Watched(chromium)
    page = watched.page
    page.goto(f"{base}/queues")
    expect(page.locator("[data-live-state=live]")).to_be_visible()
    row = page.get_by_role("row", name=re.compile("^mail"))
    row.get_by_role("button", name="Pause").focus()
    for n in range(1, 4):
        shop.app.send("mail.send_receipt", {"order_id": n, "to": "x"}, queue="mail")
    expect(row.locator("td").nth(2)).to_have_text("3")
    expect(page.locator('[data-live="page.changed"]')).to_be_hidden()
    Operator(shop.database, "test").create_queue("letters")
    expect(page.locator('[data-live="page.changed"]')).to_have_text(re.compile("^1 changed since"))
    expect(page.get_by_role("row", name=re.compile("^letters"))).to_have_count(0)
    expect(row.get_by_role("button", name="Pause")).to_be_focused()
    assert page.evaluate(SHIFT) < 0.02
    page.evaluate(HIDE, True)
    expect(page.locator("html[data-live-now=live]")).to_have_count(1)
    Operator(shop.database, "test").create_queue("notes")
    page.evaluate(HIDE, False)
    expect(page.locator('[data-live="page.changed"]')).to_have_text(re.compile("^2 changed since"))
    page.locator('[data-live="page.changed"]').click()
    expect(page.get_by_role("row", name=re.compile("^letters"))).to_have_count(1)
    assert watched.complaints == []
    watched.context.close()


def test_a_page_notices_that_its_dashboard_was_restarted(chromium: Browser, shop: Kit) -> None:
    watched = Watched(chromium)
    page = watched.page
    with served(made_for(shop.app)) as before:
        page.goto(f"{before}/queues")
        expect(page.locator("[data-live-state=live]")).to_be_visible()
    expect(page.locator("[data-live-state=stale]")).to_be_visible()
    with served(made_for(shop.app), int(before.rpartition(":")[2])):
        expect(page.locator('[data-live="page.changed"]')).to_have_text("The dashboard was restarted, show")
        page.locator('[data-live="page.changed"]').click()
        expect(page.locator("[data-live-state=live]")).to_be_visible()
        expect(page.locator('[data-live="page.changed"]')).to_be_hidden()
    watched.context.close()


def test_a_hostile_payload_runs_nothing(chromium: Browser, base: str, shop: Kit) -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\u202e"
    job = shop.app.send("nobody.knows", {evil: evil, "password": "hunter2"}, tags=[evil], partition_key=evil)
    watched = Watched(chromium)
    page = watched.page
    for view in (f"jobs/{job.id}", "jobs", f"acts/jobs-cancel?ids={job.id}"):
        page.goto(f"{base}/{view}")
        assert page.locator("img").count() == 0
    page.goto(f"{base}/jobs/{job.id}")
    shown = page.locator("pre.code").first.inner_text()
    assert "<script>alert(1)</script>" in shown
    assert "\\u202e" in shown
    assert "hunter2" not in page.content()
    assert watched.complaints == []
    watched.context.close()


def test_the_switcher_in_a_browser(chromium: Browser, shop: Kit) -> None:
    away = Holdfast("postgresql://nobody@127.0.0.1:9/none")
    made = dashboard({"production": shop.app, "old": away}, lambda _: Identity("mara", "admin"))
    with served(made) as base:
        watched = Watched(chromium)
        page = watched.page
        page.goto(base)
        page.wait_for_url("**/d/production/")
        expect(page.locator('[data-live="db.old"]')).to_have_text("away")  # in place, without a reload
        page.goto(f"{base}/d/production/jobs?state=dead_letter")
        page.locator("[data-switch] summary").click()
        expect(page.locator("[data-switch] li")).to_have_count(2)
        page.evaluate(AXE)
        found = page.evaluate("axe.run({ resultTypes: ['violations'] })")
        assert [v["id"] for v in found["violations"] if v["impact"] in ("serious", "critical")] == []
        page.keyboard.press("Escape")
        expect(page.locator("[data-switch] li").first).to_be_hidden()
        assert watched.complaints == []
        page.locator("[data-switch] summary").click()
        page.get_by_role("link", name=re.compile("^old")).click()
        page.wait_for_url("**/d/old/jobs?state=dead_letter")
        expect(page.locator("main")).to_contain_text("The database is unreachable")
        page.locator("[data-switch] summary").click()
        page.get_by_role("link", name=re.compile("^production")).click()
        page.wait_for_url("**/d/production/jobs?state=dead_letter")
        watched.context.close()


def test_without_scripts_links_and_forms_do_the_same(chromium: Browser, base: str, shop: Kit) -> None:
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    job = Operator(shop.database, "test").list_dead().dead_letters[0]
    page.goto(f"{base}/jobs/{job.id}")
    page.get_by_role("link", name="Redrive…").click()
    page.get_by_role("button", name="Redrive").click()
    expect(page.locator(".said")).to_contain_text("1 job put back to work")
    assert Operator(shop.database, "test").find_job(job.id).job.state == "pending"
    context.close()


def test_the_first_load_is_small(chromium: Browser, base: str) -> None:
    watched = Watched(chromium)
    watched.page.goto(base)
    watched.page.wait_for_load_state("load")
    loaded = "['navigation', 'resource'].flatMap(kind => performance.getEntriesByType(kind)).map(e => e.encodedBodySize)"
    assert 10_000 < sum(watched.page.evaluate(loaded)) < 60_000
    watched.context.close()
