"""The lab in a real browser: every scene opens quietly, and a button changes the picture."""

from collections.abc import Iterator, Sequence

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from tests.conftest import within
from tests.web.browser import FLAGS, PROGRAM
from tests.web.test_browser import AXE, Watched
from tests.web.troubled import served

from holdfast.lab.hall import Hall
from holdfast.lab.place import LabHost
from holdfast.lab.scenes import all_scenes
from holdfast.lab.site import LabApp, lab_app
from holdfast.web.identity import Identity, OneTimeUrl

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    expect.set_options(
        timeout=within(10) * 1000
    )  # a scene that is opened makes a database and starts workers
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=PROGRAM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def made(place: LabHost) -> LabApp:
    return lab_app(Hall(place), OneTimeUrl(Identity("mara", "admin")))


@pytest.fixture(scope="module")
def base(made: LabApp) -> Iterator[str]:
    with served(made) as address:  # type: ignore[arg-type]
        yield address


def enter(chromium: Browser, base: str, made: LabApp, look: str = "light") -> Watched:
    watched = Watched(chromium, look)
    watched.context.set_default_timeout(within(20) * 1000)
    login = made.site.login
    assert login is not None
    watched.page.goto(f"{base}/login?token={login.token}")
    return watched


def open_scene(page: Page, base: str, number: int) -> None:
    """As a person does: by its tab."""
    page.goto(base)
    page.locator(f"form[action='/scene/{number}/act'] button[value=enter]").first.click()
    expect(page.locator(f"[data-lab='{number}']")).to_be_visible()


ALL = range(1, len(all_scenes()) + 1)


@pytest.mark.parametrize(
    ("look", "numbers"),
    [
        ("light", (1, 6)),
        ("dark", (3,)),
        ("phone", (11,)),
        *(pytest.param(look, ALL, marks=pytest.mark.long) for look in ("light", "dark", "phone")),
    ],
)
def test_a_scene_is_quiet_and_reachable(
    chromium: Browser, base: str, made: LabApp, look: str, numbers: Sequence[int]
) -> None:
    watched = enter(chromium, base, made, look)
    page = watched.page
    barriers: dict[int, list[str]] = {}
    for number in numbers:
        open_scene(page, base, number)
        expect(page.locator("[data-verdict]")).to_have_text("The promise holds")
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"scene {number} is {wide} px too wide"
        page.evaluate(AXE)
        found = page.evaluate("axe.run({ resultTypes: ['violations'] })")
        bad = [
            f"{v['id']}: {v['nodes'][0]['html'][:160]} {v['nodes'][0]['failureSummary'][:200]}"
            for v in found["violations"]
            if v["impact"] in ("serious", "critical")
        ]
        if bad:
            barriers[number] = bad
    assert barriers == {}
    assert watched.complaints == []
    assert watched.hosts == {base.removeprefix("http://")}
    watched.context.close()


def test_a_button_changes_the_picture_and_the_tape_winds_back(
    chromium: Browser, base: str, made: LabApp
) -> None:
    watched = enter(chromium, base, made)
    page = watched.page
    open_scene(page, base, 1)
    worker = page.locator("[data-pid-of]")
    expect(worker).to_have_count(1)
    expect(page.locator("[data-moments]")).to_contain_text("is in the registry")
    page.get_by_role("button", name="Pay an order").click()
    expect(worker.locator("[data-state]")).to_have_text("frozen")  # it has claimed, and stands still
    expect(page.locator("[data-jobs]")).to_contain_text("processing")
    expect(page.locator("[data-ran-name]")).to_contain_text("claim")
    expect(page.locator("[data-ran-text]")).to_contain_text("FOR NO KEY UPDATE SKIP LOCKED")
    expect(page.locator("[data-rows] .chg").first).to_be_visible()
    expect(page.locator("[data-wires] .own")).to_have_count(1)
    page.get_by_role("button", name="Step", exact=True).click()
    expect(page.locator("[data-ledger='3']")).to_contain_text("order 1")
    page.get_by_role("button", name="Step", exact=True).click()
    expect(page.locator("[data-ledger='1']")).to_contain_text("send_receipt")
    expect(page.locator("[data-jobs]")).to_contain_text("no rows")
    page.locator("[data-wind]").fill("0")  # the rows as they were at the beginning
    expect(page.locator("[data-ledger='3']")).to_contain_text("none yet")
    page.get_by_role("button", name="now").click()
    expect(page.locator("[data-ledger='3']")).to_contain_text("order 1")
    assert watched.complaints == []
    watched.context.close()


def test_the_unsafe_switch_shows_the_promise_broken(chromium: Browser, base: str, made: LabApp) -> None:
    watched = enter(chromium, base, made)
    page = watched.page
    open_scene(page, base, 1)
    expect(page.locator("[data-verdict]")).to_have_text("The promise holds")
    page.locator("[data-unsafe]").click()
    expect(page.locator("[data-unsafe]")).to_have_attribute("aria-pressed", "true")
    page.locator("[data-play]").click()
    expect(page.locator("[data-verdict]")).to_have_text("The promise is broken")
    page.locator("[data-unsafe]").click()
    expect(page.locator("[data-unsafe]")).to_have_attribute("aria-pressed", "false")
    assert watched.complaints == []
    watched.context.close()
