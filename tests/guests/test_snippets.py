"""The README's snippets, run for real: order and job commit together, roll back together, and a worker runs the job."""

import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlencode

import pytest
from scripts.docs import content, region
from tests.guests.conftest import orders, waiting
from tests.guests.kinds import parts

from holdfast.testing import Kit

ROOT = Path(__file__).resolve().parents[2]
SNIPPETS = ROOT / "examples" / "snippets"
NAMES = sorted(path.stem for path in SNIPPETS.glob("*.py") if path.stem != "__init__")


def url(kit: Kit) -> str:
    at = parts(kit.url)
    where = urlencode({"host": at["host"], "port": at["port"] or 5432})
    secret = f":{at['password']}" if at["password"] else ""
    return f"postgresql://{at['user']}{secret}@/{at['dbname']}?{where}"


def run(kit: Kit, *arguments: str, fails: str = "") -> str:
    """Run python with these arguments as a user of the snippets would; `fails` is in the error it ends with."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=ROOT,
        env={**os.environ, "HOLDFAST_DATABASE_URL": url(kit)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) is not bool(fails), done.stderr
    assert fails in done.stderr
    return done.stdout


# A worker of the snippet's own app, until nothing is due.
WORK = """
import asyncio

async def work(jobs):
    async with jobs:
        await jobs.run_worker(until_idle=True)
"""


def results(kit: Kit) -> list[str]:
    return [row["result"] for row in kit.jobs()]


def test_a_plain_script(kit: Kit) -> None:
    run(kit, "-m", "examples.snippets.script", "1", "2")
    assert (orders(kit), waiting(kit)) == ([1, 2], [1, 2])
    run(kit, "-m", "examples.snippets.script", "3", "4", "3", fails="UniqueViolation")
    assert (orders(kit), waiting(kit)) == ([1, 2], [1, 2])
    run(kit, "-c", WORK + "from examples.snippets.script import app\nasyncio.run(work(app))")
    assert results(kit) == ["receipt for order 1", "receipt for order 2"]


FLASK = f"""{WORK}
from examples.snippets.flask_shop import app, engine, jobs

client = app.test_client()
print(client.post("/orders/1/pay").text)
print(client.post("/orders/1/pay").status_code)
engine.dispose()
asyncio.run(work(jobs))
"""


def test_flask(kit: Kit) -> None:
    assert run(kit, "-c", FLASK).split() == ["paid", "500"]
    assert (orders(kit), waiting(kit)) == ([1], [1])
    assert results(kit) == ["receipt for order 1"]


FASTAPI = f"""{WORK}
import httpx
from examples.snippets.fastapi_shop import app, jobs

async def main():
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            for _ in range(2):
                print((await client.post("/orders/1/pay")).status_code)
        await work(jobs)

asyncio.run(main())
"""


def test_fastapi(kit: Kit) -> None:
    assert run(kit, "-c", FASTAPI).split() == ["200", "500"]
    assert (orders(kit), waiting(kit)) == ([1], [1])
    assert results(kit) == ["receipt for order 1"]


DJANGO = f"""{WORK}
from django.db import IntegrityError, transaction
from django.test import Client
from examples.snippets.django_shop import Order, connection, jobs

client = Client()
print(client.post("/orders/1/pay").content.decode())
try:
    with transaction.atomic():  # as ATOMIC_REQUESTS has it: the view's block is inside, and all of it rolls back
        print(client.post("/orders/2/pay").content.decode())
        Order.objects.create(id=1)
except IntegrityError:
    print("rolled back")
connection.close()
asyncio.run(work(jobs))
"""


def test_django(kit: Kit) -> None:
    assert run(kit, "-c", DJANGO).splitlines() == ["paid", "paid", "rolled back"]
    assert (orders(kit), waiting(kit)) == ([1], [1])
    assert results(kit) == ["receipt for order 1"]


@pytest.mark.parametrize("name", NAMES)
def test_what_the_readme_quotes_has_at_most_8_lines(name: str) -> None:
    lines = [line for line in quoted(name).splitlines() if line.strip()]
    assert 5 <= len(lines) <= 8, lines
    assert any(".using(conn=" in line for line in lines)


def quoted(name: str) -> str:
    return region((SNIPPETS / f"{name}.py").read_text(encoding="utf-8"), "snippet")


def test_a_region_is_quoted_without_its_marks() -> None:
    assert content("file", "examples/snippets/django_shop.py#snippet") == quoted("django_shop")
    assert quoted("django_shop").startswith("def pay(")
    assert quoted("django_shop").endswith('return HttpResponse("paid")\n')
    with pytest.raises(ValueError, match="nothing"):
        region("# snippet\nx = 1\n# end\n", "nothing")
