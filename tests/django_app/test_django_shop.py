"""examples/django-shop from its first migration to a redriven dead letter, in an environment with a wheel of Holdfast.

Each version of Django is run by an interpreter that can: 5.2 by this one, 6 by a Python 3.12 or newer. One that is missing
skips its case here, and is a failure in CI.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

ROOT = Path(__file__).resolve().parents[2]
SHOP = ROOT / "examples" / "django-shop"
pytestmark = [pytest.mark.slow]

VIEW = """
import django
django.setup()
from django.test import Client
for number, email in ((1, "ann@example.com"), (2, "nobody")):
    answer = Client().get(f"/orders/{number}/pay", {"email": email})
    assert answer.status_code == 200, answer.content
"""


def interpreter(least: tuple[int, int]) -> str | None:
    """A Python that is new enough: this one, one on the PATH, or one of pyenv's."""
    if sys.version_info >= least:
        return sys.executable
    names = [f"python3.{minor}" for minor in range(least[1], least[1] + 4)]
    found = [where for name in names if (where := shutil.which(name))]
    kept = sorted((Path.home() / ".pyenv" / "versions").glob("3.*/bin/python"))
    found += [str(p) for p in kept if int(p.parts[-3].split(".")[1]) >= least[1]]
    for python in found:
        if subprocess.run([python, "-c", "import venv, ensurepip"], capture_output=True).returncode == 0:
            return python
    return None


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
    ]
    subprocess.run([*command, str(ROOT)], check=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(
    params=[
        pytest.param(None, id="here"),
        pytest.param(("Django>=5.2,<6", (3, 11)), id="5.2", marks=pytest.mark.long),
        pytest.param(("Django>=6,<7", (3, 12)), id="6", marks=pytest.mark.long),
    ]
)
def python(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh environment with the wheel, this version of Django and nothing else of ours; or that of the tests."""
    if request.param is None:
        return sys.executable
    django, least = request.param
    wheel: Path = request.getfixturevalue("wheel")
    base = interpreter(least)
    if base is None:
        reason = f"{django} needs Python {least[0]}.{least[1]}, which is not on this machine"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    subprocess.run([base, "-m", "venv", str(tmp_path / "venv")], check=True)
    made = str(tmp_path / "venv" / "bin" / "python")
    install = [made, "-m", "pip", "install", "-q", "--disable-pip-version-check", str(wheel), django]
    done = subprocess.run(install, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return made


def test_the_shop_from_an_empty_database_to_a_redriven_dead_letter(
    python: str, holdfast_url: str, tmp_path: Path
) -> None:
    with psycopg.connect(holdfast_url) as conn:
        conn.execute("DROP SCHEMA holdfast CASCADE")
    place = shutil.copytree(SHOP, tmp_path / "shop", ignore=shutil.ignore_patterns("__pycache__"))
    at = conninfo_to_dict(holdfast_url)
    keep = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "DJANGO_SETTINGS_MODULE": "config.settings"}
    env = {**keep, **{f"PG{'DATABASE' if k == 'dbname' else k.upper()}": str(v) for k, v in at.items()}}

    def run(*words: str) -> str:
        done = subprocess.run(
            [python, *words], cwd=place, env=env, capture_output=True, text=True, timeout=250
        )
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    run("manage.py", "check")
    run("manage.py", "migrate", "-v", "0")
    run("manage.py", "makemigrations", "--check")
    run("-c", VIEW)
    run("manage.py", "holdfast", "worker", "--exit-when-idle")
    with psycopg.connect(holdfast_url, autocommit=True) as conn:
        assert conn.execute("SELECT sent_to FROM orders_receipt").fetchall() == [("ann@example.com",)]
        (letter,) = json.loads(
            run("manage.py", "holdfast", "jobs", "list", "--state", "dead_letter", "--json")
        )["jobs"]
        assert "order 2 has no address" in letter["last_error"]
        conn.execute("UPDATE orders_order SET email = 'bob@example.com' WHERE number = 2")
        run("manage.py", "holdfast", "dead", "redrive", letter["id"])
        run("manage.py", "holdfast", "worker", "--exit-when-idle")
        receipts = conn.execute("SELECT sent_to FROM orders_receipt ORDER BY id").fetchall()
    assert receipts == [("ann@example.com",), ("bob@example.com",)]


def test_the_tests_of_the_page_pass_in_djangos_runner(holdfast_url: str, tmp_path: Path) -> None:
    """docs/django.md has them for this shop."""
    text = (ROOT / "docs" / "django.md").read_text(encoding="utf-8")
    blocks = re.findall(r"<!-- skip: runs in Django's test runner -->\n```python\n(.*?)```", text, re.DOTALL)
    place = shutil.copytree(SHOP, tmp_path / "shop", ignore=shutil.ignore_patterns("__pycache__"))
    (place / "orders" / "tests.py").write_text("\n\n".join(blocks), encoding="utf-8")
    at = conninfo_to_dict(holdfast_url)
    env = {**os.environ, **{f"PG{'DATABASE' if k == 'dbname' else k.upper()}": str(v) for k, v in at.items()}}
    done = subprocess.run(
        [sys.executable, "manage.py", "test", "--noinput"],
        cwd=place,
        env={**env, "DJANGO_SETTINGS_MODULE": "config.settings"},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    assert f"Ran {sum(block.count('def test_') for block in blocks)} tests" in done.stderr
