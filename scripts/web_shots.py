"""Pictures of every view of the dashboard, of a shop in trouble: `make shots` writes docs/web/*.png. Look at them.

Needs Debian's chromium. The rows are real: a worker ran on them.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from playwright.sync_api import Browser, sync_playwright  # noqa: E402
from tests.conftest import wait_until  # noqa: E402
from tests.web.browser import FLAGS, PROGRAM  # noqa: E402
from tests.web.history import make_history  # noqa: E402
from tests.web.surfing import made_for  # noqa: E402
from tests.web.troubled import make_trouble, served, shop_app  # noqa: E402

from holdfast.db import migrate  # noqa: E402
from holdfast.db.embedded import EmbeddedOptions, EmbeddedServer  # noqa: E402
from holdfast.model.actor import Actor  # noqa: E402
from holdfast.operate.operator import Operator  # noqa: E402
from holdfast.store.search import JobFilter  # noqa: E402
from holdfast.testing import Kit  # noqa: E402

VIEWS = (
    "", "jobs", "queues", "queues/mail", "dead", "keys", "workers", "schedules", "limits", "workflows", "events",
    "projections", "webhooks", "doctor", "operations", "audit", "settings",
)  # fmt: skip
IN_ALL_LOOKS = ("overview", "jobs", "job", "dead-group")


def main(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    home = Path(tempfile.mkdtemp()) / "server"
    home.parent.chmod(0o755)
    server = EmbeddedServer.acquire(home, EmbeddedOptions(durable=True))
    try:
        server.ensure_database()
        migrate.up(server.dsn())
        kit = Kit(shop_app(), server.dsn())
        make_trouble(kit)
        make_history(kit)
        # Where this machine keeps its files is of no interest to anybody.
        kit.sql(
            f"UPDATE holdfast.errors SET trace = replace(trace, '{ROOT}/tests/web/troubled.py', '/srv/shop/tasks.py')"
        )
        mara = Operator(
            kit.database, Actor("mara", "web", address="10.0.0.7", reason="the carrier asked for it")
        )
        mara.pause_queue("parcels")
        mara.resume_queue("parcels")
        worker = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "holdfast",
                "worker",
                "tests.web.troubled:app",
                "-q",
                "parcels",
                "-q",
                "mail",
            ],
            env={**os.environ, "HOLDFAST_DATABASE_URL": server.dsn()},
            cwd=ROOT,
        )
        wait_until(Operator(kit.database, "shots").list_workers, "a worker is alive", 300)
        made = made_for(kit.app, title="shop-production")
        with served(made) as base, sync_playwright() as play:
            browser = play.chromium.launch(executable_path=PROGRAM, args=FLAGS)
            for name, path in _views(kit):
                _shoot(browser, base, name, path, folder)
            browser.close()
        worker.terminate()
        worker.wait(60)
        kit.close()
    finally:
        server.release()
    return 0


def _views(kit: Kit) -> Iterator[tuple[str, str]]:
    for path in VIEWS:
        yield (path or "overview").replace("/", "-"), path
    operator = Operator(kit.database, "shots")
    failed = operator.list_jobs(JobFilter(queue="billing")).jobs
    worst = max(failed, key=lambda job: job.attempts).id
    yield "job", f"jobs/{worst}"
    yield "peek", f"jobs?state=held&peek={worst}"
    yield "keys-parcels", "keys/parcels"
    group = operator.group_dead().groups[0]
    yield "dead-group", f"dead?group={group.id}"
    yield "redrive", f"acts/dead-redrive?group={group.id}&back=dead"
    run = operator.list_jobs(JobFilter(task="checkout")).jobs[0]
    yield "workflow", f"workflows/{run.id}"


def _shoot(browser: Browser, base: str, name: str, path: str, folder: Path) -> None:
    looks = (("light", 1440, 900), ("dark", 1440, 900), ("phone", 390, 844))
    for look, width, height in looks if name in IN_ALL_LOOKS else looks[:1]:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if look == "dark" else "light",
            device_scale_factor=1,
        )
        page = context.new_page()
        page.goto(f"{base}/{path}")
        page.wait_for_timeout(300)
        page.screenshot(path=str(folder / f"{name}-{look}.png"))
        context.close()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "web"))
