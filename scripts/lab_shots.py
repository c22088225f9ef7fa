"""Pictures of the lab, while its scenes run: `make shots` writes docs/lab/*.png. Look at them. Needs Debian's chromium."""

import random
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from playwright.sync_api import Browser, Page, expect, sync_playwright  # noqa: E402
from tests.web.browser import FLAGS, PROGRAM  # noqa: E402
from tests.web.troubled import served  # noqa: E402

from holdfast.lab.hall import Hall  # noqa: E402
from holdfast.lab.place import open_place  # noqa: E402
from holdfast.lab.scenes import all_scenes  # noqa: E402
from holdfast.lab.site import LabApp, lab_app  # noqa: E402
from holdfast.web.identity import Identity, OneTimeUrl  # noqa: E402

IN_ALL_LOOKS = (3,)
PATIENCE = 120_000  # milliseconds


def main(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    login = OneTimeUrl(Identity("mara", "admin"))
    with open_place() as place, sync_playwright() as play:
        made = lab_app(Hall(place), login)
        browser = play.chromium.launch(executable_path=PROGRAM, args=FLAGS)
        with served(made) as base:  # type: ignore[arg-type]
            for scene in all_scenes():
                for look in ("light", "dark", "phone") if scene.number in IN_ALL_LOOKS else ("light",):
                    _shoot(browser, base, login, made, scene.number, look, folder)
            _shoot(browser, base, login, made, 3, "unsafe", folder)
        browser.close()
    return 0


def _shoot(
    browser: Browser, base: str, login: OneTimeUrl, made: LabApp, number: int, look: str, folder: Path
) -> None:
    context = browser.new_context(
        viewport={"width": 390 if look == "phone" else 1440, "height": 1040},
        color_scheme="dark" if look == "dark" else "light",
    )
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    page.goto(f"{base}/login?token={login.token}")
    page.locator(f"form[action='/scene/{number}/act'] button[value=enter]").first.click()
    expect(page.locator(f"[data-lab='{number}']")).to_be_visible(timeout=PATIENCE)
    if look == "unsafe":
        page.locator("[data-unsafe]").click()
        expect(page.locator("[data-unsafe]")).to_have_attribute("aria-pressed", "true", timeout=PATIENCE)
    _play(page, made, number)
    page.screenshot(path=str(folder / f"scene-{number}-{look}.png"))
    context.close()


def _play(page: Page, made: LabApp, number: int) -> None:
    """The first scene is shown in the middle of a step, the others when their script is done."""
    if number == 1:
        page.get_by_role("button", name="Pay an order").click()
        expect(page.locator("[data-jobs]")).to_contain_text("processing", timeout=PATIENCE)
    else:
        stage = made.site.hall.now(number)
        stage.play(random.Random(1))
    page.wait_for_timeout(1000)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "lab"))
