"""To sign in and out in a real browser, and to find jobs by what is in their payload."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect, sync_playwright
from tests.conftest import QUICK, within
from tests.web.browser import FLAGS, PROGRAM
from tests.web.test_browser import AXE, Watched
from tests.web.troubled import make_trouble, served, shop_app

from holdfast.testing import Kit
from holdfast.web.serve import Served, make
from holdfast.web.users import new_line

pytestmark = pytest.mark.slow
expect.set_options(timeout=within(10) * 1000)
PASSWORD = "correct horse battery"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=PROGRAM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def base(holdfast_kit: Any, tmp_path: Path) -> Iterator[str]:
    kit: Kit = holdfast_kit(shop_app(), QUICK)
    with ThreadPoolExecutor(1) as thread:  # a loop of playwright's runs in this one
        thread.submit(make_trouble, kit).result()
    file = tmp_path / "users"
    file.write_text(new_line("mara", "operator", PASSWORD))
    made, _ = make(kit.app, Served(users=str(file)))
    with served(made) as address:
        yield address


@pytest.mark.parametrize("look", ["light", "dark", "phone"])
def test_somebody_signs_in_finds_a_job_by_a_field_and_signs_out(
    chromium: Browser, base: str, look: str
) -> None:
    watched = Watched(chromium, look)
    page = watched.page
    page.goto(f"{base}/jobs?state=dead_letter")
    page.get_by_role("link", name="Sign in").click()
    page.evaluate(AXE)
    found = page.evaluate("axe.run({ resultTypes: ['violations'] })")
    assert [v["id"] for v in found["violations"] if v["impact"] in ("serious", "critical")] == []
    page.get_by_label("Name").fill("mara")
    page.get_by_label("Password").fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert").first).to_have_text("The name or the password is wrong.")
    page.get_by_label("Name").fill("mara")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(f"{base}/jobs?state=dead_letter")
    page.goto(f"{base}/jobs?task=reports.render")
    page.get_by_text("More filters").click()
    page.get_by_label("In the payload").fill("month=2026-05")
    page.get_by_role("button", name="Filter").click()
    expect(page).to_have_url(re.compile("field=month%3D2026-05"))
    expect(page.get_by_label("In the payload")).to_have_value("month=2026-05")
    expect(page.locator("tr[data-row]")).to_have_count(1)
    page.get_by_label("In the payload").fill("month=2026-06")
    page.get_by_role("button", name="Filter").click()
    expect(page.get_by_text("No job fits: task reports.render, field month=2026-06")).to_be_visible()
    page.goto(f"{base}/settings")
    page.get_by_role("button", name="Sign out").click()
    expect(page).to_have_url(f"{base}/login")
    page.goto(f"{base}/jobs")
    expect(page.get_by_role("link", name="Sign in")).to_be_visible()
    # A browser notes each 401 by itself; nothing else complains.
    assert [one for one in watched.complaints if "401" not in one] == []
    watched.context.close()
