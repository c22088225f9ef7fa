"""The dashboard in a real browser, beside workers that work and producers that do not stop: nothing moves or is lost."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from tests.conftest import QUICK, wait_until, within
from tests.web.browser import FLAGS, PROGRAM
from tests.web.surfing import made_for
from tests.web.test_browser import Watched
from tests.web.troubled import make_trouble, served, shop_app

from holdfast.testing import Kit

pytestmark = pytest.mark.slow
# From when this runs on: shifts that nobody caused by a key or a click.
WATCH = """() => {
  window.moved = 0;
  new PerformanceObserver((list) => { for (const e of list.getEntries()) if (!e.hadRecentInput) window.moved += e.value; })
    .observe({ type: "layout-shift", buffered: false });
}"""
ROWS = "all => all.map(row => row.dataset.id)"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    expect.set_options(timeout=within(20) * 1000)
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=PROGRAM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def shop(holdfast_kit: Any) -> Kit:
    kit: Kit = holdfast_kit(shop_app(), QUICK)
    with ThreadPoolExecutor(1) as thread:  # a loop of playwright's runs in this one
        thread.submit(make_trouble, kit).result()
    return kit


@contextlib.contextmanager
def busy(kit: Kit) -> Iterator[None]:
    """A worker that works, and two threads that enqueue as fast as they can."""
    over = threading.Event()

    def produce(first: int) -> int:
        sent = 0
        while not over.is_set():
            kit.app.send("mail.send_receipt", {"order_id": first + sent, "to": "x@y.example"}, queue="mail")
            sent += 1
        return sent

    async def work() -> None:
        running = asyncio.ensure_future(kit.app.run_worker(queues=["mail", "parcels"]))
        await asyncio.to_thread(over.wait)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    with ThreadPoolExecutor(3) as threads:
        made: list[Future[Any]] = [threads.submit(produce, n) for n in (10**6, 2 * 10**6)]
        made.append(threads.submit(lambda: asyncio.run(work())))
        try:
            wait_until(
                lambda: kit.sql(
                    "SELECT FROM holdfast.workers WHERE status = 'alive' AND 'mail' = ANY (queues)"
                ),
                "a worker is there",
            )
            yield
        finally:
            over.set()
            for one in made:
                one.result(within(60))


def number(page: Page, name: str) -> str:
    return page.locator(f'[data-live="{name}"]').inner_text()


def test_under_load_numbers_change_and_nothing_moves(chromium: Browser, shop: Kit) -> None:
    with served(made_for(shop.app, title="shop")) as base, busy(shop):
        watched = Watched(chromium)
        page = watched.page
        page.goto(base)
        expect(page.locator("[data-live-state=live]")).to_be_visible()
        page.evaluate(WATCH)
        queues = "all => all.map(row => row.querySelector('b').textContent)"
        before = page.locator("tr[data-row]").evaluate_all(queues)
        was = number(page, "done")
        expect(page.locator('[data-live="done"]')).not_to_have_text(was)
        assert page.locator("tr[data-row]").evaluate_all(queues) == before  # the worst changes, the rows stay
        assert page.evaluate("window.moved") < 0.02
        assert watched.complaints == []
        watched.context.close()


def test_under_load_a_list_keeps_its_rows_its_selection_and_what_is_typed(
    chromium: Browser, shop: Kit
) -> None:
    with served(made_for(shop.app, title="shop")) as base, busy(shop):
        watched = Watched(chromium)
        page = watched.page
        page.goto(f"{base}/jobs?queue=mail")
        rows = page.locator("tr[data-row]")
        for key in ("j", "x", "j", "j", "Shift+X"):
            page.keyboard.press(key)
        expect(page.locator("[data-count]")).to_have_text("3")
        page.get_by_text("More filters").click()
        page.locator("input[name=tag]").fill("half-typ")
        ids = rows.evaluate_all(ROWS)
        page.evaluate(WATCH)
        expect(page.locator(".changed")).to_contain_text("changed since")
        assert rows.evaluate_all(ROWS) == ids
        expect(page.locator("[data-count]")).to_have_text("3")
        assert page.locator("input[name=tag]").input_value() == "half-typ"
        assert page.evaluate("document.activeElement.name") == "tag"
        page.locator("h1").click()  # no longer in the field
        page.keyboard.press("e")  # beside the list, which stays with its selection
        expect(page.locator("[data-peek]")).to_contain_text("mail.send_receipt")
        assert "peek=" in page.url
        assert rows.evaluate_all(ROWS) == ids
        expect(page.locator("[data-count]")).to_have_text("3")
        page.keyboard.press("Escape")
        expect(page.locator("[data-peek]")).to_have_count(0)
        assert "peek=" not in page.url
        assert page.evaluate("window.moved") < 0.02
        with page.expect_navigation():  # who wants to see them gets them
            page.locator(".changed").click()
        assert rows.evaluate_all(ROWS) != ids
        assert watched.complaints == []
        watched.context.close()
